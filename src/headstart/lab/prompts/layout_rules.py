"""What stands in front of what: examples, documents, images, and a beginning too short to share."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headstart.lab.prompts.body import Body, Part, Section
from headstart.lab.prompts.problem import Severity, Sharing, Spot
from headstart.lab.prompts.variable_rules import ENOUGH

EXAMPLES = re.compile(
    r"""^[ \t]*(?:[#]+[ ]*|\*\*|<)?(?:few-?shot[ ])?examples?\b[^\n]{0,40}$
      | ^(?:input|question|q|user)[ ]*:[^\n]*\n(?:[^\n]*\n){0,3}?(?:output|answer|a|assistant)[ ]*:""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
DOCUMENTS = re.compile(
    r"""<(?:document|context|passage|source|search_result)s?\b[^>]*>
      | ^[ \t]*(?:[#]+[ ]*|\*\*)?(?:retrieved[ ]|search[ ])?
        (?:context|documents?|passages?|sources?|excerpts?|results)(?:[ ]?[#]?\d+)?[ ]*(?:\*\*)?:
      | ^\[(?:doc[ ]?)?1\][ ]""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
INSTRUCTIONS = re.compile(
    r"""^[ \t]*(?:[#]+[ ]*|\*\*)?(?:
        (?:instructions?|rules|guidelines|task)\b[ ]*(?:\*\*)?:
      | (?:you[ ](?:are|must|should)|answer|use[ ](?:only[ ])?the|based[ ]on|do[ ]not|never|always|respond)\b
    )""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_INLINE_DATA = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,|(?<![A-Za-z0-9+/=])[A-Za-z0-9+/]{400,}={0,2}")


def examples_behind_variables(body: Body, sharing: Sharing) -> Iterator[Spot]:
    """Few-shot examples that something variable stands in front of."""
    if sharing.first_variable is None:
        return
    for part in _shareable(body):
        match = EXAMPLES.search(part.text)
        if match is None or part.start is None:
            continue
        position = body.ruler.before(part.start + match.start())
        if position > sharing.first_variable:
            yield Spot(
                "HS301",
                Severity.WARNING,
                part.where,
                match.start(),
                "examples behind something that varies: they are the same each time, and never shared",
                "put instructions and examples first, and what varies behind them",
                match[0].strip()[:60],
                max(0, body.ruler.before(body.stable_end) - position),
                position,
            )
            return


def documents_before_instructions(body: Body) -> Iterator[Spot]:
    """Retrieved documents, which differ, in front of instructions, which do not."""
    for part in body.parts:
        if part.section is Section.HISTORY or part.role == "tools":
            continue
        document = DOCUMENTS.search(part.text)
        rule = INSTRUCTIONS.search(part.text, document.end() + 100) if document is not None else None
        if document is None or rule is None or len(part.text) - rule.start() < 40 or part.start is None:
            continue
        begin, end = part.start + rule.start(), part.start + len(part.text)
        yield Spot(
            "HS302",
            Severity.INFO,
            part.where,
            document.start(),
            "what looks like retrieved documents stands in front of instructions",
            "put the instructions first, then the documents in an order that does not depend on the "
            "question (by id, say), then the question",
            document[0].strip()[:60],
            body.ruler.before(end) - body.ruler.before(begin),
            body.ruler.before(part.start + document.start()),
        )


def data_before_text(body: Body) -> Iterator[Spot]:
    """Images and encoded files with text behind them that has nothing to do with them."""
    for index, part in enumerate(body.parts):
        if part.start is None or part.section is Section.HISTORY:
            continue
        match = None if part.is_media else _INLINE_DATA.search(part.text)
        if not part.is_media and match is None:
            continue
        offset, end = (match.start(), match.end()) if match is not None else (0, 0)
        own = len(part.text[end:].strip(_DATA))
        behind = own + sum(len(later.text) for later in body.parts[index + 1 :] if later.role != "assistant")
        if behind >= ENOUGH:
            position = body.ruler.before(part.start + offset)
            yield Spot(
                "HS303",
                Severity.INFO if part.is_media else Severity.WARNING,
                part.where,
                offset,
                f"{'an image or file' if part.is_media else 'encoded data'} in front of much text",
                "put the text that requests have in common first, and the data behind it",
                None,
                max(0, body.ruler.total - body.ruler.before(part.start + max(end, offset))),
                position,
            )


_DATA = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


def short_prefix(body: Body, sharing: Sharing, block_size: int) -> Iterator[Spot]:
    """A beginning that can be shared and does not fill a block."""
    head = [part for part in body.parts if part.section is Section.HEAD or body.is_single]
    worth = sharing.num_total >= 2 * block_size
    # Without a tokenizer this can be said for sure only where there are fewer characters than a block has tokens.
    if head and worth and sharing.num_now < block_size:
        unit = body.ruler.unit
        can = sharing.num_after >= block_size and unit == "tokens"
        yield Spot(
            "HS304",
            Severity.WARNING,
            head[0].where,
            0,
            f"{sharing.num_now} {unit} can be shared, and a block has {block_size} tokens: "
            "a cache of whole blocks never hits",
            "move what varies behind the first block's worth of text"
            if can
            else f"make the shared beginning longer than {block_size} tokens, or the blocks smaller",
            None,
            sharing.num_after - sharing.num_now,
            sharing.num_now,
        )


def _shareable(body: Body) -> Iterator[Part]:
    return (part for part in body.parts if part.section is Section.HEAD or body.is_single)
