"""For every test: asyncio alone, since that is what verl's workers run; and verl itself where a test asks for it."""

from __future__ import annotations

import importlib
import math
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

ROOT = Path(__file__).parent
ENDS = pytest.StashKey[float]()
"""When no further test begins, by the monotonic clock."""
DAYS = 14
"""In so many days each file with tests that `make test` leaves out has its turn."""
INSTALLED = {
    "sglang": ROOT / ".venv-sglang" / ".installed",
    "vllm": ROOT / ".venv-vllm" / ".installed",
    "mcp1": ROOT / ".venv-mcp1" / ".installed",
    "mcp2": ROOT / ".venv-mcp2" / ".installed",
    "verifiers": ROOT / ".venv-verifiers" / ".installed",
    "servers": Path(sys.prefix) / "servers" / ".installed",
    "programs": Path(sys.prefix) / "programs" / ".installed",
    "model": ROOT / "outputs" / "smollm2" / "config.json",
}
"""What a test may need, by the target of `make` that installs it: the last file that it writes."""

# The same examples on every run, and no clock: a busy machine is not a failure.
settings.register_profile("mcp_rollout", deadline=None, derandomize=True, database=None)
settings.load_profile("mcp_rollout")
# `make fuzz`: other examples on every run, and many. A failing one is printed as a decorator that repeats it.
settings.register_profile("fuzz", deadline=None, max_examples=10_000, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--day", type=int, help="only what has its turn on this day, of what `make test` leaves out")
    parser.addoption("--minutes", type=float, help="skip what has not begun by then")
    parser.addoption("--write-needs", type=Path, help="write what the tests need installed into this file")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the part of a day: files by their names' hash, begun at another test in each fortnight."""
    if (day := config.getoption("--day")) is not None:
        chosen = [item for item in items if left_out(item) and hashed(item.path.name) % DAYS == day % DAYS]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        first = hashed(str(day // DAYS)) % max(1, len(chosen))
        items[:] = chosen[first:] + chosen[:first]
    if (file := config.getoption("--write-needs")) is not None:
        file.write_text(" ".join(sorted({name for item in items for name in needs(item)})))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file in one process, and the files of a package too: they share what is slow to start."""
    from xdist.scheduler import LoadFileScheduling

    class ByStart(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            package = str(Path(file).parent)
            return package if (ROOT / package / "__init__.py").exists() else file

    return ByStart(config, log) if config.getoption("dist") == "loadfile" else None


def left_out(item: pytest.Item) -> bool:
    """Whether `make test` does not run it: it is marked `full`, or the laboratory's."""
    return item.get_closest_marker("full") is not None or item.path.is_relative_to(ROOT / "lab")


def hashed(text: str) -> int:
    return zlib.crc32(text.encode())


def needs(item: pytest.Item) -> set[str]:
    return {name for marker in item.iter_markers("needs") for name in marker.args}


def pytest_sessionstart(session: pytest.Session) -> None:
    minutes = session.config.getoption("--minutes")
    session.config.stash[ENDS] = math.inf if minutes is None else time.monotonic() + 60 * minutes


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[ENDS]:
        pytest.skip("it has its turn on another day")
    if missing := sorted(name for name in needs(item) if not INSTALLED[name].exists()):
        pytest.skip(f"not installed: make {' '.join(missing)}")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def own_ray() -> Iterator[None]:
    """Ray's files in a directory of this pytest process, so that `ray.init()` starts a Ray of its own.

    Otherwise it connects to the last cluster of this machine: another pytest process's, or the user's.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", directory)
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@pytest.fixture(scope="session")
def imported_verl() -> None:
    """verl, imported with the warnings that it and Ray raise meanwhile left out: they are not ours to fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in ("verl.trainer.main_ppo", "verl.trainer.ppo.v1"):
            importlib.import_module(module)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that ran in this process logs to what was standard error then."""
    yield
    structlog.reset_defaults()
