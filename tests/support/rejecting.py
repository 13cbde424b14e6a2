"""A breaking HTTP server behind bearer tokens, and the authorization server that issues them, on one address."""

from __future__ import annotations

import asyncio
import json
import random

from breaking import BreakingHttp, Json, Request, respond

CHALLENGE = 'Bearer error="invalid_token"'
REJECTIONS = (
    *(
        f"{status} {when} running, {how}"
        for status in (401, 403)
        for when in ("before", "after")
        for how in ("challenge", "none")
    ),
)
"""How a call may be rejected, whatever its token: `403 after running, challenge`."""


class Rejecting(BreakingHttp):
    """Streamable HTTP that requires its latest token. Breaks of kind `REJECTIONS` reject a token that is valid."""

    def __init__(self, rng: random.Random, unread: float = 0.0) -> None:
        super().__init__(rng, unread)
        self.issued = 0
        self.lifetime_s: int | None = 3600
        """As announced; None announces none."""
        self.revoked = False
        self.rejected = 0
        """Calls whose token was not the latest one."""
        self.gathered = 0
        """How many calls arrive before the token of the first one is looked at."""
        self._arrived = 0
        self._all_arrived = asyncio.Event()

    @property
    def entry(self) -> Json:
        credentials = {"issuer": self.origin, "client_id": "me", "client_secret": "client-secret-1"}
        return {**super().entry, "client_credentials": credentials}

    async def _serve(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path.startswith("/.well-known/oauth-protected-resource"):
            about: Json = {"resource": f"{self.origin}/mcp", "authorization_servers": [self.origin]}
            return await respond(writer, 200, json.dumps(about).encode())
        if request.path.startswith("/.well-known/"):
            about = {
                "issuer": self.origin,
                "authorization_endpoint": f"{self.origin}/authorize",
                "token_endpoint": f"{self.origin}/token",
                "response_types_supported": ["code"],
                "grant_types_supported": ["client_credentials"],
            }
            return await respond(writer, 200, json.dumps(about).encode())
        if request.path == "/token":
            self.issued, self.revoked = self.issued + 1, False
            token: Json = {"access_token": f"access-token-{self.issued}", "token_type": "Bearer"}
            if self.lifetime_s is not None:
                token["expires_in"] = self.lifetime_s
            return await respond(writer, 200, json.dumps(token).encode())
        is_call = request.method == "POST" and request.message.get("method") == "tools/call"
        if is_call:
            self._arrived += 1
            if self._arrived >= self.gathered:
                self._all_arrived.set()
            await self._all_arrived.wait()
        if self.revoked or request.headers.get("authorization") != f"Bearer access-token-{self.issued}":
            self.rejected += is_call
            return await respond(writer, 401, b"", kind="", WWW_Authenticate=CHALLENGE)
        await super()._serve(request, writer)

    async def _call(self, message: Json, session: str, writer: asyncio.StreamWriter) -> None:
        call = message["params"]["arguments"]["id"]
        if not (self.plan[call] and self.plan[call][0] in REJECTIONS):
            return await super()._call(message, session, writer)
        status, when, _, how = self._next_break(call).replace(",", "").split()
        if when == "after":
            await self._run(call)
        scope = 'Bearer error="insufficient_scope", scope="more"' if status == "403" else CHALLENGE
        challenge = {"WWW_Authenticate": scope} if how == "challenge" else {}
        await respond(writer, int(status), b"", kind="", **challenge)
