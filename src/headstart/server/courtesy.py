"""What clients of OpenAI's send along, and what changes nothing here."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel

from headstart.server.fields import NotYetTrue, String, must_be, not_yet


class CourtesyFields(BaseModel):
    """Fields that are read so that nobody is refused for them, and neither kept nor passed on.

    Where a value would ask for another answer, or for something to happen, it is refused all the same.
    """

    user: String = None
    safety_identifier: String = None
    metadata: Annotated[dict[str, Any] | None, must_be("an object")] = None
    store: NotYetTrue = None
    service_tier: Annotated[Any, not_yet("auto", "default")] = None
    verbosity: Annotated[Any, not_yet("medium")] = None
    moderation: Annotated[Any, not_yet()] = None
    # A guess at the answer, which may be checked faster than generated: the answer is the same without.
    prediction: Annotated[dict[str, Any] | None, must_be("an object")] = None
