"""One line for each request: what it asked, where its prompt tokens came from, and how long it took.

For operators: it names reasons that no client is told.  Never prompts, salts or keys.
"""

from __future__ import annotations

import logging
from collections import Counter

from headstart.cache import MissReason
from headstart.server.visit import VisitRecord

logger = logging.getLogger(__name__)


def write(record: VisitRecord) -> None:
    """The record as one line at INFO; reads that went well (``GET /health`` and the like) have none."""
    if logger.isEnabledFor(logging.INFO) and (record.method != "GET" or record.status >= 400):
        logger.info("%s", line_of(record))


def line_of(record: VisitRecord) -> str:
    """``POST /v1/completions 200 in 0.91 s, cmpl-1a: 812 prompt tokens, 640 cached, 171 diverged, …``."""
    line = f"{record.method} {record.path} {record.status} in {record.seconds:.2f} s"
    if record.answer_id is None:
        return f"{line}, request {record.request_id}"
    line += f", {record.answer_id}"
    if not record.answer_id.endswith(record.request_id):  # the client's own
        line += f", request {record.request_id}"
    if not record.prompt_tokens:
        return line
    told = [f"{record.prompt_tokens} prompt tokens", f"{record.cached_tokens} cached"]
    parts = [", ".join([*told, *_reasons(record)]), *_details(record), _generated(record)]
    if record.first_token_s is not None:
        parts.append(f"first token after {record.first_token_s * 1000:.0f} ms")
    return f"{line}: {'; '.join(parts)}"


def _reasons(record: VisitRecord) -> list[str]:
    """Of all prompts together, the most tokens first."""
    counts: Counter[MissReason] = Counter()
    for report in record.reports:
        counts.update(report.tokens)
    return [f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda item: -item[1])]


def _details(record: VisitRecord) -> list[str]:
    """Where a prompt first differs and since when it is gone; of a single prompt only."""
    if len(record.reports) != 1:
        return []
    (report,), told = record.reports, []
    if MissReason.DIVERGED in report.tokens:
        told.append(f"first difference at token {report.diverged_at}")
    if report.evicted_s is not None:
        told.append(f"evicted {report.evicted_s:.1f} s and {report.evicted_blocks} taken blocks ago")
    return told


def _generated(record: VisitRecord) -> str:
    reasons = ", ".join(
        reason if count == 1 else f"{count} {reason}"
        for reason, count in Counter(record.finish_reasons).items()
    )
    return f"{record.completion_tokens} generated" + (f" ({reasons})" if reasons else "")
