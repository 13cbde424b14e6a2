"""The turns of a trajectory as an agent takes them: policy, tools, user and context, all recorded."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import anyio

from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.rollout.environment.sections import Strategy, ThinkingLoss
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.errors import AgentError
from mcp_rollout.rollout.loop.calls import call_tools
from mcp_rollout.rollout.loop.clock import Clock
from mcp_rollout.rollout.loop.compaction import Compaction
from mcp_rollout.rollout.loop.context import Context, with_line
from mcp_rollout.rollout.loop.filters import Filters
from mcp_rollout.rollout.loop.limits import Limits, is_time_over, shielded
from mcp_rollout.rollout.loop.outside import OutsideCalls
from mcp_rollout.rollout.loop.reward import without_images
from mcp_rollout.rollout.loop.thinking import asked, generate
from mcp_rollout.rollout.loop.user import User
from mcp_rollout.rollout.trace.events import Mark, MarkKind, ToolEvent
from mcp_rollout.rollout.trace.record import StopReason, Trace, assistant_message
from mcp_rollout.rollout.types import Completion, FinishReason, Message, Parsed, Policy, Shown, TurnSession

T = TypeVar("T")
_REFUSED_S = 0.01
"""Pause before a method that is called after the end raises: an agent may catch that, and call for ever."""


class TrajectoryOver(BaseException):
    """The trajectory has ended: a limit, a filter, the user, or the agent itself. Let it pass; it is not a failure.

    Not an `Exception`, so that an agent's own `except Exception` does not catch it.
    """


@dataclass(frozen=True, slots=True)
class Aside:
    """A generation beside the conversation, in no segment: a title, an answer of a sub-agent."""

    parsed: Parsed
    prompt_ids: Sequence[int]
    completion: Completion


@dataclass(frozen=True, slots=True)
class _Head:
    """Where a program's turn ended in its conversation, with its calls."""

    line: list[Message]
    length: int
    calls: OutsideCalls
    tools: Sequence[Mapping[str, Any]]
    worlds: Mapping[str, str]
    is_beside: bool


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
        self._can_generate = True
        """Whether the context, with what is pending, ends where the policy continues."""
        compact = context.environment.strategy
        self._compaction = Compaction(compact.compact) if compact.use is Strategy.COMPACT else None
        self._line: list[Message] | None = None
        """The conversation that a program tells; None for an agent that takes turns by itself."""
        self._heads: list[_Head] = []
        """Of a program, by turn."""
        self._worlds: Mapping[str, str] = {}
        self._is_beside = False
        """Whether the current messages are of a conversation beside the program's main one."""
        self.lock = anyio.Lock()
        """Held while a method runs."""
        self.over = anyio.Event()
        """Set at the end of the trajectory, from which on every method raises `TrajectoryOver`."""
        self._method: anyio.CancelScope | None = None
        """Of the method that runs, or ran last."""
        self.failure: Exception | None = None
        """What broke in a method. It withdraws the trajectory whatever the agent makes of it."""

    @property
    def trajectory(self) -> str:
        """The id of this attempt."""
        return self._trace.id

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
    def stop_reason(self) -> StopReason | None:
        return self._trace.stop_reason

    @property
    def usage(self) -> tuple[int, int, bool]:
        """Ids that the last turn read, ids that it sampled, and whether a limit cut it."""
        last = self._trace.turns[-1]
        return len(self._trace.context) - last.sampled, last.sampled, last.finish_reason is not FinishReason.STOP

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
            _require(self._can_generate, "generate() needs a message after the last turn")
            _require(max_tokens is None or max_tokens >= 1, "generate() needs at least one token")
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
            ends = self._line is None or most == room  # a program may bound one answer
            parsed = await sample(self._trace, self._policy, self._context, self._filters, most=most, ends=ends)
            self._parsed, self._unanswered, self._can_generate = parsed, True, False
            if self._is_beside:
                self._trace.turns[-1].marks.append(Mark(kind=MarkKind.BESIDE))
                self._trace.uncounted += 1
            # A program is given the answer that a limit has cut, as by any endpoint.
            is_cut = self._line is not None and self._trace.stop_reason is StopReason.TOKEN_LIMIT
            if self._trace.stop_reason is not None and not is_cut:
                raise TrajectoryOver
            if self._line is not None:
                self._note_head(self._line, parsed)
            return self._given(parsed)

    async def call_tools(self) -> list[ToolEvent]:
        """Send the calls of the last turn, and return their results in order; `text` is the whole result."""
        await self._admit()
        with self._operation():
            parsed = self._parsed
            _require(self._unanswered and self._calls, "call_tools() needs unanswered calls")
            assert parsed is not None
            # Before the `await`: calls that a cancellation cuts may have taken effect, and must not be sent again.
            self._unanswered, self._can_generate = False, True
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
            _require(self._user is not None, "ask_user() needs an environment with a user")
            _require(self._unanswered and not self._calls, "ask_user() needs an unanswered turn without calls")
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
            self._can_generate = True
            if self._trace.stop_reason is not None:
                raise TrajectoryOver
            return str(reply["content"])

    async def say(self, text: str) -> None:
        """Add a user message to the context. It joins one that is there already: the prompt's, or the user's reply."""
        await self._admit()
        with self._operation():
            _require(text and _is_unicode(text), "say() needs a text, without halves of surrogate pairs")
            _require(not (self._unanswered and self._calls), "say() would leave calls unanswered")
            if self._parsed is not None:
                turn = self._trace.turns[-1]
                turn.agent_message = f"{turn.agent_message}\n\n{text}" if turn.agent_message else text
            self._unanswered, self._can_generate = False, True
            before = self._pending if self._trace.prompt_ids else self._trace.messages
            if before and before[-1]["role"] == "user":
                before[-1] = with_line(before[-1], f"\n{text}")
            else:
                before.append({"role": "user", "content": text})

    # The rest of an agent's methods is for one that passes on a conversation which a program leads.

    async def tell(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        *,
        worlds: Mapping[str, str],
        why: str = "",
        results: Mapping[int, Mapping[int, str]],
        is_beside: bool = False,
    ) -> None:
        """Begin the conversation, or begin another one in a segment of its own: these messages, rendered as they are.

        Args:
            tools: OpenAI-style schemas, as the program shows them to the policy.
            worlds: By the name in `tools`, the exposed name of the world's tool.
            why: What the program changed, where it has told a conversation before.
            results: By turn, as in `hear`, what these messages give of earlier turns' calls.
            is_beside: Whether it is beside the program's conversation, which may go on by `go_back`.
        """
        await self._admit()
        with self._operation():
            self._leave(results.get(len(self._heads) - 1), returns=is_beside)
            for turn, given in results.items():
                if turn >= 0:
                    self._heads[turn].calls.settle(given, reads=False)
            self._worlds, self._is_beside = worlds, is_beside
            self._take_line([dict(message) for message in messages], tools)
            assert self._line is not None
            if not self._trace.turns:
                self._trace.messages[:] = [dict(message) for message in messages]
                self._trace.open([])
                return
            if not is_beside:
                self._trace.turns[-1].marks.append(Mark(kind=MarkKind.REWRITTEN, detail=why))
            self._reopen(self._context.tokens.prompt(self._line, tools))

    async def hear(self, results: Mapping[int, str], said: str = "", *, changed: str = "") -> None:
        """Give the policy what a program answers its last turn with.

        Args:
            results: What the policy reads of each call, by its position in the turn.
            said: A user's message; empty for none.
            changed: What of the turn the program changed.
        """
        await self._admit()
        with self._operation():
            _require(self._heads and self._unanswered, "hear() needs an unanswered turn")
            _require(results or said or self._calls, "hear() needs something that the policy reads")
            self._pending = self._heads[-1].calls.settle(results)
            if changed:
                self._trace.turns[-1].marks.append(Mark(kind=MarkKind.CAME_BACK_CHANGED, detail=changed))
            if said:
                self._trace.turns[-1].agent_message = said
                self._pending.append({"role": "user", "content": said})
            self._unanswered, self._can_generate = False, True

    async def go_back(self, turn: int, results: Mapping[int, str], said: str = "") -> None:
        """Take the conversation up after an earlier turn, in a segment that begins with the ids up to there.

        Args:
            results, said: As in `hear`, for that turn.
        """
        await self._admit()
        with self._operation():
            _require(turn < len(self._heads), "go_back() needs an earlier turn")
            head = self._heads[turn]
            self._leave(returns=self._is_beside or head.is_beside)
            new = [*head.calls.settle(results), *([{"role": "user", "content": said}] if said else [])]
            _require(new, "go_back() needs something that the policy reads")
            base, previous = self._trace.ids_after(turn), head.line[: head.length]
            edit = self._context.tokens.messages(base, previous, new, head.tools)
            self._worlds, self._is_beside = head.worlds, head.is_beside
            self._take_line([*previous, *new], head.tools)
            self._trace.turns[-1].marks.append(Mark(kind=MarkKind.WENT_BACK, detail=f"to turn {turn + 1}"))
            self._reopen(edit.applied_to(base))

    async def aside(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, max_tokens: int | None
    ) -> Aside:
        """Let the policy answer a conversation beside this one. It is in no segment.

        It is no longer than a sample may be. Raises TrajectoryOver where it does not fit, as where `tell` does not.
        """
        await self._admit()
        with self._operation():
            tokens, limits = self._context.tokens, self.limits
            prompt = tokens.prompt(messages, tools)
            most = [limits.response_tokens, *filter(None, (limits.tokens_per_turn, max_tokens))]
            if limits.context_tokens is not None:
                most.append(limits.context_tokens - len(prompt))
            if limits.prompt_tokens is not None:
                most.append(limits.prompt_tokens + limits.response_tokens - len(prompt))
            if min(most) < 1:
                _require(self._trace.turns, f"a first request of {len(prompt)} tokens leaves no room to answer it")
                self._trace.stop_reason = StopReason.TOKEN_LIMIT
                raise TrajectoryOver
            turn = len(self._trace.turns)
            completion = await asked(self._policy, list(prompt), max_tokens=min(most), turn=turn)
            return Aside(await tokens.parse(completion.ids, tools), prompt, completion)

    def unshowable(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        """Why a conversation cannot be rendered; empty if it can be."""
        try:
            self._context.tokens.prompt(messages, tools)
        except Exception as error:  # the template's boundary: it may refuse any conversation
            return f"the chat template of the policy refuses this conversation: {type(error).__name__}: {error}"[:500]
        return ""

    async def call(
        self, name: str, arguments: dict[str, Any], *, of: tuple[int, int] | None = None
    ) -> tuple[Shown, bool]:
        """Send a call that a program makes, at any time and beside others, and record it at once.

        Args:
            name: The exposed name.
            of: The turn and the position of the call that it is, where the program says so; the turn is below 0 for an
                `aside`.

        Returns:
            What the program is given, and whether it is an error.
        """
        if self.is_over or self.failure is not None:
            raise TrajectoryOver
        if not self._heads:
            return Shown(text="Not called: the model has not been asked yet."), True
        turn, last = self._trace.turns[-1], len(self._heads) - 1
        at, position = of or (None, None)
        numbers = range(last, -1, -1) if at is None else range(max(at, 0), at + 1)
        # Beside another conversation, earlier turns may have calls to make. The last turn records what no turn wrote.
        found = (each for each in numbers if self._heads[each].calls.awaits(name, arguments, position))
        number = next(found, last)
        try:
            return await self._heads[number].calls.make(name, arguments, position if at in (None, number) else -1)
        except GatewayError as error:
            self.failure = error
            raise
        finally:
            turn.server_events.add(self._session.drain_server_events())

    def asked_again(self, turn: int) -> None:
        """The program has asked again for a turn's answer: calls of it that were made give their results once more."""
        if turn >= 0:
            self._heads[turn].calls.asked_again()

    def note_end(self, problem: str) -> None:
        """Record what a program ended with; its trajectory is scored."""
        self._trace.turns[-1].marks.append(Mark(kind=MarkKind.PROGRAM_ENDED, detail=problem))
        self._unanswered = False  # an error is not an answer

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
        self._leave()
        for head in self._heads:
            head.calls.settle({})

    @property
    def ending(self) -> StopReason:
        """The stop reason if the agent returns now."""
        if self._unanswered and not self._calls and self._trace.turns[-1].finish_reason is FinishReason.LENGTH:
            return StopReason.TOKEN_LIMIT  # the program's own
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
            _require(not self.lock.locked(), "two methods of its turns were called at a time")
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

    def _open_context(self) -> None:
        context = self._context
        self._trace.open(context.tokens.prompt(self._trace.messages, context.schemas))
        context.limits.check_prompt(self._trace)
        if self._compaction is not None:
            self._compaction.check_prompt(self._trace)

    async def _compact(self, compaction: Compaction) -> None:
        """Have the context summarised and replaced. Raises TrajectoryOver where a limit is reached, or nothing fits."""
        pending, self._pending = self._pending, []
        if compaction.asks(self._trace, self._context, pending):
            most = compaction.most_tokens(self._trace, self._context)
            summary = await sample(self._trace, self._policy, self._context, None, most=most)
            self._context = compaction.finish(self._trace, self._context, summary)
        elif self._trace.stop_reason is None:
            self._context = compaction.cut(self._trace, self._context)
        if self._trace.stop_reason is not None:
            raise TrajectoryOver

    def _append_pending(self) -> None:
        """Render what is pending. Raises TrajectoryOver where a limit is reached or it does not fit."""
        messages, self._pending = self._pending, []
        if self._compaction is not None:  # images of turns that leave the context could not be told apart
            messages = list(map(without_images, messages))
        if messages:  # none where a generation is tried again that a timeout of the agent's own had cancelled
            try:
                self._context.add(self._trace, messages)
            finally:  # it has recorded them whatever it raises
                self._log([])
            if self._line is not None:
                self._line += messages
        if self._trace.stop_reason is not None:
            raise TrajectoryOver

    def _take_line(self, line: list[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        self._line, self._pending, self._unanswered, self._can_generate = line, [], False, True
        self._context = replace(self._context, line=line, schemas=tools, callable_schemas=tools)

    def _note_head(self, line: list[Message], parsed: Parsed) -> None:
        """Record a turn of a program's, with its calls, which may be made from now on."""
        line.append(assistant_message(parsed))
        tools, worlds = self._context.schemas, self._worlds
        own = {str(tool["function"]["name"]) for tool in tools} - worlds.keys()
        calls = OutsideCalls(self._trace, self._session, self._context, parsed.calls, worlds=worlds, own=own)
        self._heads.append(_Head(line, len(line), calls, tools, worlds, self._is_beside))

    def _leave(self, results: Mapping[int, str] | None = None, *, returns: bool = False) -> None:
        """Record the messages that no generation reads.

        Args:
            results: As in `hear`.
            returns: Whether the last turn may be taken up again, with the calls that are still to be made.
        """
        last = self._heads[-1].calls if self._heads else None
        if last is not None and not last.is_settled and not last.is_logged:
            self._pending = last.messages({}) if returns and not results else last.settle(results or {})
        self._log(self._pending)
        self._pending = []

    def _log(self, messages: Sequence[Message]) -> None:
        self._trace.messages += messages
        if self._heads and not self._heads[-1].calls.is_logged:
            self._heads[-1].calls.log_unwritten()

    def _reopen(self, ids: list[int]) -> None:
        """Begin a segment with this prompt. Raises TrajectoryOver where a limit is reached or it does not fit."""
        self._trace.stop_reason = self.limits.reached(self._trace, freed=len(self._trace.context) - len(ids))
        if self._trace.stop_reason is not None:
            raise TrajectoryOver
        self._trace.open(ids)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _require(holds: object, otherwise: str) -> None:
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
