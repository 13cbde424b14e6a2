"""Where a server is, apart from what its url says in confidence: user, password, query."""

from __future__ import annotations

import httpx2


class Address:
    """A server's url without what may be secret in it: user, password and query are put back beneath every log.

    They are put back for that server alone. On the way to a token, requests go to other hosts as well.
    """

    def __init__(self, url: str) -> None:
        given = httpx2.URL(url)
        self._origin = _origin(given)
        self.url = str(given.copy_with(userinfo=b"", query=None, fragment=None))
        self.path, self.query = given.raw_path.partition(b"?")[0], given.query
        self.auth = httpx2.BasicAuth(given.username, given.password) if given.userinfo else None
        self.hides = bool(self.query or self.auth)
        """Whether there is anything to put back."""

    def complete(self, request: httpx2.Request) -> None:
        """Put back what belongs to a request for this address; others are left as they are."""
        if _origin(request.url) != self._origin:
            return
        if self.query and request.url.raw_path == self.path:
            request.url = request.url.copy_with(query=self.query)
        if self.auth is not None and "authorization" not in request.headers:
            next(self.auth.sync_auth_flow(request))


_PORTS = {"http": 80, "https": 443}


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme)


class Addressed(httpx2.AsyncBaseTransport):
    """Completes requests for one address, and only while they are under way."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, address: Address) -> None:
        self._inner, self._address = inner, address

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        shown = request.url
        self._address.complete(request)
        try:
            return await self._inner.handle_async_request(request)
        finally:
            request.url = shown

    async def aclose(self) -> None:
        await self._inner.aclose()
