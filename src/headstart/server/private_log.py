"""Logging that repeats nothing of what clients sent: an exception's text may quote a prompt or a salt."""

from __future__ import annotations

import asyncio
import errno
import logging
import traceback
from types import TracebackType
from typing import Any

logger = logging.getLogger(__name__)

FORMAT = "%(levelname)s %(name)s: %(message)s"


class PrivateFormatter(logging.Formatter):
    """Tracebacks with places and kinds, without the texts of exceptions."""

    def format(self, record: logging.LogRecord) -> str:
        """As usual, but for a traceback that another formatter has left in the record."""
        others, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = others

    def formatException(  # noqa: N802 - logging's name
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """The exception and those that it came of, the first one first."""
        return "no exception" if ei[1] is None else "\n".join(_told(ei[1], set()))


def _told(error: BaseException, seen: set[int]) -> list[str]:
    seen.add(id(error))
    lines = []
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        lines += [*_told(before, seen), "which led to:"]
    lines += [
        "Traceback (most recent call last):",
        "".join(traceback.format_tb(error.__traceback__)).rstrip(),
    ]
    lines.append(f"{type(error).__qualname__} (its text is left out: it may quote what a client sent)")
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            lines += ["of which one is:", *_told(part, seen)]
    return lines


def log_privately(loop: asyncio.AbstractEventLoop) -> None:
    """Let ``loop`` tell of exceptions that nobody awaits as the rest does; its own way quotes them."""

    def told(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        match context.get("exception"):
            case OSError(errno=errno.EMFILE | errno.ENFILE) as error:
                # asyncio tries again after a second, and says so each time.
                logger.error("no connection can be taken at present: %s (see ulimit -n)", error.strerror)
                return
        # "Exception in callback name(arguments) at …": what stands between the parentheses may be anything.
        logger.error("%s", context["message"].partition("(")[0], exc_info=context.get("exception"))

    loop.set_exception_handler(told)
