"""verl's own `ToolAgentLoop`, subclassed: long workflows with a user, on the servers of an environment.

verl's custom-rollout recipe brought to verl 0.9.1, whose loop has no user turns any more. Its tools are those of the
lock, and each trajectory has one session from its first message to its score. Registered by long_workflow.yaml:

    mcp-rollout data gsm8k_tools --agent long_workflow -o train.parquet
    mcp-rollout tool-config gsm8k_tools -o tools.yaml
    PYTHONPATH=examples python -m verl.trainer.main_ppo --config-dir configs --config-name mcp_grpo \\
      actor_rollout_ref.rollout.agent.agent_loop_config_path=examples/long_workflow.yaml ...
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import structlog
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop

from gateway.errors import ConfigError, GatewayError
from gateway.leases.session import Session
from rollout.contract import calls
from rollout.environment.config import Environment
from rollout.verl.output import TurnRewardOutput
from rollout.verl.tool import session_of

log = structlog.get_logger(__name__)

_THOUGHT = re.compile(r"<think>.*?(</think>|$)", re.DOTALL)


class LongWorkflowAgent(ToolAgentLoop):
    """Tool calls, user turns and rewards of one trajectory, at most `max_turns` generations long.

    Sampled tokens, thinking included, stay in the context as verl's loop keeps them; the user and the score see none of
    the thinking.

    Args:
        max_turns: Generations at most.
        user_turns: What the user says, turn by turn; None for the environment's user, which answers live.
        reward: `final` for the score tool's result at the last token; `per_turn` for what each reply of a live user was
            worth, at the last token of the turn that earned it.
    """

    def __init__(
        self,
        *args: Any,
        max_turns: int = 15,
        user_turns: Sequence[str] | None = None,
        reward: Literal["final", "per_turn"] = "final",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.max_assistant_turns, self.max_user_turns = max_turns, None
        self._script, self._reward = None if user_turns is None else list(user_turns), reward
        self._data: AgentData | None = None
        self._earned: dict[int, float] = {}
        """Rewards of the user's replies by position in the response."""

    # verl's base class declares one output; its v1 worker drops the trajectory of an empty list.
    async def run(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, sampling_params: dict[str, Any], **row: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        try:
            output = await super().run(sampling_params, **row)
            score = await self._score() if self._reward == "final" else sum(self._earned.values())
        except (ConfigError, GatewayError) as error:  # raised, it would fail the whole group
            log.warning("trajectory withdrawn", code=error.code, error=str(error))
            return []
        last = len(output.response_mask) - 1
        earned = {min(at, last): reward for at, reward in self._earned.items()} if self._reward == "per_turn" else {}
        output.extra_fields["reward_extra_info"] = {"long_workflow_turns": float(output.num_turns)}
        return TurnRewardOutput(**{**dict(output), "reward_score": score, "turn_rewards": earned})

    async def _handle_pending_state(self, agent_data: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        """Start the user, who opens the conversation unless the row's prompt does; then render the prompt."""
        self._data = agent_data
        if self._script is None:
            session, environment = await self._world()
            opening = await calls.start(session, _server(environment.user, environment))
            if agent_data.messages[-1]["role"] != "user":
                agent_data.messages.append({"role": "user", "content": opening})
        return await super()._handle_pending_state(agent_data, sampling_params)

    async def _handle_generating_state(
        self, agent_data: AgentData, sampling_params: dict[str, Any], ignore_termination: bool = False
    ) -> AgentState:
        """Generate; a message without calls goes to the user instead of ending the trajectory."""
        before = len(agent_data.messages)
        state = await super()._handle_generating_state(agent_data, sampling_params, ignore_termination)
        is_answer = state is AgentState.TERMINATED and len(agent_data.messages) > before
        return await self._user_turn(agent_data) if is_answer else state

    async def _user_turn(self, agent_data: AgentData) -> AgentState:
        number, end = len(agent_data.turn_scores), len(agent_data.response_mask) - 1
        if self._script is not None:
            if number >= len(self._script):
                return AgentState.TERMINATED
            said, reward = self._script[number], 0.0
        else:
            session, environment = await self._world()
            server, spoken = _server(environment.user, environment), agent_data.messages[-1]["content"]
            reply = await calls.reply(session, server, number + 1, self._shown(spoken))
            said, reward = reply.message, reply.reward or 0.0
            if reply.done:
                self._earn(agent_data, end, reward)
                return AgentState.TERMINATED
        self._earn(agent_data, end, reward)
        return await self._append(agent_data, {"role": "user", "content": said})

    def _earn(self, agent_data: AgentData, position: int, reward: float) -> None:
        agent_data.turn_scores.append(reward)
        self._earned[position] = reward

    async def _append(self, agent_data: AgentData, message: dict[str, Any]) -> AgentState:
        """Render a message into the context, as `_handle_processing_tools_state` does with tool results."""
        previous = list(agent_data.messages)
        agent_data.messages.append(message)
        merged, mask, logprobs = await self.ct_merge_context_msg(
            previous,
            agent_data.messages,
            agent_data.prompt_ids,
            agent_data.response_mask,
            agent_data.response_logprobs or None,
            tools=getattr(agent_data, "_active_tool_schemas", self.tool_schemas),
        )
        if len(mask) >= self.response_length:
            return AgentState.TERMINATED
        agent_data.prompt_ids, agent_data.response_mask = merged.token_ids, mask
        agent_data.response_logprobs = logprobs or []
        agent_data.user_turns += 1
        return AgentState.GENERATING

    async def _score(self) -> float:
        """The score tool's result, while the trajectory's state is there; it ends with verl's `AgentData`."""
        session, environment = await self._world()
        assert self._data is not None
        messages = [
            {**message, "content": self._shown(message["content"])} if message["role"] == "assistant" else message
            for message in self._data.messages
        ]
        return (await calls.score(session, _server(environment.reward, environment), messages)).score

    def _shown(self, text: str) -> str:
        """What the user and the score read: no thinking, and no end-of-turn token, which verl leaves in the text."""
        return _THOUGHT.sub("", text).replace(self.tokenizer.eos_token, "").strip()

    async def _world(self) -> tuple[Session, Environment]:
        assert self._data is not None
        return await session_of(self._data, self.tools.values())


def _server(section: Any, environment: Environment) -> str:
    server = section.server if section is not None else None
    if server is None:
        raise ConfigError("needs a user and a score", file=environment.file, key="user.server, reward.server")
    return server
