"""The engine of the run: each row's script, and what breaks in the run's own process; `--engine` names `create`.

Notes go to `inside.jsonl` of the folder that the variable `RECONCILE` names: each fault with its row and time, and at
the end what the run's process has left.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import anyio

from lab.benchmarks.faults.plan import call_name
from lab.benchmarks.reconcile.plan import Inside, Storm
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.run_record import TokenIds
from mcp_rollout.rollout.types import Call, Completion, FinishReason, Policy, TokenBuilder

VARIABLE = "RECONCILE"
NAME = "reconcile"
WINDOW_S = 0.3
"""How long descriptors or room for traces are missing."""
SETTLE_S = 2.0
_SHORTAGE = {Inside.FULL: resource.RLIMIT_FSIZE, Inside.DESCRIPTORS: resource.RLIMIT_NOFILE}


def worst(rng: Random) -> str:
    """What a policy may write in place of a call: none of it has an effect, and none of it is the world's fault."""
    deep = 3000
    arguments = (
        '{"id": 1e400}',
        '{"id": NaN}',
        '{"id": ["a"]}',
        "{}",
        "[]",
        "null",
        '{"id": ' + "9" * 5000 + "}",
        '{"id": "\\ud800"}',
        '{"id": "' + "x" * 20_000 + '"}',
        '{"id": "http-0.0.0"}',
        '{"id": "\\u0000\\u001b[2J<|im_end|>"}',
        '{"id": ' + "[" * deep + "]" * deep + "}",
        '{"id": "a", "id": "b"}',
        '{"id": "a", "' + "k" * 20_000 + '": 1}',
        json.dumps({"id": "a"} | {f"extra-{number}": None for number in range(2000)}),
        '{"id": "',
    )
    names = ("append", "append", "append", "reset", "score", "release", "reply", "nothing", "", "a" * 10_000)
    body = f'{{"name": {json.dumps(rng.choice(names))}, "arguments": {rng.choice(arguments)}}}'
    whole = f"<tool_call>\n{body}\n</tool_call>"
    return rng.choice((whole, whole, whole, whole, whole * 20, body, whole[:-12], "<tool_call>" * 200, ""))


def texts(storm: Storm, row: str) -> list[str]:
    """The policy's completions, turn by turn."""

    def call(turn: int, place: int) -> Call:
        return Call(name="append", arguments={"id": call_name(row, turn, place)})

    made: list[str] = []
    for turn, step in enumerate(storm.steps(row)):
        match step:
            case "call":
                made.append(hermes.write(calls=[call(turn, 0)]))
            case "two calls":
                made.append(hermes.write(calls=[call(turn, 0), call(turn, 1)]))
            case "say":
                made.append(f"That was turn {turn}.")
            case _:
                made.append(worst(storm.rng(row, f"worst {turn}")))
    return made


class Breaking:
    """The script of a row, until the run's process breaks."""

    def __init__(self, run: Run, row: str, trajectory: str) -> None:
        self._run, self._row, self._trajectory = run, row, trajectory
        self._script = ScriptedPolicy(texts(run.storm, row), ByteTokens().encode, stop=IM_END)
        self._breaks = run.storm.breaks_inside(row)

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        at, kind = self._breaks or (-1, None)
        if kind is Inside.READ_ONLY and not self._run.journals():
            kind = None  # nothing is open that could become read-only
        if kind is not None and turn == at and self._run.meets(self._row, kind, self._trajectory):
            match kind:
                case Inside.REFUSES:
                    raise EngineError("the engine refuses")
                case Inside.HANGS:
                    await anyio.sleep_forever()
                case Inside.IDS:
                    return Completion(ids=[-1, 1 << 40], logprobs=[0.0, 0.0])
                case Inside.ABORTS:
                    made = await self._script.generate(ids, max_tokens=max_tokens, turn=turn)
                    return replace(
                        made, ids=made.ids[:-1], logprobs=[0.0] * len(made.ids[:-1]), finish_reason=FinishReason.ABORT
                    )
                case Inside.CLOCK:
                    self._run.jump(self._row)
                case Inside.READ_ONLY:
                    self._run.lock()
                case _:
                    self._run.run_short(_SHORTAGE[kind])
        return await self._script.generate(ids, max_tokens=max_tokens, turn=turn)


class Run:
    """The engine of one run's process."""

    name = NAME
    context_tokens: int | None = None
    token_ids = TokenIds.BYTES

    def __init__(self, storm: Storm, folder: Path) -> None:
        self.storm, self._folder = storm, folder
        self.notes: list[str] = []
        self._time = time.time

    def tokens(self) -> TokenBuilder:
        return ByteTokens()

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        return Breaking(self, task.task, session.trajectory)

    def note(self, what: str, **more: Any) -> None:
        line = json.dumps({"at": time.monotonic(), "what": what, "pid": os.getpid(), **more}) + "\n"
        log = os.open(self._folder / "inside.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(log, line.encode())
        os.close(log)

    def meets(self, row: str, kind: Inside, trajectory: str) -> bool:
        """Whether this row meets its fault now, which it does once."""
        try:
            (self._folder / f"inside.{row}").touch(exist_ok=False)
        except FileExistsError:
            return False
        self.note("fault", kind=kind, row=row, trajectory=trajectory)
        return True

    def jump(self, row: str) -> None:
        """Set the clock of the day, as this process reads it, by hours forth or back."""
        offset = self.storm.rng(row, "clock").uniform(-86400, 86400)
        time.time = lambda: self._time() + offset

    def set_right(self) -> None:
        """Set the clock right again."""
        time.time = self._time

    def journals(self) -> dict[int, str]:
        """The descriptors of this process that write traces, and their files."""
        opened = {int(number): path for number, path in _descriptors() if path.startswith(str(self._folder / "traces"))}
        return {number: path for number, path in opened.items() if path.endswith(".jsonl")}

    def lock(self) -> None:
        """Let the journals refuse each write from now on, as on a file system that turned read-only.

        By their descriptors: permissions do not bind root, and a mount can be read-only to no file that is open.
        """
        for number, path in self.journals().items():
            reading = os.open(path, os.O_RDONLY)
            os.dup2(reading, number)
            os.close(reading)

    def run_short(self, of: int) -> None:
        """Let this process run short of descriptors, or of room for its traces, for a while."""
        soft, hard = resource.getrlimit(of)
        if of == resource.RLIMIT_NOFILE:
            least = max(map(int, os.listdir("/proc/self/fd"))) + 1
        else:
            sizes = [path.stat().st_size for path in (self._folder / "traces").glob("*.jsonl")]
            least = max(sizes, default=0) + 100
        resource.setrlimit(of, (least, hard))
        asyncio.get_running_loop().call_later(WINDOW_S, resource.setrlimit, of, (soft, hard))


@asynccontextmanager
async def create(_: EngineOptions) -> AsyncGenerator[Run]:
    """The engine; it is closed after the gateways, so what is left then is left for good."""
    folder = Path(os.environ[VARIABLE])
    run = Run(Storm.read(folder), folder)
    before = _left(folder)
    run.note("begun", **before)
    try:
        yield run
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(SETTLE_S):
            while any(set(now) - set(before[kind]) for kind, now in _left(folder).items()):  # noqa: ASYNC110
                await anyio.sleep(0.02)  # transports close in a later iteration of the loop
        after = _left(folder)
        run.note("ended", **{kind: sorted(set(after[kind]) - set(before[kind])) for kind in after})
        run.set_right()


def _descriptors() -> Iterator[tuple[str, str]]:
    """The numbers of this process's descriptors, and what they are."""
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            yield number, os.readlink(f"/proc/self/fd/{number}")


def _left(folder: Path) -> dict[str, list[str]]:
    """Descriptors, tasks and children of this process."""
    hidden = (str(folder / "traces"), "/proc")  # an interrupted run leaves its journal open
    descriptors = [f"{number} {opened}" for number, opened in _descriptors() if not opened.startswith(hidden)]
    tasks = {str(task.get_coro()).partition(" at 0x")[0] for task in asyncio.all_tasks() if not task.done()}
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
    return {"descriptors": descriptors, "tasks": sorted(tasks), "children": children}
