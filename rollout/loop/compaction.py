"""The strategy `compact`: a full context is replaced by the opening prompt, the policy's summary, and the last turns.

The summary is a turn of its own, sampled at the end of the segment that it summarises. The next segment's prompt has
its text, in which no spelling is a control token, and the ids of the last turns as they were. Images are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcp_rollout.gateway.errors import ConfigError, Faults, raise_all
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import CompactConfig, Strategy, SummaryLoss, ThinkingContext
from mcp_rollout.rollout.errors import PromptTooLong
from mcp_rollout.rollout.loop.context import Context, with_line
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.results import OVERFLOW_TOKENS
from mcp_rollout.rollout.loop.reward import without_images
from mcp_rollout.rollout.trace.events import Mark, MarkKind
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import FinishReason, Message, Parsed

_MESSAGE_TOKENS = 64
"""More than a chat template writes around a message."""
_HEADING_TOKENS = 128
"""More than a heading of ours has, also in bytes."""
HEADING = "[Your summary of the {count} turns so far, of which only the last ones may follow:]"
CUT = "[... the oldest of {count} turns so far left out ...]"


def check_compaction(
    environment: Environment, limits: Limits, *, unit: int = 1, place: tuple[str | None, str] | None = None
) -> None:
    """Validate that a full context leaves room for a turn and for its summary; for other strategies there is nothing.

    Args:
        limits: of the environment's trajectories.
        unit: how many of them a token of the environment counts as.
        place: file and key of `at_tokens`; None for the environment's own.

    Raises:
        ConfigError: it does not, or turns that are kept would lose their thinking.
    """
    config, file = environment.strategy.compact, environment.file or None
    if environment.strategy.use is not Strategy.COMPACT:
        return
    faults = Faults()
    if environment.thinking.context is ThinkingContext.DROP_PREVIOUS:
        problem = "drop_previous changes the turns that compact keeps as they were sampled"
        faults.append(ConfigError(problem, file=file, key="thinking.context", remedy="set it to keep"))
    room = min(limits.response_tokens, limits.context_tokens or limits.response_tokens) // unit
    beside = config.summary_tokens + (limits.tokens_per_turn or 0) // unit + OVERFLOW_TOKENS
    most = room - beside - len(config.instruction) // 4
    if config.at_tokens > most:
        problem = f"is {config.at_tokens}; a turn and a summary after it do not fit into a response of {room} tokens"
        remedy = f"make it at most {most}, or shorten summary_tokens, or allow longer responses"
        remedy = remedy if most > 0 else "allow longer responses, or shorten summary_tokens"
        file, key = place or (file, "strategy.compact.at_tokens")
        faults.append(ConfigError(problem, file=file, key=key, remedy=remedy))
    raise_all(faults)


def check_opening(environment: Environment, tokens: int, *, row: str) -> None:
    """Raises ConfigError where an opening prompt of so many tokens, of this row, leaves no room for a summary."""
    config = environment.strategy.compact
    if environment.strategy.use is Strategy.COMPACT and (needed := _needed(config, tokens)) > config.at_tokens:
        problem = f"is {config.at_tokens}; the prompt of {row} has {tokens} tokens, and with a summary {needed}"
        remedy = f"make it at least {needed}, better several times that, or shorten summary_tokens"
        raise ConfigError(problem, file=environment.file or None, key="strategy.compact.at_tokens", remedy=remedy)


def _needed(config: CompactConfig, prompt: int) -> int:
    return prompt + config.summary_tokens + _HEADING_TOKENS


class Compaction:
    """The compactions of one trajectory."""

    def __init__(self, config: CompactConfig) -> None:
        self._config = config
        self._held: list[Message] | None = None
        """What answered the last turn, while its context is being replaced."""
        self._ids: list[int] = []
        """The context before that answer."""
        self._line: Sequence[Message] = ()
        """Its messages."""
        self._places: dict[int, tuple[int, int]] = {}
        """By turn that can be kept, where it begins in both."""

    def check_prompt(self, trace: Trace) -> None:
        """Raises PromptTooLong where the prompt and a summary fill the context."""
        needed = _needed(self._config, len(trace.prompt_ids))
        if needed > self._config.at_tokens:
            problem = f"the prompt has {len(trace.prompt_ids)} tokens, and with a summary {needed}"
            raise PromptTooLong(f"{problem}; strategy.compact.at_tokens is {self._config.at_tokens}")

    def is_due(self, trace: Trace, context: Context, pending: Sequence[Message]) -> bool:
        """Whether the context has to be replaced before the next turn, which reads `pending`."""
        if self._held is not None:  # a generation is tried again that a timeout of the agent's own had cancelled
            return True
        if not pending or not trace.turns or context.limits.reached(trace) is not None:
            return False
        room = self._config.at_tokens - len(trace.context)
        # No text has more tokens than bytes; most turns need no tokenising to know that they fit.
        if sum(_bytes(message) + _MESSAGE_TOKENS for message in pending) <= room:
            return False
        new = list(map(without_images, pending))
        edit = context.tokens.messages(trace.context, trace.rendered, new, context.schemas)
        return len(edit.inserted) + len(edit.appended) - edit.removed > room

    def asks(self, trace: Trace, context: Context, pending: list[Message]) -> bool:
        """Begin: record what answers the last turn; whether the policy is then to write a summary.

        Sets the stop reason where the answer, the instruction and a summary do not fit.
        """
        most = self._config.summary_tokens
        if self._held is None:
            self._ids, self._line = list(trace.context), list(trace.rendered)
            begins, turns = trace.begins.items(), trace.turns
            # Not a turn whose only token, its end, the template has removed.
            self._places = {turn: at for turn, at in begins if turns[turn].sampled > len(turns[turn].trimmed)}
            self._held = list(map(without_images, pending))
            if not most:
                trace.messages += self._held
                return False
            text = self._config.request
            turn, last = trace.turns[-1], self._held[-1]
            turn.agent_message = f"{turn.agent_message}\n\n{text}" if turn.agent_message else text
            joins = last["role"] == "user"
            asked = [with_line(last, f"\n{text}")] if joins else [last, {"role": "user", "content": text}]
            messages = [*self._held[:-1], *asked]
            # So that the summary has room left, whatever the results take.
            room = {"response_tokens": context.limits.response_tokens - most}
            if context.limits.context_tokens is not None:
                room["context_tokens"] = context.limits.context_tokens - most
            replace(context, limits=context.limits.model_copy(update=room)).add(trace, messages)
            self._held = [*messages[:-1], *([last] if joins else [])]  # cut where they had to be
        return trace.stop_reason is None and most > 0

    def most_tokens(self, trace: Trace, context: Context) -> int:
        """The most tokens of the summary."""
        return min(self._config.summary_tokens, context.limits.tokens_left(trace))

    def finish(self, trace: Trace, context: Context, summary: Parsed) -> None:
        """Replace the context by the opening prompt, the summary that was just sampled, and the last turns.

        What the policy wrote in place of a summary ends the trajectory, which is scored as it stands.
        """
        turn, sampled = trace.turns[-1], len(trace.context)
        trace.uncounted += 1
        if self._config.summary_loss is SummaryLoss.MASK:
            trace.mask(len(trace.turns) - 1)
        if trace.stop_reason not in (None, StopReason.TOKEN_LIMIT):  # aborted, or out of time
            turn.marks.append(Mark(kind=MarkKind.COMPACTED, detail=f"no summary: {trace.stop_reason}"))
            return
        problem = ""
        if summary.calls:
            problem = "it has calls, which were not sent"
        elif turn.finish_reason is FinishReason.LENGTH:
            problem = f"it did not end within {turn.sampled} tokens"
        elif not summary.content.strip():
            problem = "it is empty"
        heading = HEADING.format(count=trace.turns_taken)
        if not problem and not self._replace(trace, context, f"\n{heading}\n{summary.content}"):
            problem = f"with it the context still has {self._config.at_tokens} tokens"
        if problem:
            trace.stop_reason = StopReason.BAD_SUMMARY
        outcome = f"no summary: {problem}" if problem else f"{sampled} tokens to {len(trace.context)}"
        turn.marks.append(Mark(kind=MarkKind.COMPACTED, detail=outcome))

    def cut(self, trace: Trace, context: Context) -> None:
        """Replace the context by the opening prompt and the last turns, without a summary."""
        before = len(trace.context)
        if not self._replace(trace, context, f"\n{CUT.format(count=trace.turns_taken)}"):
            trace.stop_reason = StopReason.TOKEN_LIMIT
            return
        trace.turns[-1].marks.append(Mark(kind=MarkKind.OLDEST_CUT, detail=f"{before} tokens to {len(trace.context)}"))

    def _replace(self, trace: Trace, context: Context, text: str) -> bool:
        """Open the next segment; False where even without a last turn it would be as full."""
        held, self._held = self._held, None
        assert held is not None
        tokens, schemas, most = context.tokens, context.schemas, self._config.at_tokens
        opening = list(map(without_images, trace.messages[: trace.opening]))
        opening[-1] = with_line(opening[-1], text)
        head = tokens.prompt(opening, schemas)
        kept = sorted(self._places)[-self._config.keep_turns :] if self._config.keep_turns else []
        for first in kept:
            begin, at = self._places[first]
            line = [*opening, *self._line[at:]]
            ids = head + self._ids[begin:]
            ids = tokens.messages(ids, line, held, schemas).applied_to(ids)
            if len(ids) < most:
                shift, moved = len(head) - begin, len(opening) - at
                trace.open(ids, [*line, *held], images=0)
                for turn, (place, message) in self._places.items():
                    if turn >= first:
                        trace.begins[turn] = place + shift, message + moved
                return True
        if len(head) >= most:
            return False
        # Once more, since the builder notes how the last prompt it rendered ends.
        trace.open(tokens.prompt(opening, schemas), opening, images=0)
        return True


def _bytes(message: Message) -> int:
    content = message["content"]
    return len(content.encode(errors="replace")) if isinstance(content, str) else 2**31
