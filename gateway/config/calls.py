"""How a policy's calls are sent: what happens to their arguments, and in which order they are executed."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Arguments(StrEnum):
    """What happens to the arguments of a policy's call before it is sent."""

    CHECKED = "checked"
    """They are validated against the tool's schema. A string that nearly fits is coerced; other faults are answered."""
    AS_SENT = "as_sent"
    """They are sent as the policy wrote them, so that the server answers what does not fit. They still have to be one
    JSON object of bounded depth."""


class CallOrder(StrEnum):
    """The order in which calls that a policy makes at once are executed."""

    CONCURRENT = "concurrent"
    WRITTEN = "written"
    """One after the other, in the order in which they are written."""


class CallsConfig(BaseModel):
    """How a policy's calls are sent. Applies wherever a session calls a tool for a policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arguments: Arguments = Arguments.CHECKED
    order: CallOrder = CallOrder.CONCURRENT

    @property
    def as_sent(self) -> bool:
        return self.arguments is Arguments.AS_SENT
