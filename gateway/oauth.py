"""OAuth client credentials by way of the SDK's provider, beneath the client that mcp uses.

The SDK's provider holds a lock from before a request is sent until its answer begins, which would let one slow call
hold up all others of a connection. Here it is asked for tokens only: when there is none, and when one is turned away.
"""

from __future__ import annotations

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from gateway.config import ServerConfig


class AuthorizationFailed(httpx2.TransportError):
    """No token could be had. The message has no secrets in it."""


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


class _Provider(ClientCredentialsOAuthProvider):
    async def _perform_authorization(self) -> httpx2.Request:
        # The SDK asks for what the server advertises, for nothing where it advertises nothing; an entry's word wins.
        if self._fixed_client_info.scope is not None:
            self.context.client_metadata.scope = self._fixed_client_info.scope
        return await super()._perform_authorization()


class Authority:
    """The tokens for one server, shared by all connections to it."""

    def __init__(self, url: str, config: ServerConfig) -> None:
        assert config.client_credentials is not None
        given = config.client_credentials
        self._provider = _Provider(
            url,
            _Memory(),
            client_id=given.client_id,
            client_secret=given.client_secret.get_secret_value(),
            token_endpoint_auth_method=given.method,
            scope=given.scope,
            issuer=given.issuer,
        )

    @property
    def token(self) -> str | None:
        """The access token, while it is valid."""
        context = self._provider.context
        return context.current_tokens.access_token if context.is_token_valid() and context.current_tokens else None

    async def authorize(
        self, request: httpx2.Request, denied: httpx2.Response, transport: httpx2.AsyncBaseTransport
    ) -> None:
        """Get a token after `denied`, the server's answer to `request`.

        Raises:
            AuthorizationFailed: the authorization server cannot be found or reached, or gives no token.
        """
        flow = self._provider.async_auth_flow(request)
        asked = False
        try:
            outgoing = await anext(flow)
            while True:
                if outgoing is not request:
                    response = await transport.handle_async_request(outgoing)
                    response.request = outgoing
                    await response.aread()
                elif not asked:
                    asked, response = True, denied
                else:
                    return
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            raise AuthorizationFailed("the server turned the token away") from None
        except OAuthFlowError as error:
            raise AuthorizationFailed(f"authorization failed: {type(error).__name__}") from None
        finally:
            await flow.aclose()


class Authorized(httpx2.AsyncBaseTransport):
    """Sends requests with the authority's token, and once more with a new one where it was turned away."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, authority: Authority) -> None:
        self._inner, self._authority = inner, authority

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        used = self._authority.token
        response = await self._send(request, used)
        if response.status_code == 401 or _wants_more_scope(response):
            response.request = request
            await response.aread()
            if self._authority.token in (None, used):  # else another request has got a new one meanwhile
                await self._authority.authorize(request, response, self._inner)
            response = await self._send(request, self._authority.token)
        return response

    async def _send(self, request: httpx2.Request, token: str | None) -> httpx2.Response:
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _wants_more_scope(response: httpx2.Response) -> bool:
    return response.status_code == 403 and "insufficient_scope" in response.headers.get("www-authenticate", "")
