"""Is prefix caching worth turning on for this traffic?"""

from headstart.lab.verdict.judge import SECONDS_PER_TOKEN, Verdict, judge
from headstart.lab.verdict.variables import Limits, Variable, Word

__all__ = ["SECONDS_PER_TOKEN", "Limits", "Variable", "Verdict", "Word", "judge"]
