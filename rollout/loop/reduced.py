"""The context of the strategy `single_turn`: each turn reads the task and a history reduced to calls and observations.

The prompt of a turn is the opening prompt's messages, then of each earlier turn its calls, or its message to the user,
and what was answered. Thinking, text beside calls and images are left out, and older observations are cut. Where this
exceeds `history_tokens`, the oldest turns are left out, which a line at the end of the opening messages says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mcp_rollout.rollout.environment.sections import ObservationsConfig
from mcp_rollout.rollout.loop.context import Context, with_line
from mcp_rollout.rollout.loop.results import OVERFLOW_TOKENS, rule_for, shorten
from mcp_rollout.rollout.loop.reward import without_images
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.types import Message, TokenBuilder


@dataclass(frozen=True, kw_only=True, slots=True)
class ReducedContext(Context):
    """Opens a new segment for each turn, so that each turn is a separate training sample.

    Its prompt exceeds the opening prompt by at most `history_tokens`. The response budget of the run counts this
    history and one turn.
    """

    def _base(self, trace: Trace, messages: Sequence[Message]) -> list[int]:
        """The opening prompt, with which every context begins."""
        return (trace.earlier[0] if trace.earlier else trace).prompt_ids

    def _rendered(
        self, trace: Trace, shown: Sequence[Message], base: list[int], room: int
    ) -> tuple[int, Callable[[], None]]:
        config = self.environment.strategy.single_turn
        most = len(base) + min(config.history_tokens, room - OVERFLOW_TOKENS)
        ids = self._fitting(_History(trace, config.observations, self.tokens), shown, most)

        def take() -> None:
            trace.open(ids)

        return len(ids) - most, take

    def _fitting(self, history: _History, new: Sequence[Message], most: int) -> list[int]:
        """Ids of the prompt with as many turns of the history as fit; those of the last turn alone if none do."""

        def rendered(left_out: int) -> list[int]:
            return self.tokens.prompt(history.messages(left_out, new), self.schemas)

        # The number of tokens falls with each turn that is left out, so the least number of turns is found by halving.
        ids, low, high = rendered(0), 0, history.turns
        if len(ids) <= most or high == 0:
            return ids
        best = rendered(high)
        while high - low > 1:
            middle = (low + high) // 2
            ids = rendered(middle)
            if len(ids) <= most:
                best, high = ids, middle
            else:
                low = middle
        return best


class _History:
    """The messages of a trajectory whose last turn has just been answered, reduced."""

    def __init__(self, trace: Trace, observations: ObservationsConfig, tokens: TokenBuilder) -> None:
        self.turns = len(trace.turns) - 1
        """Turns before the last one."""
        self._opening = trace.messages[: trace.opening]
        self._earlier: list[list[Message]] = []
        for turn in range(self.turns):
            own, *following = trace.messages_of(turn)
            self._earlier.append([_without_text(own), *_shortened(following, observations, tokens)])
        self._last = _without_text(trace.messages[-1])  # what answers it is not recorded yet

    def messages(self, left_out: int, new: Sequence[Message]) -> list[Message]:
        """The messages of the next prompt.

        Args:
            left_out: number of the oldest turns that are left out.
            new: what answers the last turn.
        """
        line = f"[... {left_out} earlier turns left out ...]" if left_out else ""
        opening = [*self._opening[:-1], with_line(self._opening[-1], line)]
        kept = [message for turn in self._earlier[left_out:] for message in turn]
        return [*opening, *kept, self._last, *map(without_images, new)]


def _without_text(message: Message) -> Message:
    """The policy's message without the text beside its calls."""
    return message | {"content": ""} if message.get("tool_calls") else message


def _shortened(messages: Sequence[Message], rules: ObservationsConfig, tokens: TokenBuilder) -> Iterator[Message]:
    for message in map(without_images, messages):
        cut = rule_for(str(message.get("name", "")), rules)
        if cut.max_tokens is not None:
            message = message | {"content": shorten(str(message["content"]), cut.max_tokens, cut.keep, tokens)[0]}
        yield message
