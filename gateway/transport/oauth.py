"""Access tokens for one server: OAuth client credentials with the SDK's provider.

The SDK's provider holds a lock from before a request is sent until its answer begins, so that one slow call would block
all others of a connection. Here it only gets tokens: when there is none, when one is rejected, and before a request is
sent when one has expired. However many requests need a token at once, one of them gets it and the others wait for it.
"""

from __future__ import annotations

from collections import deque

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.sdk import ClientCredentials
from mcp_rollout.gateway.transport.delivery import Broke
from mcp_rollout.gateway.transport.http_address import Address, certificates, place
from mcp_rollout.gateway.transport.http_answer import HttpAnswer, HttpFault
from mcp_rollout.mcp_wire.chat_api import Completing
from mcp_rollout.mcp_wire.proxies import proxy_of

_MOST_ISSUED = 64
_MOST_BYTES = 1 << 20
"""Of an answer on the way to a token."""


class AuthorizationFailed(HttpFault):
    """No access token could be obtained. The message contains no secrets."""

    def __init__(self, problem: str) -> None:
        super().__init__(Broke.CONNECT, f"AuthorizationFailed: {problem}")
        self.problem = problem


class _Memory:
    """Where the provider keeps its token: as long as the gateway lives, and nowhere else."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        pass


class Authority:
    """The tokens for one server, shared by all connections to it."""

    def __init__(self, config: ServerConfig) -> None:
        assert config.client_credentials is not None and config.url is not None
        given = config.client_credentials
        self._address = Address(config.url)
        self._provider = ClientCredentials(
            self._address.url,
            _Memory(),
            client_id=given.client_id,
            client_secret=given.client_secret.get_secret_value(),
            token_endpoint_auth_method=given.method,
            scope=given.scope,
            issuer=given.issuer,
        )
        endpoints = [given.issuer] if given.token_endpoint is None else [given.issuer, given.token_endpoint]
        self._issuers = {place(httpx2.URL(url)) for url in endpoints}
        self._own = place(httpx2.URL(config.url))
        self._timeout_s = config.start_timeout_s
        self._renewing = anyio.Lock()
        self._renewals = 0
        self._failure = ""
        self._denied: HttpAnswer | None = None
        """The server's latest rejection; its challenge says where tokens are issued."""
        self._rejected: str | None = None
        """The token that it rejected; None once there is another."""
        self.issued: deque[str] = deque(maxlen=_MOST_ISSUED)
        """The latest access tokens, expired ones too: a server may quote one that a running call was sent with."""

    @property
    def token(self) -> str | None:
        """The access token, unless it has expired or was rejected."""
        return self.latest if self._provider.context.is_token_valid() and self.latest != self._rejected else None

    @property
    def latest(self) -> str | None:
        """The access token issued last, usable or not."""
        tokens = self._provider.context.current_tokens
        return tokens.access_token if tokens is not None else None

    def reject(self, used: str | None, denied: HttpAnswer) -> None:
        """Note that the server answered `denied` to a request with the token `used`: the next request renews it."""
        self._denied = denied
        if used is not None and used == self.latest:
            self._rejected = used

    async def token_for(self, version: str) -> str | None:
        """The token to send a request with, renewed first where it is known to be of no use.

        None before the server has asked for one. Raises `AuthorizationFailed` as `renew` does.

        Args:
            version: Of the MCP protocol, on which it depends what is asked of the authorization server.
        """
        if self.token is None and self._denied is not None:
            await self.renew(None, self._denied, version)
        # The first token is being fetched by another request; this one would only be rejected without it.
        elif self._renewing.locked() and self.token is None:
            async with self._renewing:
                pass
        return self.latest

    async def renew(self, used: str | None, denied: HttpAnswer, version: str) -> None:
        """Get another token than `used` after `denied`, the server's answer to it; bounded by `start_timeout_s`.

        Concurrent callers share one renewal and its outcome, a failure too.

        Raises:
            AuthorizationFailed: the authorization server cannot be found or reached, or gives no token.
        """
        # Read before waiting for the lock: a renewal that ends meanwhile has served this caller too.
        seen = self._renewals
        async with self._renewing:
            if self.token not in (None, used):
                return
            if self._renewals > seen:
                if self._failure:
                    raise AuthorizationFailed(self._failure)
                return  # a token that expires as it arrives is not renewed for each of those who waited for it
            self._failure = ""
            self._denied = denied
            try:
                with anyio.fail_after(self._timeout_s):
                    await self._authorize(denied, version)
            except TimeoutError:
                self._failure = f"no token within {self._timeout_s:g} s"
                raise AuthorizationFailed(self._failure) from None
            except AuthorizationFailed as error:
                self._failure = error.problem
                raise
            # Addresses and documents are those that servers name: what the provider makes of a bad one varies.
            except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
                # Concurrent callers share this failure; each would meet it again, one after the other.
                self._failure = f"authorization failed: {type(error).__name__}"
                raise AuthorizationFailed(self._failure) from error
            else:
                self._rejected = None
            finally:
                self._renewals += 1
                if self.token is not None and self.token not in self.issued:
                    self.issued.append(self.token)

    async def _authorize(self, answer: HttpAnswer, version: str) -> None:
        # The SDK's flow is written for an HTTP client: it begins by sending the request that needs a token.
        request = httpx2.Request("POST", self._address.url, headers={MCP_PROTOCOL_VERSION_HEADER: version})
        challenge = [each for each in answer.headers if each[0] == b"www-authenticate"]
        denied = httpx2.Response(answer.status, headers=challenge, request=request)
        flow = self._provider.async_auth_flow(request)
        asked, unnamed = False, ""
        try:
            outgoing = await anext(flow)
            while True:
                if outgoing is not request and not self._is_named(outgoing):
                    origins = "the entry's issuer and token_endpoint"
                    unnamed = f"; {str(outgoing.url)[:200]} was not asked, which is at another origin than {origins}"
                    response = httpx2.Response(404, request=outgoing)
                elif outgoing is not request:
                    response = await self._ask(outgoing)
                # The rejection of which is known already. When it wants to send it again, it has a token.
                elif not asked:
                    asked, response = True, denied
                else:
                    return
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            raise AuthorizationFailed("the server rejected the token") from None
        except OAuthFlowError as error:
            raise AuthorizationFailed(f"authorization failed: {type(error).__name__}{unnamed}") from None
        finally:
            await flow.aclose()

    def _is_named(self, outgoing: httpx2.Request) -> bool:
        """Whether the entry names the origin of a request: for the secret the issuer's, for metadata the server's too.

        Servers can name any others, such as addresses that only this machine reaches.
        """
        origin = place(outgoing.url)
        return origin in self._issuers or (outgoing.method == "GET" and origin == self._own)

    async def _ask(self, outgoing: httpx2.Request) -> httpx2.Response:
        """The answer, read whole."""
        # Made by the provider, so it has no bounds and allows compression, of which the size says nothing.
        outgoing.extensions = {**outgoing.extensions, "timeout": httpx2.Timeout(self._timeout_s).as_dict()}
        outgoing.headers["accept-encoding"] = "identity"
        proxied = httpx2.AsyncHTTPTransport(verify=certificates(), proxy=proxy_of(str(outgoing.url)) or None)
        async with Completing(proxied, self._address.complete) as transport:
            response = await transport.handle_async_request(outgoing)
            response.request = outgoing
            try:
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise AuthorizationFailed("authorization failed: an answer is encoded, which was not asked for")
                data = bytearray()
                async for chunk in response.aiter_raw():
                    data += chunk
                    if len(data) > _MOST_BYTES:
                        raise AuthorizationFailed(f"authorization failed: an answer has more than {_MOST_BYTES} bytes")
            finally:
                await response.aclose()
        return httpx2.Response(response.status_code, headers=response.headers, content=bytes(data), request=outgoing)


def is_rejection(status: int, challenge: bytes) -> bool:
    """Whether an answer says that its request's access token is missing, invalid, or has too little scope."""
    return status == 401 or (status == 403 and b"insufficient_scope" in challenge)
