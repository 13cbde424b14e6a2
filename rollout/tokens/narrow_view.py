"""Render new messages from the end of a conversation, so that a turn's cost does not grow with the conversation.

verl's builders render more than the new messages on each turn: all but deepseek_v4's the tools' schemas, twice;
gpt-oss's the whole conversation, and gemma4's before a user's message. They keep only the end of it. A narrow
view shows them only that end; `can_narrow` checks that the result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mcp_rollout.rollout.formats.format import Tools
from mcp_rollout.rollout.tokens.chat_template import tool_turn
from mcp_rollout.rollout.tokens.images import with_images
from mcp_rollout.rollout.types import Edit, Message

TAIL = 64
"""Ids of the context in a narrow view: builders compare its end with markers of a few tokens."""

Mark = Callable[[Sequence[Message], Tools], tuple[Sequence[Message], Tools]]

_OPENING: Message = {"role": "user", "content": "Begin."}


def render(
    builder: Any,
    context: list[int],
    previous: Sequence[Message],
    new: Sequence[Message],
    tools: Tools,
    *,
    narrow: bool,
    mark: Mark = lambda messages, tools: (messages, tools),
) -> Edit:
    """Render new messages with verl's builder.

    Args:
        narrow: show the builder only the end of the context, an outline of the message before the new ones, and no
            tools.
        mark: applied to what the builder sees.
    """
    if narrow:
        context, previous = context[-TAIL:], [_OPENING, *map(_outline, previous[-1:])]
        tools = ()
    seen, offered = mark([*previous, *new], tools)
    every = with_images(seen)
    past, given = every[: len(previous)], [dict(tool) for tool in offered] or None
    return edit_of(builder.merge_context_tokens(past, every, context, tools=given))


def _outline(message: Message) -> Message:
    """The message's role and the names of its calls; its text is in the context and is not rendered again."""
    calls = [
        {**call, "function": {"name": call["function"]["name"], "arguments": {}}}
        for call in message.get("tool_calls", ())
    ]
    return {"role": message["role"], "content": "" if calls else "."} | ({"tool_calls": calls} if calls else {})


def edit_of(result: Any) -> Edit:
    """verl's `MergeResult` as an `Edit`: the appended ids are the tail of its ids."""
    ids: list[int] = result.token_ids
    return Edit(
        appended=ids[len(ids) - result.appended_token_count :],
        inserted=list(result.inserted_token_ids),
        removed=result.removed_prefix_token_count,
    )


def can_narrow(builder: Any, ends: Sequence[int]) -> bool:
    """Whether this builder, with its template, renders the same from a narrow view as from the whole conversation.

    Tried on conversations of every kind that a trajectory has. Once per template is enough: how a template renders a
    message depends on roles and positions, not on text.

    Args:
        ends: ids that may end a completion; the contexts end in one of them, or in none, in turn.
    """
    tried, endings = False, [[], *([end] for end in ends)]
    for index, (previous, new, tools) in enumerate(probes()):
        # Probes come in pairs, tool results and a user's message: each ending is tried before both.
        context = [*range(2 * TAIL), *endings[index // 2 % len(endings)]]
        expected = _attempt(builder, context, previous, new, tools, narrow=False)
        tried = tried or expected is not None
        if expected is not None and _attempt(builder, context, previous, new, tools, narrow=True) != expected:
            return False
    return tried


def _attempt(builder: Any, *conversation: Any, narrow: bool) -> Edit | None:
    try:
        return render(builder, *conversation, narrow=narrow)
    except Exception:  # the template's boundary: it raises errors of any class for what it does not render
        return None


def probes() -> Iterator[tuple[list[Message], list[Message], list[dict[str, Any]]]]:
    """(past messages, new messages, tools): tool results or a user's message, after conversations of every length."""
    tools = [_tool("look"), _tool("find")]
    results = [("look", "It is blue."), ("find", '\n{"at": [1, 2]}\n'), ("look", "")]
    earlier_calls, earlier_results = tool_turn(results[1:], arguments={"where": "x"})
    opening: list[Message] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Look, and find."}]
    past = [*opening, earlier_calls, *earlier_results]
    longer = [*past, {"role": "assistant", "content": "Found."}, {"role": "user", "content": "Again!"}]
    for count in (1, 2):
        calls, answers = tool_turn(results[:count], arguments={"where": "x"})
        for offered in (tools, []):
            for before in (opening, opening[1:], past, longer):
                yield [*before, calls], answers, offered
                answered = [*before, {"role": "assistant", "content": "Both."}]
                yield answered, [{"role": "user", "content": "Well?"}], offered


def _tool(name: str) -> dict[str, Any]:
    properties = {"where": {"type": "string", "description": "A place."}, "times": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["where"]}
    return {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": schema}}
