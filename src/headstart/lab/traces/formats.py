"""What is particular to each format, in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from headstart.lab.traces.csv_lines import COLUMNS, read_csv
from headstart.lab.traces.draft import Draft
from headstart.lab.traces.hash_ids import read_hash_ids
from headstart.lab.traces.openai_logs import read_openai
from headstart.lab.traces.sharegpt import read_sharegpt
from headstart.lab.traces.source import Source
from headstart.lab.traces.token_lines import read_tokens
from headstart.lab.traces.trace import TraceFormat


@dataclass(frozen=True, slots=True)
class Rules:
    """How a format is read.

    ``seconds`` is one unit of its times, None where the times themselves must tell.  ``hash_block_size`` is
    how many tokens a hash id usually stands for, None where there are no ids.
    """

    read: Callable[[Source], Iterator[Draft]]
    seconds: float | None = None
    hash_block_size: int | None = None
    has_content: bool = True


_AZURE, _BURSTGPT = (
    partial(read_csv, columns=COLUMNS[format_]) for format_ in (TraceFormat.AZURE, TraceFormat.BURSTGPT)
)
RULES: Mapping[TraceFormat, Rules] = {
    TraceFormat.MOONCAKE: Rules(read_hash_ids, seconds=1e-3, hash_block_size=512),
    TraceFormat.BAILIAN: Rules(read_hash_ids, seconds=1.0, hash_block_size=16),
    TraceFormat.OPENAI: Rules(read_openai),
    TraceFormat.SHAREGPT: Rules(read_sharegpt),
    TraceFormat.TOKENS: Rules(read_tokens),
    TraceFormat.AZURE: Rules(_AZURE, seconds=1.0, has_content=False),
    TraceFormat.BURSTGPT: Rules(_BURSTGPT, seconds=1.0, has_content=False),
}
