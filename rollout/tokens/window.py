"""How much of a conversation verl's builder has to see to render what is new in it.

verl's builders render more than the new messages on each turn: all but deepseek_v4's the tools' schemas, twice;
gpt-oss's the whole conversation, and gemma4's before a user's message. What they keep of it is the end. `narrow` shows
them only that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.types import Edit, Message

Tools = Sequence[Mapping[str, Any]]

TAIL = 64
"""Ids of the context that a narrow view shows: builders compare its end with markers of a few tokens."""

_OPENING: Message = {"role": "user", "content": "Begin."}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "do", "description": "Do.", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What a builder is shown of a conversation's past."""

    context: list[int]
    previous: list[Message]
    tools: list[dict[str, Any]] | None


def wide(context: list[int], previous: Sequence[Message], tools: Tools) -> View:
    """All of it."""
    return View(context=context, previous=list(previous), tools=[dict(tool) for tool in tools] or None)


def narrow(context: list[int], previous: Sequence[Message], tools: Tools) -> View:
    """The end of the context, an outline of the message before the new ones, and one tool in place of all."""
    previous = [_OPENING, *map(_outline, previous[-1:])]
    return View(context=context[-TAIL:], previous=previous, tools=[_TOOL] if tools else None)


def _outline(message: Message) -> Message:
    """Who said it, and which tools were called; the words are in the context, and are not rendered again."""
    calls = [
        {**call, "function": {"name": call["function"]["name"], "arguments": {}}}
        for call in message.get("tool_calls", ())
    ]
    return {"role": message["role"], "content": "" if calls else "."} | ({"tool_calls": calls} if calls else {})


def merge(builder: Any, view: View, new: Sequence[Message]) -> Edit:
    """What verl's builder makes of new messages."""
    return edit_of(builder.merge_context_tokens(view.previous, [*view.previous, *new], view.context, tools=view.tools))


def edit_of(result: Any) -> Edit:
    """verl's `MergeResult` says what changed at the junction; the appended ids are the tail of its stream."""
    ids: list[int] = result.token_ids
    return Edit(
        appended=ids[len(ids) - result.appended_token_count :],
        inserted=list(result.inserted_token_ids),
        removed=result.removed_prefix_token_count,
    )


def can_narrow(builder: Any, ends: Sequence[int]) -> bool:
    """Whether this builder, with its template, makes the same of a narrow view as of the whole conversation.

    Tried on conversations of every kind that a trajectory has. Once per template is enough: what a template does with
    a message hangs on roles and places, not on words.

    Args:
        ends: ids that may end a completion; contexts end in one of them, or in none, in turn.
    """
    tried, endings = False, [[], *([end] for end in ends)]
    for index, (previous, new, tools) in enumerate(_probes()):
        # Probes come in twos, a tool's answer and a user's: each ending stands before both.
        context = [*range(2 * TAIL), *endings[index // 2 % len(endings)]]
        expected = _attempt(builder, wide(context, previous, tools), new)
        tried = tried or expected is not None
        if expected is not None and _attempt(builder, narrow(context, previous, tools), new) != expected:
            return False
    return tried


def _attempt(builder: Any, view: View, new: Sequence[Message]) -> Edit | None:
    try:
        return merge(builder, view, new)
    except Exception:  # the template's boundary: what it does not render, it refuses in errors of its own
        return None


def _probes() -> Iterator[tuple[list[Message], list[Message], list[dict[str, Any]]]]:
    """(what was said, what is new, tools): a tool's answer or a user's, after calls and answers, at every length."""
    tools = [_named_tool("look"), _named_tool("find")]
    answers = [("look", "It is blue."), ("find", '\n{"at": [1, 2]}\n'), ("look", "")]
    for count in (1, 2):
        calls, results = _calls(answers[:count]), _results(answers[:count])
        for offered in (tools, []):
            opening = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Look, and find."}]
            past = [*opening, *_calls(answers[1:]), *_results(answers[1:])]
            longer = [*past, {"role": "assistant", "content": "Found."}, {"role": "user", "content": "Again!"}]
            for said in (opening, opening[1:], past, longer):
                yield [*said, *calls], results, offered
                yield (
                    [*said, {"role": "assistant", "content": "Both."}],
                    [{"role": "user", "content": "Well?"}],
                    offered,
                )


def _named_tool(name: str) -> dict[str, Any]:
    properties = {"where": {"type": "string", "description": "A place."}, "times": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["where"]}
    return {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": schema}}


def _calls(answers: Sequence[tuple[str, str]]) -> list[Message]:
    calls = [
        {"type": "function", "id": f"functions.{name}:{index}", "function": {"name": name, "arguments": {"where": "x"}}}
        for index, (name, _) in enumerate(answers)
    ]
    return [{"role": "assistant", "content": "", "tool_calls": calls}]


def _results(answers: Sequence[tuple[str, str]]) -> list[Message]:
    return [
        {"role": "tool", "name": name, "content": text, "tool_call_id": f"functions.{name}:{index}"}
        for index, (name, text) in enumerate(answers)
    ]
