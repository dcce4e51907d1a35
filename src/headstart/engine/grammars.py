"""Structured outputs through llguidance: from schemas and grammars to masks over token ids.  No torch.

llguidance walks the tokenizer's tokens as a tree of bytes.  It is told those bytes by our own tokenizer, so
that what is matched is the text that the client will be shown; special tokens are no text and match nothing
but their names in a grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from math import lcm
from threading import Lock
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from headstart.engine.structured import StructuredOutputs
from headstart.errors import EngineError
from headstart.text import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_MULTIPLE = 10_000
"""The largest ``multipleOf`` of a schema: one state is needed for each remainder, times some.

Where a number may have to be a multiple of several, one for each of their least common multiple's.
"""
WHITESPACE = r"[ \n\r\t]{1,32}"
"""Between the parts of JSON, where a schema's user says nothing else."""

# So that no grammar takes more than some tens of milliseconds for a mask, or some tens of megabytes.
_LIMITS = LLParserLimits(
    step_lexer_fuel=100_000,
    step_max_items=10_000,
    max_lexer_states=20_000,
    verbose_errors=False,  # which would put what the user sent into sentences
)
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_MULTIPLE = re.compile(r'"multipleOf"\s*:\s*(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)')
_COMBINING = re.compile(r'"(?:allOf|anyOf|oneOf|patternProperties|\$ref|\$dynamicRef)"')
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_LONGEST_COMPLAINT = 300


class Grammars:
    """Compiles structured outputs for one model.

    ``load`` brings its tokenizer, ``vocab_size`` is that of its logits; ids that have no token are never
    allowed.  Both are asked for with the first grammar.
    """

    def __init__(self, load: Callable[[], Tokenizer], vocab_size: int) -> None:
        self._load = load
        self._vocab_size = vocab_size
        self._lock = Lock()

    def matcher(self, wanted: StructuredOutputs, stop_token_ids: Collection[int]) -> GrammarMatcher:
        """A matcher at the beginning of an output that one of these ids may end.

        Raises ``RequestError`` for what cannot be compiled, is too large or matches no text at all.  May take
        some hundred milliseconds, during most of which other threads run.
        """
        with self._lock:
            tokens, ends = self._tokens
        if not ends:
            raise wanted.error("cannot be had of this model: its files name no token that ends an answer")
        compiled = LLMatcher(tokens, _grammar(wanted), log_level=0, limits=_LIMITS)
        if compiled.is_error():
            raise wanted.error(f"cannot be compiled: {_sentence(compiled.get_error(), wanted)}")
        matcher = GrammarMatcher(compiled, ends, frozenset(stop_token_ids))
        try:
            bits = matcher.allowed(may_end=True)
        except EngineError as error:
            raise wanted.error(f"cannot be matched by any text: {error}") from error
        # Some grammars are too large only from their first token on.
        begun = matcher.copy()
        begun.accept(_first_token(bits))
        if begun.error is not None:
            raise wanted.error(f"cannot be used: {begun.error}")
        return matcher

    @cached_property
    def _tokens(self) -> tuple[LLTokenizer, frozenset[int]]:
        tokenizer = self._load()
        ends = frozenset(end for end in tokenizer.eos_token_ids if end < self._vocab_size)
        ids = sorted(ends) or [0]  # llguidance needs one; without any, no matcher is made
        source = TokenizerWrapper(_Vocabulary(tokenizer, self._vocab_size, ids[0]))
        return LLTokenizer(source, eos_token=ids), ends


class GrammarMatcher:
    """A `TokenMatcher`: llguidance's, and when an output may end.

    It may end where the text so far is complete: with one of ``stops``, which are the request's, or, when it
    has none or nothing else can follow, of ``ends``, which are the model's.
    """

    def __init__(self, matcher: LLMatcher, ends: frozenset[int], stops: frozenset[int]) -> None:
        self._matcher = matcher
        self._ends = ends
        self._stops = stops
        self.error: str | None = None
        self.has_ended = False

    def copy(self) -> GrammarMatcher:
        """One that has come as far, for another request."""
        copy = GrammarMatcher(self._matcher.deep_copy(), self._ends, self._stops)
        copy.error, copy.has_ended = self.error, self.has_ended
        return copy

    def accept(self, token: int) -> None:
        """Take in a generated token.  Where that was not allowed, or fails, ``error`` says so."""
        if token in self._ends | self._stops and self._matcher.is_accepting():
            self.has_ended = True
        elif not self._matcher.consume_token(token):
            self.error = f"the output broke its grammar: {_first_line(self._matcher.get_error())}"

    def allowed(self, *, may_end: bool) -> bytes:
        """Which tokens may come next, as `TokenMatcher.allowed` says."""
        bits = bytearray(self._matcher.compute_bitmask())
        complete = self._matcher.is_accepting()
        if self._matcher.is_stopped() and not complete:
            why = _first_line(self._matcher.get_error())
            if not why or why.startswith("NoExtension"):
                why = "there is a place in it that no token leads out of"
            raise EngineError(f"the output cannot go on in its grammar: {why}")
        full = bytes(bits)
        _clear(bits, self._stops)
        if complete:
            _clear(bits, self._ends)
        goes_on = bits.count(0) < len(bits)
        if may_end or not goes_on:
            if not complete:
                return full
            _set(bits, self._stops if goes_on else self._stops | self._ends)
        return bytes(bits)


class _Vocabulary:
    """What llguidance wants to know of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self._tokenizer = tokenizer
        spelled = [tokenizer.token(token) for token in range(vocab_size)]
        self.tokens = [
            b"" if token is None else tokenizer.token_bytes(token, first=False) for token in spelled
        ]
        self.special_token_ids = [token for token in range(vocab_size) if tokenizer.is_special(token)]

    def __call__(self, text: str | bytes) -> list[int]:
        whole = text if isinstance(text, str) else text.decode(errors="replace")
        return self._tokenizer.encode(whole, add_special_tokens=False)


def _grammar(wanted: StructuredOutputs) -> str:
    """What llguidance compiles.  Raises ``RequestError`` for what it should not even try."""
    if wanted.regex is not None:
        return LLMatcher.grammar_from_regex(wanted.regex)
    if wanted.choice is not None:
        return LLMatcher.grammar_from_regex("|".join(map(_literally, wanted.choice)))
    if wanted.grammar is not None:
        _check_multiples(wanted, _ESCAPE.sub(lambda code: chr(int(code[1], 16)), wanted.grammar))
        return LLMatcher.grammar_from_lark(_lark(wanted, wanted.grammar))
    schema = '{"type": "object"}' if wanted.json is None else _schema(wanted, wanted.json)
    options: JsonCompileOptions = {"coerce_one_of": True, "lenient": wanted.lenient}
    if wanted.disable_any_whitespace:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = wanted.whitespace_pattern or WHITESPACE
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=options)
    except ValueError as error:
        raise wanted.error(f"cannot be compiled: {_first_line(str(error))}") from error


def _schema(wanted: StructuredOutputs, text: str) -> str:
    """The schema, written so that nothing in it can hide behind an escape."""
    try:
        schema = json.loads(text)
        plain = json.dumps(schema, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise wanted.error(f"has a schema that is not JSON: {error}") from error
    if schema is True:
        return "{}"  # says the same, and can take options
    if not isinstance(schema, dict):
        raise wanted.error("has a schema that is not a JSON object, nor true")
    _check_multiples(wanted, plain)
    return plain


def _check_multiples(wanted: StructuredOutputs, text: str) -> None:
    least = 1 / MAX_MULTIPLE
    numbers = dict.fromkeys(_MULTIPLE.findall(text))
    for number in numbers:
        if not least <= float(number) <= MAX_MULTIPLE:
            raise wanted.error(f"has multipleOf {number[:20]}; it may be between {least} and {MAX_MULTIPLE}")
    if _COMBINING.search(text) is None:
        return
    # Which of them meet in one number is not worked out: any two of a schema that combines schemas may.
    exact = [Fraction(Decimal(number)) for number in numbers]
    whole = lcm(*(one.denominator for one in exact))
    common = Fraction(lcm(*(int(one * whole) for one in exact)), whole)
    if len(exact) > 1 and common.numerator > MAX_MULTIPLE:
        raise wanted.error(
            "has several multipleOf, and schemas that can be combined; then their least common multiple may "
            f"be at most {MAX_MULTIPLE}, without its decimal point"
        )


def _lark(wanted: StructuredOutputs, grammar: str) -> str:
    if not _GBNF_RULE.search(grammar):
        return grammar
    try:
        return gbnf_to_lark(grammar)
    except Exception as error:  # whatever its parser stumbles over
        raise wanted.error(
            f"has a grammar in GBNF that cannot be read: {str(error)[:_LONGEST_COMPLAINT]}"
        ) from error


def _literally(text: str) -> str:
    """A regular expression for just this text."""
    return "".join(
        letter if letter.isalnum() and letter.isascii() else f"\\x{{{ord(letter):x}}}" for letter in text
    )


def _first_line(complaint: str) -> str:
    return complaint.partition("\n")[0][:_LONGEST_COMPLAINT]


def _sentence(complaint: str, wanted: StructuredOutputs) -> str:
    """What llguidance said, without its drawings; places are told only in what the user wrote."""
    lines = (line for line in complaint.splitlines() if line and not line.startswith((" ", "<non-verbose")))
    text = " ".join(lines)
    if wanted.grammar is None:
        text = re.sub(r"^at \d+\(\d+\): ", "", text)
    return text[:_LONGEST_COMPLAINT].strip()


def _first_token(bits: bytes) -> int:
    """The lowest of the tokens that are allowed, of which there is one."""
    place = next(place for place, byte in enumerate(bits) if byte)
    return 8 * place + (bits[place] & -bits[place]).bit_length() - 1


def _clear(bits: bytearray, tokens: Iterable[int]) -> None:
    for token in tokens:
        if token >> 3 < len(bits):
            bits[token >> 3] &= ~(1 << (token & 7))


def _set(bits: bytearray, tokens: Iterable[int]) -> None:
    for token in tokens:
        if token >> 3 < len(bits):
            bits[token >> 3] |= 1 << (token & 7)
