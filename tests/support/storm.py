"""Calls from several trajectories at a time while their servers break, held against what ran."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from breaking import REPEATABLE

from mcp_rollout import Gateway, GatewayConfig, GatewayError, ToolResult
from mcp_rollout.gateway.errors import DeliveryUnknown, ProtocolError, ServerUnavailable

BREAK_TWICE = 0.3
"""Share of calls whose second attempt breaks as well as the first."""
LANES, AT_ONCE = 8, 6
"""Trajectories at a time, and calls that each of them has in flight."""


@dataclass
class Storm:
    """Calls through a gateway while their servers break, and what became of each.

    Args:
        kinds: Of breaks to draw from.
        ended: Called with the id of each call that is over.
        share: Of calls whose first attempt breaks.
    """

    seed: str
    kinds: Sequence[str]
    plan: Callable[[str, list[str]], dict[str, Any]]
    """Makes a call's breaks known to the server; returns arguments to add to the call."""
    ended: Callable[[str], None] = lambda _: None
    share: float = 0.8
    drawn: dict[str, list[str]] = field(default_factory=dict)
    """Breaks by call, as planned."""
    outcomes: dict[str, tuple[str, ToolResult | GatewayError]] = field(default_factory=dict)
    """By call, its tool and its outcome."""

    async def rage(self, gateway: Gateway, enough: Callable[[], bool]) -> None:
        """Call from several trajectories at a time, each with several calls in flight, until `enough()`."""
        numbers = itertools.count()

        async def live(lane: int) -> None:
            rng = random.Random(f"{self.seed}/{lane}")
            while not enough():
                number = next(numbers)
                try:
                    async with (
                        gateway.lease(trajectory=f"t{number}", task=None, seed=1) as session,
                        anyio.create_task_group() as calls,
                    ):
                        for each in range(AT_ONCE):
                            tool = rng.choice(list(session.tools))
                            breaks = [rng.choice(self.kinds)] if rng.random() < self.share else []
                            if breaks and rng.random() < BREAK_TWICE:
                                breaks.append(rng.choice(self.kinds))
                            calls.start_soon(self.call, session, tool, f"{number}-{each}", breaks)
                except* GatewayError:  # no connection for this lease: none of its calls was made
                    pass

        async with anyio.create_task_group() as lanes:
            for lane in range(LANES):
                lanes.start_soon(live, lane)

    async def call(self, session: Any, tool: str, call: str, breaks: list[str]) -> None:
        self.drawn[call] = list(breaks)
        more = self.plan(call, breaks)
        name = session.tools[tool].name
        try:
            self.outcomes[call] = name, await session.call(tool, {"id": call, **more})
        except GatewayError as error:
            self.outcomes[call] = name, error
        self.ended(call)

    def check(self, ran: Counter[str]) -> Counter[str]:
        """Hold the outcomes against what ran; returns how often each kind of outcome occurred."""
        kinds: Counter[str] = Counter()
        faults: list[str] = []
        for call, (tool, outcome) in self.outcomes.items():
            times = ran[call]
            if fault := _fault(call, times, 2 if tool in REPEATABLE else 1, outcome):
                faults.append(f"{call} ({tool}, {self.drawn.get(call)}): {fault}: {outcome!r}")
            error = isinstance(outcome, ToolResult) and outcome.is_error
            kinds["error result" if error else "result" if isinstance(outcome, ToolResult) else outcome.code] += 1
            kinds["twice"] += times == 2
            kinds["twice, then a result"] += times == 2 and isinstance(outcome, ToolResult) and not error
        assert not faults, "\n".join(faults)
        return kinds


def _fault(call: str, ran: int, most: int, outcome: ToolResult | GatewayError) -> str:
    """What is wrong with the outcome of a call that ran so often; empty where nothing is."""
    if ran > most:
        return f"ran {ran} times"
    match outcome:
        case ToolResult(is_error=True):
            # Of the tool's own making: the servers send these texts as JSON-RPC errors.
            return "" if ran and outcome.text in ("it broke", "Connection closed") else "no tool said so"
        case ToolResult():
            return "" if ran and outcome.text == call else f"returned, ran {ran} times"
        case ServerUnavailable():
            return f"ran {ran} times and is reported as not sent" if ran else ""
        case _:
            return "" if type(outcome) in (DeliveryUnknown, ProtocolError) else "of another kind"


def config(**entries: dict[str, Any]) -> GatewayConfig:
    bounds = {"required": True, "call_timeout_s": 20, "close_timeout_s": 0.5}
    return GatewayConfig.model_validate({"servers": {name: {**bounds, **entry} for name, entry in entries.items()}})
