"""How a run samples, and how long it waits for an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParameters:
    """The same for every turn of every trajectory of a run. Nothing is left to an engine's own defaults."""

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 means all tokens."""
    seed: int = 0
    """Each turn's own seed derives from it; see `rollout.environment.task.sampling_seed`."""

    @property
    def is_truncated(self) -> bool:
        """Whether some tokens are excluded before the draw, the others' probabilities growing to sum to 1."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """Bounds of what an engine over HTTP is waited for, in seconds."""

    connect_timeout_s: float = 10.0
    generate_timeout_s: float = 1800.0
    """One generation, from the request to its last token."""
    abort_timeout_s: float = 10.0
    """For the partial tokens of a generation that was told to stop."""
    attempts: int = 5
    """Of one request; a connection that is lost before any token arrived is a reason for another."""
    retry_pause_s: float = 0.5
    """Before the second attempt; doubled before each further one."""
