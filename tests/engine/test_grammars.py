"""From schemas and grammars to masks, token by token, over the tiny tokenizer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import regex as newest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart import StructuredOutputs
from headstart.engine.grammars import GrammarMatcher, Grammars
from headstart.errors import EngineError, RequestError
from headstart.text import Tokenizer

VOCAB_SIZE = 520  # the tiny tokenizer has 512: eight ids have no token, as in a padded embedding
EOS = 2


@pytest.fixture(scope="module")
def tokenizer(tiny_llama_dir: Path) -> Tokenizer:
    return Tokenizer.from_directory(tiny_llama_dir)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(lambda: tokenizer, VOCAB_SIZE)


def allowed(matcher: GrammarMatcher, *, may_end: bool = True) -> set[int]:
    bits = np.frombuffer(matcher.allowed(may_end=may_end), np.uint8)
    return set(np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist())


def walk(matcher: GrammarMatcher, rng: np.random.Generator, at_most: int = 400) -> list[int]:
    """Tokens chosen at random among those allowed, until the end."""
    tokens: list[int] = []
    while not matcher.has_ended:
        assert len(tokens) < at_most
        tokens.append(int(rng.choice(sorted(allowed(matcher)))))
        matcher.accept(tokens[-1])
        assert matcher.error is None
    return tokens


def text_of(tokenizer: Tokenizer, tokens: list[int]) -> str:
    assert tokens[-1] == EOS
    return tokenizer.decode(tokens[:-1], skip_special_tokens=False)


# -- any walk through the allowed tokens is a match ------------------------------------------------

LETTERS = st.sampled_from(["a", "b", "é", r"\d", r"\.", " ", "[a-c]", "the", "日", "."])
REGEXES = st.recursive(
    LETTERS,
    lambda inner: (
        st.builds("({}|{})".format, inner, inner)
        | st.builds("{}{}".format, inner, inner)
        | st.builds("({}){}".format, inner, st.sampled_from(["?", "{0,3}", "{2}"]))
    ),
    max_leaves=6,
)


@settings(max_examples=60)
@given(regex=REGEXES, seed=st.integers(0, 99))
def test_a_regex_matches_from_beginning_to_end(
    grammars: Grammars, tokenizer: Tokenizer, regex: str, seed: int
) -> None:
    matcher = grammars.matcher(StructuredOutputs(regex=regex), [EOS])
    text = text_of(tokenizer, walk(matcher, np.random.default_rng(seed)))
    assert newest.fullmatch(regex, text)  # which knows digits that were added since this Python


SCALARS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "string", "maxLength": 8},
        {"type": "integer", "minimum": -5, "maximum": 120},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["red", 'gr"een', 3, None]},
        {"const": "é😀"},
        {"type": "string", "pattern": "^[a-f]{2,4}$"},
    ]
)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner)
        | st.builds(
            lambda fields, needed: {
                "type": "object",
                "properties": fields,
                "required": list(fields)[:needed],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["name", "a b", "ü", 'q"']), inner, max_size=3),
            st.integers(0, 3),
        )
        | st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner)
    ),
    max_leaves=5,
)


@settings(max_examples=60)
@given(schema=SCHEMAS, seed=st.integers(0, 99), compact=st.booleans())
def test_a_schema_gives_json_that_validates(
    grammars: Grammars, tokenizer: Tokenizer, schema: dict[str, Any], seed: int, compact: bool
) -> None:
    wanted = StructuredOutputs(json=schema, disable_any_whitespace=compact)
    tokens = walk(grammars.matcher(wanted, [EOS]), np.random.default_rng(seed), at_most=2000)
    text = text_of(tokenizer, tokens)
    jsonschema.validate(json.loads(text), schema)
    assert not re.search(r"[ \n\r\t]{33}", text)


@settings(max_examples=60)
@given(
    choices=st.lists(st.text(st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=5),
    seed=st.integers(0, 9),
)
def test_a_choice_is_one_of_them_whatever_it_says(
    grammars: Grammars, tokenizer: Tokenizer, choices: list[str], seed: int
) -> None:
    matcher = grammars.matcher(StructuredOutputs(choice=choices), [EOS])
    assert text_of(tokenizer, walk(matcher, np.random.default_rng(seed))) in choices


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= num ("+" num)?\nnum ::= [0-9] [0-9]?',
        'start: num ("+" num)?\nnum: /[0-9]{1,2}/',
        '?start: num ("+" num)?\nnum: /[0-9]{1,2}/',
    ],
)
def test_grammars_in_gbnf_and_lark(grammars: Grammars, tokenizer: Tokenizer, grammar: str) -> None:
    for seed in range(10):
        matcher = grammars.matcher(StructuredOutputs(grammar=grammar), [EOS])
        text = text_of(tokenizer, walk(matcher, np.random.default_rng(seed)))
        assert re.fullmatch(r"\d{1,2}(\+\d{1,2})?", text)


# -- what may never come -------------------------------------------------------------------------


def test_neither_special_tokens_nor_ids_without_a_token_are_text(grammars: Grammars) -> None:
    matcher = grammars.matcher(StructuredOutputs(regex="(.|\n)*x"), [EOS])
    assert allowed(matcher) == set(range(3, 512)) & allowed(matcher)
    assert len(allowed(matcher)) > 300


def test_special_tokens_come_where_a_grammar_names_them(grammars: Grammars, tokenizer: Tokenizer) -> None:
    matcher = grammars.matcher(StructuredOutputs(grammar='start: <|im_start|> "a" <[0]>'), [EOS])
    assert walk(matcher, np.random.default_rng(0)) == [1, *tokenizer.encode("a"), 0, EOS]


def test_a_token_that_reaches_beyond_the_end_is_not_allowed(grammars: Grammars, tokenizer: Tokenizer) -> None:
    words = {tokenizer.token(token): token for token in range(3, 512)}
    word = next(word for word in words if word.isalpha() and sum(one.startswith(word) for one in words) > 3)
    longer = {token for spelled, token in words.items() if spelled.startswith(word)}
    exactly = allowed(grammars.matcher(StructuredOutputs(choice=("0", word)), [EOS]))
    assert exactly & longer == {words[word]}
    assert allowed(grammars.matcher(StructuredOutputs(regex=f"0|{word}.*"), [EOS])) >= longer


# -- the end -------------------------------------------------------------------------------------


def after(
    grammars: Grammars, tokenizer: Tokenizer, regex: str, text: str, stops: list[int]
) -> GrammarMatcher:
    matcher = grammars.matcher(StructuredOutputs(regex=regex), stops)
    for token in tokenizer.encode(text):
        matcher.accept(token)
    assert matcher.error is None
    return matcher


def test_where_it_may_end_its_stop_tokens_come_too(grammars: Grammars, tokenizer: Tokenizer) -> None:
    matcher = after(grammars, tokenizer, "[0-9]+", "7", [EOS, 40])
    assert {EOS, 40} <= allowed(matcher)
    assert not {EOS, 40} & allowed(matcher, may_end=False)
    assert len(allowed(matcher, may_end=False)) >= 10
    matcher.accept(40)
    assert matcher.has_ended


def test_a_complete_text_ends_even_where_it_may_not(grammars: Grammars, tokenizer: Tokenizer) -> None:
    assert allowed(after(grammars, tokenizer, "[0-9]", "7", [40]), may_end=False) == {EOS, 40}


def test_without_stop_tokens_it_goes_on_as_long_as_it_can(grammars: Grammars, tokenizer: Tokenizer) -> None:
    """As with ``ignore_eos``."""
    assert EOS not in allowed(after(grammars, tokenizer, "[0-9]{1,2}", "7", []))
    matcher = after(grammars, tokenizer, "[0-9]{1,2}", "77", [])
    assert allowed(matcher) == {EOS}
    matcher.accept(EOS)
    assert matcher.has_ended


def test_a_stop_token_that_is_text_may_come_in_the_middle(grammars: Grammars, tokenizer: Tokenizer) -> None:
    (b,) = tokenizer.encode("b")
    matcher = after(grammars, tokenizer, "abc", "a", [b])
    assert allowed(matcher) >= {b}
    assert allowed(matcher, may_end=False)


def test_copies_go_their_own_ways(grammars: Grammars, tokenizer: Tokenizer) -> None:
    one = after(grammars, tokenizer, "a(bb|cc)", "a", [EOS])
    other = one.copy()
    one.accept(*tokenizer.encode("b"))
    other.accept(*tokenizer.encode("c"))
    assert allowed(one) == set(tokenizer.encode("b"))
    assert allowed(other) == set(tokenizer.encode("c"))


def test_a_token_that_was_not_allowed_is_an_error_that_stays(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    matcher = grammars.matcher(StructuredOutputs(regex="abc"), [EOS])
    matcher.accept(*tokenizer.encode("x"))
    assert "broke its grammar" in str(matcher.error)
    with pytest.raises(EngineError, match="cannot go on"):
        matcher.allowed(may_end=True)


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": r"[^\s\S]"}, "cannot be matched by any text"),
        ({"regex": "(" * 30_000}, "cannot be compiled"),
        ({"grammar": "start: foo"}, 'unknown name: "foo"'),
        ({"grammar": "root ::= ("}, "GBNF"),
        ({"grammar": "root ::= " + "(" * 30_000}, "GBNF"),
        ({"grammar": "start: " + "(" * 30_000}, "nested"),
        ({"grammar": "start: <|nobody|>"}, "special token"),
        ({"grammar": ""}, "cannot be compiled"),
        ({"json": "{"}, "not JSON"),
        ({"json": "3"}, "not a JSON object"),
        ({"json": "false"}, "not a JSON object"),
        ({"json": '{"minimum": NaN}'}, "not JSON"),
        ({"json": "[" * 60_000}, "not JSON"),
        ({"json": '{"items":' * 400 + "{}" + "}" * 400}, "cannot be compiled"),
        ({"json": {"type": "king"}}, "Invalid type"),
        ({"json": {"$ref": "http://example.com/schema"}}, "does not fetch"),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"multipleOf": 1_000_003}}, "multipleOf 1000003"),
        ({"grammar": r'start: %json {"type": "integer", "multipl\u0065Of": 1000003}'}, "multipleOf 1000003"),
        ({"json": {"allOf": [{"multipleOf": 499}, {"multipleOf": 503}]}}, "least common multiple"),
        (
            {"grammar": r'start: %json {"multipleOf": 499, "\u0061nyOf": [{"multipleOf": 503}]}'},
            "least common",
        ),
        ({"json": {"allOf": [{"multipleOf": 1.001}, {"multipleOf": 1.003}]}}, "least common multiple"),
        ({"json": {"$ref": "#"}}, "cannot be matched by any text"),
        ({"grammar": 'start: "a" start'}, "cannot be used"),
        (
            {"json": {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(1500)}}},
            "items",
        ),
        ({"json": {}, "whitespace_pattern": "("}, "cannot be compiled"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else next(iter(value)),
)
def test_what_cannot_be_compiled_is_refused_with_a_sentence(
    grammars: Grammars, wanted: dict[str, Any], says: str
) -> None:
    with pytest.raises(RequestError, match=re.escape(says)) as caught:
        grammars.matcher(StructuredOutputs(**wanted, origin="guided"), [EOS])
    assert caught.value.param == "guided"
    assert str(caught.value).startswith("guided ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_multiples_that_have_a_small_one_in_common_may_be_combined(grammars: Grammars) -> None:
    schema = {"allOf": [{"type": "number", "multipleOf": number} for number in (0.01, 5, 12, 1000)]}
    assert allowed(grammars.matcher(StructuredOutputs(json=schema), [EOS]))
    long = f'start: %json {{"allOf": [{{"multipleOf": 1.{"0" * 5000}1}}]}}'
    assert allowed(grammars.matcher(StructuredOutputs(grammar=long), [EOS]))
    apart = {"properties": {"a": {"multipleOf": 499}, "b": {"multipleOf": 503}}}
    assert allowed(grammars.matcher(StructuredOutputs(json=apart), [EOS]))


def test_what_cannot_be_enforced_is_ignored_if_that_is_wanted(grammars: Grammars) -> None:
    schema = {"type": "array", "uniqueItems": True}
    assert allowed(grammars.matcher(StructuredOutputs(json=schema, lenient=True), [EOS]))


def test_a_model_without_an_end_has_no_structured_outputs(tokenizer: Tokenizer) -> None:
    grammars = Grammars(lambda: tokenizer, vocab_size=2)  # so small that the end token is outside
    with pytest.raises(RequestError, match="no token that ends an answer"):
        grammars.matcher(StructuredOutputs(regex="a"), [])


def test_the_tokenizer_is_read_with_the_first_grammar_and_once(tokenizer: Tokenizer) -> None:
    read: list[int] = []
    grammars = Grammars(lambda: read.append(1) or tokenizer, VOCAB_SIZE)  # type: ignore[func-returns-value]
    assert read == []
    for _ in range(2):
        grammars.matcher(StructuredOutputs(regex="a"), [])
    assert read == [1]
