"""Whether two answers differ in what a server decides, not in clocks, random numbers and the wording of errors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Sequence
from itertools import pairwise

from mcp_rollout.gateway.differences import shared_beginning
from mcp_rollout.rollout.doctor.isolation import ProbeAnswer, Run, Step
from mcp_rollout.rollout.doctor.tool_words import Sort
from mcp_rollout.rollout.volatile import VOLATILE

_TOKEN = re.compile(r"\w+|[^\w\s]")
_MOST_TOKENS = 4000
_MOMENT = re.compile(r"(?:(\d{4}-\d\d-\d\d)[T _])?(\d{1,2}):(\d\d)(?::(\d\d))?")
_DAY_S, _SLACK_S = 86_400, 61
"""The slack is for clocks that show minutes."""


def tokens_of(answer: ProbeAnswer) -> tuple[str, ...]:
    """The words and signs of an answer, with what changes by itself replaced."""
    return tuple(_TOKEN.findall(VOLATILE.sub("#", answer.text))[:_MOST_TOKENS])


Template = tuple[str | None, ...]
"""The tokens that every fresh lease got at one place of the script; None if they differ."""


class Reference:
    """The answers of leases before which nothing was called: what a lease that sees no other lease gets.

    Args:
        fresh: One run for each such lease, of the same script.
        repeated: With a single run there is no other to tell random numbers by: the first so many calls are made
            twice, and what differs between the two and does not count is random.
    """

    def __init__(self, fresh: Sequence[Run], repeated: int = 0) -> None:
        self.run, self._fresh = fresh[0], fresh
        self._count = min(len(run.steps) for run in fresh)
        self._templates = [self._template([run.steps[index] for run in fresh]) for index in range(self._count)]
        if len(fresh) == 1:
            self._compare_repeats(repeated)
        self._spread_noise()
        self.flaky = self._flaky(fresh)
        self._restless = {before.call.name for each in fresh for before, _ in _moves(each.steps)}
        # What differs between fresh leases, and between looks with nothing in between, changes by itself.
        self._drifting = self._restless.intersection(self.noisy_tools())

    def _template(self, steps: Sequence[Step]) -> Template | None:
        if any(step.answer.failed for step in steps) or len({step.answer.well for step in steps}) > 1:
            return None
        if not steps[0].answer.well:
            return ()
        tokens = [tokens_of(step.answer) for step in steps]
        if len({len(each) for each in tokens}) > 1:
            return None
        return tuple(column[0] if len(set(column)) == 1 else None for column in zip(*tokens, strict=True))

    def _compare_repeats(self, repeated: int) -> None:
        for index in range(min(repeated, self._count - repeated)):
            first, again = self.run.steps[index].answer, self.run.steps[index + repeated].answer
            one, other = self._templates[index], self._templates[index + repeated]
            if one is not None and other is not None and not counting((first, again)):
                alike = len(one) == len(other)
                both = tuple(a if a == b else None for a, b in zip(one, other, strict=True)) if alike else None
                self._templates[index] = self._templates[index + repeated] = both

    def _spread_noise(self) -> None:
        """A token that is random in one answer of a tool is random in its other answers of the same length."""
        noisy: dict[tuple[str, int], set[int]] = {}
        for index, template in enumerate(self._templates):
            if template is not None:
                at = {place for place, token in enumerate(template) if token is None}
                noisy.setdefault(self._kind(index, template), set()).update(at)
        for index, template in enumerate(self._templates):
            if template is not None and (at := noisy[self._kind(index, template)]):
                self._templates[index] = tuple(None if place in at else token for place, token in enumerate(template))

    def _kind(self, index: int, template: Template) -> tuple[str, int]:
        return self.run.steps[index].call.name, len(template)

    def _flaky(self, fresh: Sequence[Run]) -> tuple[str, ...]:
        """Tools that fresh leases called with the same arguments, and that only some of them answered well."""
        found: dict[str, str] = {}
        for index in range(self._count):
            steps = [run.steps[index] for run in fresh]
            answers = sorted({step.answer.well: step.answer for step in steps}.items())
            if len(answers) == 2 and len({step.arguments for step in steps}) == 1:
                found.setdefault(steps[0].call.name, f"{answers[1][1]}, then {answers[0][1]}")
        return tuple(f"{tool} answered the same call in fresh processes {answers}" for tool, answers in found.items())

    def unlike_failures(self, run: Run) -> Step | None:
        """The first call that may have written and got an answer in some of the leases only.

        What follows it in them differs whether or not there is another lease: a slow machine is enough.
        """
        for steps in zip(run.steps, *(fresh.steps for fresh in self._fresh), strict=False):
            if len({step.answer.failed for step in steps}) > 1 and steps[0].call.sort is not Sort.READ:
                return steps[0]
        return None

    def differs(self, index: int, answer: ProbeAnswer) -> bool:
        """Whether an answer at this place of the script is other than a fresh lease's."""
        template = self._templates[index] if index < self._count else None
        if template is None or answer.failed or self.run.steps[index].call.random:
            return False
        if self.run.steps[index].call.name in self._drifting:
            return False
        if answer.well != self.run.steps[index].answer.well:
            return True
        return answer.well and _unlike(template, tokens_of(answer))

    def changed(self, earlier: int, later: int) -> bool:
        """Whether a fresh lease got two different answers at two places of the script, each time."""
        first, second = self._templates[earlier], self._templates[later]
        steps = self.run.steps
        call = steps[earlier].call
        if first is None or second is None or call.random or call.name in self._drifting:
            return False
        if steps[earlier].answer.well != steps[later].answer.well:
            return True
        return _unlike(first, second)

    def moved(self, steps: Sequence[Step], times: int, idle: Sequence[Step]) -> tuple[Step, Step] | None:
        """Two looks of a lease, with no call of its own between them that may change anything, that differ although
        such looks never differ in a fresh lease.

        Args:
            times: How many looks of a tool have to do so.
            idle: Looks of a fresh lease before and after a pause in which nothing was called. Looks further apart may
                differ because of the time.
        """
        restless = self._restless | {before.call.name for before, _ in _moves(idle)}
        pause = idle[len(idle) // 2].at - idle[len(idle) // 2 - 1].at if idle else 0.0
        seen = Counter[str]()
        for before, after in _moves(steps):
            timely = after.at - before.at <= pause or _jumped(before, after)
            if before.call.name not in restless and timely:
                seen[before.call.name] += 1
                if seen[before.call.name] == times:
                    return before, after
        return None

    def noisy_tools(self) -> tuple[str, ...]:
        """Tools whose answers differ between fresh leases."""
        names = (
            self.run.steps[index].call.name
            for index, template in enumerate(self._templates)
            if (template is None and not self.run.steps[index].answer.failed) or (template and None in template)
        )
        return tuple(dict.fromkeys(names))


def _moves(steps: Sequence[Step]) -> Generator[tuple[Step, Step]]:
    """Pairs of equal looks that differ, with only looks between them."""
    last: dict[tuple[str, str], Step] = {}
    for step in steps:
        if step.call.sort is not Sort.READ:
            last.clear()
        elif not step.answer.failed and not step.call.random:
            before = last.get((step.call.name, step.arguments))
            if before is not None and _differ(before, step):
                yield before, step
            last[step.call.name, step.arguments] = step


def _differ(before: Step, after: Step) -> bool:
    if before.answer.well != after.answer.well:
        return True
    if not after.answer.well:
        return False
    return _unlike(tokens_of(before.answer), tokens_of(after.answer)) or _jumped(before, after)


def _jumped(before: Step, after: Step) -> bool:
    """Whether a time in the answers moved on by more than the time that passed, so that it is not that of a clock."""
    earlier, later = (_MOMENT.findall(step.answer.text) for step in (before, after))
    most = after.at - before.at + _SLACK_S
    return len(earlier) == len(later) and any(
        _seconds_between(then, now) > most for then, now in zip(earlier, later, strict=True)
    )


def _seconds_between(then: Sequence[str], now: Sequence[str]) -> int:
    """The seconds from one time to another, of the same day where they have no date; backwards is almost a day."""
    days = int(now[0].replace("-", "") or 0) - int(then[0].replace("-", "") or 0)
    hours, minutes, seconds = (
        int(later or 0) - int(earlier or 0) for earlier, later in zip(then[1:], now[1:], strict=True)
    )
    return abs(days) * _DAY_S + (hours * 3600 + minutes * 60 + seconds) % _DAY_S


def counting(answers: Sequence[ProbeAnswer]) -> bool:
    """Whether consecutive answers differ only in numbers, which increase by one each time."""
    shapes = {re.sub(r"\d+", "#", answer.text) for answer in answers}
    numbers = [[int(digits) for digits in re.findall(r"\d{1,9}", answer.text)] for answer in answers]
    if len(shapes) > 1 or len({len(each) for each in numbers}) > 1:
        return False
    moving = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
    return bool(moving) and all(all(later - earlier == 1 for earlier, later in pairwise(column)) for column in moving)


def _unlike(one: Sequence[str | None], other: Sequence[str | None]) -> bool:
    if len(one) != len(other):
        return True
    if Counter(token for token in one if token is not None) <= Counter(other):
        return False  # the same in another order, as of a set
    return any(a is not None and b is not None and a != b for a, b in zip(one, other, strict=True))


def side_by_side(one: ProbeAnswer, other: ProbeAnswer) -> tuple[str, str]:
    """Excerpts of two answers that begin shortly before the first difference."""
    start = max(shared_beginning(one.line, other.line) - 20, 0)
    return one.excerpt(start), other.excerpt(start)
