"""The turns of a trajectory whose conversation a program leads: what it drops or writes anew begins a segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.rollout.loop.thinking import asked
from mcp_rollout.rollout.loop.turns import TrajectoryOver, Turns, require
from mcp_rollout.rollout.programs.outside import OutsideCalls
from mcp_rollout.rollout.trace.events import Mark, MarkKind
from mcp_rollout.rollout.trace.record import StopReason
from mcp_rollout.rollout.types import FinishReason, Message, Parsed, Shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """What a program tells the policy."""

    messages: list[Message] = field(default_factory=list[Message])
    tools: Sequence[Mapping[str, Any]] = ()
    """OpenAI-style schemas, as the program shows them to the policy."""
    worlds: Mapping[str, str] = field(default_factory=dict[str, str])
    """By the name in `tools`, the exposed name of the world's tool."""
    is_beside: bool = False
    """Whether it is beside the program's main one, which may go on by `go_back`."""


@dataclass(slots=True)
class _Head:
    """Where a turn ended in its conversation, with its calls."""

    conversation: Conversation
    rendered: list[Message]
    """The messages of its segment."""
    length: int
    """How many of them there were."""
    calls: OutsideCalls
    observed: list[Message] = field(default_factory=list[Message])
    """What the policy has read after it."""


class ProgramTurns(Turns):
    """The turns of one trajectory, for an agent that passes on the conversation of a program.

    It raises what `Turns` raises.
    """

    _may_bound = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._now = Conversation()
        self._heads: list[_Head] = []
        """By turn."""

    @property
    def trajectory(self) -> str:
        """The id of this attempt."""
        return self._trace.id

    @property
    def stop_reason(self) -> StopReason | None:
        return self._trace.stop_reason

    @property
    def usage(self) -> tuple[int, int, bool]:
        """Ids that the last turn read, ids that it sampled, and whether a limit cut it."""
        last = self._trace.turns[-1]
        return len(self._trace.context) - last.sampled, last.sampled, last.finish_reason is not FinishReason.STOP

    async def converse(
        self, conversation: Conversation, *, why: str = "", results: Mapping[int, Mapping[int, str]]
    ) -> None:
        """Begin the conversation, or begin another one in a segment of its own, rendered as it is.

        Args:
            why: What the program changed, where it has told a conversation before.
            results: By turn, as in `observe`, what these messages give of earlier turns' calls.
        """
        await self._admit()
        with self._operation():
            self._leave(results.get(len(self._heads) - 1), returns=conversation.is_beside)
            for turn, given in results.items():
                if turn >= 0:
                    self._heads[turn].calls.settle(given, reads=False)
            ids: list[int] = []
            if not self._trace.turns:
                self._trace.messages[:] = [dict(message) for message in conversation.messages]
            else:
                ids = self._context.tokens.prompt(conversation.messages, conversation.tools)
                if not conversation.is_beside:
                    self._trace.turns[-1].marks.append(Mark(kind=MarkKind.REWRITTEN, detail=why))
            self._open(conversation, ids)

    async def observe(self, results: Mapping[int, str], said: str = "", *, changed: str = "") -> None:
        """Give the policy what a program answers its last turn with.

        Args:
            results: What the policy reads of each call, by its position in the turn.
            said: A user's message; empty for none.
            changed: What of the turn the program changed.
        """
        await self._admit()
        with self._operation():
            require(self._heads and self._unanswered, "observe() needs an unanswered turn")
            require(results or said or self._calls, "observe() needs something that the policy reads")
            head = self._heads[-1]
            head.observed = self._pending = [*head.calls.settle(results), *_user(said)]
            if changed:
                self._trace.turns[-1].marks.append(Mark(kind=MarkKind.CAME_BACK_CHANGED, detail=changed))
            self._trace.turns[-1].agent_message = said
            self._unanswered = False

    async def go_back(self, turn: int, results: Mapping[int, str], said: str = "") -> None:
        """Take the conversation up after an earlier turn, in a segment that begins with the ids up to there.

        Args:
            results, said: As in `observe`, for that turn.
        """
        await self._admit()
        with self._operation():
            require(turn < len(self._heads), "go_back() needs an earlier turn")
            head = self._heads[turn]
            conversation = head.conversation
            self._leave(returns=self._now.is_beside or conversation.is_beside)
            new = [*head.calls.settle(results), *_user(said)]
            require(new, "go_back() needs something that the policy reads")
            base, previous = self._trace.ids_after(turn), head.rendered[: head.length]
            edit = self._context.tokens.messages(base, previous, new, conversation.tools)
            self._trace.turns[-1].marks.append(Mark(kind=MarkKind.WENT_BACK, detail=f"to turn {turn + 1}"))
            self._open(replace(conversation, messages=[*previous, *new]), edit.applied_to(base))

    async def sample_beside(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, max_tokens: int | None
    ) -> tuple[Parsed, tuple[int, int, bool]]:
        """Let the policy answer a conversation beside this one, such as for a title. It is in no segment.

        It is no longer than a sample may be. Raises TrajectoryOver where it does not fit, as where `converse` does not.

        Returns:
            The answer, and its `usage`.
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
                require(self._trace.turns, f"a first request of {len(prompt)} tokens leaves no room to answer it")
                self._trace.stop_reason = StopReason.TOKEN_LIMIT
                raise TrajectoryOver
            turn = len(self._trace.turns)
            completion = await asked(self._policy, list(prompt), max_tokens=min(most), turn=turn)
            parsed = await tokens.parse(completion.ids, tools)
            return parsed, (len(prompt), len(completion.ids), completion.finish_reason is not FinishReason.STOP)

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
                `sample_beside`.

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

    def close(self) -> None:
        """Refuse every later call, and record the messages of every turn: its calls may have been made much later."""
        self.over.set()
        trace = self._trace
        messages = trace.messages[: trace.opening]
        for turn, head in zip_longest(trace.turns, self._heads):  # the last turn may have ended the trajectory
            own, turn.begins_at = trace.messages[turn.begins_at], len(messages)
            messages.append(own)
            if head is not None:
                messages += head.calls.end()
                messages += [message for message in head.observed if message["role"] == "user"]
        trace.messages[:] = messages

    @property
    def ending(self) -> StopReason:
        """The stop reason if the agent returns now."""
        if self._unanswered and not self._calls and self._trace.turns[-1].finish_reason is FinishReason.LENGTH:
            return StopReason.TOKEN_LIMIT  # the program's own
        return super().ending

    def _sampled(self, parsed: Parsed) -> None:
        """Take note of a turn, with its calls, which may be made from now on."""
        now = self._now
        if now.is_beside:
            self._trace.turns[-1].marks.append(Mark(kind=MarkKind.BESIDE))
            self._trace.uncounted += 1
        # A program is given the answer that a limit has cut, as by any endpoint.
        if self._trace.stop_reason is not StopReason.TOKEN_LIMIT:
            super()._sampled(parsed)
        own = {str(tool["function"]["name"]) for tool in now.tools} - now.worlds.keys()
        calls = OutsideCalls(self._trace, self._session, self._context, parsed.calls, worlds=now.worlds, own=own)
        rendered = self._trace.rendered
        self._heads.append(_Head(now, rendered, len(rendered), calls))

    def _open(self, conversation: Conversation, ids: list[int]) -> None:
        """Begin a segment with this prompt, of this conversation.

        Raises TrajectoryOver where a limit is reached or it does not fit.
        """
        self._now, self._pending, self._unanswered = conversation, [], False
        tools = conversation.tools
        self._context = replace(self._context, schemas=tools, callable_schemas=tools)
        self._trace.stop_reason = self.limits.reached(self._trace, freed=len(self._trace.context) - len(ids))
        if self._trace.stop_reason is not None:
            raise TrajectoryOver
        self._trace.open(ids, list(conversation.messages))

    def _leave(self, results: Mapping[int, str] | None = None, *, returns: bool = False) -> None:
        """Leave the last turn without a further generation.

        Args:
            results: As in `observe`.
            returns: Whether the turn may be taken up again, with the calls that are still to be made.
        """
        if self._heads and (results or not returns) and not self._heads[-1].calls.is_settled:
            self._heads[-1].calls.settle(results or {})


def _user(said: str) -> list[Message]:
    return [{"role": "user", "content": said}] if said else []
