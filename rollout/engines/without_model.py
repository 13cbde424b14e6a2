"""Engines that have no model: they show whether an environment can be solved, and what it pays for doing nothing."""

from __future__ import annotations

from gateway.errors import ConfigError
from gateway.leases.session import Session
from rollout.engines.scripted import RandomPolicy, ScriptedPolicy, expert_script
from rollout.environment.config import Environment
from rollout.environment.task import Origin, Task
from rollout.tokens.chatml import IM_END, ByteTokens
from rollout.types import Policy, TokenBuilder

WITHOUT_MODEL = ("expert", "random", "none")


class WithoutModel:
    """`expert` plays the environment's own script, `random` calls at random, `none` ends every turn without a word."""

    context_tokens: int | None = None

    def __init__(self, kind: str, *, seed: int = 0) -> None:
        """`seed` is the run's, from which those of `random` derive, with the row's and the sample."""
        self.name = kind
        self._seed = seed
        self.notes: list[str] = []
        self._tokens = ByteTokens()

    def tokens(self) -> TokenBuilder:
        return self._tokens

    def check(self, environment: Environment) -> None:
        """Raises ConfigError where an expert is asked for and the environment has none."""
        if self.name == "expert" and environment.tasks is None:
            raise ConfigError("the environment has no expert", file=environment.file, key="tasks.server")

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        encode = self._tokens.encode
        if self.name == "expert" and environment.tasks is not None:
            script = await expert_script(session, task, environment.tasks.server)
            return ScriptedPolicy(script, encode, stop=IM_END)
        if self.name == "random":
            # Above all bits of the rest, so that seed 0 is the row's and the sample's alone.
            seed = (self._seed << 64) + task.seed * 1000 + origin.sample
            return RandomPolicy(session, encode, stop=IM_END, seed=seed)
        return ScriptedPolicy([], encode, stop=IM_END)
