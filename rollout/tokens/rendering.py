"""Whether the model's template renders what a conversation of ours holds behind its prompt."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gateway.errors import ConfigError
from rollout.tokens.verl_builder import ContinuousTokens
from rollout.types import Edit, Message

ENDING = "Well."
"""What the policy is taken to have said; its words are not rendered."""


def check_turns(
    tokens: ContinuousTokens,
    prompt: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    *,
    has_user: bool,
    key: str = "actor_rollout_ref.model.custom_chat_template",
) -> None:
    """Render a prompt, and behind it a tool's answer, two at once, and a user's message, as far as there are such.

    A template that refuses one of them would fail each trajectory that comes to it, and train on the others alone.

    Raises:
        ConfigError: the template, or verl's builder for it, refuses.
    """
    messages: list[Message] = list(prompt)
    with _refused("the prompt", key):
        context = tokens.prompt(prompt, tools)
    for said, new, what in _turns(tools, has_user=has_user):
        context = _applied(context, tokens.completion(context, tokens.encode_completion(ENDING)))
        messages.append(said)
        with _refused(what, key):
            edit = tokens.messages(context, messages, new, tools)
        context = _applied(context, edit)
        messages += new


@contextmanager
def _refused(what: str, key: str) -> Generator[None]:
    try:
        yield
    except Exception as error:  # the template's boundary: it refuses in errors of its own
        raise ConfigError(
            f"the model's chat template does not render {what}: {_refusal(error)}",
            key=key,
            remedy="give a model whose template renders it as verl's builder for the tool format wants it",
        ) from error


def _turns(tools: Sequence[Mapping[str, Any]], *, has_user: bool) -> Iterator[tuple[Message, list[Message], str]]:
    """(what the policy says, what comes of it, what that is)."""
    names = [str(tool["function"]["name"]) for tool in tools][:1]
    for count, what in ((1, "a tool's answer"), (2, "two tools' answers at once")):
        ids = [f"functions.{name}:{index}" for index, name in enumerate(names * count)]
        calls = [
            {"type": "function", "id": call, "function": {"name": name, "arguments": {}}}
            for call, name in zip(ids, names * count, strict=True)
        ]
        answers: list[Message] = [
            {"role": "tool", "name": name, "content": "Done.", "tool_call_id": call}
            for call, name in zip(ids, names * count, strict=True)
        ]
        if answers:
            yield {"role": "assistant", "content": "", "tool_calls": calls}, answers, what
    if has_user:
        yield {"role": "assistant", "content": ENDING}, [{"role": "user", "content": "And?"}], "a user's message"


def _refusal(error: BaseException) -> str:
    """What the template said first: verl then tries another spelling of the messages, and raises what that comes to."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {error}"


def _applied(context: list[int], edit: Edit) -> list[int]:
    return [*context[: len(context) - edit.removed], *edit.inserted, *edit.appended]
