"""Traces of hash ids, Mooncake's and Qwen-Bailian's: each id stands for a block and all that comes before."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from headstart.errors import TraceError
from headstart.lab.traces.draft import Draft, Part
from headstart.lab.traces.faults import Faults
from headstart.lab.traces.fields import Count, Length, told
from headstart.lab.traces.source import Source

_ID_BYTES = 8
_BLOCK_SIZES = [1 << power for power in range(17)]
_Ids = npt.NDArray[np.int64]


class _Row(msgspec.Struct):
    """A line of either format.  Bailian's alone has chats."""

    hash_ids: list[int]
    input_length: Length
    output_length: Count | None = None
    timestamp: float | None = None
    session_id: str | int | None = None
    chat_id: int | str | None = None
    parent_chat_id: int | str | None = None


def read_hash_ids(source: Source) -> Iterator[Draft]:
    """The requests of a file; their ``symbols`` are the ids still, see `settle`."""
    decode = msgspec.json.Decoder(_Row).decode
    roots: dict[int | str, str] = {}
    for line, data in source.records:
        try:
            row = decode(data)
            ids = _packed(row.hash_ids)
        except (msgspec.DecodeError, RecursionError, OverflowError) as error:
            source.skip(line, told(error))
            continue
        yield Draft(
            line,
            ids,
            row.input_length,
            time=row.timestamp,
            num_output_tokens=row.output_length,
            session=_session(row, roots),
        )


def _packed(ids: list[int]) -> bytes:
    try:
        return array("q", ids).tobytes()
    except OverflowError:
        return array("Q", ids).tobytes()  # hashes are often unsigned


def _session(row: _Row, roots: dict[int | str, str]) -> str | None:
    """A chat's session is the chat that it goes back to; ``roots`` are those of the chats so far."""
    if row.session_id is not None:
        return str(row.session_id)
    if row.chat_id is None:
        return None
    parent = row.parent_chat_id
    is_root = parent is None or parent in (-1, "-1")
    root = roots.get(parent, str(parent)) if not is_root and parent is not None else str(row.chat_id)
    roots[row.chat_id] = root
    return root


def block_size_of(parts: Sequence[Part], usual: int) -> int:
    """How many tokens an id stands for: the size that most lines' lengths agree with.

    That is the format's ``usual`` one or, if more lines agree with it, a power of two up to 65,536.
    Raises ``TraceError`` if less than half of the lines agree with any.
    """
    lengths = np.array([draft.num_prompt_tokens for part in parts for draft in part.drafts], np.int64)
    counts = np.array([len(draft.symbols) // _ID_BYTES for part in parts for draft in part.drafts], np.int64)
    agreeing = {size: int((-(-lengths // size) == counts).sum()) for size in [usual, *_BLOCK_SIZES]}
    size = max(agreeing, key=agreeing.__getitem__)  # the first of the best
    if agreeing[size] * 2 < len(lengths):
        raise TraceError(
            f"no block size goes with the number of hash ids in {parts[0].file}: ceil(input_length / block) "
            f"equals it in {agreeing[size]:,} of {len(lengths):,} lines at best, with blocks of {size}; name "
            "the right one with --hash-block-size"
        )
    return size


def settle(parts: Sequence[Part], started_over: Sequence[bool], block_size: int, faults: Faults) -> int:
    """Drop the lines whose lengths do not go with ``block_size``, and make symbols of the others' ids.

    ids of different files are the same block's if they are the same system's: if they are hashes, which need
    more than 32 bits, or if the file goes on where the one before it ended.  A file whose clock started
    over, or that numbers its blocks anew, has ids of its own.  What comes back is how many such worlds of
    ids there are.
    """
    for part in parts:
        part.drafts = [draft for draft in part.drafts if _is_whole(draft, part.file, block_size, faults)]
    files = [np.frombuffer(b"".join(draft.symbols for draft in part.drafts), np.int64) for part in parts]
    worlds: list[list[int]] = []
    for number, (ids, is_over) in enumerate(zip(files, started_over, strict=True)):
        is_other = _fits(ids) and (is_over or _numbers_anew(ids))
        if worlds and not is_other:
            worlds[-1].append(number)
        else:
            worlds.append([number])
    first_free = 0
    for world in worlds:
        ids = np.concatenate([files[number] for number in world])
        if len(worlds) > 1 or not _fits(ids):
            unique, ids = np.unique(ids, return_inverse=True)
            ids = ids.reshape(-1) + first_free
            first_free += len(unique)
        run = ids.astype("<i4").tobytes()
        end = 0
        for number in world:
            for draft in parts[number].drafts:
                begin, end = end, end + len(draft.symbols) // 2
                draft.symbols = run[begin:end]
    return len(worlds)


def _is_whole(draft: Draft, file: str, block_size: int, faults: Faults) -> bool:
    num_ids = len(draft.symbols) // _ID_BYTES
    expected = -(-draft.num_prompt_tokens // block_size)
    if num_ids != expected:
        faults.add(
            file,
            draft.line,
            f"the number of hash ids is {num_ids}, and must be "
            f"ceil({draft.num_prompt_tokens:,} / {block_size:,}) = {expected:,}",
        )
    return num_ids == expected


def _fits(ids: _Ids) -> bool:
    """Whether the ids are numbers of 32 bits, rather than hashes."""
    return not ids.size or bool(ids.min() >= -(2**31) and ids.max() < 2**31)


def _numbers_anew(ids: _Ids) -> bool:
    """Whether ids are given out without a gap, in the order in which the file meets them, from 0 or 1."""
    if not ids.size or ids[0] not in (0, 1):
        return False
    highest = np.maximum.accumulate(ids)
    return bool((np.diff(highest) <= 1).all())
