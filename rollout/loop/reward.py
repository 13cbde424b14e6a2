"""Score a trajectory while its session is still open."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, Field

from mcp_rollout.gateway.config.calls import SamplingConfig
from mcp_rollout.gateway.config.user_code import import_function
from mcp_rollout.gateway.errors import ConfigError, Faults, HarnessError, raise_all
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import Role
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.harness import Finite, call_harness
from mcp_rollout.rollout.environment.matching import unusable
from mcp_rollout.rollout.environment.reward_config import Component, RewardConfig
from mcp_rollout.rollout.environment.sections import ThinkingReward
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.components import WorldScore, components, function_parts, seen_by_rewards
from mcp_rollout.rollout.loop.rubric import rubric_parts
from mcp_rollout.rollout.loop.world_calls import examine
from mcp_rollout.rollout.trace.record import Reward, Trace
from mcp_rollout.rollout.types import Message


class Judged(BaseModel):
    """What the server's `score` tool gave."""

    score: Finite
    parts: dict[str, Finite] = Field(default_factory=dict)


TrainersReward = Callable[[Environment, Trace, Judged], Awaitable[dict[str, float]]]
"""The trainer's own reward of a trajectory, as parts by name. Raises RewardError if there is none."""


def check_rewarded(environment: Environment) -> None:
    """Raises ConfigError where every trajectory would have the reward 0, so that nothing could be learnt."""
    if not environment.is_rewarded:
        problem = "nothing gives a reward: no score, component, function or rubric has a weight, no server is trusted"
        remedy = (
            "name the server with the `score` tool (reward: {server: NAME}) or a function in reward.functions; "
            "where the user's replies have rewards, write reward: {weights: {turns: 1}}"
        )
        raise ConfigError(problem, file=environment.file, key="reward", remedy=remedy)


def check_reward(environment: Environment) -> None:
    """Raises ConfigError where a function cannot be imported, a rubric has no model, or `match` lacks its package."""
    faults, match = Faults(), environment.reward.match
    if problem := unusable(match, "1") if environment.reward.compares_answers else None:
        faults.append(
            ConfigError(f"{match} {problem[0]}", file=environment.file, key="reward.match", remedy=problem[1])
        )
    for name, path in environment.reward.functions.items():
        faults.check(import_function, path, key=f"reward.functions.{name}", file=environment.file)
    if environment.reward.rubric is not None:
        faults.check(_judge_of, environment)
    raise_all(faults)


def _judge_of(environment: Environment) -> SamplingConfig:
    rubric = environment.reward.rubric
    endpoint = rubric.endpoint if rubric and rubric.endpoint else environment.sampling
    if endpoint is None:
        remedy = "add {url: https://api.example.com/v1, model: NAME} there, or the key `sampling`"
        raise ConfigError("no model judges", file=environment.file, key="reward.rubric.endpoint", remedy=remedy)
    return endpoint


async def score(
    environment: Environment,
    trace: Trace,
    session: Session,
    penalty: float = 0.0,
    *,
    judgements: Path,
    trainers: TrainersReward | None = None,
) -> Reward:
    """Compute the reward: the weighted sum of the server's score and parts, the turns' rewards and the components.

    Args:
        environment: its `reward` has the weights and components.
        trace: the trajectory.
        session: its session, in which the server still has the trajectory's state.
        penalty: the sum of the filters' penalties, which is subtracted.
        judgements: the directory in which a rubric's judgements are kept.
        trainers: the trainer's own reward; its parts are weighed like the others.

    Raises:
        ConfigError: a weighted component needs a ground truth, and the row has none.
        HarnessError: the server has no `score`, refused the call, or broke its contract.
        RewardError: a function or a judge of the environment's, or the trainer's own reward, gave no number.
        GatewayError: the world broke.
    """
    trace.checks = await examine(session, trace.task.check)
    judged = await judge(environment, trace, session)
    own = await own_parts(environment, trace, judged, judgements)
    if trainers is not None:
        own |= await trainers(environment, trace, judged)
    return await weigh(environment.reward, trace, judged, own, penalty)


async def weigh(config: RewardConfig, trace: Trace, judged: Judged, own: Mapping[str, float], penalty: float) -> Reward:
    """The reward from the server's score, the environment's own parts, the trace and the filters' penalty.

    Raises ConfigError as `score`, and HarnessError where the sum is not finite.
    """
    turns = [config.weight(Component.TURNS) * turn.reward for turn in trace.turns]
    computed = {str(name): value for name, value in (await components(config, trace)).items()}
    parts = {**judged.parts, **computed, **own}
    weighed = [config.weight(name) * value for name, value in parts.items()]
    terms = [config.weight(Component.SCORE) * judged.score, *weighed, *turns, -penalty]
    try:
        # `fsum` rounds once, so that 0.6 + 0.3 + 0.1 is 1.
        total = math.fsum(terms)
    except (OverflowError, ValueError):
        total = math.nan
    if not math.isfinite(total):
        raise HarnessError(
            "the reward is not a finite number: score, parts or rewards of turns are too large to be added"
        )
    return Reward(
        score=total,
        parts=parts,
        turns=turns if any(turns) else [],
        penalty=penalty,
    )


async def own_parts(environment: Environment, trace: Trace, judged: Judged, judgements: Path) -> dict[str, float]:
    """What the environment's functions and its rubric give. Raises RewardError and ConfigError as `score`."""
    config = environment.reward
    messages = judged_messages(trace, environment.thinking.reward) if config.own_components else []
    parts = await function_parts(config, trace, WorldScore(score=judged.score, parts=judged.parts), messages)
    if config.rubric is not None:
        parts |= await rubric_parts(config.rubric, _judge_of(environment), messages, judgements)
    return parts


async def judge(environment: Environment, trace: Trace, session: Session) -> Judged:
    """The score of the environment's server, with all parts in the order of the environment; 0 where it has none.

    Raises HarnessError and GatewayError as `score`.
    """
    config = environment.reward
    if config.server is None:
        return Judged(score=0.0, parts=dict.fromkeys(config.parts, 0.0))
    messages = judged_messages(trace, environment.thinking.reward)
    judged, _ = await call_harness(session, Role.SCORE, {"messages": messages}, Judged, server=config.server)
    named = set(config.parts)
    # Both are errors, because verl takes the columns of a batch from its first sample: all need the same keys.
    if undeclared := judged.parts.keys() - named:
        problem = f"the score has parts {sorted(undeclared)[:10]} that the environment's reward.parts does not name"
        raise HarnessError(problem, server=config.server, tool="score")
    if missing := named - judged.parts.keys():
        problem = f"the score lacks the parts {sorted(missing)}, which the environment's reward.parts names"
        raise HarnessError(problem, server=config.server, tool="score")
    return Judged(score=judged.score, parts={name: judged.parts[name] for name in config.parts})


def judged_messages(trace: Trace, thinking: ThinkingReward) -> list[Message]:
    """The conversation for the score tool, without thinking unless the environment includes it.

    A last message that was delivered to no tool and no user is left out, with what the agent said to it: it must not
    earn a score. So are calls that could not be read.
    """
    trace = seen_by_rewards(trace)
    delivered = trace.messages[: trace.turns[-1].begins_at] if trace.ends_undelivered else trace.messages
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
