"""Check that a model's chat template renders the messages that follow a prompt in a trajectory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import structlog

from mcp_rollout.gateway.differences import shared_beginning
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.formats import FORMATS
from mcp_rollout.rollout.formats.format import Format
from mcp_rollout.rollout.tokens.chat_template import check_tools_rendered, tool_turn
from mcp_rollout.rollout.types import Message, ModelTokens

log = structlog.get_logger(__name__)

SHOWN = 40
"""Characters of a difference that are shown."""
COMPLETION = "Well."
"""Placeholder for each of the policy's completions, whose text templates do not render."""
_ARGUMENT = "note"
TEXT = "And what now?"
"""The text of each tool result and user's message."""


def check_template(
    tokens: ModelTokens,
    prompt: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    *,
    has_user: bool,
    key: str,
) -> None:
    """Render a prompt followed by one tool result, two at once, and a user's message, where the task has such.

    A template that refuses one of them would fail every trajectory that gets there, and train on the others alone;
    from one that leaves out tools, results or messages, the policy would never learn of them. Where ids differ from
    the template's rendering of the same messages, the log says so.

    Args:
        key: the option that replaces the template, for errors.

    Raises:
        ConfigError: the template, or verl's builder for it, refuses or leaves something out.
    """
    messages: list[Message] = list(prompt)
    with _refusal_as_config_error("the prompt", key):
        context = tokens.prompt(prompt, tools)
    with _refusal_as_config_error("the prompt with tools of other names", key):
        check_tools_rendered(lambda shown: tokens.decode(tokens.prompt(prompt, shown)), tools, key=key)
    for answer, new, what in _turns(tools, has_user=has_user):
        context = tokens.completion(context, tokens.encode_completion(COMPLETION)).applied_to(context)
        messages.append(answer)
        with _refusal_as_config_error(what, key):
            edit = tokens.messages(context, messages, new, tools)
        if tokens.decode(edit.appended).count(TEXT) < len(new):
            raise ConfigError(
                f"the model's chat template leaves out {what}, which the policy would never read",
                key=key,
                remedy=f"name a file with a template that renders it as {key}, or use another model",
            )
        context = edit.applied_to(context)
        messages += new
    if (found := parting(tokens, prompt, tools, has_user=has_user)) is not None:
        log.warning("a rollout's ids differ from the template's rendering of the same messages", where=found)


def parting(
    tokens: ModelTokens, prompt: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, has_user: bool
) -> str | None:
    """Where a rollout's ids part from the template's rendering of the whole conversation; None if they are the same.

    Supervised training renders whole conversations, so that it trains other ids than a rollout there. What the policy
    samples is taken from the rendering.
    """
    messages: list[Message] = list(prompt)
    context = tokens.prompt(prompt, tools)
    for answer, new, what in _turns(tools, has_user=has_user):
        messages.append(answer)
        try:
            whole = tokens.prompt([*messages, *new], tools)
        except Exception as error:  # the template's boundary
            return f"{what}: the whole conversation is refused: {_first_cause(error)}"
        if whole[: len(context)] != context:
            return _difference(tokens, context, whole, f"the prompt before {what}")
        sampled = tokens.turn_in(whole[len(context) :])
        context = tokens.completion(context, sampled).applied_to(context)
        context = tokens.messages(context, messages, new, tools).applied_to(context)
        messages += new
        if context != whole:
            return _difference(tokens, context, whole, what)
    return None


def _difference(tokens: ModelTokens, context: list[int], whole: list[int], what: str) -> str:
    at = shared_beginning(context, whole)
    before, rolled, rendered = (tokens.decode(ids) for ids in (whole[max(0, at - 8) : at], context[at:], whole[at:]))
    return f"{what}: {before!r} is followed by {rolled[:SHOWN]!r} in a rollout, by {rendered[:SHOWN]!r} in the template"


def formats_shown(render: Callable[[Sequence[Message]], str], tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The formats that read back a call as the template writes it: in these the model has seen calls.

    Args:
        render: the text of a conversation with these tools.

    Returns:
        Names of `FORMATS`; none where the template does not write calls.
    """
    if not tools:
        return []
    asked: Message = {"role": "user", "content": TEXT}
    name = str(tools[0]["function"]["name"])
    calls, _ = tool_turn([(name, TEXT)], arguments={_ARGUMENT: TEXT})
    try:
        before, whole = render([asked]), render([asked, calls])
    except Exception:  # the template's boundary: it raises errors of any class, and other checks report them
        return []
    written = whole[shared_beginning(before, whole) :]
    return [each.name for each in FORMATS.values() if _reads(each, written, tools, name)]


def _reads(form: Format, written: str, tools: Sequence[Mapping[str, Any]], name: str) -> bool:
    read = form.read(written, tools).calls
    return [(call.name, call.problem, TEXT in str(call.arguments)) for call in read] == [(name, None, True)]


@contextmanager
def _refusal_as_config_error(what: str, key: str) -> Generator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # the template's boundary: it raises errors of any class
        raise ConfigError(
            f"the model's chat template does not render {what}: {_first_cause(error)}",
            key=key,
            remedy="give a template that renders it as verl's builder for the tool format wants it",
        ) from error


def _turns(tools: Sequence[Mapping[str, Any]], *, has_user: bool) -> Iterator[tuple[Message, list[Message], str]]:
    """(the assistant's message, the messages that follow it, what those are)."""
    if tools:
        name = str(tools[0]["function"]["name"])
        for count, what in ((1, "a tool's answer"), (2, "two tools' answers at once")):
            calls, results = tool_turn([(name, TEXT)] * count, arguments={})
            yield calls, results, what
    if has_user:
        yield {"role": "assistant", "content": COMPLETION}, [{"role": "user", "content": TEXT}], "a user's message"


def _first_cause(error: BaseException) -> str:
    """The template's own error: verl then tries another form of the messages, and raises that one's error."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {error}"
