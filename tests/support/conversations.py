"""Conversations with a tool and a user under any tool format, played by a policy in spellings of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from sampled import Sampler
from tool_formats import DIALECTS, Dialect, builder_for, tokenizer_for
from worlds import ROLE, environment, opened, task

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Call, Policy

OK = {
    "gpt-oss": "<|channel|>commentary<|message|>Ok.<|end|><|start|>assistant",
    "minimax": "</think>Ok. <think>\n",
}
"""How a policy says a word before it thinks, where that is not the word alone."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """One turn of a script: words, calls, or half a call at the length limit."""

    thinking: str
    content: str
    calls: tuple[Call, ...]
    half: bool
    late: bool = False
    """Whether the policy says a word before it thinks."""

    def text(self, dialect: Dialect) -> tuple[str, bool]:
        if self.half:
            return dialect.half, True
        begun = OK.get(dialect.name, "Ok. ") if self.late else ""
        return begun + dialect.write(self.thinking, self.content, self.calls[: None if dialect.many else 1]), False


EVERYTHING = [
    Said(thinking="Two.", content="I note", calls=(Call(name="note", arguments={"text": "12"}),) * 2, half=False),
    Said(thinking="Hm.", content="So far.", calls=(), half=False),
    Said(thinking="", content="", calls=(), half=True),
    Said(thinking="Again.", content="", calls=(Call(name="guess", arguments={"text": "x"}),), half=False),
    Said(thinking="Done?", content="Done.", calls=(), half=False),
]


def servers(answers: int) -> dict[str, MCPServer]:
    """`note` is the policy's tool; the user says something else each time, `answers` times."""
    desk, user = MCPServer("desk", log_level="ERROR"), MCPServer("user", log_level="ERROR")

    @desk.tool()
    def note(text: str) -> str:
        """Take a note."""
        return f"Noted: {text}"

    @user.tool(name="start", meta={ROLE: "start"})
    def start() -> dict[str, Any]:
        return {"message": "Take notes."}

    @user.tool(name="reply", meta={ROLE: "reply"})
    def reply(seq: int, message: str) -> dict[str, Any]:
        return {"message": f"And then? ({seq})", "done": seq > answers}

    return {"desk": desk, "user": user}


async def played(
    name: str, script: Sequence[Said], directory: Path, *, strategy: dict[str, Any] | None = None, **thinking: Any
) -> tuple[Trace, Sampler]:
    from mcp_rollout.rollout.tokens.verl_builder import ContinuousTokens

    tokenizer, dialect = tokenizer_for(name), DIALECTS[name]
    sampler = Sampler(tokenizer=tokenizer, script=[said.text(dialect) for said in script], seed=len(script))

    async def policy_for(_: Session) -> Policy:
        return sampler

    worlds = servers(sum(not said.calls and not said.half for said in script))
    made = environment(worlds, user={"server": "user"}, thinking=thinking, strategy=strategy or {})
    async with opened(made, worlds) as gateway:
        trace = await roll_out(
            Trace.begin("t", task(), Origin()),
            environment=made,
            gateway=gateway,
            policy_for=policy_for,
            tokens=ContinuousTokens(builder_for(name, tokenizer), tokenizer, name),
            limits=Limits(response_tokens=100_000, assistant_turns=len(script)),
            store=TraceStore(directory),
        )
    return trace, sampler
