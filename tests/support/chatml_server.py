"""A chat server whose model reads ChatML: messages are rendered, tokenised, and found again by their control ids."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tool_formats import tokenizer_for


class ChatML:
    """Answers with the last assistant's message that it sees, or `otherwise`."""

    def __init__(self, otherwise: str) -> None:
        self._tokenizer: Any = tokenizer_for("hermes")
        self._otherwise = otherwise
        self.seen: list[list[tuple[str, str]]] = []
        """(role, content) of the messages of each request, as the model's ids say."""
        self.requests: list[dict[str, Any]] = []

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        ids = self._tokenizer.apply_chat_template(body["messages"], tokenize=True, return_dict=False)
        self.seen.append(self._messages(ids))
        own = [content for role, content in self.seen[-1] if role == "assistant"]
        answer = own[-1] if own else self._otherwise
        return JSONResponse({"choices": [{"message": {"content": answer}, "finish_reason": "stop"}]})

    def _messages(self, ids: list[int]) -> list[tuple[str, str]]:
        start, end = self._tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
        found: list[list[int]] = []
        is_open = False
        for token in ids:
            if token == start:
                found.append([])
            elif is_open and token != end:
                found[-1].append(token)
            is_open = token != end and bool(found)
        texts = [self._tokenizer.decode(message).partition("\n") for message in found]
        return [(role, content) for role, _, content in texts]
