"""The turns of a trajectory as an agent takes them: policy, tools, user and context, all recorded."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, ClassVar, TypeVar

import anyio

from mcp_rollout.rollout.environment.sections import Strategy, ThinkingLoss
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.errors import AgentError
from mcp_rollout.rollout.loop.calls import call_tools
from mcp_rollout.rollout.loop.clock import Clock
from mcp_rollout.rollout.loop.compaction import Compaction
from mcp_rollout.rollout.loop.context import Context, with_line
from mcp_rollout.rollout.loop.filters import Filters
from mcp_rollout.rollout.loop.limits import Limits, is_time_over, shielded
from mcp_rollout.rollout.loop.reward import without_images
from mcp_rollout.rollout.loop.thinking import generate
from mcp_rollout.rollout.loop.user import User
from mcp_rollout.rollout.trace.events import ToolEvent
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import FinishReason, Message, Parsed, Policy, TurnSession

T = TypeVar("T")
_REFUSED_S = 0.01
"""Pause before a method that is called after the end raises: an agent may catch that, and call for ever."""


class TrajectoryOver(BaseException):
    """The trajectory has ended: a limit, a filter, the user, or the agent itself. Let it pass; it is not a failure.

    Not an `Exception`, so that an agent's own `except Exception` does not catch it.
    """


class Turns:
    """The turns of one trajectory, for its agent.

    An agent chooses what happens next, and the library does it: it samples, renders, masks, applies limits and filters,
    and records. No method takes token ids, and everything that is returned is a copy.

    Every method raises the following. After all but the first the trajectory is over, and withdrawn even if the agent
    catches them:
        TrajectoryOver: the trajectory has ended.
        AgentError: the call has no meaning at this point, for example two generations without a message in between.
        GatewayError: the world broke.
        RolloutError: the engine failed.

    Args:
        copies: whether methods return copies. The library's own agent changes nothing.
    """

    _may_bound: ClassVar[bool] = False
    """Whether an answer that `max_tokens` cuts leaves the trajectory going on."""

    def __init__(
        self,
        trace: Trace,
        session: TurnSession,
        policy: Policy,
        user: User | None,
        context: Context,
        filters: Filters,
        *,
        copies: bool,
    ) -> None:
        self._trace, self._session, self._policy, self._user = trace, session, policy, user
        self._context, self._filters, self._copies = context, filters, copies
        self._parsed: Parsed | None = None
        """The last completion; None before the first one."""
        self._unanswered = False
        """Whether the last completion was neither sent to tools nor to the user, and the agent said nothing to it."""
        self._pending: list[Message] = []
        """Messages that the next generation reads; not rendered yet."""
        compact = context.environment.strategy
        self._compaction = Compaction(compact.compact) if compact.use is Strategy.COMPACT else None
        self.lock = anyio.Lock()
        """Held while a method runs."""
        self.over = anyio.Event()
        """Set at the end of the trajectory, from which on every method raises `TrajectoryOver`."""
        self._method: anyio.CancelScope | None = None
        """Of the method that runs, or ran last."""
        self.failure: Exception | None = None
        """What broke in a method. It withdraws the trajectory whatever the agent makes of it."""

    @property
    def task(self) -> Task:
        return self._trace.task

    @property
    def limits(self) -> Limits:
        """The bounds that the library keeps; an agent needs them only to plan ahead."""
        return self._context.limits

    @property
    def clock(self) -> Clock:
        """The clock that the trajectory's time is taken by."""
        return self._context.clock

    @property
    def taken(self) -> int:
        """Number of turns so far."""
        return len(self._trace.turns)

    @property
    def is_over(self) -> bool:
        return self.over.is_set()

    @property
    def tokens_left(self) -> int:
        """Tokens that fit before the response or the engine's context is full."""
        return self.limits.tokens_left(self._trace)

    @property
    def has_user(self) -> bool:
        return self._user is not None

    @property
    def messages(self) -> list[Message]:
        """The conversation so far, a copy."""
        return deepcopy([*self._trace.messages, *self._pending])

    @property
    def tools(self) -> list[dict[str, Any]]:
        """OpenAI-style schemas of the policy's tools, a copy."""
        return deepcopy([dict(schema) for schema in self._context.schemas])

    async def generate(self, *, max_tokens: int | None = None) -> Parsed:
        """Let the policy take a turn, and return what it wrote.

        Args:
            max_tokens: a bound on this turn; those of the library apply as well.
        """
        await self._admit()
        with self._operation():
            require(not self._unanswered, "generate() needs a message after the last turn")
            require(max_tokens is None or max_tokens >= 1, "generate() needs at least one token")
            if not self._trace.prompt_ids:
                self._open_context()
            elif self._compaction is None or not self._compaction.is_due(self._trace, self._context, self._pending):
                self._append_pending()
            else:
                await self._compact(self._compaction)
            # `sample` appends to the trace itself: a cancellation here leaves the trace with or without the turn, never
            # half.
            room = self.limits.completion_tokens(self._trace)
            most = room if max_tokens is None else min(room, max_tokens)
            ends = most == room or not self._may_bound
            parsed = await sample(self._trace, self._policy, self._context, self._filters, most=most, ends=ends)
            self._parsed, self._unanswered = parsed, True
            self._sampled(parsed)
            return self._given(parsed)

    async def call_tools(self) -> list[ToolEvent]:
        """Send the calls of the last turn, and return their results in order; `text` is the whole result."""
        await self._admit()
        with self._operation():
            parsed = self._parsed
            require(self._unanswered and self._calls, "call_tools() needs unanswered calls")
            assert parsed is not None
            # Before the `await`: calls that a cancellation cuts may have taken effect, and must not be sent again.
            self._unanswered = False
            try:
                await call_tools(self._trace, self._session, parsed.calls, self._context, into=self._pending)
            finally:
                # Drained here so that events belong to the turn that caused them.
                self._trace.turns[-1].server_events.add(self._session.drain_server_events())
            return self._given(self._trace.turns[-1].tools)

    async def ask_user(self) -> str:
        """Send the last turn's text to the user, and return the user's reply."""
        await self._admit()
        with self._operation():
            require(self._user is not None, "ask_user() needs an environment with a user")
            require(self._unanswered and not self._calls, "ask_user() needs an unanswered turn without calls")
            assert self._user is not None and self._parsed is not None
            self._unanswered = False
            try:
                with self._context.spans.user():
                    reply = await self._user.answer(self._trace, self._parsed.content)
            except BaseException:  # also when cancelled: whether the user has read the message is unknown
                self.over.set()
                raise
            finally:
                self._trace.turns[-1].server_events.add(self._session.drain_server_events())
            self._pending.append(reply)
            if self._trace.stop_reason is not None:
                raise TrajectoryOver
            return str(reply["content"])

    async def say(self, text: str) -> None:
        """Add a user message to the context. It joins one that is there already: the prompt's, or the user's reply."""
        await self._admit()
        with self._operation():
            require(text and _is_unicode(text), "say() needs a text, without halves of surrogate pairs")
            require(not (self._unanswered and self._calls), "say() would leave calls unanswered")
            if self._parsed is not None:
                turn = self._trace.turns[-1]
                turn.agent_message = f"{turn.agent_message}\n\n{text}" if turn.agent_message else text
            self._unanswered = False
            before = self._pending if self._trace.prompt_ids else self._trace.messages
            if before and before[-1]["role"] == "user":
                before[-1] = with_line(before[-1], f"\n{text}")
            else:
                before.append({"role": "user", "content": text})

    async def begin(self) -> None:
        """Start the user. The library calls it before the agent plays."""
        with self._operation():
            if self._user is not None:
                await self._user.open(self._trace)
            self._trace.server_events.add(self._session.drain_server_events())

    def interrupt(self) -> None:
        """End the trajectory, and cancel the method that runs."""
        self.over.set()
        if self._method is not None:
            self._method.cancel()

    def close(self) -> None:
        """Refuse every later call, and record the messages that no generation reads."""
        self.over.set()
        self._trace.messages += self._pending

    @property
    def ending(self) -> StopReason:
        """The stop reason if the agent returns now."""
        is_answer = self._unanswered and not self._calls and self._user is None
        return StopReason.ANSWERED if is_answer else StopReason.AGENT_ENDED

    @property
    def _calls(self) -> Sequence[Any]:
        return self._parsed.calls if self._parsed is not None else ()

    async def _admit(self) -> None:
        """Let the agent's call in: one at a time, until the end."""
        if self.is_over or self._trace.stop_reason is not None or self.failure is not None:
            self.over.set()
            await anyio.sleep(_REFUSED_S)
            raise TrajectoryOver
        try:
            require(not self.lock.locked(), "two methods of its turns were called at a time")
        except AgentError as error:
            self.failure = error
            raise

    @contextmanager
    def _operation(self) -> Generator[None]:
        """The boundary between the agent and the library; there is no `await` between `_admit` and this."""
        self.lock.acquire_nowait()
        # Unlike that of a task, the cancellation of a scope waits for what is shielded, such as a generation.
        with anyio.CancelScope() as method:
            self._method = method
            try:
                yield
            except Exception as error:  # boundary: an agent may catch it, and the trajectory fails with it all the same
                self.failure = error
                raise
            finally:
                # Also where a cancellation, by a timeout of the agent's own for one, has cut the method short.
                self.lock.release()
                if self._trace.stop_reason is not None:
                    self.over.set()
        if method.cancelled_caught:
            raise TrajectoryOver

    def _given(self, value: T) -> T:
        """What an agent is given: a copy, which costs a tenth of a millisecond, but for the library's own agent."""
        return deepcopy(value) if self._copies else value

    def _sampled(self, parsed: Parsed) -> None:
        """A turn was sampled. Raises TrajectoryOver where the trajectory ended with it."""
        if self._trace.stop_reason is not None:
            raise TrajectoryOver

    def _open_context(self) -> None:
        context = self._context
        messages = list(self._trace.messages)
        self._trace.open(context.tokens.prompt(messages, context.schemas), messages)
        context.limits.check_prompt(self._trace)
        if self._compaction is not None:
            self._compaction.check_prompt(self._trace)

    async def _compact(self, compaction: Compaction) -> None:
        """Have the context summarised and replaced. Raises TrajectoryOver where a limit is reached, or nothing fits."""
        pending, self._pending = self._pending, []
        if compaction.asks(self._trace, self._context, pending):
            most = compaction.most_tokens(self._trace, self._context)
            summary = await sample(self._trace, self._policy, self._context, None, most=most)
            compaction.finish(self._trace, self._context, summary)
        elif self._trace.stop_reason is None:
            compaction.cut(self._trace, self._context)
        if self._trace.stop_reason is not None:
            raise TrajectoryOver

    def _append_pending(self) -> None:
        """Render what is pending. Raises TrajectoryOver where a limit is reached or it does not fit."""
        messages, self._pending = self._pending, []
        if self._compaction is not None:  # images of turns that leave the context could not be told apart
            messages = list(map(without_images, messages))
        if messages:  # none where a generation is tried again that a timeout of the agent's own had cancelled
            self._context.add(self._trace, messages)
        if self._trace.stop_reason is not None:
            raise TrajectoryOver


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require(holds: object, otherwise: str) -> None:
    """Raises AgentError where the agent's call has no meaning now."""
    if not holds:
        raise AgentError(otherwise)


async def sample(
    trace: Trace, policy: Policy, context: Context, filters: Filters | None, *, most: int, ends: bool = True
) -> Parsed:
    """Generate once, append the ids exactly as sampled, and apply the filters.

    The trajectory ends with a generation that was aborted or exceeded its time, and with one that the length limit cut
    before a readable call: part of a sentence is neither an answer nor a message to a user.

    Args:
        filters: None for a summary, which is no turn that they are about.
        most: the most tokens of this turn.
        ends: whether an answer that `most` cuts ends the trajectory, as one does that the engine cuts.
    """
    thinking, tokens = context.environment.thinking, context.tokens
    began_at, began = time.time(), context.clock.time()
    with context.spans.generation(trace, most):
        completion = await generate(
            policy,
            tokens,
            trace.context,
            max_tokens=most,
            turn=len(trace.turns),
            thinking=thinking.tokens_per_turn,
        )
        generate_s = context.clock.time() - began
        # Shielded, so that what was sampled is recorded where the time ran out during the generation.
        parsed = await shielded(tokens.parse(completion.ids, context.callable_schemas))
        edit = tokens.completion(trace.context, completion.ids)
        turn = trace.add_completion(completion, parsed, edit, mask_thinking=thinking.loss is ThinkingLoss.MASK)
    turn.began_at, turn.generate_s = began_at, generate_s
    if filters is not None:
        filters.judge(trace, completion, parsed)
    # A filter's stop reason has precedence over the two limits: it says what the policy did. Filters skip aborted
    # completions.
    if completion.finish_reason is FinishReason.ABORT:
        trace.stop_reason = StopReason.ABORTED
    elif is_time_over():
        trace.stop_reason = trace.stop_reason or StopReason.TIME_LIMIT
    elif completion.finish_reason is FinishReason.LENGTH and not parsed.calls and (ends or len(completion.ids) < most):
        trace.stop_reason = trace.stop_reason or StopReason.TOKEN_LIMIT
    return parsed
