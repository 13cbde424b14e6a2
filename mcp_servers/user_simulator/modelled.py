"""Personas, and the user whom a model plays: persona, hidden goal, patience, and a rule for leaving."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import anyio
import httpx2
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from mcp_rollout.mcp_servers.kit import Elicited, Numbered, Reply, ToolError
from mcp_rollout.mcp_servers.user_simulator.scripted import Answer, answer_of
from mcp_rollout.mcp_wire import chat_api
from mcp_rollout.mcp_wire.control_text import break_control_text

DONE, STUCK = "[DONE]", "[STUCK]"
_BEGIN = "(The conversation begins. Say what you would say first.)"
_MARKS = re.compile(f"({re.escape(DONE)}|{re.escape(STUCK)})")
_THOUGHT = re.compile(r"^.*?</think>", re.DOTALL)

RULES = """\
You play a person who talks to an assistant. Stay that person: never say that you are a model, never do the assistant's
work, never speak for the assistant.

Who you are: {persona}

What you want: {goal}

- Write one short message at a time, as that person would write it.
- Do not tell everything at once: say what you are asked for, and bring up the next thing when the last one is settled.
- Make nothing up that is not stated above; say that you do not know it.
- If {stop}: say goodbye and end your message with {done}.
- If the assistant's last message brought you no further: end your message with {stuck}.
"""


class Persona(BaseModel):
    """A user that a model plays."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    persona: str
    """Who the user is, and how the user talks."""
    goal: str
    """What the user wants, which the agent has to find out."""
    opening: str | None = None
    """The first message; if None, the model writes it."""
    stop: str = "what you want has been done, or the assistant has made clear that it cannot be done"
    """When the user leaves."""
    patience: int = Field(default=3, ge=0)
    """How many messages in a row may be unhelpful, or repeat the last exchange word for word; at the next one the user
    leaves."""
    gives_up: str = "This is not getting me anywhere. Goodbye."
    at_a_loss: str = "I do not see how that helps me."
    """The reply to an unhelpful message if the model writes no text."""
    farewell: str = "Thank you. Goodbye."
    """The last message if the model writes no text."""
    max_replies: int = Field(default=15, ge=1)
    answers: tuple[Answer, ...] = ()
    """To questions that servers ask during tool calls: the first that fits is given, others are declined."""


class Model(Protocol):
    """A chat model."""

    async def complete(self, messages: Sequence[Mapping[str, str]], *, seed: int) -> str:
        """Returns the next message. Raises `ToolError` if the model cannot be reached or its response is invalid."""
        ...


class ModelledUser:
    """A `SimulatedUser` that a model plays. A turn fails with its model request, and can be asked for again."""

    def __init__(self, persona: Persona, model: Model, *, task: str, seed: int) -> None:
        self._persona, self._model, self._key = persona, model, f"{task}/{seed}"
        rules = RULES.format(persona=persona.persona, goal=persona.goal, stop=persona.stop, done=DONE, stuck=STUCK)
        self._messages: list[dict[str, str]] = [{"role": "system", "content": rules}]
        self._openings = Numbered[str]("opening")
        self._stuck = self._replies = 0

    async def opening(self) -> str:
        return await self._openings.answer(1, self._open)

    async def reply(self, message: str) -> Reply:
        # Also where `start` was never called: the model then writes its own first message before it answers.
        await self.opening()
        heard = break_control_text(message) or "(nothing)"
        said = await self._said(heard)
        # From here on the turn counts: nothing below raises.
        text, before = _without_marks(said), self._messages[-2:]
        if not text and DONE not in said:  # the mark alone: an unhelpful message, answered with the persona's words
            text, said = self._persona.at_a_loss, f"{self._persona.at_a_loss} {STUCK}"
        self._remember(heard, said)
        # Weak models go on for as long as they may with an agent that goes on, too, and never set a mark.
        stuck = self._stuck + 1 if STUCK in said or before == self._messages[-2:] else 0
        self._stuck, self._replies = stuck, self._replies + 1
        if DONE in said:
            return Reply(message=text or self._persona.farewell, done=True)
        if self._stuck > self._persona.patience or self._replies >= self._persona.max_replies:
            return Reply(message=self._persona.gives_up, done=True)
        return Reply(message=text, done=False)

    def elicit(self, question: str) -> Elicited:
        return answer_of(self._persona.answers, question)

    async def _open(self) -> str:
        opening = self._persona.opening
        if opening is None:
            opening = _without_marks(await self._said(_BEGIN))
            if not opening:
                raise ToolError("the user's model began with nothing")
        # Also where the persona has the words: many chat templates refuse a conversation that the assistant begins.
        self._remember(_BEGIN, opening)
        return opening

    async def _said(self, message: str) -> str:
        """The model's response to a message. Raises `ToolError` if it is empty."""
        asked = {"role": "user", "content": message}  # to the model, the agent has the role of the user
        # The same for a turn that is asked for again, and another one for each turn.
        digest = hashlib.sha256(f"{self._key}/{len(self._messages)}".encode()).digest()
        text = await self._model.complete([*self._messages, asked], seed=int.from_bytes(digest[:4]) >> 1)
        # It would tell the agent the hidden goal. Templates may open it in the prompt, so only its end is looked for.
        said = _unstructured(_THOUGHT.sub("", text).strip())
        if not said:
            raise ToolError("the user's model said nothing")
        return said

    def _remember(self, message: str, said: str) -> None:
        self._messages += [{"role": "user", "content": message}, {"role": "assistant", "content": said}]


def _unstructured(said: str) -> str:
    """The model's words without control tokens: the agent may have made it repeat some. Its marks stay."""
    return "".join(part if part in (DONE, STUCK) else break_control_text(part) for part in _MARKS.split(said))


def _without_marks(said: str) -> str:
    return said.replace(DONE, "").replace(STUCK, "").strip()


class EndpointConfig(BaseModel):
    """Address of the model and sampling parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    """Base URL, as in `https://api.example.com/v1`; `/chat/completions` is appended."""
    model: str = Field(min_length=1)
    api_key: SecretStr | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: int = Field(default=512, ge=1)
    body: dict[str, Any] = Field(default={})
    """Further keys of every request, which go above all others; null removes one."""
    timeout_s: float = Field(default=45, gt=0, allow_inf_nan=False)
    """For one response, without the wait for one of the `max_concurrent` slots."""
    max_concurrent: int = Field(default=256, ge=1)
    """Maximum number of requests at a time. With as many as there are conversations, none waits."""

    @field_validator("url")
    @classmethod
    def _names_a_host(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("a url begins with http:// or https://")
        return value.rstrip("/")


class Endpoint:
    """Sends requests to the model, at most `max_concurrent` at a time. Shared by all conversations of a process."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._tls = httpx2.create_ssl_context()  # made once: it is most of the cost of a client
        self._slots = anyio.CapacityLimiter(config.max_concurrent)

    async def complete(self, messages: Sequence[Mapping[str, str]], *, seed: int) -> str:
        """Returns the model's next message.

        Raises:
            ToolError: The request failed, or the response is not a chat completion. The message quotes the API, and
                never contains the key or the URL.
        """
        config = self._config
        body = {
            "model": config.model,
            "messages": list(messages),
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "seed": seed,
        }
        body = chat_api.with_options(body, config.body)
        key = config.api_key.get_secret_value() if config.api_key else None
        try:
            async with self._slots:
                # Of the request alone: others' requests do not use it up. The client's own timeout is for each read.
                with anyio.fail_after(config.timeout_s):
                    async with chat_api.open_client(
                        config.url, tls=self._tls, timeout=config.timeout_s, api_key=key
                    ) as client:
                        return (await chat_api.complete(client, body)).text
        except TimeoutError as error:
            raise ToolError(f"the user's model did not answer within {config.timeout_s:g} s") from error
        except chat_api.ApiError as error:
            raise ToolError(f"the user's model: {error}{error.said and ': '}{error.said}") from error
        except httpx2.InvalidURL as error:
            raise ToolError("the address of the user's model is not one") from error
