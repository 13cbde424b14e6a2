"""Two small inference servers that really generate, over HTTP, for tests of the engines that talk to such servers.

They are not SGLang and not vLLM. Each speaks the part of the other's API that `rollout.engines` uses, with the fields,
the meaning of the logprobs and the ways to end that the original has (SGLang 0.5.18's and vLLM's sources were read for
that; the real SGLang is tested in test_sglang_server.py). The model is run by plain transformers, one whole forward
pass a token, without cache and without any of this project's decoding, so that it can be compared with.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers import AutoModelForCausalLM

CONTEXT = 4096


@dataclass(frozen=True)
class Drawn:
    """One token and its log-probability in the three meanings that servers give it."""

    id: int
    raw: float
    scaled: float
    drawn: float


def kept(probabilities: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """Which tokens top-k and top-p leave; the likeliest always stays."""
    ordered, order = probabilities.sort(descending=True)
    keep = ordered.cumsum(-1) - ordered <= top_p
    if top_k > 0:
        keep &= torch.arange(len(keep)) < top_k
    return torch.zeros_like(keep).scatter(0, order, keep)


class Generator:
    """The model of a directory, drawing one token at a time."""

    def __init__(self, path: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path).eval()
        self.eos = self.model.generation_config.eos_token_id

    @torch.inference_mode()
    def draw(self, ids: list[int], temperature: float, top_p: float, top_k: int, generator: torch.Generator) -> Drawn:
        logits = self.model(input_ids=torch.tensor([ids])).logits[0, -1]
        raw = torch.log_softmax(logits, -1)
        if temperature == 0:
            token = int(raw.argmax())
            return Drawn(token, *[float(raw[token])] * 3)
        scaled = torch.log_softmax(logits / temperature, -1)
        keep = kept(scaled.exp(), top_p, top_k)
        left = torch.where(keep, scaled.exp(), 0.0)
        token = int(torch.multinomial(left, 1, generator=generator))
        return Drawn(token, float(raw[token]), float(scaled[token]), float((left[token] / left.sum()).log()))

    def logprobs(
        self, prompt: list[int], ids: list[int], *, temperature: float, top_p: float, top_k: int
    ) -> list[float]:
        """What the engines' logprobs must be: of all tokens of a completion, from one forward pass."""
        with torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        found = []
        for row, token in zip(logits, ids, strict=True):
            probabilities = torch.softmax(row / (temperature or 1.0), -1)
            left = torch.where(kept(probabilities, top_p, top_k), probabilities, 0.0)
            found.append(float((left[token] / left.sum()).log()))
        return found


@dataclass
class Server:
    """What both have: requests as they came, and requests to fail first."""

    generator: Generator
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    aborted: set[str] = field(default_factory=set[str])
    refuse: int = 0
    """So many generations are answered with 503 first."""
    break_off: int = 0
    """So many generations lose their connection after the first token."""

    async def sample(self, ids: list[int], most: int, name: str, **params: Any) -> AsyncIterator[Drawn]:
        random = torch.Generator().manual_seed(params.get("seed") or 0)
        context = list(ids)
        stops = {self.generator.eos, *params["stops"]}
        for _ in range(most):
            if name in self.aborted:
                return
            drawn = await anyio.to_thread.run_sync(
                self.generator.draw, context, params["temperature"], params["top_p"], params["top_k"], random
            )
            yield drawn
            context.append(drawn.id)
            if drawn.id in stops:
                return


@dataclass
class SGLangLike(Server):
    """SGLang's native API."""

    original_logprobs: bool = False
    """As under SGLANG_RETURN_ORIGINAL_LOGPROB=1."""
    weight_version: str = "default"
    paused: bool = False
    """As after /pause_generation: requests wait."""
    lies: int | None = None
    """Said in the last id's place."""

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/model_info", self._model_info),
                Route("/server_info", self._server_info),
                Route("/generate", self._generate, methods=["POST"]),
                Route("/abort_request", self._abort, methods=["POST"]),
            ]
        )

    async def _model_info(self, _: Request) -> Response:
        return JSONResponse({"model_path": "tiny", "tokenizer_path": "tiny", "is_generation": True})

    async def _server_info(self, _: Request) -> Response:
        return JSONResponse({"max_req_input_len": CONTEXT, "version": "0.5.18"})

    async def _abort(self, request: Request) -> Response:
        self.aborted.add((await request.json())["rid"])
        return Response()

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if self.refuse:
            self.refuse -= 1
            return JSONResponse({"error": "the queue is full"}, status_code=503)
        if self.paused:
            await anyio.sleep_forever()
        params = body["sampling_params"]
        temperature, top_p, top_k = params.get("temperature", 1.0), params.get("top_p", 1.0), params.get("top_k", -1)
        stops = set(params.get("stop_token_ids") or ())
        name = body.get("rid", "")
        sampled = [
            drawn
            async for drawn in self.sample(
                body["input_ids"],
                params["max_new_tokens"],
                name,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                stops=stops,
                seed=params.get("sampling_seed"),
            )
        ]
        ids = [drawn.id for drawn in sampled]
        if self.lies is not None:
            ids[-1] = self.lies
        if name in self.aborted:
            finish: dict[str, Any] = {"type": "abort", "message": "Abort in waiting queue"}
        elif len(ids) < params["max_new_tokens"] or ids[-1] in stops | {self.generator.eos}:
            finish = {"type": "stop", "matched": ids[-1]}
        else:
            finish = {"type": "length", "length": params["max_new_tokens"]}
        meta: dict[str, Any] = {"finish_reason": finish, "weight_version": self.weight_version}
        if body.get("return_logprob"):
            numbers = [drawn.raw if self.original_logprobs else drawn.scaled for drawn in sampled]
            meta["output_token_logprobs"] = [[number, token, None] for number, token in zip(numbers, ids, strict=True)]
        return JSONResponse({"text": "", "output_ids": ids, "meta_info": meta})


@dataclass
class VLLMLike(Server):
    """vLLM's `/v1/completions`, streaming."""

    processed_logprobs: bool = False
    """As under `--logprobs-mode processed_logprobs`."""
    token_ids: bool = True
    """False is an OpenAI-compatible server that knows no `return_token_ids`."""
    changes_prompt: bool = False
    text: str = "?"
    """Of each token."""
    models: Sequence[Mapping[str, Any]] = ({"id": "tiny", "root": "tiny", "max_model_len": CONTEXT},)
    """As /v1/models lists them."""

    @property
    def app(self) -> Starlette:
        routes = [Route("/v1/models", self._models), Route("/v1/completions", self._complete, methods=["POST"])]
        return Starlette(routes=routes)

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": self.models})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if self.refuse:
            self.refuse -= 1
            return JSONResponse({"error": {"message": "overloaded"}}, status_code=503)
        return StreamingResponse(self._events(body), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        prompt, most = body["prompt"], body["max_tokens"]
        stops = {self.generator.eos, *body.get("stop_token_ids", ())}
        first = True
        sampling = self.sample(
            prompt,
            most,
            "",
            temperature=body["temperature"],
            top_p=body["top_p"],
            top_k=body["top_k"],
            stops=stops,
            seed=body.get("seed"),
        )
        count = 0
        async for drawn in sampling:
            count += 1
            reason = "stop" if drawn.id in stops else "length" if count == most else None
            number = drawn.drawn if self.processed_logprobs else drawn.raw
            choice: dict[str, Any] = {"index": 0, "text": self.text, "finish_reason": reason}
            choice["logprobs"] = {"token_logprobs": [number], "tokens": ["?"], "top_logprobs": [{"?": number}]}
            if self.token_ids and body.get("return_token_ids"):
                read = [*prompt, 0] if self.changes_prompt else prompt
                choice |= {"token_ids": [drawn.id]} | ({"prompt_token_ids": read} if first else {})
            first = False
            event = {"object": "text_completion", "choices": [choice]}
            yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n"  # as pydantic, with which vLLM writes it
            if self.break_off:
                self.break_off -= 1
                raise ConnectionResetError("the server went down")
        yield "data: [DONE]\n\n"
