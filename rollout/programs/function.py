"""`Function`: a Python library's agent in the worker, without a process of its own."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway.config.user_code import import_function
from gateway.errors import innermost
from rollout.environment.config import Environment
from rollout.loop.turns import Turns
from rollout.programs.face import Addresses
from rollout.programs.played import Ended, check_chain, context_tokens, play_program
from rollout.programs.process import Homes
from rollout.types import Message

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offered(Addresses):
    """What a function is given: the addresses, and the task."""

    messages: list[Message]
    """The task's prompt."""
    context_tokens: int
    """Room of the model."""

    @property
    def prompt(self) -> str:
        """The last message of the task's prompt."""
        return str(self.messages[-1]["content"])


@dataclass
class Function:
    """Plays by a coroutine function, `async def run(offered, **arguments)`.

    It uses the addresses as any program would, and returns when the task is done. It is cancelled at the end of the
    trajectory. It shares the worker's event loop, which a wait without `await` blocks.

    Args:
        use: `package.module:function`.
        arguments: Its keyword arguments.
        events_s: Pause between the events that keep a streaming client waiting.
        close_timeout_s: How long it may go on once its trajectory is over, of which its next request tells it.
    """

    use: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    events_s: float = 5.0
    close_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        self._run: Any = import_function(self.use, key="agent.with.use")
        if not inspect.iscoroutinefunction(self._run):
            raise ValueError(f"{self.use} is not a coroutine function: write `async def`")

    def check(self, environment: Environment) -> None:
        """As `rollout.loop.agent.Checks`."""
        check_chain(environment, self.use)

    async def play(self, turns: Turns) -> None:
        async def run(addresses: Addresses, _: Homes) -> Ended:
            offered = Offered(
                model_url=addresses.model_url,
                model_key=addresses.model_key,
                mcp_url=addresses.mcp_url,
                messages=turns.messages,
                context_tokens=context_tokens(turns.limits),
            )
            try:
                await self._run(offered, **self.arguments)
            except Exception as error:  # boundary: code of others, which also raises what the policy's mistakes cause
                log.warning("program.raised", function=self.use, exc_info=error)
                cause = innermost(error)
                return Ended(f"{self.use} raised {type(cause).__name__}: {cause}"[:2000])
            return Ended()

        await play_program(turns, run, events_s=self.events_s, close_s=self.close_timeout_s)
