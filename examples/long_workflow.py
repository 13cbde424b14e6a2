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
from typing import Any

from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.contract import calls
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.trace.events import UserEvent
from mcp_rollout.rollout.verl.recorded_loop import RecordedLoop

_THOUGHT = re.compile(r"<think>.*?(</think>|$)", re.DOTALL)


class LongWorkflowAgent(RecordedLoop):
    """Tool calls and user turns of one trajectory, at most `max_turns` generations long.

    Sampled tokens, thinking included, stay in the context as verl's loop keeps them; the user and the score see none of
    the thinking. The reward is the environment's: its score, or with the weights `{score: 0, turns: 1}` what each reply
    of the user was worth, at the turn that earned it.

    Args:
        max_turns: Generations at most.
        user_turns: What the user says, turn by turn; None for the environment's user, which answers live.
    """

    def __init__(self, *args: Any, max_turns: int = 15, user_turns: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_assistant_turns, self.max_user_turns = max_turns, None
        self._script = None if user_turns is None else list(user_turns)
        self._said = 0
        """Turns of the user so far."""

    async def _handle_pending_state(self, agent_data: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        """Start the user, who opens the conversation unless the row's prompt does; then render the prompt."""
        self.begin(agent_data)
        if self._script is None:
            session, environment = await self.world()
            opening = await calls.start(session, _user(environment))
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
        if self._script is not None:
            if self._said >= len(self._script):
                return AgentState.TERMINATED
            reply = UserEvent(seq=self._said + 1, message=self._script[self._said], done=False)
        else:
            session, environment = await self.world()
            spoken, seq = self._shown(agent_data.messages[-1]["content"]), self._said + 1
            given = await calls.reply(session, _user(environment), seq, spoken)
            reply = UserEvent(seq=seq, message=given.message, done=given.done, reward=given.reward)
        self._said += 1
        self.add_user(reply)
        return AgentState.TERMINATED if reply.done else await self._append(agent_data, reply.message)

    async def _append(self, agent_data: AgentData, said: str) -> AgentState:
        """Render a message into the context, as `_handle_processing_tools_state` does with tool results."""
        previous = list(agent_data.messages)
        agent_data.messages.append({"role": "user", "content": said})
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

    def _shown(self, text: str) -> str:
        """What the user reads: no thinking, and no end-of-turn token, which verl leaves in the text."""
        return _THOUGHT.sub("", text).replace(self.tokenizer.eos_token, "").strip()


def _user(environment: Environment) -> str:
    if environment.user is None:
        raise ConfigError("names no user", file=environment.file, key="user.server", remedy="or give user_turns")
    return environment.user.server
