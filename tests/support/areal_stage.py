"""An environment, AReaL's own engine and executor on a scripted server, and what tests ask of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from scripted_sglang import Script

from mcp_rollout.rollout.areal.stopping import Rows
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.store import read_traces

SERVER = Path(__file__).with_name("echo_server.py")
WORKFLOW = "mcp_rollout.rollout.areal.workflow.MCPWorkflow"
GROUP = 3


class Stage:
    """An environment, AReaL's engine on a scripted server, and the workflow's arguments."""

    def __init__(self, home: Path, model: Path, address: str) -> None:
        self.home, self._address = home, address
        self.mcp: dict[str, Any] = {
            "environments_dir": str(home / "environments"),
            "trace_dir": str(home / "traces"),
            "max_failed_share": 0.5,
        }
        self._model = model
        self.environment()

    def environment(self, *, user: bool = False, scope: str = "shared", **sections: Any) -> None:
        roles = {"score": "judge"} | ({"start": "say_hello", "reply": "answer"} if user else {})
        server = {"command": "${python}", "args": [str(SERVER)], "roles": roles, "env": {"ECHO_DIES_AT": "die"}}
        written = {
            "servers": {"echo": server | {"scope": scope}},
            "reward": {"server": "echo", "parts": ["letters"]},
            **sections,
        }
        written |= {"user": {"server": "echo"}} if user else {}
        directory = self.home / "environments"
        directory.mkdir(exist_ok=True)
        (directory / "echo.yaml").write_text(yaml.safe_dump(written))

    @contextmanager
    def engine(self, *, batch: int = 2, staleness: int = 0) -> Iterator[Any]:
        """AReaL's engine with its executor."""
        from areal.api.cli_args import InferenceEngineConfig
        from areal.engine import RemoteSGLangEngine

        config = InferenceEngineConfig(
            backend="sglang:d1",
            consumer_batch_size=batch,
            max_concurrent_rollouts=batch,
            max_head_offpolicyness=staleness,
            request_retries=1,
            request_timeout=60,
            check_trajectory_format=True,
        )
        engine = RemoteSGLangEngine(config)
        engine.initialize(addr=self._address, train_data_parallel_size=1)
        engine.export_stats()  # AReaL's tracker is the process's
        try:
            yield engine
        finally:
            engine.destroy()

    def arguments(self, **settings: Any) -> dict[str, Any]:
        from dataclasses import asdict

        from areal.api.cli_args import GenerationHyperparameters

        gconfig = asdict(GenerationHyperparameters(n_samples=GROUP, max_new_tokens=256, max_tokens=8192))
        return {"model": str(self._model), "gconfig": gconfig, "mcp": self.mcp | settings, "window": 2 * GROUP}

    def batch(self, engine: Any, **settings: Any) -> list[dict[str, torch.Tensor]]:
        """A training batch of two groups, as AReaL's trainer asks for it."""
        return engine.prepare_batch(loader(self.home), WORKFLOW, self.arguments(**settings), group_size=GROUP)

    @property
    def traces(self) -> list[Trace]:
        return list(read_traces(self.home / "traces"))

    def groups(self) -> dict[str, list[Trace]]:
        """The traces by AReaL's task, each task's in the order of the samples."""
        found: dict[str, list[Trace]] = defaultdict(list)
        for trace in sorted(self.traces, key=lambda trace: trace.origin.sample):
            found[trace.origin.uid].append(trace)
        return found


def row(index: int) -> dict[str, Any]:
    mcp = {"environment": "echo", "task": "t", "seed": index, "tools": None}
    return {"prompt": [{"role": "user", "content": f"Shout {index}."}], "extra_info": {"index": index, "mcp": mcp}}


def loader(home: Path) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    rows: Any = Rows([row(index) for index in range(4)], home / "traces")
    return StatefulDataLoader(rows, batch_size=2, collate_fn=lambda each: each)


def servers() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    found: list[psutil.Process] = []
    for child in children:
        with contextlib.suppress(psutil.Error):  # it has ended
            found += [child] if str(SERVER) in child.cmdline() else []
    return found


def score(trace: Trace) -> float:
    assert trace.reward is not None
    return trace.reward.score


def ids_of(segment: Any) -> list[int]:
    end = len(segment.loss_mask) - segment.loss_mask[::-1].index(1)
    return segment.prompt_ids + segment.response_ids[:end]


def rows_of(trajectory: dict[str, torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor, float]]:
    return zip(trajectory["input_ids"], trajectory["attention_mask"], trajectory["rewards"].tolist(), strict=True)


def failing(script: Script, *, at: int, times: int = 1) -> None:
    """Let the engine fail in the answers with these numbers."""
    choose, number = script.choose, iter(range(1_000_000))
    assert choose is not None

    def chosen(read: str, turns: int) -> str:
        return "fail" if turns == 1 and at <= next(number) < at + times else choose(read, turns)

    script.choose = chosen


def hold(script: Script) -> Any:
    """Let the engine wait in the second turn until it is released."""
    choose, gate = script.choose, threading.Semaphore(0)
    assert choose is not None

    def chosen(read: str, turns: int) -> str:
        if turns == 1:
            gate.acquire(timeout=60)
            gate.release()
        return choose(read, turns)

    script.choose = chosen
    return gate


def eventually(holds: Callable[[], bool], *, within_s: float = 60) -> bool:
    deadline = time.monotonic() + within_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def assert_nothing_is_open() -> None:
    from mcp_rollout.rollout.areal.runtime import PROCESS

    assert PROCESS._runtimes == {}
