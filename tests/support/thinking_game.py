"""A conversation with thinking, tools and a user, played under any thinking policy, and its check against the log."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine_log import compare, plain_record, recorded, samples_of
from mcp.server.mcpserver import MCPServer
from worlds import ROLE, environment, opened, task

from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.trace.journal import to_json
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.types import Call, Completion, Policy, TokenBuilder

SCRIPT = [
    hermes.write(thinking="I shout plum.", calls=[Call(name="shout", arguments={"text": "plum"})]),
    hermes.write(thinking="It came back. Now I can tell the user at some length what it was.", content="PLUM it is."),
    hermes.write(content="No thought here."),
    hermes.write(thinking="Two at once.", calls=[Call(name="shout", arguments={"text": word}) for word in ("a", "b")]),
    "<think>\nA broken call.\n</think>\n\n<tool_call>{</tool_call>",
    hermes.write(thinking="That was it.", content="A and B."),
    hermes.write(thinking="Bye then.", content="Bye."),
]
REPLIES = ("Good. And now?", "Now a and b.", "Thanks.", "Bye.")


def servers() -> dict[str, MCPServer]:
    world, user = MCPServer("world", log_level="ERROR"), MCPServer("user", log_level="ERROR")

    @world.tool()
    async def shout(text: str) -> str:
        """Says it louder."""
        return text.upper()

    @user.tool(name="start", meta={ROLE: "start"})
    async def start() -> dict[str, Any]:
        return {"message": "Shout plum."}

    @user.tool(name="reply", meta={ROLE: "reply"})
    async def reply(seq: int, message: str) -> dict[str, Any]:
        return {"message": REPLIES[seq - 1], "done": seq == len(REPLIES)}

    return {"world": world, "user": user}


class Logged:
    """A scripted engine that keeps a log of what it was asked and what it gave, with a logprob of its own each time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.log: list[dict[str, Any]] = []

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        said = await self._policy.generate(ids, max_tokens=max_tokens, turn=turn)
        logprobs = [-(len(self.log) + 1) - index / 1024 for index in range(len(said.ids))]
        self.log.append({"prompt_ids": list(ids), "token_ids": said.ids, "log_probs": logprobs})
        return Completion(ids=said.ids, logprobs=logprobs, finish_reason=said.finish_reason, weights_version=(3, 4))


async def play(
    directory: Path,
    tokens: TokenBuilder,
    encode: Callable[[str], list[int]],
    *,
    stop: str,
    thinking: dict[str, Any],
    script: list[str] | None = None,
    limits: Limits | None = None,
) -> tuple[Trace, list[dict[str, Any]]]:
    """The trace as it was read back from the disk, and the engine's log."""
    logged = Logged(ScriptedPolicy(SCRIPT if script is None else script, encode, stop=stop))

    async def policy_for(_: object) -> Policy:
        return logged

    running = servers()
    made = environment(running, user={"server": "user"}, thinking=thinking)
    async with opened(made, running) as gateway:
        await roll_out(
            Trace.begin("t", task(prompt=({"role": "user", "content": "Shout plum."},)), Origin()),
            environment=made,
            gateway=gateway,
            policy_for=policy_for,
            tokens=tokens,
            limits=limits or Limits(response_tokens=20_000),
            store=TraceStore(directory),
        )
    (trace,) = read_traces(directory)
    return trace, logged.log


def check(
    trace: Trace, log: list[dict[str, Any]], *, loss: str, drops: bool, decode: Callable[[list[int]], str]
) -> None:
    """Every position of every training sample against the log, and each sampled token in exactly one of them."""
    record = plain_record(to_json(trace))
    samples = samples_of(record)

    def in_loss(generation: dict[str, Any]) -> list[bool]:
        thought = thought_of(generation, decode) if loss == "mask" else 0
        return [at >= thought for at in range(len(generation["token_ids"]))]

    assert compare(log, recorded([record]), in_loss=in_loss).differences == {}
    for generation, following in pairwise(log):
        seen, then = generation["prompt_ids"] + generation["token_ids"], following["prompt_ids"]
        if then[: len(seen)] != seen:
            assert drops
            # By the text alone: all thoughts are gone, and nothing else is.
            assert decode(then).startswith(re.sub(r"<think>.*?</think>\n*", "", decode(seen), flags=re.DOTALL))
    prompts = [decode(sample["prompt_ids"]) for sample in samples]
    assert not any("<think>" in prompt for prompt in prompts)
    assert drops or len(samples) == 1


def thought_of(generation: dict[str, Any], decode: Callable[[list[int]], str]) -> int:
    """The number of ids of its leading thought, found in the text of growing prefixes."""
    ids = generation["token_ids"]
    if not decode(ids).startswith("<think>"):
        return 0
    return next((count for count in range(len(ids) + 1) if "</think>" in decode(ids[:count])), len(ids))
