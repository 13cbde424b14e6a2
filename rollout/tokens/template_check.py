"""Check that a model's chat template renders the messages that follow a prompt in a trajectory."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gateway.errors import ConfigError
from rollout.tokens.chat_template import check_tools_rendered
from rollout.tokens.narrow_view import tool_turn
from rollout.tokens.verl_builder import ContinuousTokens
from rollout.types import Message

COMPLETION = "Well."
"""Placeholder for each of the policy's completions, whose text templates do not render."""
TEXT = "And what now?"
"""The text of each tool result and user's message."""


def check_template(
    tokens: ContinuousTokens,
    prompt: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    *,
    has_user: bool,
    key: str,
) -> None:
    """Render a prompt followed by one tool result, two at once, and a user's message, where the task has such.

    A template that refuses one of them would fail every trajectory that gets there, and train on the others alone;
    from one that leaves out tools, results or messages, the policy would never learn of them.

    Args:
        key: the option that replaces the template, for errors.

    Raises:
        ConfigError: the template, or verl's builder for it, refuses or leaves something out.
    """
    messages: list[Message] = list(prompt)
    with _refusal_as_config_error("the prompt", key):
        context = tokens.prompt(prompt, tools)
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


@contextmanager
def _refusal_as_config_error(what: str, key: str) -> Generator[None]:
    try:
        yield
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
