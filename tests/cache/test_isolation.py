"""What an attacker may learn of another tenant's text, in the places where it was once to be learned.

tests/machines/test_isolation_machine.py has the law; here is each leak that was mended, and the limit that is
left, in the shortest history that shows it.
"""

from __future__ import annotations

from typing import get_args

import pytest

from headstart.cache import (
    CacheConfig,
    CacheRequest,
    KVCacheManager,
    MediaSpan,
    MissReason,
    MissReport,
    Namespace,
)
from headstart.cache.codes import Codes
from headstart.config import PrefixIndexName
from tests.cache.checked import make_manager, serve


@pytest.fixture(params=get_args(PrefixIndexName))
def index(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def said(tenant: str, name: str, tokens: list[int]) -> CacheRequest:
    return CacheRequest(name, tokens, namespace=Namespace(salt=tenant))


def told(index: str, known: list[int], victims: list[int], guess: list[int]) -> tuple[MissReport, MissReport]:
    """What the attacker, and the operator, is told of a guess: ``known`` is his, ``victims`` another's."""
    manager = make_manager(60, index=index)
    serve(manager, said("attacker", "known", known))
    serve(manager, said("victim", "secret", victims))
    asked = said("attacker", "guess", guess)
    serve(manager, asked)
    [report] = manager.explain_misses([asked])
    return report.for_client(), report


def test_a_text_that_is_known_elsewhere_reads_diverged_whoever_else_has_it(index: str) -> None:
    text = list(range(40))
    known, guess = [900, 901, 902, 903, *text], [*text, 800]
    right, for_operators = told(index, known, text, guess)
    wrong, _ = told(index, known, [token + 100 for token in text], guess)
    assert right == wrong
    assert right.tokens == {MissReason.LAST_TOKEN: 1, MissReason.DIVERGED: 40}
    assert for_operators.tokens == {MissReason.LAST_TOKEN: 1, MissReason.ISOLATED: 40}
    assert for_operators.isolated_diverged == 40


def test_half_of_it_known_elsewhere(index: str) -> None:
    text = list(range(80))
    known, guess = [900, 901, 902, 903, *text[:40]], [*text, 800]
    right, _ = told(index, known, text[:60], guess)
    wrong, _ = told(index, known, [token + 100 for token in text[:60]], guess)
    assert right == wrong
    assert right.tokens == {MissReason.LAST_TOKEN: 1, MissReason.DIVERGED: 40, MissReason.COLD: 40}
    assert list(right.tokens) == list(wrong.tokens)


@pytest.mark.parametrize("guessed", [True, False])
def test_many_continuations_that_others_have_hide_none_of_ones_own(guessed: bool) -> None:
    manager = KVCacheManager(CacheConfig(1000, 4, index="hash"))
    serve(manager, said("attacker", "own", [1, 2, 3, 4, 5, 6, 7, 8]))
    for number in range(300):  # more than are compared
        beginning = [1, 2, 3, 4, 5] if guessed else [11, 12, 13, 14, 15]
        serve(manager, said("victim", f"v{number}", [*beginning, 100 + number, 0, 0, 0]))
    asked = said("attacker", "again", [1, 2, 3, 4, 5, 6, 7, 9, 10])
    serve(manager, asked)
    [report] = manager.explain_misses([asked])
    told = report.for_client().tokens
    assert told == {MissReason.LAST_TOKEN: 1, MissReason.UNALIGNED: 3, MissReason.COLD: 1}


@pytest.mark.parametrize("guessed", [True, False])
def test_an_image_is_not_remembered_for_longer_because_others_have_it(
    guessed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.cache.codes._LEAST_CAPACITY", 2)
    codes = Codes(num_blocks=1, block_size=4)

    def showing(tenant: str, digest: str) -> CacheRequest:
        namespace = Namespace(salt=tenant)
        return CacheRequest(digest, [5] * 4, namespace=namespace, media=[MediaSpan(digest, 1, 2)])

    codes.make(showing("attacker", "a" * 16))
    codes.make(showing("victim", ("a" if guessed else "b") * 16))
    codes.make(showing("victim", "c" * 16))
    assert len(codes.find(showing("attacker", "a" * 16))) == 4  # up to the image: it is forgotten


@pytest.mark.parametrize("relabelled", ["in order", "out of order"])
def test_the_order_of_ones_own_tokens_is_all_that_text_decides(relabelled: str) -> None:
    """The limit of law I14 in the radix index: of equally good blocks, bytes say which is copied."""

    def goes_first(names: dict[int, int]) -> str:
        manager = make_manager(3)
        texts = {name: [7, 7, names[last], 0] for name, last in (("low", 1), ("high", 3))}
        for name, text in texts.items():
            serve(manager, said("victim", name, text))
        serve(manager, said("victim", "between", [7, 7, names[2]]))  # copies from one of them, and uses it
        block = manager.free_block_ids()[0]
        tables = {
            name: manager.get_computed_blocks(said("victim", "p", [*text, 0])) for name, text in texts.items()
        }
        [gone] = [name for name, hit in tables.items() if hit.block_ids == [block]]
        return gone

    plain = goes_first({1: 1, 2: 2, 3: 3})
    if relabelled == "in order":
        assert goes_first({1: 51, 2: 52, 3: 53}) == plain
    else:
        assert goes_first({1: 3, 2: 2, 3: 1}) != plain
