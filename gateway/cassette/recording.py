"""Record leases into a cassette: requests, answers, and the servers' own requests in between."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mcp_rollout.gateway.cassette.lines import (
    VERSION,
    Header,
    RecordedCall,
    RecordedGateway,
    RecordedLease,
    RecordedResult,
    RecordedServer,
    dump,
    parse,
)
from mcp_rollout.gateway.cassette.reading import SUFFIX
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.connection.in_flight import InFlightCall, OutgoingCall
from mcp_rollout.gateway.connection.redaction import CassetteSecrets
from mcp_rollout.gateway.errors import ConfigError, Failure, GatewayError, ToolsChanged
from mcp_rollout.gateway.leases.leasing import Leases
from mcp_rollout.gateway.leases.sending import Sending
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.private_files import make_private, private
from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.gateway.types import LeaseRequest, Role, ToolDefinition, ToolResult


class Recorder:
    """Writes a cassette; several gateways can share one. The file is created at once.

    Args:
        path: the file, which must not exist; or, with `in_directory`, a directory that gets a file of this process.
        key: the option or configuration key that names it, for errors.

    Raises:
        ConfigError: the file exists or cannot be written.
    """

    def __init__(self, path: str | Path, *, in_directory: bool = False, key: str = "record") -> None:
        self.path, self._key = Path(path), key
        if in_directory:
            self.path /= f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}{SUFFIX}"
        try:
            make_private(self.path.parent)
            self._file = private(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        except FileExistsError as error:
            raise ConfigError("exists already", file=path, key=key, remedy="name another file") from error
        except OSError as error:
            raise self._unwritable(error) from error
        self.write([json.dumps(Header(kind="cassette", version=VERSION).model_dump())])

    def write(self, lines: Collection[str]) -> None:
        """Append lines in one write. Raises ConfigError where the file cannot be written."""
        try:
            # Half a surrogate pair, which a server can send, is not text.
            os.write(self._file, "".join(f"{line}\n" for line in lines).encode(errors="replace"))
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        os.close(self._file)

    def _unwritable(self, error: OSError) -> ConfigError:
        problem = f"cannot be written: {error.strerror or error}"
        return ConfigError(problem, file=self.path, key=self._key, remedy="name a file that can be written")


def recorded_gateway(
    name: str,
    catalogue: Mapping[str, tuple[ToolDefinition, ...]],
    instructions: Mapping[str, str],
    secrets: CassetteSecrets,
) -> RecordedGateway:
    """The line of a gateway, without secrets; as it is read back."""
    servers = {
        server: RecordedServer(tools=tools, instructions=instructions.get(server, ""))
        for server, tools in catalogue.items()
    }
    line = dump(RecordedGateway(kind="gateway", gateway=name, servers=servers), secrets.redact)
    read = parse(line, file=name, number=0)
    assert isinstance(read, RecordedGateway)
    return read


class RecordedLeases:
    """Live leases, each of which is written to a cassette when it ends."""

    def __init__(self, leases: Leases, recorder: Recorder, gateway: RecordedGateway, config: GatewayConfig) -> None:
        self._leases, self._recorder, self._name = leases, recorder, gateway.gateway
        self._secrets = CassetteSecrets(config)
        recorder.write([dump(gateway, self._secrets.redact)])

    @asynccontextmanager
    async def lease(self, request: LeaseRequest) -> AsyncGenerator[Session]:
        recording = _LeaseRecording()
        failure: Failure | None = None
        try:
            async with self._leases.lease(request, sending=partial(RecordedSending, recording)) as session:
                yield session
        except GatewayError as error:
            # Of the lease itself: what breaks within it is the failure of a call.
            failure = Failure.of(error) if recording.began is None else None
            raise
        finally:
            lease = RecordedLease(
                kind="lease",
                gateway=self._name,
                task=request.task,
                seed=request.seed,
                identity=dict(request.identity),
                replaces=request.replaces,
                failure=failure,
                tools_changed=recording.tools_changed,
            )
            # Also of a lease that was cancelled: its calls without an outcome say where it was cut.
            calls = [dump(call.line(), self._secrets.redact, request.trajectory) for call in recording.calls]
            # One write per lease: a call belongs to the lease before it, so lines of concurrent leases must not mix.
            self._recorder.write([dump(lease, self._secrets.redact), *calls])


class _CallRecording:
    """A call that is being recorded."""

    def __init__(self, tool: ToolDefinition, arguments: Mapping[str, Any]) -> None:
        self.tool, self.arguments = tool, dict(arguments)
        self.result: ToolResult | None = None
        self.failure: Failure | None = None
        self.events = ServerEvents()
        self.into: ServerEvents | None = None
        """The session's events, which get the call's."""

    def line(self) -> RecordedCall:
        return RecordedCall(
            kind="call",
            server=self.tool.server,
            tool=self.tool.name,
            role=self.tool.role,
            arguments=self.arguments,
            result=RecordedResult.of(self.result) if self.result else None,
            failure=self.failure,
            elapsed_s=round(self.result.elapsed_s, 6) if self.result else 0.0,
            events=self.events if self.events != ServerEvents() else None,
        )


class _LeaseRecording:
    """The calls of one lease in the order in which they began."""

    def __init__(self) -> None:
        self.calls: list[_CallRecording] = []
        self.tools_changed: Failure | None = None
        self.began: Sending | None = None
        self._handed_over = 0
        self._running = 0

    def begin(self, call: _CallRecording) -> None:
        self.calls.append(call)
        self._running += 1

    def end(self) -> None:
        """Hand the events of calls to the session once none is in flight: in the order in which the calls began.

        Concurrent calls end in any order, and a replay has to give the same trace.
        """
        self._running -= 1
        if not self._running:
            for call in self.calls[self._handed_over :]:
                # None if the call never reached a connection.
                if call.into is not None:
                    call.into.add(call.events)
            self._handed_over = len(self.calls)


class RecordedSending(Sending):
    """Sends calls, and records them and their outcomes. Releases are not recorded."""

    def __init__(self, recording: _LeaseRecording, **made: Any) -> None:
        super().__init__(**made)
        self._recording, recording.began = recording, self

    def check_tools(self) -> None:
        try:
            super().check_tools()
        except ToolsChanged as error:
            self._recording.tools_changed = Failure.of(error)
            raise

    async def send(self, call: OutgoingCall) -> ToolResult:
        # The end of a lease is in no replay: there is nothing to release.
        if call.tool.role is Role.RELEASE:
            return await super().send(call)
        recorded = _CallRecording(call.tool, call.arguments)

        def attempt() -> InFlightCall:
            made = call.in_flight()
            # Of every attempt: the call's events are collected here, and added to the session's when none is in flight.
            recorded.into, made.events = made.events, recorded.events
            return made

        # Before the first `await`: the order of the recording is the order in which calls begin.
        self._recording.begin(recorded)
        try:
            recorded.result = await super().send(replace(call, in_flight=attempt))
            return recorded.result
        except GatewayError as error:
            recorded.failure = Failure.of(error)
            raise
        finally:
            # Also of a call that is cut: the others' events wait for it.
            self._recording.end()
