"""Every exception of the gateway, named by the boundary that broke.

Three kinds of failure reach a rollout, and only the second and third are exceptions:

* the tool says no: `gateway.types.ToolResult` with `is_error=True`, which the policy reads;
* the world broke: a `GatewayError`; the trajectory is recorded and withdrawn;
* the configuration is wrong: a `ConfigError` at start-up, before any resource is taken.

Each class has a stable `code` for traces and metrics. Instances can be pickled, since verl's workers are processes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, Self, cast

from pydantic import BaseModel, ConfigDict

_P = ParamSpec("_P")


class CodedError(Exception):
    """Base of every exception here: carries a code and can be pickled."""

    code: ClassVar[str] = "error"
    """Stable snake_case name of the class, for example ``server_unavailable``."""

    def __init_subclass__(cls) -> None:
        if "code" not in cls.__dict__:
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle as a call of their class with `args`, which does not fit keyword arguments.
        return rebuild, (type(self), self.args, self.__dict__)


def rebuild(kind: type[CodedError], args: tuple[Any, ...], state: dict[str, Any]) -> CodedError:
    """An error of a class from its `args` and its fields, without calling the constructor."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def innermost(error: BaseException) -> BaseException:
    """The first exception inside nested exception groups; the error itself where it is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


class ConfigError(CodedError, ValueError):
    """A user's file or row is wrong. `str()` is the one message to show: where, what, and the remedy."""

    def __init__(
        self, problem: str, *, file: str | Path | None = None, key: str | None = None, remedy: str = ""
    ) -> None:
        self.problem, self.file, self.key, self.remedy = problem, file, key, remedy
        where = ": ".join(str(part) for part in (file, key) if part)
        super().__init__((f"{where}: " if where else "") + problem + (f" ({remedy})" if remedy else ""))


def not_written(error: OSError, file: str | Path, key: str | None = None) -> ConfigError:
    """The error of a file or directory that a command was to write; `key` is the option that names it."""
    return ConfigError(
        f"cannot be written: {error.strerror or error}", file=file, key=key, remedy="choose another place"
    )


class InvalidValue(ValueError):
    """Raised by pydantic validators that know the remedy too; `gateway.config` turns it into a `ConfigError`."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


class InvalidValues(ValueError):
    """Several faults that one pydantic validator found; each becomes a `ConfigError` of its own."""

    def __init__(self, faults: Sequence[InvalidValue]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(map(str, faults)))


class ConfigErrors(ConfigError):
    """Several faults; `str()` has a line for each of the first `SHOWN`, and the number of the others."""

    code = ConfigError.code
    SHOWN: ClassVar[int] = 20

    def __init__(self, faults: Sequence[ConfigError]) -> None:
        first = faults[0]
        super().__init__(first.problem, file=first.file, key=first.key, remedy=first.remedy)
        self.faults = tuple(faults)
        self.args = ("\n".join(_first(faults)),)


class Faults(list[ConfigError]):
    """The faults of several checks, so that one does not hide those of the others."""

    @contextmanager
    def collected(self) -> Generator[None]:
        """Keep the `ConfigError` that the block raises, unless an earlier check has found the same."""
        try:
            yield
        except ConfigError as error:
            known = {str(each) for each in self}
            self.extend(each for each in faults_of(error) if str(each) not in known)

    def check(self, check: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call a check, and keep what it raises as `collected` does."""
        with self.collected():
            check(*args, **kwargs)


def raise_all(faults: Sequence[ConfigError]) -> None:
    """Raise the one fault as it is, or several as `ConfigErrors`; return where there are none."""
    if faults:
        raise one_error(faults)


def one_error(faults: Sequence[ConfigError]) -> ConfigError:
    """The one fault as it is, or `ConfigErrors` with all of them; there is at least one."""
    return faults[0] if len(faults) == 1 else ConfigErrors([each for fault in faults for each in faults_of(fault)])


def faults_of(error: ConfigError) -> tuple[ConfigError, ...]:
    """The single faults, one for each line to show."""
    return error.faults if isinstance(error, ConfigErrors) else (error,)


class LockMismatch(ConfigError):
    """Live tool definitions differ from the lock; the message has the difference."""

    code = "tools_changed"


class GatewayError(CodedError):
    """The world broke: the policy did not cause it, so the outcome does not measure the policy."""

    def __init__(self, message: str, *, server: str | None = None, tool: str | None = None) -> None:
        self.server, self.tool = server, tool
        self.problem = message
        """The message without the server and the tool in front of it."""
        self.may_resend = False
        """Whether the request may be sent once more, as `gateway.transport.delivery.verdict` decided."""
        self.fault: str | None = None
        """The `gateway.types.CallFault` of a policy that caused this in its trajectory's own process."""
        where = "/".join(part for part in (server, tool) if part)
        super().__init__(f"{where}: {message}" if where else message)


class ServerUnavailable(GatewayError):
    """The server could not be started or reached, or its connection was down before the request was sent."""


class ConnectTimeout(ServerUnavailable):
    """The server did not finish its handshake and tool listing within `start_timeout_s`."""

    def __init__(self, message: str, *, server: str | None = None, remedy: str = "") -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message, server=server)
        self.problem = message


class ProgramNotFound(ServerUnavailable):
    """The entry's `command` does not name an executable program."""


class NotAnMCPServer(ServerUnavailable):
    """The server does not know the method with which MCP begins."""

    code = "not_an_mcp_server"


class ServesWorlds(ServerUnavailable):
    """The server is a gateway that leases worlds, or on one: there is no connection to the server itself."""


class NothingListens(ServerUnavailable):
    """No connection to the server's address could be made."""


class Unauthorized(ServerUnavailable):
    """The server answered its first request with HTTP 401 or 403."""


class LeaseTimeout(GatewayError):
    """No slot for another session became free within `lease_timeout_s`."""


class CallTimeout(GatewayError):
    """The request was not answered within `call_timeout_s`: whether it took effect is unknown."""


class DeliveryUnknown(GatewayError):
    """The connection broke after the request was sent, and the tool is not known to be safe to call again."""


class ProtocolError(GatewayError):
    """The server answered, but not with what the protocol or its own output schema allows."""


class ToolsChanged(GatewayError):
    """A server's tool definitions differ from those at the start of the run; the message is the difference."""

    def __init__(self, difference: str, *, server: str) -> None:
        self.difference = difference
        super().__init__(f"its tools have changed since the start of the run:\n{difference}", server=server)

    def again(self) -> Self:
        """A copy to raise in another trajectory; a shared exception would collect the traceback of each raise."""
        return type(self)(self.difference, server=self.server or "")


class OwnToolsChanged(ToolsChanged):
    """Tool definitions have changed where one trajectory alone plays; those of other trajectories have not."""


class ToolsUnknown(ToolsChanged):
    """Comparing a server's tools failed because of a defect in this program."""

    def __init__(self, difference: str, *, server: str) -> None:
        self.difference = difference
        GatewayError.__init__(self, f"whether its tools have changed is unknown: {difference}", server=server)


class HarnessError(GatewayError):
    """A harness tool (reset, start, reply, score, release, ...) is missing, refused, or broke its contract."""

    def __init__(
        self,
        message: str,
        *,
        server: str | None = None,
        tool: str | None = None,
        role: str | None = None,
        refused: bool = False,
    ) -> None:
        self.role, self.refused = role, refused
        """The `gateway.types.Role`, and whether the tool answered with an error result."""
        super().__init__(message, server=server, tool=tool)


class RequestRefused(GatewayError):
    """A server requested elicitation or sampling within a call, and no configured component could answer."""

    said: str = ""
    """The message of the API that was asked. Not sent to the server."""


class ReplayMismatch(GatewayError):
    """A replayed trajectory asked for something else than its recording has; the message has both."""


class WorldLost(GatewayError):
    """The host of a world has ended, has lost the world, or cannot be reached any more: its state is gone."""


class HostRefused(GatewayError):
    """A host does not admit this gateway: a wrong token, another program, or another version of the extension."""


def printed(error: ConfigError | GatewayError) -> str:
    """What a program that ends with `error` writes to standard error: a line for each of its faults."""
    faults = faults_of(error) if isinstance(error, ConfigError) else (error,)
    return "".join(f"{line}\n" for line in _first(faults, "error: "))


def _first(faults: Sequence[Exception], prefix: str = "") -> list[str]:
    more = len(faults) - ConfigErrors.SHOWN
    lines = [f"{prefix}{fault}" for fault in faults[: ConfigErrors.SHOWN]]
    return [*lines, f"and {more} more problems"] if more > 0 else lines


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
