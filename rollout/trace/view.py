"""A trajectory as text, turn by turn."""

from __future__ import annotations

import json

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from mcp_rollout.gateway.server_events import ServerEvents
from mcp_rollout.rollout.environment.sections import FilterAction, Strategy
from mcp_rollout.rollout.trace.events import Mark, ToolEvent
from mcp_rollout.rollout.trace.record import Trace, Turn

FOLD = 160
"""Characters that are shown of a folded text."""


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
