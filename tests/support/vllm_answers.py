"""What a vLLM server sends: an ASGI middleware that `vllm serve --middleware vllm_answers.Written` loads."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


class Written:
    """Writes the body of each answer to the file VLLM_ANSWERS, a JSON string a line, also where its client is gone."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        body = bytearray()

        async def noted(message: Message) -> None:
            body.extend(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            with open(os.environ["VLLM_ANSWERS"], "a") as answers:  # noqa: ASYNC230
                answers.write(json.dumps(body.decode()) + "\n")
