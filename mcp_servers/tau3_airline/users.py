"""The customers: the benchmark's instructions for a model that plays them, and a script that states them at once."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from mcp_rollout.mcp_servers.tau3_airline.package import data
from mcp_rollout.mcp_servers.user_simulator.modelled import Persona
from mcp_rollout.mcp_servers.user_simulator.scripted import END, Cue, Scenario, Step

MAX_REPLIES = 40
_FIRST_PERSON = {"you are": "I am", "you're": "I'm", "yourself": "myself", "yours": "mine", "your": "my", "you": "I"}
_WORDS = re.compile(r"\b(you(?: are|'re)?|yourself|yours|your)\b", re.IGNORECASE)
_OBJECT = re.compile(r"\b(for|to|with|of|tells?|compensate) you\b(?! (?:want|can|will|do)\b)", re.IGNORECASE)


def persona(task: str, seed: int) -> Persona:
    """The customer of a task, for a model that plays it. Raises LookupError for an unknown task."""
    told = _instructions(task)
    known = [part for part in (told["persona"], told["known_info"], told["unknown_info"]) if part]
    return Persona(
        persona="\n".join(["A customer who contacts an airline.", *known]),
        goal=f"{told['reason_for_call']}\n\n{told['task_instructions']}",
        stop="what you want has been done, or the assistant has made clear that it cannot be, or has transferred you",
        patience=10,
        max_replies=MAX_REPLIES,
    )


def scenario(task: str, seed: int) -> Scenario:
    """The customer of a task by script: states everything first, agrees to every question, leaves when none is asked.

    Raises LookupError for an unknown task.
    """
    told = _instructions(task)
    opening = " ".join(told[part] or "" for part in ("known_info", "reason_for_call", "task_instructions"))
    leave = Cue(when=(r"\A[^?]*\Z",), says="Thank you. Goodbye.", to=END)
    step = Step(cues=(leave,), otherwise=("Yes, please. I have told you all that I want.",), patience=MAX_REPLIES)
    return Scenario(opening=_in_first_person(opening), first="talk", steps={"talk": step}, max_replies=MAX_REPLIES)


def _in_first_person(text: str) -> str:
    said = _OBJECT.sub(r"\1 me", " ".join(text.split()))
    said = _WORDS.sub(lambda word: _FIRST_PERSON[word[0].lower()], said)
    return re.sub(r"(^|[.!?] )(m)(?=y|ine)", lambda start: start[1] + "M", said)


def _instructions(task: str) -> dict[str, Any]:
    found = _tasks().get(task)
    if found is None:
        raise LookupError(f"τ³-bench's airline has no task {task!r}")
    return {"persona": found["persona"], **found["instructions"]}


@cache
def _tasks() -> dict[str, dict[str, Any]]:
    return {each["id"]: each["user_scenario"] for each in json.loads((data() / "tasks.json").read_text("utf-8"))}
