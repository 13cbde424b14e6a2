"""User code that a configuration names by its file."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path

from mcp_rollout.gateway.config.user_code import import_function

GATES = {"begun": threading.Event(), "go": threading.Event()}


def test_two_threads_that_import_one_file_both_get_its_function(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        f"from {__name__} import GATES\nGATES['begun'].set()\nassert GATES['go'].wait(60)\ndef run(): return 'run'\n"
    )
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(import_function, f"{file}:run", key="use")
        assert GATES["begun"].wait(60)
        second = threads.submit(import_function, f"{file}:run", key="use")
        wait_for([second], timeout=0.2)  # without a lock it has half a module by now
        GATES["go"].set()
        assert first.result()() == second.result()() == "run"
