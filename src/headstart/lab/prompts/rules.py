"""The rules that ``headstart lint`` knows: what each is about, and an example of each side."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill

from headstart.lab.prompts.problem import Severity

_WIDTH = 88
_I, _W, _E = Severity.INFO, Severity.WARNING, Severity.ERROR


@dataclass(frozen=True, slots=True)
class Rule:
    """``severity`` is the worst that it is reported with.  ``bad`` and ``good`` show a prompt in short."""

    id: str
    title: str
    severity: Severity
    why: str
    fix: str
    bad: str
    good: str

    def documentation(self) -> str:
        """As ``--explain`` prints it."""
        why, fix = fill(self.why, _WIDTH), fill(f"Fix: {self.fix}", _WIDTH)
        head = f"{self.id}: {self.title} ({self.severity})"
        return f"{head}\n\n{why}\n\n{fix}\n\nBad:   {self.bad}\nGood:  {self.good}\n"


_VARIES = (
    "A prefix cache finds a prompt's beginning up to the first token that differs.  Whatever stands behind "
    "something that changes from request to request is computed each time, however equal it is."
)
_BEHIND = "Move it to the end of the last user message, behind everything that requests share; or drop it."
_ORDER = (
    "The same set in another order is another text, and another prompt.  Dictionaries, sets and lists that "
    "come from registries change their order with a restart, a library or a language."
)
_DRIFT = (
    "Nobody sees it, so nobody notices when one writer has it and another has not: an editor trims it, a "
    "checkout converts it, a second service never had it.  Then prompts that look alike share nothing from "
    "there on."
)

_ALL = (
    Rule(
        "HS001",
        "a date or time in front of stable text",
        _W,
        f"{_VARIES}  A clock with seconds makes every prompt new; a date makes all of them new at midnight.  "
        "Where only a date-like text is found, which may be a constant, it is an info.",
        _BEHIND + "  Where the model must know the day, a date without the time, at the end, is enough.",
        "system: Now: 2026-12-01 12:20:52. You are the assistant of …",
        "system: You are the assistant of …   user: … (it is 2026-12-01)",
    ),
    Rule(
        "HS002",
        "a UUID in front of stable text",
        _W,
        _VARIES,
        _BEHIND + "  Ids for your logs belong in a header or the body's metadata, not in the prompt.",
        "system: Trace 9f1c2d3e-4b5a-4678-9abc-def012345678. You are …",
        'system: You are …   (and "metadata": {"trace": "9f1c…"})',
    ),
    Rule(
        "HS003",
        "an id of a request, session or trace in front of stable text",
        _W,
        _VARIES,
        _BEHIND + "  Ids for your logs belong in a header or the body's metadata, not in the prompt.",
        "system: request_id=req_8f3k2j1h9x You are …",
        "system: You are …",
    ),
    Rule(
        "HS004",
        "a counter in front of stable text",
        _W,
        f"{_VARIES}  A turn's number or the tokens that are left change with each turn of one "
        "conversation, so not even its own history is shared.",
        _BEHIND,
        "system: Turn 4 of 10. You are …",
        "system: You are …   user: … (turn 4 of 10)",
    ),
    Rule(
        "HS005",
        "a user's name, address or id in front of stable text",
        _W,
        f"{_VARIES}  Each user pays for the instructions once again, and the cache holds a copy for each.  "
        "Several fields of one user may stay together, but behind what all users share.",
        "Put it at the end of the system prompt, or in the first user message.",
        "system: You are talking to Ada Lovelace. <1,000 tokens of instructions>",
        "system: <1,000 tokens of instructions> You are talking to Ada Lovelace.",
    ),
    Rule(
        "HS006",
        "something generated, or filled in, in front of stable text",
        _W,
        f"{_VARIES}  This rule is for what has no other name: random strings, addresses of machines, what "
        "a user asks, and placeholders whose names do not tell what they become (those are an info).",
        _BEHIND,
        "Question: {question} <instructions>",
        "<instructions> Question: {question}",
    ),
    Rule(
        "HS101",
        "tools in no fixed order",
        _W,
        f"{_ORDER}  In one body it is an info: their order may be fixed by other means.  In a file of "
        "bodies it is a warning, for there the same tools were seen in two orders.",
        "Sort the tools by name before they are sent.",
        "tools: [search, add, list]",
        "tools: [add, list, search]",
    ),
    Rule(
        "HS102",
        "keys in different orders",
        _W,
        f"{_ORDER}  Chat templates write a tool with the keys in the order in which it was sent.",
        "Serialise with sorted keys, or always through the same class.",
        '{"name": …, "description": …} and {"description": …, "name": …}',
        '{"description": …, "name": …} in both',
    ),
    Rule(
        "HS103",
        "JSON in the text, in a form that another writer would not write",
        _I,
        _ORDER + "  The same goes for blanks behind commas and colons.",
        "json.dumps(value, sort_keys=True, ensure_ascii=False), in one place.",
        'Settings: {"zone":1, "area":2}',
        'Settings: {"area": 2, "zone": 1}',
    ),
    Rule(
        "HS104",
        "a template loops over a mapping in whatever order it has",
        _I,
        _ORDER,
        "{% for name, value in facts | dictsort %}",
        "{% for name, value in facts.items() %}",
        "{% for name, value in facts | dictsort %}",
    ),
    Rule(
        "HS201",
        "blanks at ends of lines, or doubled",
        _I,
        _DRIFT,
        "Strip them once, where the text is made.",
        "'You are helpful.  \\n'",
        "'You are helpful.\\n'",
    ),
    Rule(
        "HS202",
        "line ends of Windows, or of two kinds",
        _W,
        f"{_DRIFT}  Two kinds in one text are a warning: it is put together from files that disagree.",
        "text.replace('\\r\\n', '\\n')",
        "'Be kind.\\r\\nBe short.\\n'",
        "'Be kind.\\nBe short.\\n'",
    ),
    Rule(
        "HS203",
        "characters that nobody sees",
        _W,
        f"{_DRIFT}  Blanks without width come from web pages and editors, a byte order mark from files.",
        "Remove them.",
        "'You are\\u200b helpful.'",
        "'You are helpful.'",
    ),
    Rule(
        "HS204",
        "letters that are not in Unicode's form NFC",
        _W,
        f"{_DRIFT}  An é can be one character or two, by the system that a file name came from.",
        "unicodedata.normalize('NFC', text)",
        "'Cafe\\u0301'",
        "'Caf\\u00e9'",
    ),
    Rule(
        "HS301",
        "examples behind something that varies",
        _W,
        "Few-shot examples are the longest stable text that most prompts have.  " + _VARIES,
        "Instructions, then examples, then what varies.",
        "Today is {date}. Examples: …",
        "Examples: … Today is {date}.",
    ),
    Rule(
        "HS302",
        "documents in front of instructions",
        _W,
        "What is retrieved differs with each question, the instructions do not: behind the documents they "
        "are never shared.  In a body this is guessed from headings, and an info.",
        "Instructions, then documents in an order that does not hang on the question, then the question.",
        "Context: {documents} Answer only from the context …",
        "Answer only from the context … Context: {documents}",
    ),
    Rule(
        "HS303",
        "encoded data in front of text",
        _W,
        "An image or a file is new in most requests, and long.  Text behind it is computed each time.",
        "Text that requests have in common first.  For many questions about one image it is right the "
        "other way round.",
        "user: <image> <1,000 tokens of instructions>",
        "system: <1,000 tokens of instructions>   user: <image> What is it?",
    ),
    Rule(
        "HS304",
        "a shared beginning shorter than a block",
        _W,
        "Engines share whole blocks (16 tokens in vLLM, see --block-size); providers begin at 1,024 "
        "tokens.  What is shorter is never a hit.",
        "Move what varies back, or make blocks smaller.",
        "system: 12:20:52. You are …",
        "system: You are … <more than a block>",
    ),
    Rule(
        "HS401",
        "a cache_salt made for one request",
        _E,
        "Requests with different salts share nothing, on purpose.  One body whose salt looks random is a "
        "warning (it may be a tenant's); a file whose bodies all have another one is an error.",
        "One salt for each tenant whose prompts must not be told to others, or none.",
        '"cache_salt": str(uuid4())',
        '"cache_salt": "tenant-7"',
    ),
    Rule(
        "HS402",
        "no prompt_cache_key",
        _I,
        "With it requests that begin alike reach the same machine of a provider, or of a router that heeds "
        "it.  Said only where 1,024 tokens or more can be shared.",
        "Set prompt_cache_key to the name and version of the prompt.",
        '{"messages": […]}',
        '{"messages": […], "prompt_cache_key": "support-v3"}',
    ),
    Rule(
        "HS403",
        "a prompt_cache_key made for one request",
        _W,
        "Requests with different keys may be sent to different machines, each with a cache of its own.  A "
        "conversation's id is fine where the conversation is what is shared (an info).",
        "One key for each prompt, or for each prompt and user.",
        '"prompt_cache_key": str(uuid4())',
        '"prompt_cache_key": "support-v3"',
    ),
    Rule(
        "HS404",
        "log-probabilities of the prompt",
        _W,
        "They have to be computed, so engines do not look into the cache for such a request.",
        "Leave prompt_logprobs (or echo with logprobs) out where nobody reads them.",
        '"prompt_logprobs": 1',
        '"logprobs": true',
    ),
    Rule(
        "HS501",
        "a chat template writes the date",
        _W,
        "Everything behind the line is new each time it changes: mostly the system prompt and the tools, "
        "for all users at once.  Found by rendering the template at two times.",
        "Pass a fixed date in chat_template_kwargs, or use a copy of the template without the line.",
        "{{ 'Today: ' + strftime_now('%d %b %Y') }}{{ messages[0].content }}",
        "{{ messages[0].content }}",
    ),
    Rule(
        "HS502",
        "a switch for thinking changes the prompt's head",
        _W,
        "Requests with the switch on and off share nothing behind it.  Found by rendering the template "
        "both ways.",
        "The same setting for all requests with one system prompt, or a switch in the generation prompt.",
        "{% if enable_thinking %}/think{% endif %}{{ messages[0].content }}",
        "… {% if not enable_thinking %}<think></think>{% endif %} at the end",
    ),
    Rule(
        "HS503",
        "reasoning of earlier turns is dropped",
        _I,
        "The cache holds the last answer as it was generated, with its reasoning; the next turn's prompt "
        "has it without; so it is with an empty thought that the generation prompt opens.  Then each turn "
        "computes the last answer again.  Models are trained so: mostly it is to be known, not changed.",
        "A switch of the template that keeps it, where the model allows that.",
        "{{ content.split('</think>')[-1] }}",
        "{{ content }}",
    ),
    Rule(
        "HS504",
        "an earlier turn is rendered otherwise later on",
        _W,
        "A conversation should only grow at its end.  Where a template puts the tools or a reminder into "
        "the last message, the turns before change with each new one.  Found by rendering one more turn.",
        "Render each message by itself, and tools with the system prompt.",
        "{% if loop.last %}{{ tools | tojson }}{% endif %}{{ message.content }}",
        "{{ tools | tojson }} in front of the messages",
    ),
)
RULES = {rule.id: rule for rule in _ALL}
"""By id, in order."""


def rules_table() -> str:
    """The rules in Markdown, as docs/lint.md has them."""
    lines = ["| rule | severity | what | fix |", "|---|---|---|---|"]
    for rule in RULES.values():
        fix = rule.fix.replace("|", "\\|")
        lines.append(f"| {rule.id} | {rule.severity} | {rule.title} | {fix} |")
    return "\n".join(lines) + "\n"
