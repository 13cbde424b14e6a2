"""Activity of trajectories in flight: counts, rates, errors, slow servers and rewards."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel, Field

from mcp_rollout.rollout.errors import Diverged
from mcp_rollout.rollout.trace.record import Trace, Turn

WINDOW_S = 10.0
"""Rates are means over this time."""
_STEPS = 3
"""Training steps whose rewards are kept, the latest ones."""
USER = "user"
"""Name of the simulated user among the servers."""


@dataclass(slots=True)
class ServerTimes:
    """How long calls of one server took, in seconds."""

    calls: int = 0
    total_s: float = 0.0
    slowest_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.calls, self.total_s = self.calls + 1, self.total_s + seconds
        self.slowest_s = max(self.slowest_s, seconds)

    @property
    def mean_s(self) -> float:
        return self.total_s / self.calls if self.calls else 0.0


@dataclass(slots=True)
class Rewards:
    """Rewards of scored trajectories."""

    count: int = 0
    total: float = 0.0

    def add(self, reward: float) -> None:
        self.count, self.total = self.count + 1, self.total + reward

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


class Rates(BaseModel):
    """Per second."""

    turns: float = 0.0
    calls: float = 0.0
    tokens: float = 0.0


class Oldest(BaseModel):
    """The trajectory that has been in flight for the longest time."""

    id: str
    task: str
    turns: int
    elapsed_s: float


class Activity(BaseModel):
    """Of one process or several, since they began. A turn counts once it is over, a trajectory once it is on disk."""

    at: float
    """Seconds since 1970."""
    in_flight: int = 0
    oldest: Oldest | None = None
    finished: int = 0
    failed: dict[str, int] = Field(default_factory=dict)
    """Withdrawn trajectories by kind of failure."""
    turns: int = 0
    calls: int = 0
    tokens: int = 0
    """Sampled ones."""
    rates: Rates = Rates()
    errors: dict[str, int] = Field(default_factory=dict)
    """Calls with an error: by the policy's fault, or `tool_error` where the tool refused."""
    servers: dict[str, ServerTimes] = Field(default_factory=dict)
    rewards: Rewards = Field(default_factory=Rewards)
    steps: dict[int, Rewards] = Field(default_factory=dict[int, Rewards])
    """Rewards of the latest training steps, without held-out trajectories."""

    @property
    def slowest(self) -> tuple[str, ServerTimes] | None:
        """The server with the longest mean time of a call."""
        return max(self.servers.items(), key=lambda item: item[1].mean_s, default=None)


class Progress:
    """Counts the turns of trajectories in flight, each once, and the outcomes of those that have ended."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Trace, int]] = {}
        """By id: the trace, and the number of its turns that were counted."""
        self._total = Activity(at=time.time())
        self._failed, self._errors = Counter[str](), Counter[str]()
        self._samples: deque[tuple[float, int, int, int]] = deque()

    @property
    def in_flight(self) -> int:
        return len(self._running)

    def begin(self, trace: Trace) -> None:
        self._running[trace.id] = (trace, 0)
        # Rates count from the first trajectory: the process may have waited minutes for its model before.
        if not self._samples:
            self._samples.append((time.monotonic(), 0, 0, 0))

    def end(self, trace: Trace) -> None:
        """Count what is left of a trajectory; one that did not begin here is ignored."""
        if trace.id not in self._running:
            return
        _, counted = self._running.pop(trace.id)
        self._add(trace.turns[counted:])
        # A branch that its parent's replay diverged from is played again, under the same sample.
        begins_again = trace.failure is not None and trace.failure.kind == Diverged.code
        self._total.finished += not begins_again
        self._total.tokens -= trace.strategy.shared_tokens  # not sampled, but taken over
        if trace.failure is not None and not begins_again:
            self._failed[trace.failure.kind] += 1
        if trace.reward is not None:
            self._total.rewards.add(trace.reward.score)
            if trace.origin.step >= 0 and not trace.origin.validate_:
                steps = self._total.steps
                steps.setdefault(trace.origin.step, Rewards()).add(trace.reward.score)
                self._total.steps = {step: steps[step] for step in sorted(steps)[-_STEPS:]}

    def activity(self) -> Activity:
        """As of now, a copy."""
        for name, (trace, counted) in self._running.items():
            # The last turn may go on: its calls are counted when another one follows.
            done = max(counted, len(trace.turns) - 1)
            self._add(trace.turns[counted:done])
            self._running[name] = (trace, done)
        total, now = self._total, time.monotonic()
        self._samples.append((now, total.turns, total.calls, total.tokens))
        while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        since, *before = self._samples[0]
        seconds = max(now - since, 1e-9)
        turns, calls, tokens = (
            (value - first) / seconds
            for value, first in zip((total.turns, total.calls, total.tokens), before, strict=True)
        )
        copied = total.model_copy(deep=True)
        copied.at, copied.in_flight, copied.oldest = time.time(), len(self._running), self._oldest()
        copied.rates = Rates(turns=turns, calls=calls, tokens=tokens)
        copied.failed, copied.errors = dict(self._failed), dict(self._errors)
        return copied

    def _oldest(self) -> Oldest | None:
        if not self._running:
            return None
        trace, _ = min(self._running.values(), key=lambda each: each[0].began_at)
        elapsed_s = max(0.0, time.time() - trace.began_at)
        return Oldest(id=trace.id, task=trace.task.task, turns=len(trace.turns), elapsed_s=elapsed_s)

    def _add(self, turns: Iterable[Turn]) -> None:
        # Assigning to a field of a pydantic model takes a microsecond, so each is assigned once.
        total, count, calls, tokens = self._total, 0, 0, 0
        for turn in turns:
            count, calls, tokens = count + 1, calls + len(turn.tools), tokens + turn.sampled
            for event in turn.tools:
                if event.server is not None:
                    total.servers.setdefault(event.server, ServerTimes()).add(event.elapsed_s)
                if event.is_error:
                    self._errors[str(event.fault or "tool_error")] += 1
            if turn.user is not None:
                total.servers.setdefault(USER, ServerTimes()).add(turn.user.elapsed_s)
        total.turns, total.calls, total.tokens = total.turns + count, total.calls + calls, total.tokens + tokens


def combined(parts: Iterable[Activity]) -> Activity:
    """The activity of several processes together."""
    total, failed, errors = Activity(at=0.0), Counter[str](), Counter[str]()
    for part in parts:
        total.at = max(total.at, part.at)
        for name in ("in_flight", "finished", "turns", "calls", "tokens"):
            setattr(total, name, getattr(total, name) + getattr(part, name))
        if part.oldest and (total.oldest is None or part.oldest.elapsed_s > total.oldest.elapsed_s):
            total.oldest = part.oldest
        total.rates = Rates(
            turns=total.rates.turns + part.rates.turns,
            calls=total.rates.calls + part.rates.calls,
            tokens=total.rates.tokens + part.rates.tokens,
        )
        failed.update(part.failed)
        errors.update(part.errors)
        for server, times in part.servers.items():
            held = total.servers.setdefault(server, ServerTimes())
            held.calls, held.total_s = held.calls + times.calls, held.total_s + times.total_s
            held.slowest_s = max(held.slowest_s, times.slowest_s)
        for held, more in (
            (total.rewards, part.rewards),
            *((total.steps.setdefault(step, Rewards()), rewards) for step, rewards in part.steps.items()),
        ):
            held.count, held.total = held.count + more.count, held.total + more.total
    total.failed, total.errors = dict(failed), dict(errors)
    total.steps = {step: total.steps[step] for step in sorted(total.steps)[-_STEPS:]}
    return total
