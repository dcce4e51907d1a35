"""One line for each request: where its prompt tokens came from, and why others were computed.

For operators: it names reasons that no client is told.  Never prompts, never salts.
"""

from __future__ import annotations

import logging

from headstart.cache import MissReason, MissReport

logger = logging.getLogger(__name__)


def write(report: MissReport) -> None:
    """The report as one line at INFO."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", line_of(report))


def line_of(report: MissReport) -> str:
    """``cmpl-1a-0: 812 prompt tokens, 640 hit, 171 diverged, 1 last_token; first difference at token 640``"""
    counts = sorted(report.tokens.items(), key=lambda item: -item[1])
    told = [f"{report.num_prompt_tokens} prompt tokens", f"{report.num_hit_tokens} hit"]
    line = ", ".join([*told, *(f"{count} {reason}" for reason, count in counts)])
    if MissReason.DIVERGED in report.tokens:
        line += f"; first difference at token {report.diverged_at}"
    if report.evicted_s is not None:
        line += f"; evicted {report.evicted_s:.1f} s and {report.evicted_blocks} taken blocks ago"
    return f"{report.request_id}: {line}"
