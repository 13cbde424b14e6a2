"""Chromium from the system's packages, and the viewer as a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REQUIRED = "MCP_ROLLOUT_BROWSER_TESTS"
"""Set to `required`, as `.ci/run` does, the tests fail where a browser is missing."""
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def check_browser() -> None:
    """Skip where there is no browser, by its name; fail where one is required."""
    missing = "chromium is not installed (apt-get install chromium)" if CHROMIUM is None else ""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        missing = missing or "playwright is not installed (pip install playwright)"
    if missing and os.environ.get(REQUIRED) == "required":
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)


@contextmanager
def browsing() -> Iterator[Any]:
    """A headless browser."""
    check_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's sandbox needs namespaces that a container does not give; all pages are this test's own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextmanager
def viewing(directory: Path) -> Iterator[str]:
    """The address of `mcp-rollout trace view DIRECTORY`."""
    command = [sys.executable, "-m", "mcp_rollout", "trace", "view", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split(": ")[1].split()[0]
        finally:
            process.terminate()
            process.wait(timeout=20)
