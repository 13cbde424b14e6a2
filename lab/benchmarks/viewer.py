"""What `trace view` takes on a large directory: seconds until the page is there, and the server's memory.

    python -m lab.benchmarks.viewer DIR [--trajectories 100000] [--tokens 2000]

Makes archived traces in DIR unless it has some, indexes them, starts the server twice and asks for what the first pages
show, then opens them in chromium where that is installed. Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mcp_rollout.gateway.types import Content, ContentKind, ToolResult
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.trace.archive import archive
from mcp_rollout.rollout.trace.files import ARCHIVE_SUFFIX, JOURNAL_SUFFIX
from mcp_rollout.rollout.trace.journal import to_json
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Reward, StopReason, Trace
from mcp_rollout.rollout.types import Call, Completion, Edit, FinishReason, Parsed

FILE_ROWS = 1000
SAMPLES = 8


def make(directory: Path, trajectories: int, tokens: int) -> None:
    """Write archives of `FILE_ROWS` trajectories: their contents repeat from file to file, their identities do not."""
    directory.mkdir(parents=True, exist_ok=True)
    made = [trace(number, tokens) for number in range(FILE_ROWS)]
    for file in range(trajectories // FILE_ROWS):
        journal = directory / f"host-1-{file:04d}{JOURNAL_SUFFIX}"
        with journal.open("wb") as lines:
            for number, each in enumerate(made, file * FILE_ROWS):
                each.id = f"{number:032x}"
                of = {"uid": f"group-{number // SAMPLES}", "row": number // SAMPLES, "sample": number % SAMPLES}
                each.origin = each.origin.model_copy(update={**of, "step": 1 + number // (32 * SAMPLES)})
                lines.write(to_json(each) + b"\n")
        archive(journal)


def trace(number: int, tokens: int) -> Trace:
    """A trajectory of four turns with a tool call each, whose tokens are drawn."""
    drawn = random.Random(number)
    task = Task(environment="retail", task=f"order-{number}", seed=number, prompt=({"role": "user", "content": "hi"},))
    made = Trace.begin(f"{number:032x}", task, Origin(row=number, split="train", step=1, engine="verl"))
    made.open([drawn.randrange(150_000) for _ in range(tokens // 4)])
    for _ in range(4):
        ids = [drawn.randrange(150_000) for _ in range(tokens // 16)]
        logprobs = [-drawn.random() for _ in ids]
        completion = Completion(ids=ids, logprobs=logprobs, finish_reason=FinishReason.STOP)
        call = Call(name=drawn.choice(["find", "cancel", "track"]), arguments={"order": drawn.randrange(10**6)})
        parsed = Parsed(content="one moment", thinking="let me look", thoughts=((0, len(ids) // 3),), calls=(call,))
        made.add_completion(completion, parsed, Edit(appended=ids), mask_thinking=False)
        text = "".join(drawn.choice("abcdefgh ") for _ in range(400))
        result = ToolResult(content=(Content(kind=ContentKind.TEXT, text=text),), is_error=drawn.random() < 0.2)
        made.messages += made.add_calls([call], [result], servers=["retail"])
        made.add_context(Edit(appended=[drawn.randrange(150_000) for _ in range(tokens // 8)]))
    made.reward = Reward(score=drawn.random(), parts={"done": drawn.random()})
    made.stop_reason = drawn.choice([StopReason.ANSWERED, StopReason.TOKEN_LIMIT])
    made.elapsed_s = 10 * drawn.random()
    return made


class Server:
    """`mcp-rollout trace view` as a process of its own."""

    def __init__(self, directory: Path) -> None:
        self.began = time.perf_counter()
        command = [sys.executable, "-m", "mcp_rollout", "trace", "view", str(directory)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split(": ")[1].split()[0]

    def _opened(self, path: str) -> Any:
        server, token = self.address.split("?token=")
        cookie = f"mcp-rollout-{urlsplit(server).port}={token}"
        return urllib.request.urlopen(urllib.request.Request(server + path, headers={"cookie": cookie}), timeout=60)

    def processor_s(self) -> float:
        return processor_s(self.process.pid)

    def cost(self, path: str) -> dict[str, float]:
        """Seconds of a request, and of processor time within it."""
        before = self.processor_s()
        return {"s": round(self.seconds(path), 3), "processor_s": round(self.processor_s() - before, 3)}

    def seconds(self, path: str) -> float:
        began = time.perf_counter()
        while True:
            try:
                with self._opened(path) as answer:
                    answer.read()
                return time.perf_counter() - began
            except urllib.error.URLError:  # it does not listen yet
                time.sleep(0.01)

    def explained(self) -> float:
        began = time.perf_counter()
        while True:
            with self._opened("api/explain") as answer:
                if json.load(answer)["status"] == "done":
                    return time.perf_counter() - began
            time.sleep(0.2)

    def memory(self) -> dict[str, int]:
        """MiB now and at most."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in status.splitlines() if "kB" in line}
        return {"resident_mib": found["VmRSS"], "peak_mib": found["VmHWM"]}

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)


def asked(directory: Path, ids: list[str]) -> dict[str, Any]:
    server = Server(directory)
    try:
        found: dict[str, Any] = {"first_page": server.cost(""), "processor_s_since_start": server.processor_s()}
        lists = ("api/list", "api/list?sort=-reward&page=500", "api/list?failed_tool=find")
        found |= {path: server.cost(path) for path in ("api/state", "api/runs", *lists)}
        kinds = ("trajectory", "tokens", "siblings")
        found |= {kind: [server.cost(f"api/{kind}?id={each}") for each in ids] for kind in kinds}
        return found | {"explain_s": server.explained(), **server.memory()}
    finally:
        server.end()


def opened(directory: Path) -> dict[str, Any]:
    """Seconds from navigating to the content in chromium, and of processor time of browser and server within them."""
    from playwright.sync_api import sync_playwright

    found: dict[str, Any] = {}
    server = Server(directory)
    server.seconds("")  # it listens
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in ("overview", "list", "runs"):
            page = browser.new_page()
            page.goto("about:blank")
            began, before = time.perf_counter(), processor_s_below(os.getpid())
            page.goto(f"{server.address}#/{'' if name == 'overview' else name}")
            page.wait_for_selector("main:not([aria-busy]) > h1")
            elapsed = time.perf_counter() - began
            found[name] = {"s": round(elapsed, 2), "processor_s": round(processor_s_below(os.getpid()) - before, 2)}
            page.close()
        browser.close()
    server.end()
    return found


def processor_s_below(pid: int) -> float:
    """Seconds of processor time of all processes that this one has started, directly or not."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    pids = [int(child) for path in children for child in path.read_text().split()]
    return sum(processor_s(child) + processor_s_below(child) for child in pids)


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=2000)
    given = parser.parse_args()
    if not list(given.directory.glob(f"*{ARCHIVE_SUFFIX}")):
        make(given.directory, given.trajectories, given.tokens)
    began = time.process_time()
    with Traces(given.directory) as traces:
        count = traces.count()
        chosen = [entry["id"] for entry in traces.entries(columns=["id"], limit=1, offset=count // 2)]
        chosen += [entry["id"] for entry in traces.entries(columns=["id"], limit=1, offset=count - 1)]
    print(json.dumps({"trajectories": count, "index_cpu_s": time.process_time() - began}))
    print(json.dumps(asked(given.directory, chosen)))
    if shutil.which("chromium"):
        print(json.dumps(opened(given.directory)))
