"""A `GatewayError` as data, for cassettes and for gateways in other processes."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from gateway.errors import CodedError, GatewayError, rebuild


class Failure(BaseModel):
    """A `GatewayError`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    """The error's class, as in traces: `call_timeout`, `server_unavailable`, ..."""
    message: str
    state: dict[str, str | bool | None] = {}
    """The error's fields, such as `server` and `tool`."""

    @classmethod
    def of(cls, error: GatewayError) -> Failure:
        state = {name: value for name, value in vars(error).items() if isinstance(value, str | bool | None)}
        return cls(code=error.code, message=str(error), state=state)

    def error(self) -> GatewayError:
        """The error, to raise."""
        kind = _ERRORS.get(self.code, GatewayError)
        fields = {"server": None, "tool": None, "may_resend": False, "fault": None, **self.state}
        rebuilt = rebuild(kind, (self.message,), fields)
        assert isinstance(rebuilt, GatewayError)
        return rebuilt


def _subclasses(kind: type[GatewayError]) -> Mapping[str, type[GatewayError]]:
    found: dict[str, type[GatewayError]] = {kind.code: kind}
    for each in kind.__subclasses__():
        found |= _subclasses(each)
    return found


_ERRORS: Mapping[str, type[CodedError]] = _subclasses(GatewayError)
