"""Every exception of the gateway, named by the boundary that broke.

Three kinds of failure reach a rollout, and only the second and third are exceptions:

* the tool says no: `gateway.types.ToolResult` with `is_error=True`; the policy reads it;
* the world broke: a `GatewayError`; the trajectory is recorded and withdrawn;
* the configuration is wrong: a `ConfigError` at start-up, before anything is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Self, cast


class ConfigError(ValueError):
    """A user's file or row is wrong. `str()` is the one message to show: where, what, and the remedy."""

    kind = "config_error"
    """The word for traces, as `GatewayError.kind`."""

    def __init__(
        self, problem: str, *, file: str | Path | None = None, key: str | None = None, remedy: str = ""
    ) -> None:
        self.problem, self.file, self.key, self.remedy = problem, file, key, remedy
        where = ": ".join(str(part) for part in (file, key) if part)
        super().__init__((f"{where}: " if where else "") + problem + (f" ({remedy})" if remedy else ""))


class ConfigErrors(ConfigError):
    """Several things are wrong with one file; `str()` has a line for each."""

    def __init__(self, faults: Sequence[ConfigError]) -> None:
        first = faults[0]
        super().__init__(first.problem, file=first.file, key=first.key, remedy=first.remedy)
        self.faults = tuple(faults)
        self.args = ("\n".join(str(fault) for fault in faults),)


def raise_all(faults: Sequence[ConfigError]) -> None:
    """Raises what there is: nothing, the one fault as it is, or all of them as `ConfigErrors`."""
    if faults:
        raise one_error(faults)


def one_error(faults: Sequence[ConfigError]) -> ConfigError:
    """The one fault as it is, or `ConfigErrors` with all of them; there is at least one."""
    return faults[0] if len(faults) == 1 else ConfigErrors([each for fault in faults for each in faults_of(fault)])


def faults_of(error: ConfigError) -> tuple[ConfigError, ...]:
    """The single faults, one for each line to show."""
    return error.faults if isinstance(error, ConfigErrors) else (error,)


class LockMismatch(ConfigError):
    """The servers define tools otherwise than the lock says; the message has the difference."""

    kind = "tools_changed"


class GatewayError(Exception):
    """The world broke: what happened is not the policy's doing and says nothing about its quality."""

    def __init__(self, message: str, *, server: str | None = None, tool: str | None = None) -> None:
        self.server, self.tool = server, tool
        where = "/".join(part for part in (server, tool) if part)
        self._prefix = f"{where}: " if where else ""
        super().__init__(self._prefix + message)

    @property
    def problem(self) -> str:
        """The message without the server and the tool in front of it."""
        return str(self).removeprefix(self._prefix)

    @property
    def kind(self) -> str:
        """Stable snake_case word for traces and metrics, for example ``server_unavailable``."""
        name = type(self).__name__
        return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


class StartFault(StrEnum):
    """Why a server did not start, where the transport can tell."""

    NO_PROGRAM = "no_program"
    UNREACHABLE = "unreachable"
    UNAUTHORIZED = "unauthorized"
    NOT_MCP = "not_mcp"


class ServerUnavailable(GatewayError):
    """The server could not be started or reached, or its connection was down before the request was sent."""

    fault: StartFault | None = None


class ConnectTimeout(ServerUnavailable):
    """The server did not finish its handshake and tool listing within `start_timeout_s`."""

    def __init__(self, message: str, *, server: str | None = None, tool: str | None = None, remedy: str = "") -> None:
        self._suffix = f"; {remedy}" if remedy else ""
        super().__init__(message + self._suffix, server=server, tool=tool)

    @property
    def problem(self) -> str:
        """The message without server, tool and remedy."""
        return super().problem.removesuffix(self._suffix)


class LeaseTimeout(GatewayError):
    """No place for another session became free within `lease_timeout_s`."""


class CallTimeout(GatewayError):
    """The request was not answered within `call_timeout_s`: whether it took effect is unknown."""


class DeliveryUnknown(GatewayError):
    """The connection broke after the request was sent, and the tool is not known to be safe to call again."""


class ProtocolError(GatewayError):
    """The server answered, but not with what the protocol or its own output schema allows."""


class ToolsChanged(GatewayError):
    """A server defines tools otherwise than it did when this run began; the message is the difference."""

    def __init__(self, difference: str, *, server: str) -> None:
        self.difference = difference
        super().__init__(f"its tools have changed since the start of the run:\n{difference}", server=server)

    def again(self) -> Self:
        """The same for another trajectory; an exception object gathers the traces of all who raise it."""
        return type(self)(self.difference, server=self.server or "")


class ToolsUnknown(ToolsChanged):
    """Whether a server's tools have changed could not be found out, by a fault of this program's own."""

    def __init__(self, difference: str, *, server: str) -> None:
        self.difference = difference
        GatewayError.__init__(self, f"whether its tools have changed cannot be told: {difference}", server=server)


class HarnessError(GatewayError):
    """A harness tool (reset, start, reply, score, release, ...) is missing, refused, or answered off contract."""

    def __init__(
        self,
        message: str,
        *,
        server: str | None = None,
        tool: str | None = None,
        role: str | None = None,
        refused: bool = False,
    ) -> None:
        self.role = role
        """A `gateway.types.Role`."""
        self.refused = refused
        """Whether the tool answered with an error result."""
        super().__init__(message, server=server, tool=tool)


class RequestRefused(GatewayError):
    """A server asked for something within a call, a user's answer or a model's, that nobody here could give."""


def innermost(error: BaseException) -> BaseException:
    """The first exception that is no group, of an error that task groups may have wrapped."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
