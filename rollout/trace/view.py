"""A trajectory as text: rendered, searched line by line, and token by token."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.rollout.environment.sections import FilterAction, Strategy
from mcp_rollout.rollout.trace.events import Mark, ToolEvent
from mcp_rollout.rollout.trace.record import Trace, Turn
from mcp_rollout.rollout.trace.segment import Segment, SpanKind
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment

FOLD = 160
"""Characters that are shown of a folded text."""
Line = tuple[int, str, str]
"""Turn from 0 (-1 for the prompt), kind of text, and one line of it."""


def render(trace: Trace, *, full: bool = False, boxed: bool = True) -> RenderableType:
    """Render the trajectory turn by turn.

    Args:
        full: whole texts, of which the beginnings are shown otherwise.
        boxed: a box around each turn; without it every line is as long as the text is.
    """
    blocks: list[RenderableType] = [_head(trace)]
    blocks += [
        Text.assemble((f"{message['role']}  ", "bold blue"), _fold(str(message["content"]), full))
        for message in trace.messages[: trace.opening]
    ]
    blocks += [_world_call("prepares", event, full) for event in trace.setup]
    blocks += [_turn(number, turn, full, boxed) for number, turn in enumerate(trace.turns, 1)]
    blocks += [_world_call("holds" if each.holds else "fails", each.call, full) for each in trace.checks]
    blocks.append(_foot(trace))
    return Group(*blocks)


def _head(trace: Trace) -> RenderableType:
    task, origin = trace.task, trace.origin
    where = f"row {origin.row}, sample {origin.sample}"
    if origin.step >= 0:
        where += f", step {origin.step}" + (" (held-out)" if origin.validate_ else "")
    segments = trace.segments or [trace]
    prompt, sampled = len(segments[0].prompt_ids), sum(len(segment.response_ids) for segment in segments)
    in_loss = sum(sum(segment.loss_mask) for segment in segments)
    tokens = f"{prompt} prompt and {sampled} response tokens, {in_loss} in the loss"
    if len(segments) > 1:
        tokens += f", {len(segments)} training samples"
    if trace.strategy.use is not Strategy.CHAIN:
        tokens += f"\n{_strategy(trace)}"
    return Text.assemble((f"{task.environment} / {task.task}", "bold"), f"  {where}\n{trace.id}\n{tokens}")


def _strategy(trace: Trace) -> str:
    """The strategy; of a leaf of a tree what it shares, or why it shares nothing though it was to branch."""
    strategy = trace.strategy
    if trace.origin.parent is not None:
        world = "world restored" if strategy.restored else f"calls replayed: {strategy.replayed_calls}"
        return f"{strategy.use}: {strategy.shared_turns} turns are those of {trace.origin.parent} ({world})"
    if strategy.diverged:
        return f"{strategy.use}: a chain, since its replay diverged: {strategy.diverged}"
    return f"{strategy.use}: a chain, since {strategy.note}" if strategy.note else str(strategy.use)


def _turn(number: int, turn: Turn, full: bool, boxed: bool) -> RenderableType:
    lines: list[Text] = []
    if turn.thinking:
        lines.append(Text.assemble(("thinks  ", "dim"), (_fold(turn.thinking, full), "dim italic")))
    if turn.content:
        said = ("sums up ", "bold cyan") if turn.is_summary else ("says    ", "bold green")
        lines.append(Text.assemble(said, _fold(turn.content, full=True)))
    for event in turn.tools:
        lines += _tool(event, full)
    lines += _server_events(turn.server_events, full)
    if turn.user is not None:
        lines.append(Text.assemble(("user    ", "bold blue"), turn.user.message))
        if turn.user.done:
            lines.append(Text("        the user is done", style="dim"))
    if turn.agent_message:
        lines.append(Text.assemble(("agent   ", "bold cyan"), _fold(turn.agent_message, full)))
    lines += [
        Text(f"        {mark.kind}" + (f": {mark.detail}" if mark.detail else "") + _done(mark), style="yellow")
        for mark in turn.marks
    ]
    title = f"turn {number}" + (f"  reward {turn.reward:g}" if turn.reward else "")
    if not boxed:
        return Text("\n").join([Text(f"--- {title}  {turn.sampled} tokens", style="bold"), *lines])
    return Panel(Text("\n").join(lines), title=title, title_align="left", subtitle=f"{turn.sampled} tokens")


def _done(mark: Mark) -> str:
    return "" if mark.action in (None, FilterAction.MARK) else f" ({mark.action})"


def _tool(event: ToolEvent, full: bool) -> list[Text]:
    arguments = json.dumps(event.arguments, ensure_ascii=False)
    style = "red" if event.is_error else ""
    return [
        Text.assemble(("calls   ", "bold magenta"), (event.name or "(unreadable call)", "magenta"), f" {arguments}"),
        Text.assemble(("        ", ""), (_fold(event.text, full), style)),
    ]


def _world_call(what: str, event: ToolEvent, full: bool) -> RenderableType:
    """A call of the harness, which the policy has not seen."""
    return Text("\n").join([Text(f"harness: {what}", style="dim"), *_tool(event, full)])


def _server_events(events: ServerEvents, full: bool) -> list[Text]:
    lines: list[Text] = []
    for request in events.requests:
        asked = str(request.asked.get("message") or json.dumps(request.asked.get("messages"), ensure_ascii=False))
        answer = f"refused: {request.refused}" if request.answer is None else json.dumps(request.answer)
        lines.append(
            Text.assemble(("asks    ", "bold yellow"), f"{request.kind} for {request.tool}: ", _fold(asked, full))
        )
        lines.append(Text(f"        {_fold(answer, full)}", style="red" if request.answer is None else ""))
    for note in events.notifications if full else []:
        amount = f" {note.progress:g}" + (f"/{note.total:g}" if note.total else "") if note.progress is not None else ""
        lines.append(Text(f"        {note.kind}{amount} of {note.tool}: {note.text}", style="dim"))
    if count := events.more_notifications + (0 if full else len(events.notifications)):
        lines.append(Text(f"        {count} notifications more", style="dim"))
    return lines


def _foot(trace: Trace) -> RenderableType:
    lines = [f"stopped: {trace.stop_reason}  {trace.elapsed_s:.2f} s"]
    if trace.failure:
        lines.append(f"failure: {trace.failure.kind}: {trace.failure.message}")
    if trace.reward:
        parts = ", ".join(f"{name} {value:.2f}" for name, value in trace.reward.parts.items())
        penalty = f", penalty {trace.reward.penalty:.2f}" if trace.reward.penalty else ""
        lines.append(f"reward:  {trace.reward.score:.2f}" + (f"  ({parts})" if parts else "") + penalty)
    return Text("\n".join(lines))


def _fold(text: str, full: bool) -> str:
    """The text as it is, or its beginning; lines stay lines, indented below the first."""
    if not full and len(text) > FOLD:
        text = f"{text[:FOLD].rstrip()} ... ({len(text)} characters)"
    return text.replace("\n", "\n        ")


def lines_of(trace: Trace) -> Iterator[Line]:
    """Every text of the trajectory in order, line by line; results whole."""
    for message in trace.messages[: trace.opening]:
        yield from _lines(-1, str(message["role"]), str(message["content"]))
    for number, turn in enumerate(trace.turns):
        yield from _lines(number, "thinking", turn.thinking)
        yield from _lines(number, "summary" if turn.is_summary else "assistant", turn.content)
        for event in turn.tools:
            yield number, "call", f"{event.name} {json.dumps(event.arguments, ensure_ascii=False)}"
            yield from _lines(number, "error" if event.is_error else "result", event.text)
        if turn.user is not None:
            yield from _lines(number, "user", turn.user.message)
    if trace.failure is not None:
        yield from _lines(len(trace.turns) - 1, "failure", f"{trace.failure.kind}: {trace.failure.message}")


def searched(trace: Trace, pattern: str, *, ignore_case: bool = False) -> Iterator[Line]:
    """The lines of the trajectory that match a regular expression.

    Raises:
        ConfigError: it is not a regular expression.
    """
    try:
        expression = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise ConfigError(f"is not a regular expression: {error}", key="PATTERN", remedy="correct it") from error
    return (line for line in lines_of(trace) if expression.search(line[2]))


def _lines(turn: int, kind: str, text: str) -> Iterator[Line]:
    for line in text.splitlines():
        yield turn, kind, line


_TRAINED = ("trainer", "ratio", "advantage", "push", "entropy")
"""`push` is advantage times (1 - probability), by how much the update could move the token's own logit."""
Texts = Callable[[Sequence[int]], list[str]]
"""Texts of ids, one for each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One token of a segment's response."""

    segment: int
    """Number of the segment, from 0: of all segments, those without sampled tokens included."""
    position: int
    """In the segment's response, from 0."""
    id: int
    turn: int
    kind: SpanKind
    in_loss: bool
    logprob: float | None
    """At sampling; None if the token was not sampled or the engine gave none."""


def tokens_of(trace: Trace) -> Iterator[Token]:
    """The response tokens of all segments, in order."""
    for number, segment in enumerate((*trace.earlier, trace)):
        yield from _tokens(number, segment, has_logprobs=trace.has_logprobs)


def token_lines(trace: Trace, trained: Iterable[TrainedSegment] = (), *, texts: Texts | None = None) -> Iterator[str]:
    """A header, and a line for each token; turns are counted from 1 as in `trace show`.

    Args:
        texts: the tokens' texts, as a last column in quotes; ids alone where it gives empty ones.
        trained: what a trainer computed on this trace. Of several records of a segment the last counts: a step that is
            trained again after a resume has two.
    """
    latest = {each.segment: each for each in trained}
    steps = {each.step for each in latest.values()}
    dropped = {each.dropped for each in latest.values() if each.dropped is not None}
    withdrawn = (
        [f"withdrawn: {trace.failure.kind if trace.failure else trace.stop_reason}"] if trace.is_withdrawn else []
    )
    head = [*withdrawn, *(f"step {step}" for step in steps), *(f"dropped: {reason}" for reason in dropped)]
    yield " ".join([trace.id, *head])
    columns = [f"{name:>10}" for name in ("logprob", *(_TRAINED if latest else ()))]
    last = "  text" if texts else ""
    yield f"{'segment':>7} {'position':>8} {'turn':>4} {'kind':<10} {'loss':>4} {'id':>8} {' '.join(columns)}{last}"
    segments = (*trace.earlier, trace)
    # With the prompt before them: a character can begin in it.
    shown_texts = [
        texts([*each.prompt_ids, *each.response_ids])[len(each.prompt_ids) :] if texts else [] for each in segments
    ]
    for token in tokens_of(trace):
        numbers = [token.logprob, *(_computed(latest.get(token.segment), token.position) if latest else ())]
        place = f"{token.segment:>7} {token.position:>8} {token.turn + 1:>4} {token.kind:<10}"
        shown = " ".join(" " * 10 if number is None else f"{number:>10.5f}" for number in numbers)
        text = shown_texts[token.segment][token.position] if texts else ""
        quoted = f"  {json.dumps(text, ensure_ascii=False)}" if text else ""
        yield f"{place} {int(token.in_loss):>4} {token.id:>8} {shown}{quoted}".rstrip()


def _computed(trained: TrainedSegment | None, position: int) -> list[float | None]:
    """The trainer's numbers of one token, in the order of the columns; None if it was not trained on."""
    if trained is None or position >= len(trained.mask) or not trained.mask[position]:
        return [None] * len(_TRAINED)
    sampled, trainer = trained.sampled_logprobs, trained.trainer_logprobs[position]
    ratio = None if sampled is None else math.exp(trainer - sampled[position])
    entropy = None if trained.entropy is None else trained.entropy[position]
    advantage = trained.advantages[position]
    return [trainer, ratio, advantage, advantage * (1 - math.exp(min(0.0, trainer))), entropy]


def _tokens(number: int, segment: Segment, *, has_logprobs: bool) -> Iterator[Token]:
    for span in segment.spans:
        for position in range(span.start, span.end):
            yield Token(
                segment=number,
                position=position,
                id=segment.response_ids[position],
                turn=span.turn,
                kind=span.kind,
                in_loss=bool(segment.loss_mask[position]),
                logprob=segment.logprobs[position] if span.kind.is_sampled and has_logprobs else None,
            )
