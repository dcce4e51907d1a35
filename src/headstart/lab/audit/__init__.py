"""A checklist against a live server: does its prefix cache do what its operator believes?

Read in this order: `line` says what a check finds, `target` speaks to the server; `template`, `cache` and
`room` are the checks, and `audit` runs them.
"""

from headstart.lab.audit.audit import Audit, audit
from headstart.lab.audit.line import Line, Word
from headstart.lab.audit.target import AuditError, Target

__all__ = ["Audit", "AuditError", "Line", "Target", "Word", "audit"]
