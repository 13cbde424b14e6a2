"""One host, as a gateway uses it: what it offers, the leases that it holds for us, and how long it may be silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any, TypeVar, cast

import anyio
import structlog
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.connection.redaction import Redactor
from mcp_rollout.gateway.errors import GatewayError, HostRefused, LeaseTimeout, ProtocolError, WorldLost
from mcp_rollout.gateway.remote.hosts import HostConfig
from mcp_rollout.gateway.remote.names import (
    CAPABILITIES_META,
    CATALOGUE,
    CLIENT_META,
    CLOSE,
    EXTENSION,
    LEASE_META,
    OPEN,
    PROTOCOL,
    PROTOCOL_META,
    RENEW,
    VERSION,
    Offer,
    OfferedServer,
)
from mcp_rollout.gateway.remote.outcome import HostError
from mcp_rollout.gateway.transport.channel import numbers
from mcp_rollout.gateway.transport.delivery import Broke, Delivery
from mcp_rollout.gateway.transport.http_answer import HttpAnswer, HttpFault
from mcp_rollout.gateway.transport.http_connection import HttpConnections
from mcp_rollout.gateway.transport.http_exchange import Exchanges
from mcp_rollout.gateway.transport.messages import answers, read_json
from mcp_rollout.gateway.transport.tool_definitions import first_fault
from mcp_rollout.gateway.transport.unmatched import unmatched
from mcp_rollout.gateway.types import ServerIdentity

log = structlog.get_logger(__name__)
T = TypeVar("T")

_LONGEST = 64 << 20
"""Bytes of a host's longest answer: eight times a server's, since a list of tools has those of all servers."""
_PAUSES_S = (0.05, 0.2, 0.5, 1.0)
"""Before the next attempts at a request; the last one repeats."""
_WAIT_S = 20.0
"""How long one request may wait for a lease; the next one goes on waiting."""
_SPARE_S = 10.0
"""How much longer than the host's own bound a request may take, so that the host's is what ends it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Granted:
    """A host's answer to a request for a lease."""

    lease: str = ""
    process: str = ""
    granted: bool = False
    directory: str | None = None


_OFFER: TypeAdapter[Offer] = TypeAdapter(Offer)
_GRANTED: TypeAdapter[Granted] = TypeAdapter(Granted)
_LOST: TypeAdapter[list[str]] = TypeAdapter(list[str])


class RemoteHost:
    """Used from any task of the gateway's loop; `connect` first.

    Every request may be sent again until it is answered: the host knows a repeated call or lease by its key.
    """

    def __init__(self, config: HostConfig, connections: HttpConnections) -> None:
        self.config = config
        self.offer = Offer(servers={}, idle_s=60.0, patience_s=0.0)
        self.retired = False
        """Whether it gets no more leases."""
        self._posts = Posts(config, connections)
        self.redactor = self._posts.redactor
        """Knows what is sent to the host to be admitted there; its errors have none of it."""

    @property
    def url(self) -> str:
        return self.config.url

    async def connect(self) -> None:
        """Learn what the host offers.

        Raises:
            WorldLost: it cannot be reached within `lost_after_s`.
            HostRefused: it does not admit us, or does not serve worlds.
        """
        try:
            found = await self.request(CATALOGUE, {}, wait_s=_WAIT_S)
        except HostError as error:
            no = f"{self.url} is not a gateway that serves worlds: start one with mcp-rollout serve"
            raise HostRefused(f"{no} ({error})") from error
        except WorldLost as error:
            raise WorldLost(f"{error.problem} (is the address right, and mcp-rollout serve running?)") from error
        offer = self._read(_OFFER, "catalogue", found)
        servers = {name: self._without_secrets(found) for name, found in offer.servers.items()}
        self.offer = replace(offer, servers=servers)

    async def open(self, *, key: str, trajectory: str, seed: int, servers: list[str], reset: bool) -> Granted:
        """Wait for a lease; returns it as the host granted it, with `lease`. Cancelling gives up waiting.

        Args:
            key: Names the lease: under the same key the host finds it again.

        Raises:
            WorldLost: the host was started again since `connect`, so what it offers may be something else.
            LeaseTimeout: the host waited for as long as it may.
            GatewayError: what its own gateway raised, or what `request` raises.
        """
        params: Json = {"key": key, "trajectory": trajectory, "seed": seed, "servers": servers, "reset": reset}
        params["address"] = False  # its trajectory plays in it, and no MCP client of the same bearer
        params["wait_s"] = min(_WAIT_S, self.offer.idle_s / 2)
        handle = ""
        try:
            while True:
                answer = await self.request(OPEN, params, wait_s=_WAIT_S + _SPARE_S, busy=LeaseTimeout)
                found = self._read(_GRANTED, "lease", answer)
                handle = found.lease
                if found.process != self.offer.process:
                    raise WorldLost(f"{self.url} was started again")
                if found.granted:
                    if not handle:
                        raise ProtocolError(f"{self.url} granted a lease without its name")
                    return found
                await anyio.sleep(_PAUSES_S[0])  # an honest host has waited for `wait_s`
        except BaseException as error:
            # Cleanup, also when cancelled: the host frees the place at once, not after its idle time.
            with anyio.move_on_after(self.config.connect_timeout_s, shield=True):
                if not handle and isinstance(error, anyio.get_cancelled_exc_class()):
                    # Cut before the first answer: the host may have the lease by now, which has the same key.
                    known = await self._post_quietly(OPEN, {**params, "wait_s": 0}, {})
                    handle = str((known or {}).get("lease", ""))
                if handle:
                    await self._post_quietly(CLOSE, {}, {LEASE_META: handle})
            raise

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        meta: Mapping[str, Any] | None = None,
        *,
        wait_s: float,
        busy: type[GatewayError] = WorldLost,
    ) -> Json:
        """The result of a request, which is sent again until there is an answer.

        Args:
            wait_s: How long one attempt may take.
            busy: What to raise where the host refuses it for its limits for longer than `lost_after_s`.

        Raises:
            HostError: the host's answer is an error.
            WorldLost: the host was out of reach for `lost_after_s`, or has not answered within `wait_s`.
            HostRefused: the token is wrong.
        """
        failing_since, attempt = 0.0, 0
        while True:
            problem, kind = "", WorldLost
            began = anyio.current_time()
            with anyio.move_on_after(wait_s) as bound:
                try:
                    answer, message = await self._posts.post(method, params, meta or {})
                    # Nothing waits from here to the `return`: an answer that has arrived is not cut any more.
                    problem, kind = self._refusal(answer, message, busy)
                    if not problem:
                        return _result(message)
                except HttpFault as fault:
                    # The host has answered, and would answer so again.
                    if fault.broke is Broke.CONTENT:
                        raise ProtocolError(f"{self.url}: {self.redactor.text(fault.reason)}") from fault
                    problem = self.redactor.text(fault.reason)
            if bound.cancelled_caught:
                raise WorldLost(f"{self.url} has not answered within {wait_s:g} s")
            # From the beginning of the first attempt that failed, since an attempt may fail slowly.
            failing_since = failing_since or began
            pause_s = _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]
            if anyio.current_time() + pause_s - failing_since > self.config.lost_after_s:
                raise kind(f"{self.url}: {problem}")
            attempt += 1
            await anyio.sleep(pause_s)

    async def renew(self, leases: list[str]) -> list[str]:
        """Renew leases; returns those that the host has freed. A failure is left for the next request to show."""
        found = await self._post_quietly(RENEW, {"leases": leases}, {})
        try:
            return self._read(_LOST, "renewal", (found or {}).get("lost", []))
        except ProtocolError as error:
            log.info("host.malformed", host=self.url, problem=str(error))
            return []

    async def _post_quietly(self, method: str, params: Json, meta: Json) -> Json | None:
        """The result of a request whose failure the next one will show; None if it failed."""
        try:
            with anyio.move_on_after(_SPARE_S):
                _, message = await self._posts.post(method, params, meta)
                result: Any = message.get("result")
                return cast("Json", result) if isinstance(result, dict) else None
        except HttpFault as fault:
            log.info("host.unreachable", host=self.url, method=method, problem=self.redactor.text(fault.reason))
        return None

    def _read(self, form: TypeAdapter[T], what: str, answer: Any) -> T:
        """An answer of the host's in this form. Raises `ProtocolError`."""
        try:
            return form.validate_python(answer)
        except ValidationError as error:
            fault = self.redactor.text(first_fault(error))[:300]  # it may quote the host's names
            raise ProtocolError(f"{self.url} sent a malformed {what}: {fault}") from None

    def _without_secrets(self, server: OfferedServer) -> OfferedServer:
        """As a server of this gateway is read; its tools stay as they are sent."""
        text = self.redactor.text
        return replace(
            server,
            instructions=text(server.instructions),
            identity=ServerIdentity(**self.redactor.json(asdict(server.identity))),
            malformed=tuple(map(text, server.malformed)),
        )

    def _refusal(self, answer: HttpAnswer, message: Json, busy: type[GatewayError]) -> tuple[str, type[GatewayError]]:
        """Why an answer is none, and what it becomes if it stays so; empty where it is one. Raises `HostRefused`."""
        said: Any = message.get("error")
        of_status = self.redactor.text(answer.status_line)
        text = str(cast("Json", said).get("message"))[:300] if isinstance(said, dict) else of_status
        if answer.status == 401:
            raise HostRefused(f"{self.url}: {text} (name it: token in hosts, or MCP_ROLLOUT_TOKEN beside --hosts)")
        if answer.status == 403:
            raise HostRefused(f"{self.url}: {text}")
        if answer.status == 429:
            return text, busy
        if answer.status >= 500 or not message:
            return text, WorldLost
        return "", WorldLost


def _result(message: Json) -> Json:
    error: Any = message.get("error")
    if error is not None:
        raise HostError(cast("Json", error) if isinstance(error, dict) else {"message": str(error)})
    result: Any = message.get("result")
    if not isinstance(result, dict):
        raise ProtocolError("the host's answer has no result")
    return cast("Json", result)


Json = dict[str, Any]

_ENVELOPE: Json = {
    PROTOCOL_META: PROTOCOL,
    CLIENT_META: {"name": "mcp-rollout", "version": version("mcp-rollout")},
    CAPABILITIES_META: {"extensions": {EXTENSION: {"version": VERSION}}},
}
"""What each request of the protocol's version says about its client."""


class Posts:
    """Requests to one host, sent as those to servers: they share connections, descriptors and the rules of HTTP."""

    def __init__(self, host: HostConfig, connections: HttpConnections) -> None:
        headers = {} if host.token is None else {"authorization": f"Bearer {host.token.get_secret_value()}"}
        bounds = {"max_message_bytes": _LONGEST, "start_timeout_s": host.connect_timeout_s}
        config = ServerConfig.model_validate({"url": host.url, "headers": headers, **bounds})
        self.redactor = Redactor(config)
        self._exchanges = Exchanges(config, connections=connections, direct=host.direct)
        self._exchanges.requests.learn(version=PROTOCOL)

    async def post(self, method: str, params: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[HttpAnswer, Json]:
        """Send one request, once; returns the answer's head and its JSON, empty where it has none.

        An error in the JSON has no secrets any more; a result may have some.

        Raises:
            HttpFault: there is no answer that can be read, or what came answers another request.
        """
        message = {
            "jsonrpc": "2.0",
            "id": (number := next(numbers)),
            "method": method,
            "params": {**params, "_meta": {**_ENVELOPE, **meta}},
        }
        headers, name = {"mcp-method": method}, params.get("name")
        # The protocol mirrors method and name into headers; hosts do not need what no header can carry.
        if isinstance(name, str) and name and name.isascii() and name.isprintable():
            headers["mcp-name"] = name
        connection = await self._exchanges.open("POST", headers, to_json(message), Delivery())
        answer = connection.answer
        try:
            while not answer.complete:
                await connection.arrival()
            message = _read(answer, number)
        finally:
            # Also when cut: the rest of this answer would be read as that of the connection's next request.
            connection.leave()
        return answer, {**message, "error": self.redactor.json(message["error"])} if "error" in message else message


def _read(answer: HttpAnswer, number: int) -> Json:
    """The response to the request of this number; empty for the page of a proxy, of which the status alone counts.

    Raises:
        HttpFault: it is another request's, and the connection is out of step.
    """
    if not answer.is_document:
        return {}
    try:
        message = read_json(answer.take())
    except ValueError as error:
        raise HttpFault(Broke.CONTENT, str(error)) from error
    # An error without an id is about the request that it came in answer to, as is a page that is no JSON-RPC.
    if not answers(message, number) and unmatched(message) is None and (answer.status == 200 or "jsonrpc" in message):
        answer.reusable = False
        raise HttpFault(Broke.LINE, "the answer is another request's")
    return message
