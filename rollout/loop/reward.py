"""Score a trajectory while its session is still open."""

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

# A NaN or infinite score would make the advantages of its whole group NaN.
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Judged(BaseModel):
    """What the server's `score` tool gave."""

    score: Finite
    parts: dict[str, Finite] = Field(default_factory=dict)


async def score(
    config: RewardConfig, thinking: ThinkingReward, trace: Trace, session: Session, penalty: float = 0.0
) -> Reward:
    """Compute the reward: the weighted sum of the server's score and parts, the turns' rewards and the components.

    Args:
        config: weights and components.
        thinking: whether the score tool sees the thinking.
        trace: the trajectory.
        session: its session, in which the server still has the trajectory's state.
        penalty: the sum of the filters' penalties, which is subtracted.

    Raises:
        ConfigError: a weighted component needs a ground truth, and the row has none.
        HarnessError: the server has no `score`, refused the call, or broke its contract.
        GatewayError: the world broke.
    """
    return weigh(config, trace, await judge(config, thinking, trace, session), penalty)


def weigh(config: RewardConfig, trace: Trace, judged: Judged, penalty: float) -> Reward:
    """The reward from the server's score, the trace and the filters' penalty. Raises ConfigError as `score`."""
    turns = [config.weight(Component.TURNS) * turn.reward for turn in trace.turns]
    own = {str(name): value for name, value in components(config, trace).items()}
    parts = dict.fromkeys(config.parts, 0.0) | judged.parts | own
    weighed = [config.weight(name) * value for name, value in parts.items()]
    return Reward(
        # `fsum` rounds once, so that 0.6 + 0.3 + 0.1 is 1.
        score=math.fsum([config.weight(Component.SCORE) * judged.score, *weighed, *turns, -penalty]),
        parts=parts,
        turns=turns if any(turns) else [],
        penalty=penalty,
    )


async def judge(config: RewardConfig, thinking: ThinkingReward, trace: Trace, session: Session) -> Judged:
    """The score of the environment's server; 0 where it has none. Raises HarnessError and GatewayError as `score`."""
    if config.server is None:
        return Judged(score=0.0)
    messages = judged_messages(trace, thinking)
    judged, _ = await call_harness(session, Role.SCORE, {"messages": messages}, Judged, server=config.server)
    if undeclared := judged.parts.keys() - set(config.parts):
        problem = f"the score has parts {sorted(undeclared)} that the environment's reward.parts does not name"
        raise HarnessError(problem, server=config.server, tool="score")
    return judged


def judged_messages(trace: Trace, thinking: ThinkingReward) -> list[Message]:
    """The conversation for the score tool, without thinking unless the environment includes it.

    A last message that was delivered to no tool and no user is left out: it must not earn a score.
    """
    delivered = trace.messages[:-1] if trace.ends_undelivered else trace.messages
    if thinking is ThinkingReward.STRIP:
        return [without_images(message) for message in delivered]
    turns = iter(trace.turns)
    messages: list[Message] = []
    opening = len(trace.task.prompt)
    for index, message in enumerate(delivered):
        if message["role"] == "assistant" and index >= opening:
            thought = next(turns).thinking
            message = message | {"content": hermes.write(thinking=thought, content=message["content"])}
        messages.append(without_images(message))
    return messages


def without_images(message: Message) -> Message:
    """The message as text, with a placeholder for each image."""
    content = message["content"]
    if not isinstance(content, list):
        return message
    blocks = cast("list[dict[str, Any]]", content)
    texts = [str(block["text"]) if block.get("type") == "text" else f"[{block.get('type')}]" for block in blocks]
    return message | {"content": "\n".join(texts)}
