"""Traces, metrics and the environment's reward for subclasses of verl's `ToolAgentLoop`."""

# verl's `register` types `ToolAgentLoop` as its base class.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.tools.schemas import ToolResponse
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import Content, ContentKind, ToolResult
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import AgentConfig
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.loop.reward import score
from mcp_rollout.rollout.loop.rubric import DIRECTORY as JUDGEMENTS
from mcp_rollout.rollout.loop.spans import spans_of_this_program
from mcp_rollout.rollout.loop.trajectory import recorded
from mcp_rollout.rollout.tokens.verl_builder import ContinuousTokens
from mcp_rollout.rollout.trace.events import UserEvent
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import Attempt, Call, Completion, Edit, FinishReason, Shown
from mcp_rollout.rollout.verl.agent_loop import MCPAgentLoop
from mcp_rollout.rollout.verl.client import ATTEMPTS_KEY
from mcp_rollout.rollout.verl.output import TurnRewardOutput, to_outputs
from mcp_rollout.rollout.verl.runtime import WORKER, Runtime
from mcp_rollout.rollout.verl.tool import CALLED, MCPTool, session_of


class _Observed:
    """verl's client, with what its last output says beside the ids: verl's loop keeps this of the first turn only."""

    def __init__(self, client: LLMServerClient) -> None:
        self._client = client
        self.versions: tuple[int | None, int | None] = None, None
        self.attempts: tuple[Attempt, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def generate(self, request_id: str, **inputs: Any) -> TokenOutput:
        output = await self._client.generate(request_id, **inputs)
        said = output.extra_fields
        self.versions = said.get("min_global_steps"), said.get("max_global_steps")
        self.attempts = tuple(said.pop(ATTEMPTS_KEY, ()))
        return output


class RecordedLoop(MCPAgentLoop, ToolAgentLoop):  # pyright: ignore[reportIncompatibleMethodOverride]
    """verl's `ToolAgentLoop` whose trajectories are recorded, and rewarded as their environment says.

    The base of a loop of your own, or a mixin for one that exists; verl's loop decides everything else, its own limits
    and cuts included:

        class MyLoop(RecordedLoop): ...
        class MyRecordedLoop(RecordedLoop, LoopOfMine): ...  # LoopOfMine is a ToolAgentLoop

    Each trajectory gets a trace, which is on disk before verl has the result, is counted in `mcp/*` and
    `max_failed_share`, and gets the reward of its environment (with the trainer's section), computed in the session in
    which verl called the tools. verl's output keeps its ids, mask and `extra_fields`. A world that breaks, an exception
    of the loop included, withdraws the trajectory, as in `mcp_agent`.

    Rows need `extra_info.mcp` and `extra_info.tools_kwargs.mcp`, which `mcp-rollout data --agent NAME` writes.
    """

    trace: Trace
    """The trajectory's record, from the beginning of `run`."""
    _data: AgentData
    _output: AgentLoopOutput

    def begin(self, agent_data: AgentData) -> None:
        """Make `world` usable; a loop that needs it before the prompt is rendered calls this first."""
        self._data = agent_data

    async def world(self) -> tuple[Session, Environment]:
        """The trajectory's session and environment; raises as `session_of`."""
        session, environment = await session_of(self._data, self.tools.values())
        return session, self._runtime.settings.apply(environment)

    def add_user(self, event: UserEvent) -> None:
        """Record the user's reply to the last turn, and with it the turn's reward, before the next generation.

        A user message that verl's loop gets without it is recorded as a message of the agent.
        """
        self.trace.add_user(event)
        self.trace.messages.append({"role": "user", "content": event.message})
        if event.done:
            self._stopped = StopReason.USER_DONE

    async def _play(self, runtime: Runtime, trace: Trace, sampling_params: dict[str, Any], row: dict[str, Any]) -> None:
        self._runtime, self.trace = runtime, trace
        self._observed = _Observed(self.server_manager)
        self.server_manager: Any = self._observed
        self._tokens: ContinuousTokens = runtime.tokens(self.continuous_token_builder, self.tokenizer)
        self._results: dict[int, tuple[ToolResult, ToolResponse]] = {}
        self._seen, self._stopped = 0, StopReason.AGENT_ENDED
        trace.agent = AgentConfig(use=f"{type(self).__module__}:{type(self).__name__}")
        trace.take(Task.from_row(row))
        async with recorded(trace, runtime.store, spans_of_this_program()):
            verls_run: Any = super(MCPAgentLoop, self).run
            self._output = await verls_run(sampling_params, **row)
            self._catch_up()
            # verl cuts a response that became too long.
            trace.take_back(len(trace.response_ids) - len(self._output.response_ids))
            last = trace.turns[-1] if trace.turns else None
            is_answer = last is not None and not (last.tools or last.user or last.agent_message)
            trace.stop_reason = (
                StopReason.ANSWERED if is_answer and self._stopped is StopReason.AGENT_ENDED else self._stopped
            )
            trace.control_text = self._tokens.control_text(trace.messages, self._schemas)
            session, environment = await self.world()
            trace.lease_wait_s = session.lease_wait_s
            try:
                kept = runtime.store.directory / JUDGEMENTS
                trainers = self._trainers_reward(runtime, row)
                trace.reward = await score(environment, trace, session, judgements=kept, trainers=trainers)
            finally:
                trace.server_events.add(session.drain_server_events())

    def _outputs(self, trace: Trace, parts: tuple[str, ...]) -> list[AgentLoopOutput]:
        """verl's own output, with what the environment's reward and the trainer add to it."""
        ours, verls = to_outputs(trace, parts)[-1], self._output
        extra = ours.extra_fields | {key: value for key, value in verls.extra_fields.items() if value not in (None, [])}
        info = {**verls.extra_fields.get("reward_extra_info", {}), **ours.extra_fields["reward_extra_info"]}
        rewards = {name: getattr(ours, name) for name in ("reward_score", "turn_rewards", "columns")}
        fields = {**dict(verls), **rewards, "extra_fields": {**extra, "reward_extra_info": info}}
        return [TurnRewardOutput(**fields)]

    @property
    def _schemas(self) -> list[dict[str, Any]]:
        return getattr(self._data, "_active_tool_schemas", self.tool_schemas)

    # The states of verl's loop.

    async def _handle_pending_state(self, agent_data: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        self.begin(agent_data)
        state = await super()._handle_pending_state(agent_data, sampling_params)
        self.trace.open(list(agent_data.prompt_ids))
        self.trace.messages[:] = [dict(message) for message in agent_data.messages]
        self._seen = len(agent_data.messages)
        return state

    async def _handle_generating_state(
        self, agent_data: AgentData, sampling_params: dict[str, Any], ignore_termination: bool = False
    ) -> AgentState:
        self._catch_up()
        began, clock, messages = time.time(), WORKER.clock.time(), len(agent_data.messages)
        state = await super()._handle_generating_state(agent_data, sampling_params, ignore_termination)
        ids, elapsed = agent_data.response_ids, WORKER.clock.time() - clock
        is_full = len(agent_data.response_mask) >= self.response_length
        if len(agent_data.messages) == messages:  # verl ended before it read the completion
            agent_data.tool_calls = []
            self._stopped = StopReason.TOKEN_LIMIT if is_full else StopReason.TURN_LIMIT
        completion = Completion(
            ids=ids,
            logprobs=agent_data.response_logprobs[-len(ids) :] if agent_data.response_logprobs and ids else None,
            finish_reason=FinishReason.LENGTH if is_full else FinishReason.STOP,
            weights_version=self._observed.versions,
            attempts=self._observed.attempts,
            request_ids=(agent_data.request_id,),
        )
        parsed = await self._tokens.parse(ids, self._schemas)
        calls = tuple(_call(each) for each in agent_data.tool_calls[: self.max_parallel_calls])
        self.trace.add_completion(
            completion, replace(parsed, calls=calls), self._edit(sampled=len(ids)), mask_thinking=False
        )
        turn = self.trace.turns[-1]
        turn.began_at, turn.generate_s, self._seen = began, elapsed, len(agent_data.messages)
        return state

    async def _handle_processing_tools_state(self, agent_data: AgentData) -> AgentState:
        written = agent_data.tool_calls[: self.max_parallel_calls]
        state = await super()._handle_processing_tools_state(agent_data)
        results = [self._results.pop(id(each)) for each in written]
        tools = [self.tools.get(each.name) for each in written]
        self.trace.messages += self.trace.add_calls(
            [_call(each) for each in written],
            [result for result, _ in results],
            [Shown(text=response.text or "") for _, response in results],
            [tool.entry.definition.server if isinstance(tool, MCPTool) else None for tool in tools],
        )
        self._seen = len(agent_data.messages)
        if state is AgentState.TERMINATED:  # the results did not fit
            self._stopped = StopReason.TOKEN_LIMIT
        return state

    async def _call_tool(
        self, tool_call: FunctionCall, tools_kwargs: dict[str, Any], agent_data: AgentData
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        CALLED.set(called := [])
        response, reward, metrics = await super()._call_tool(tool_call, tools_kwargs, agent_data)
        outcome = called[0] if called else None
        if isinstance(outcome, GatewayError):
            raise outcome  # verl would give its text to the policy, as if the policy had caused it
        text = Content(kind=ContentKind.TEXT, text=response.text or "")
        self._results[id(tool_call)] = outcome or ToolResult(content=(text,), is_error=True), response
        return response, reward, metrics

    # What the loop did since, read from verl's `AgentData`.

    def _catch_up(self) -> None:
        """Record the messages and ids that the loop appended after the last completion or tool results."""
        said = [str(each["content"]) for each in self._data.messages[self._seen :] if each["role"] == "user"]
        turn = self.trace.turns[-1] if self.trace.turns else None
        if said and turn is not None and turn.user is None:
            turn.agent_message = "\n".join(said)
            self.trace.messages.append({"role": "user", "content": turn.agent_message})
        self._seen = len(self._data.messages)
        if self._data.prompt_ids != self.trace.context:
            self.trace.add_context(self._edit(sampled=0))

    def _edit(self, *, sampled: int) -> Edit:
        """How verl's ids differ from the trace's, where the last `sampled` of them were sampled."""
        old, new = self.trace.context, self._data.prompt_ids
        kept = len(old) if new[: len(old)] == old else next(i for i, each in enumerate(old) if new[i : i + 1] != [each])
        end = len(new) - sampled
        inserted = new[kept:end]
        if not sampled:
            return Edit(removed=len(old) - kept, appended=inserted)
        return Edit(removed=len(old) - kept, inserted=inserted, appended=new[end:])


def _call(written: FunctionCall) -> Call:
    try:
        arguments = json.loads(written.arguments)
    except (ValueError, TypeError):
        arguments = None
    if isinstance(arguments, dict):
        return Call(name=written.name, arguments=arguments, id=written.tool_call_id)
    return Call(name=written.name, id=written.tool_call_id, as_text=str(written.arguments))
