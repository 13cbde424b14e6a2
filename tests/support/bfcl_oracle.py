"""The package's own verdict on decoded calls: reads tasks as JSON lines, writes one JSON line for each.

A process of its own, and a fork of it for each check: the package keeps its instances in module globals, and its
methods change constants of its modules.
"""

import json
import os
import sys
from pathlib import Path

import bfcl_eval
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker, multi_turn_utils

DATA = Path(bfcl_eval.__file__).parent / "data"


def by_id(path: Path) -> dict[str, dict]:
    return {row["id"]: row for row in map(json.loads, path.read_text().splitlines())}


def load(category: str) -> tuple[dict[str, dict], dict[str, dict]]:
    name = f"BFCL_v4_multi_turn_{category}.json"
    return by_id(DATA / name), by_id(DATA / "possible_answer" / name)


def verdict(asked: dict, loaded: dict) -> dict:
    category = asked["id"].removeprefix("multi_turn_").rpartition("_")[0]
    entries, answers = loaded[category]
    entry, truth = entries[asked["id"]], answers[asked["id"]]["ground_truth"]
    decoded, results = asked["decoded"], []
    execute = multi_turn_utils.execute_multi_turn_func_call

    def noted(*args, **kwargs):
        made = execute(*args, **kwargs)
        if kwargs["model_name"] == "model":
            results.extend(made[0])
        return made

    multi_turn_checker.execute_multi_turn_func_call = noted
    if len(decoded) != len(truth):  # eval_runner.py: force-terminated
        return {"valid": False, "error": "multi_turn:force_terminated", "results": []}
    try:
        found = multi_turn_checker.multi_turn_checker(decoded, truth, entry, category, "model")
    except Exception as error:
        return {"valid": False, "error": f"crashed: {error!r}", "results": results}
    return {"valid": found["valid"], "error": found.get("error_type"), "results": results}


def main() -> None:
    loaded = {category: load(category) for category in ("base", "miss_func", "miss_param", "long_context")}
    # Imported before the forks.
    for name in ("gorilla_file_system", "math_api", "message_api", "posting_api", "ticket_api", "trading_bot"):
        multi_turn_utils.importlib.import_module(f"bfcl_eval.eval_checker.multi_turn_eval.func_source_code.{name}")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            sys.stdout.write(json.dumps(verdict(json.loads(line), loaded)) + "\n")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


main()
