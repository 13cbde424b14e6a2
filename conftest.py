"""For every test: asyncio alone, since that is what verl's workers run; and verl itself where a test asks for it."""

from __future__ import annotations

import importlib
import math
import tempfile
import time
import warnings
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

ENDS = pytest.StashKey[float]()
"""When no further test begins, by the monotonic clock."""

# The same examples on every run, and no clock: a busy machine is not a failure.
settings.register_profile("mcp_rollout", deadline=None, derandomize=True, database=None)
settings.load_profile("mcp_rollout")
# `make fuzz`: other examples on every run, and many. A failing one is printed as a decorator that repeats it.
settings.register_profile("fuzz", deadline=None, max_examples=10_000, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--from-file", type=int, help="begin with the file of this number, and go round")
    parser.addoption("--minutes", type=float, help="skip what has not begun by then")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Another part of the tests each day, where all of them take longer than there is."""
    if (number := config.getoption("--from-file")) is not None:
        files = sorted({item.path for item in items})
        places = {file: place for place, file in enumerate(files)}
        items.sort(key=lambda item: (places[item.path] - number) % len(files))


def pytest_sessionstart(session: pytest.Session) -> None:
    minutes = session.config.getoption("--minutes")
    session.config.stash[ENDS] = math.inf if minutes is None else time.monotonic() + 60 * minutes


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[ENDS]:
        pytest.skip("it has its turn on another day")


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
