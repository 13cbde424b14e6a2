"""The worker's half of what `rollout.verl.agent_workers` needs: which prompts this process is playing."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

ATTEMPT: ContextVar[int] = ContextVar("mcp_rollout_attempt", default=0)
"""How often the prompt that the current task plays was issued before."""


class HoldsPrompts:
    """Mixin before verl's `AgentLoopWorkerTQ`: accounts for the prompts that the worker has accepted.

    A prompt ends after its terminal status is in TransferQueue. So one that the worker does not hold and that is not
    terminal there is not played at all: the process that accepted it is gone, or never received it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held: set[str] = set()

    async def generate_sequences(self, batch: Any, attempt: int = 0) -> None:
        """Accept the prompts, as verl's worker does; they were issued `attempt` times before."""
        self._held.update(str(uid) for uid in batch["uid"])
        ATTEMPT.set(attempt)  # the tasks that verl starts inherit the context
        await super().generate_sequences(batch)  # type: ignore[misc]

    async def _run_prompt(self, prompt: dict[str, Any], *args: Any, **options: Any) -> None:
        uid = str(prompt["uid"])
        try:
            await super()._run_prompt(prompt, *args, **options)  # type: ignore[misc]
        finally:
            self._held.discard(uid)

    async def held(self) -> frozenset[str]:
        """The prompts that were accepted and have not ended."""
        return frozenset(self._held)

    async def until_end(self) -> None:
        """Never return: Ray ends the call with an error when the process dies."""
        await asyncio.Event().wait()
