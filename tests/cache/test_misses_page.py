"""The table of docs/misses.md is true, and has every reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headstart.cache import CacheConfig, CacheRequest, KVCacheManager, MissReason, Namespace

PAGE = Path(__file__).parent.parent.parent / "docs" / "misses.md"
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]


def tokens_of(text: str) -> list[int]:
    """A letter is its code; ``S*40`` are 40 tokens."""
    tokens: list[int] = []
    for letter, count in re.findall(r"(\w)(?:\*(\d+))?", text):
        tokens += (
            [ord(letter)] if not count else [1000 * ord(letter) + number for number in range(int(count))]
        )
    return tokens


def send(manager: KVCacheManager, name: str, words: str) -> tuple[str, CacheRequest]:
    """Send what the words say and let it end, unless it begins with a plus; its report, and itself."""
    salt, _, text = words.rpartition(" ")
    namespace = Namespace(salt=salt.removeprefix("@") or None)
    request = CacheRequest(name, tokens_of(text), namespace=namespace, skip_reading=text.startswith("!"))
    hit = manager.get_computed_blocks(request)
    running = text.startswith("+")
    count = 4 if running else request.num_tokens - hit.num_tokens
    assert manager.allocate_slots(request, count, hit) is not None
    manager.commit_step()
    (report,) = manager.explain_misses([request])
    if not running:
        manager.free(request)
    counts = [("hit", report.num_hit_tokens), *report.tokens.items()]
    return ", ".join(f"{count} {word}" for word, count in counts if count), request


@pytest.mark.parametrize(("reason", "index", "before", "prompt", "told"), ROWS, ids=lambda cell: cell)
def test_the_table_is_true(reason: str, index: str, before: str, prompt: str, told: str) -> None:
    manager = KVCacheManager(CacheConfig(num_blocks=24, block_size=4, index=index))  # type: ignore[arg-type]
    sent = [send(manager, f"{place}", words) for place, words in enumerate(re.findall("`(.+?)`", before))]
    assert len(sent) == before.count("`") / 2
    report, _ = send(manager, "prompt", prompt.strip("`"))
    assert sorted(report.split(", ")) == sorted(told.split(", "))
    assert reason.strip("`") in report


def test_every_reason_has_a_row_in_its_order_and_advice() -> None:
    rows = list(dict.fromkeys(row[0].strip("`") for row in ROWS))
    assert rows == list(MissReason)
    advice = re.findall(r"^\* \*\*`(\w+)`\*\*", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert advice == list(MissReason)
