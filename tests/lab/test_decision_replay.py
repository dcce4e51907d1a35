from __future__ import annotations

import gzip
import itertools
import random
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from headstart.cache import CacheConfig, KVCacheManager
from headstart.config import PolicyName, PrefixIndexName
from headstart.engine.decisions import Record, Rollback
from headstart.engine.recording import RecordingManager
from headstart.errors import CacheError, LogError
from headstart.lab.decisions.reader import LogReader
from headstart.lab.decisions.replay import Outcome, Replay, replay
from tests.recorded import Tape, live_at_the_door, live_in_an_engine, write_log

FLAVOURS: dict[str, dict[str, Any]] = {
    "radix": {"index": "radix"},
    "hash": {"index": "hash"},
    "unhashed-first": {"index": "hash", "free_order": "unhashed_first"},
    "off": {"enable_prefix_caching": False},
    "answers-first": {"evict_generated_first": True},
    "shares": {"tenant_share": 0.3},
    "hash-shares": {"index": "hash", "tenant_share": 0.3},
    "shares-cost": {"tenant_share": 0.2, "policy": "cost", "evict_generated_first": True},
    "hash-answers-first": {"index": "hash", "evict_generated_first": True},
    **{
        f"{index}-{policy}": {"index": index, "policy": policy, "ttl_seconds": 0.4, "protected_share": 0.4}
        for index in get_args(PrefixIndexName)
        for policy in get_args(PolicyName)
    },
}


@pytest.fixture(params=FLAVOURS)
def config(request: pytest.FixtureRequest) -> CacheConfig:
    return CacheConfig(10, 3, **FLAVOURS[request.param])


def replayed(config: CacheConfig, records: list[Record]) -> Replay:
    """A replay that had every record, none of which differed, after a journey through JSON."""
    core = Replay(config)
    decoder = msgspec.json.Decoder(Record)
    for record in records:
        decoded = decoder.decode(msgspec.json.encode(record))
        assert decoded == record
        assert core.apply(decoded) is None
    return core


def verify(path: Path, **options: bool) -> Outcome:
    with path.open("rb") as file:
        return replay(LogReader(file, path.name), **options)


@pytest.mark.parametrize("seed", range(5))
def test_any_life_at_the_door_is_replayed_to_the_same_state(config: CacheConfig, seed: int) -> None:
    plain, tape = KVCacheManager(config), Tape()
    manager = RecordingManager(config, tape, digest_every=1)
    live = live_at_the_door(plain, random.Random(seed), 200)
    assert live_at_the_door(manager, random.Random(seed), 200).keys() == live.keys()
    assert manager.state_digest() == plain.state_digest()
    core = replayed(config, tape.records).manager
    assert core.state_digest() == plain.state_digest()
    assert core.free_block_ids() == plain.free_block_ids()
    assert core.stats == plain.stats
    assert core.num_evicted_blocks == plain.num_evicted_blocks
    assert [core.block_table(name) for name in live] == [plain.block_table(name) for name in live]


@pytest.mark.parametrize("seed", range(3))
def test_any_life_in_an_engine_is_replayed_to_the_same_state(config: CacheConfig, seed: int) -> None:
    tape = Tape()
    manager = RecordingManager(config, tape, digest_every=5)
    scheduler = live_in_an_engine(manager, random.Random(seed), 100)
    core = replayed(config, tape.records)
    assert core.manager.state_digest() == manager.state_digest()
    assert core.outcome().num_steps == 100
    assert core.outcome().stats.preempted_requests <= scheduler.num_preemptions


def test_the_lives_have_everything_in_them() -> None:
    tape = Tape()
    for seed in range(3):
        manager = RecordingManager(CacheConfig(10, 3), tape)
        live_in_an_engine(manager, random.Random(seed), 100)
        live_at_the_door(RecordingManager(CacheConfig(10, 3), tape), random.Random(seed), 200)
    kinds = {type(record).__name__ for record in tape.records}
    calls = {
        "Allocate",
        "BeginStep",
        "Commit",
        "Fork",
        "Free",
        "Lookup",
        "PinCall",
        "Reset",
        "RetainCall",
        "Rollback",
        "Unpin",
    }
    assert kinds == calls | {"Gone", "Seen", "Tokens"}
    assert any(isinstance(record, Rollback) and record.result for record in tape.records)
    lines = [msgspec.json.encode(record) for record in tape.records]
    assert any(b'"copies"' in line for line in lines)
    assert any(b'"replaced"' in line for line in lines)


def test_a_log_that_was_closed_says_so(tmp_path: Path) -> None:
    outcome = verify(write_log(tmp_path), check=True)
    assert outcome.agrees
    assert outcome.closed
    assert outcome.num_steps == 80
    assert outcome.num_digests == 9


def test_every_part_of_a_log_can_be_replayed(tmp_path: Path) -> None:
    """The engine may be killed after any byte; 500 hold the header."""
    data = write_log(tmp_path, steps=30).read_bytes()
    steps = []
    for size in range(500, len(data) + 1, 97):
        part = tmp_path / "part.log"
        part.write_bytes(data[:size])
        with part.open("rb") as file:
            reader = LogReader(file, part.name)
            outcome = replay(reader)
        assert outcome.agrees
        assert not outcome.closed
        steps.append(outcome.num_steps)
    assert steps == sorted(steps)
    assert steps[0] < 5 < 28 < steps[-1]


def test_a_log_that_was_unpacked_can_be_replayed(tmp_path: Path) -> None:
    path = write_log(tmp_path)
    path.write_bytes(gzip.decompress(path.read_bytes()))
    assert verify(path).closed


# -- logs that are not as they were ---------------------------------------------------------------


def lines_of(tmp_path: Path) -> list[bytes]:
    return gzip.decompress(write_log(tmp_path).read_bytes()).splitlines()


def verify_lines(tmp_path: Path, lines: list[bytes]) -> Outcome:
    path = tmp_path / "altered.log"
    path.write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    return verify(path)


def first(lines: list[bytes], kind: bytes, after: int = 100) -> int:
    """The place of a record of this kind, with some life before it."""
    return next(i for i in range(after, len(lines)) if lines[i].startswith(b'["' + kind))


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    place = first(lines, b"commit")
    lines[place] = b'["commit",999]'
    outcome = verify_lines(tmp_path, lines)
    assert not outcome.agrees
    assert outcome.difference is not None
    kinds = [msgspec.json.decode(line)[0] for line in lines[1 : place + 1]]
    calls = [kind for kind in kinds if kind not in ("request", "tokens", "gone", "state")]
    assert outcome.difference.call == len(calls)
    assert outcome.difference.step == kinds.count("step")
    assert outcome.difference.expected == '["commit",999]'
    assert msgspec.json.decode(outcome.difference.got)[0] == "commit"


@pytest.mark.parametrize(
    ("kind", "alteration"),
    [
        (
            b"lookup",
            lambda record: [*record[:-1], {**record[-1], "num_tokens": 77}],
        ),
        (b"lookup", lambda record: [*record[:-1], {**record[-1], "blocks": record[-1].get("blocks", 0) ^ 1}]),
        (b"allocate", lambda record: [*record[:-1], None if record[-1] is not None else {}]),
        (b"allocate", lambda record: [*record[:-1], "CacheError"]),
        (b"allocate", lambda record: [record[0], record[1], record[2] + 99, *record[3:]]),
        (b"free", lambda record: [*record[:-1], ["r0"]]),
        (b"rollback", lambda record: [record[0], [*record[1], "r0"]]),
        (b"reset", lambda record: [record[0], not record[1]]),
        (b"state", lambda record: [record[0], record[1][::-1], *record[2:]]),
    ],
)
def test_whatever_is_altered_is_found(tmp_path: Path, kind: bytes, alteration: object) -> None:
    lines = lines_of(tmp_path)
    place = first(lines, kind)
    assert callable(alteration)
    lines[place] = msgspec.json.encode(alteration(msgspec.json.decode(lines[place])))
    outcome = verify_lines(tmp_path, lines)
    assert outcome.difference is not None
    assert outcome.difference.expected == lines[place].decode()


def test_a_call_that_is_missing_or_doubled_is_found(tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    place = first(lines, b"commit")
    assert not verify_lines(tmp_path, lines[:place] + lines[place + 1 :]).agrees
    assert not verify_lines(tmp_path, [*lines[:place], lines[first(lines, b"free")], *lines[place:]]).agrees


def test_a_time_that_was_altered_shows_in_the_next_digest(tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    state = first(lines, b"state")
    place = max(i for i in range(state) if lines[i].startswith(b'["step'))
    lines[place] = b'["step",0.05,null]'
    outcome = verify_lines(tmp_path, lines)
    assert outcome.difference is not None
    assert outcome.difference.expected.startswith('["state"')


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'["lookup",98765,{"num_tokens":0}]', "request 98765"),
        (b'["allocate",0,1,7,null]', "a hit of 7 tokens"),
        (b'["tokens",98765,[1]]', "request 98765"),
        (b'["request",99,"r",[4294967296]]', "32 bits"),
        (b'["request",99,"r",[1],""]', "cache_salt"),
        (b'["explode"]', "damaged in line"),
        (b"{", "damaged in line"),
        (b"\xff", "damaged in line"),
        (b'["commit",1.5]', "damaged in line"),
    ],
)
def test_what_no_engine_writes_is_a_sentence(tmp_path: Path, line: bytes, words: str) -> None:
    lines = lines_of(tmp_path)
    place = first(lines, b"lookup", after=0) + 1
    outcome = verify_lines(tmp_path, [*lines[:place], line, *lines[place:]])
    assert outcome.problem is not None
    assert words in outcome.problem
    assert not outcome.agrees


def test_a_law_that_is_broken_is_found_by_checking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_log(tmp_path)
    calls = itertools.count()

    def check(self: KVCacheManager) -> None:
        if next(calls) == 7:
            raise CacheError("law I1: on purpose")

    monkeypatch.setattr(KVCacheManager, "check", check)
    outcome = verify(path, check=True)
    assert (outcome.num_steps, outcome.problem) == (8, "law I1: on purpose")
    assert verify(path).agrees


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no decision log"),
        (b"hello\n", "no decision log"),
        (b"\x00" * 1000, "no decision log"),
        (b'{"format": "headstart decision log"}\n', "no decision log"),
        (b'{"format": "something else", "version": 1}\n', "no decision log"),
        (gzip.compress(b"hello\n", mtime=0), "no decision log"),
        (
            b'{"format": "headstart decision log", "version": 1}\n',
            "of format 1, .* reads format 3",
        ),
        (b'{"format": "headstart decision log", "version": 3}\n', "header that makes no sense"),
        (b"\x1f\x8bnot gzip at all", "damaged"),
    ],
)
def test_another_file_is_told_from_a_log(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    with pytest.raises(LogError, match=words):
        verify(path)


def test_a_header_that_no_core_can_have(tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    lines[0] = lines[0].replace(b'"num_blocks":12', b'"num_blocks":0')
    with pytest.raises(LogError, match="num_blocks must be"):
        verify_lines(tmp_path, lines)


def test_a_damaged_file_is_replayed_up_to_the_damage(tmp_path: Path) -> None:
    path = write_log(tmp_path, steps=400)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    path.write_bytes(data)
    outcome = verify(path)
    assert not outcome.agrees
    assert outcome.num_steps > 50


def test_two_logs_in_one_file_are_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path)
    path.write_bytes(path.read_bytes() * 2)
    outcome = verify(path)
    assert outcome.problem == "run.log goes on behind the log's end; a file holds one log"


def test_progress_counts_the_files_bytes(tmp_path: Path) -> None:
    path = write_log(tmp_path, steps=600)
    told: list[int] = []
    with path.open("rb") as file:
        replay(LogReader(file, path.name), progress=told.append)
    assert told == sorted(told)
    assert told[-1] == path.stat().st_size
