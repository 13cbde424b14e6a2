"""How calls are sent: what happens to their arguments, in which order, and what answers a server's own requests."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def connectable(value: str, key: str) -> str:
    """Return the URL. Raises ValueError, without quoting it since it may be secret, if it cannot be connected to."""
    try:
        found = urlsplit(value)
        if found.scheme in ("http", "https") and found.hostname and found.port != 0 and " " not in value:
            return value
    except ValueError:  # an invalid port, an incomplete IPv6 address
        pass
    raise ValueError(f"{key} must begin with http:// or https:// and name a host")


class Section(BaseModel):
    """One mapping of a file: its keys are known, and it does not change."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, coerce_numbers_to_str=True)


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


class CallsConfig(Section):
    """How a policy's calls are sent. Applies wherever a session calls a tool for a policy."""

    arguments: Arguments = Arguments.CHECKED
    order: CallOrder = CallOrder.CONCURRENT

    @property
    def as_sent(self) -> bool:
        return self.arguments is Arguments.AS_SENT


class ElicitationConfig(Section):
    """What answers elicitation: questions to the user that servers ask within a call."""

    server: str
    """The server whose tool with the role `elicit` answers."""
    timeout_s: Seconds = 60
    """For one answer."""


class SamplingConfig(Section):
    """The model that answers servers' sampling requests: an OpenAI-compatible endpoint."""

    url: str
    """The base, as in `https://api.example.com/v1`; `/chat/completions` is added."""
    model: str
    """The endpoint's name of the model."""
    api_key: SecretStr | None = None
    """Sent as a bearer token."""
    timeout_s: Seconds = 60
    """For one completion."""
    max_tokens: int = Field(default=4096, ge=1)
    """Maximum tokens of one completion."""
    body: dict[str, Any] = Field(default={})
    """Further keys of every request, which go above all others; null removes one."""

    @field_validator("url")
    @classmethod
    def _names_a_host(cls, value: str) -> str:
        return connectable(value, "url").rstrip("/")
