"""A late turn costs what an early one does: the elements of the trace's lists that our code touches are counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, SupportsIndex

import pytest
from mcp.server.mcpserver import MCPServer
from worlds import environment, opened, task

from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Call, Completion, Policy

pytestmark = pytest.mark.anyio
TURNS = 400


class Counted(list[Any]):
    """A list that counts the elements which are read, written or moved."""

    touched = 0

    def __iter__(self) -> Iterator[Any]:
        Counted.touched += len(self)
        return super().__iter__()

    def __reversed__(self) -> Iterator[Any]:
        for index in range(len(self) - 1, -1, -1):
            yield self[index]

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        Counted.touched += len(found) if isinstance(key, slice) else 1
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        Counted.touched += len(value) if isinstance(key, slice) else 1
        super().__setitem__(key, value)

    def __delitem__(self, key: SupportsIndex | slice) -> None:
        Counted.touched += len(super().__getitem__(key)) if isinstance(key, slice) else 1
        super().__delitem__(key)

    def __add__(self, other: Any) -> Any:
        Counted.touched += len(self) + len(other)
        return super().__add__(other)

    def __radd__(self, other: list[Any]) -> list[Any]:
        Counted.touched += len(self) + len(other)
        return other + list(self)

    def __iadd__(self, other: Iterable[Any]) -> Any:
        added = list(other)
        Counted.touched += len(added)
        return super().__iadd__(added)

    def append(self, value: Any) -> None:
        Counted.touched += 1
        super().append(value)

    def __contains__(self, value: object) -> bool:
        Counted.touched += len(self)
        return super().__contains__(value)

    def __eq__(self, other: object) -> bool:
        Counted.touched += len(self)
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def count(trace: Trace) -> None:
    """Let the trace's lists count what is touched from now on."""
    for name in ("context", "prompt_ids", "response_ids", "loss_mask", "logprobs", "spans", "turns", "messages"):
        if not isinstance(getattr(trace, name), Counted):
            setattr(trace, name, Counted(getattr(trace, name)))
    Counted.touched = 0


async def test_turn_400_touches_at_most_half_as_many_elements_more_than_turn_5(tmp_path: Path) -> None:
    server = MCPServer("world", log_level="ERROR")
    server.add_tool(lambda n: f"Number {n}.", name="number", description="Says a number.")
    trace = Trace.begin("t", task(), Origin())
    own: list[int] = []

    class Watching:
        async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
            if turn:
                own.append(Counted.touched)
            count(trace)
            call = Call(name="number", arguments={"n": 100 + turn})
            sampled = ByteTokens().encode(hermes.write(thinking="So.", calls=[call]) + IM_END)
            Counted.touched = 0
            return Completion(ids=sampled, logprobs=[0.0] * len(sampled))

    async def policy_for(_: object) -> Policy:
        return Watching()

    made = environment({"world": server}, limits={"tool_calls": 1000, "tell_budget": False})
    async with opened(made, {"world": server}) as gateway:
        await roll_out(
            trace,
            environment=made,
            gateway=gateway,
            policy_for=policy_for,
            tokens=ByteTokens(),
            limits=Limits(response_tokens=10**6, assistant_turns=TURNS + 1, tool_calls=1000, user_turns=1000),
            store=TraceStore(tmp_path),
        )
    assert len(own) == TURNS and trace.failure is None
    assert own[4] > 100, own
    assert own[TURNS - 1] <= 1.5 * own[4], own
