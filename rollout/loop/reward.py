"""From a played trajectory to its reward, while its world is still alive."""

from __future__ import annotations

import math
from typing import Annotated, Any, cast

from pydantic import BaseModel, Field

from gateway.errors import HarnessError
from gateway.leases.session import Session
from gateway.types import Role
from rollout.environment.config import ThinkingReward
from rollout.environment.harness import call_harness
from rollout.environment.reward_config import Component, RewardConfig
from rollout.formats import hermes
from rollout.loop.components import components
from rollout.trace.record import Reward, Trace
from rollout.types import Message

# One score that is no number would make the advantages of its whole group no numbers.
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Score(BaseModel):
    score: Finite
    parts: dict[str, Finite] = Field(default_factory=dict)


async def score(
    config: RewardConfig, thinking: ThinkingReward, trace: Trace, session: Session, penalty: float = 0.0
) -> Reward:
    """The weighted sum of the server's score, its parts, what turns earned, and components of ours; less the penalty.

    Raises:
        ConfigError: a component that the environment weighs needs what the row does not have.
        HarnessError: the server has no `score`, refused, or answered off contract.
        GatewayError: the world broke.
    """
    turns = [config.weight(Component.TURNS) * turn.reward for turn in trace.turns]
    judged = await _judged(config, thinking, trace, session)
    parts = (
        dict.fromkeys(config.parts, 0.0)
        | judged.parts
        | {str(name): value for name, value in components(config, trace).items()}
    )
    weighed = [config.weight(name) * value for name, value in parts.items()]
    return Reward(
        # Rounded once, so that 0.6, 0.3 and 0.1 of a perfect trajectory are 1.
        score=math.fsum([config.weight(Component.SCORE) * judged.score, *weighed, *turns, -penalty]),
        parts=parts,
        turns=turns if any(turns) else [],
        penalty=penalty,
    )


async def _judged(config: RewardConfig, thinking: ThinkingReward, trace: Trace, session: Session) -> _Score:
    """What the environment's server says; nothing where none keeps the score."""
    if config.server is None:
        return _Score(score=0.0)
    messages = judged_messages(trace, thinking)
    judged, _ = await call_harness(session, Role.SCORE, {"messages": messages}, _Score, server=config.server)
    undeclared = judged.parts.keys() - set(config.parts)
    if undeclared:
        raise HarnessError(
            f"the score has parts {sorted(undeclared)} that the environment's reward.parts does not name",
            server=config.server,
            tool="score",
        )
    return judged


def judged_messages(trace: Trace, thinking: ThinkingReward) -> list[Message]:
    """The conversation as a score sees it: thinking is left out unless the environment lets it count.

    So is a last message that reached nobody: what was not said can satisfy no user.
    """
    said = trace.messages[:-1] if trace.ends_unheard else trace.messages
    if thinking is ThinkingReward.STRIP:
        return [without_images(message) for message in said]
    turns = iter(trace.turns)
    messages: list[Message] = []
    opening = len(trace.task.prompt)
    for index, message in enumerate(said):
        if message["role"] == "assistant" and index >= opening:
            thought = next(turns).thinking
            message = message | {"content": hermes.write(thinking=thought, content=message["content"])}
        messages.append(without_images(message))
    return messages


def without_images(message: Message) -> Message:
    """The message with its text alone, and a word where an image stood: a score reads texts."""
    content = message["content"]
    if not isinstance(content, list):
        return message
    blocks = cast("list[dict[str, Any]]", content)
    texts = [str(block["text"]) if block.get("type") == "text" else f"[{block.get('type')}]" for block in blocks]
    return message | {"content": "\n".join(texts)}
