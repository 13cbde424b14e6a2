"""Who may send requests over HTTP: by token, and by the headers Host and Origin."""

from __future__ import annotations

from collections.abc import MutableMapping

from mcp_wire.door import NEEDS_TOKEN, SHORTEST_TOKEN, Holders, Names, is_loopback
from mcp_wire.http_request import Answer, NotAdmitted, Request

TOKEN, HOSTS = "MCP_SERVER_TOKEN", "MCP_SERVER_HOSTS"
"""Variables of the environment: the bearer token, and further names by which clients may address the server. Either may
have several values with spaces between them."""


class Door:
    """Admits requests to a server that listens at `host`.

    Args:
        variables: Of the environment. The token is removed from them: programs that the server starts do not need it.
        authorizes: Whether the server has an authorization of its own.

    Raises:
        ValueError: other machines reach the address, and there is no token; or the token is too short.
    """

    def __init__(self, host: str, variables: MutableMapping[str, str], *, authorizes: bool = False) -> None:
        tokens = variables.pop(TOKEN, "").split()
        if not tokens and not is_loopback(host) and not authorizes:
            raise ValueError(
                f"{host} is reachable from other machines: {TOKEN} must hold a token (openssl rand -hex 32)"
            )
        if any(len(token) < SHORTEST_TOKEN for token in tokens):
            raise ValueError(f"{TOKEN}: shorter than {SHORTEST_TOKEN} characters (openssl rand -hex 32)")
        self._holders = Holders(dict.fromkeys(tokens, True))
        self._names = Names(host, variables.get(HOSTS, "").split())

    def admit(self, request: Request) -> bool:
        """As `Site.admit`: whoever has a token has the same rights."""
        headers = request.headers
        if not self._names.has(headers.get(b"host", b"")):
            raise _refusal(421, "Invalid Host header")
        if b"origin" in headers and not self._names.has_url(headers[b"origin"].decode("latin-1")):
            raise _refusal(403, "Invalid Origin header")
        if self._holders and not self._holders.of(headers):
            raise _refusal(401, NEEDS_TOKEN)
        return True


def _refusal(status: int, problem: str) -> NotAdmitted:
    return NotAdmitted(Answer(status, problem.encode(), b"text/plain"))
