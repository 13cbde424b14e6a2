"""A GRPO run through AReaL's own trainer and SGLang's server on this CPU, followed through its traces."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lab.demo.display import bar, console
from lab.demo.grpo import TEMPERATURE
from lab.demo.processes import child
from lab.worlds import WORLDS
from mcp_rollout.rollout.trace.store import read_traces

PYTHON = Path(__file__).parents[2] / ".venv-sglang" / "bin" / "python"
TIMEOUT_S, STARTING_S = 3600.0, 300.0
BATCH = 9


@dataclass(frozen=True, kw_only=True)
class ArealRun:
    """One training of the model in `home` on the rows and the lock there; everything is written to `out`."""

    home: Path
    out: Path
    steps: int
    learning_rate: float
    """Of the first step; it falls to 0 along a cosine."""
    samples: int = 8
    seed: int = 0
    """Of sampling."""

    def train(self) -> list[float]:
        """The mean reward of each step.

        Raises:
            SystemExit: AReaL ended with an error; the end of its output has been shown.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        self._write_rows()
        with _sglang(self.home / "model", self.out / "sglang.log") as server:
            command = [PYTHON, "-m", "mcp_rollout.rollout.areal.train", "--config", "configs/areal/cpu.yaml"]
            command += [f"{key}={value}" for key, value in self._overrides().items()]
            console.print(
                "[bold green]$ AREAL_SPMD_MODE=1 python " + " \\\n    ".join(map(str, command[1:])), soft_wrap=True
            )
            log = self.out / "train.log"
            with log.open("wb") as output:
                with child(command, output=output, env=_variables(server)) as process:
                    self._follow(process)
            if process.returncode:
                console.print(log.read_text(errors="replace")[-3000:], markup=False)
                raise SystemExit(f"error: AReaL ended with status {process.returncode}; its whole output is in {log}")
        return self.curve()

    def curve(self) -> list[float]:
        """The mean reward of each step so far, from the traces."""
        scores: defaultdict[int, list[float]] = defaultdict(list)
        for trace in read_traces(self._traces) if self._traces.is_dir() else ():
            if trace.reward is not None and not trace.is_withdrawn:
                scores[trace.origin.step].append(trace.reward.score)
        return [statistics.fmean(scores[step]) for step in sorted(scores) if step < self.steps]

    def _write_rows(self) -> None:
        """Write as many rows as the steps take: AReaL's schedules go over all rows, wherever the training ends."""
        rows, needed = pq.read_table(self.home / "train.parquet"), self.steps * BATCH
        pq.write_table(pa.concat_tables([rows] * -(-needed // rows.num_rows)).slice(0, needed), self._rows)

    @property
    def _rows(self) -> Path:
        return self.out / "rows.parquet"

    @property
    def _traces(self) -> Path:
        return self.out / "traces"

    def _overrides(self) -> dict[str, object]:
        return {
            "actor.path": self.home / "model",
            "train_dataset.path": self._rows,
            "cluster.fileroot": self.out,
            "mcp.trace_dir": self._traces,
            "mcp.environments_dir": WORLDS,
            "mcp.tool_config_path": self.home / "tool_config.yaml",
            "mcp.prompt_tokens": 400,
            "mcp.response_tokens": 288,
            # Seed 0 samples as AReaL's default seed does.
            "seed": self.seed + 1,
            "gconfig.n_samples": self.samples,
            "gconfig.max_new_tokens": 64,
            "gconfig.temperature": TEMPERATURE,
            # The three order states alternate from row to row; unshuffled, every batch has each of them three times.
            "train_dataset.shuffle": False,
            "train_dataset.batch_size": BATCH,
            "rollout.max_concurrent_rollouts": BATCH,
            "rollout.max_head_offpolicyness": 0,
            "actor.optimizer.lr": self.learning_rate,
            "+actor.optimizer.lr_scheduler_type": "cosine",
            # This and the next are of verl's recipe=warm_start.
            "+actor.optimizer.eps": 1e-4,
            # verl's has the divergence in the loss, AReaL in the reward of each token.
            "actor.kl_ctl": 0.05,
            "total_train_steps": self.steps,
        }

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        with bar("AReaL and the model start (about a minute)", self.steps) as (progress, task):
            while process.poll() is None and time.monotonic() < deadline:
                if done := self.curve()[:-1]:  # the last step may still be playing
                    progress.update(task, completed=len(done), description=f"GRPO, reward {done[-1]:.2f}")
                time.sleep(2.0)
            progress.update(task, completed=len(self.curve()))


@contextlib.contextmanager
def _sglang(model: Path, log: Path) -> Iterator[str]:
    """`host:port` of a server of the model, as long as the block lasts."""
    port = _free_port()
    command = [PYTHON, "-m", "mcp_rollout.rollout.verl_cpu.sglang_server", "--model-path", model, "--port", str(port)]
    command += ["--max-total-tokens", "65536"]
    with log.open("wb") as output, child(command, output=output, env=_variables()) as server:
        deadline = time.monotonic() + STARTING_S
        while not _is_healthy(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"error: SGLang did not start; its output is in {log}")
            time.sleep(0.5)
        yield f"127.0.0.1:{port}"


def _variables(server: str | None = None) -> Mapping[str, str]:
    """Environment variables; with a server, those of AReaL's mode with one process per rank."""
    common = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    common |= {"PYTHONPATH": os.pathsep.join(filter(None, [str(PYTHON.parents[2]), os.environ.get("PYTHONPATH")]))}
    if server is None:
        return os.environ | common
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    modes = {"AREAL_SPMD_MODE": "1", "AREAL_LLM_SERVER_ADDRS": server, "MASTER_PORT": str(_free_port())}
    return os.environ | common | rank | modes


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30):
            return True
    except OSError:
        return False
