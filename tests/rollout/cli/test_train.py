"""`train`: what cannot work is said before anything is written; rows, lock and sizes lead to verl's own command."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from commands import mcp_rollout

from mcp_rollout.rollout.cli.train_report import Following
from mcp_rollout.rollout.environment.config import INCLUDED_CONFIGS
from mcp_rollout.rollout.environment.parquet import read_rows
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = pytest.mark.verl

COMMAND = Path(sys.executable).with_name("mcp-rollout")
OWN = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"}
VOID = "actor_rollout_ref.rollout.custom.mcp.void_batches=0"
SERVER = """
from mcp.server import MCPServer

def create() -> MCPServer:
    server = MCPServer("notes")

    @server.tool()
    def look(name: str) -> str:
        return name

    return server
"""
ENVIRONMENT = {
    "servers": {"notes": {"factory": "its_notes:create"}},
    "tasks": {"file": "tasks.jsonl", "test_share": 0.5},
}


@dataclass
class Home:
    """A working directory with a model, and the environment `notes`."""

    path: Path
    held: IO[bytes] | None = None
    """A file that is locked as long as the test runs."""

    def write(self, *, tasks: int = 12, **changes: object) -> None:
        environment = {key: value for key, value in {**ENVIRONMENT, **changes}.items() if value is not None}
        (self.path / "notes.yaml").write_text(json.dumps(environment))
        lines = [json.dumps({"prompt": f"Look at {number}.", "answer": number}) for number in range(tasks)]
        (self.path / "tasks.jsonl").write_text("\n".join(lines) + "\n")

    def train(self, *options: str, status: int = 2) -> str:
        done = mcp_rollout("train", "notes.yaml", "--model", "model", *options, cwd=self.path)
        assert done.status == status, done.out + done.err
        return done.err if status else done.out

    def prepare(self) -> None:
        """As a training that has reached step 4, prepared before."""
        out = self.path / "outputs" / "train-notes"
        (out / "traces").mkdir(parents=True)
        sizes = {"rows": 2, "samples": 2, "prompt": 128, "response": 128}
        keys = {
            "engine": "cpu",
            "actor_rollout_ref.model.path": str(self.path / "model"),
            "actor_rollout_ref.rollout.agent.agent_loop_config_path": str(INCLUDED_CONFIGS / "agent_loop.yaml"),
            "actor_rollout_ref.rollout.custom.mcp.environments_dir": str(self.path),
            "data.seed": "0",
            "actor_rollout_ref.rollout.custom.mcp.seed": "0",
        }
        own = {"tool_format": "hermes", "held_out": False, "keys": keys, "changes": []}
        (out / "prepared.json").write_text(json.dumps(sizes | own))
        (out / "latest_checkpointed_iteration.txt").write_text("4")

    def lock(self) -> None:
        out = Path("outputs", "train-notes", "tools.yaml")
        assert mcp_rollout("tool-config", "notes.yaml", "-o", out, cwd=self.path).status == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "model", hidden=64, layers=1)


@pytest.fixture
def home(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    (tmp_path / "its_notes.py").write_text(SERVER)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "model").symlink_to(model)
    home = Home(tmp_path)
    home.write()
    yield home
    if home.held is not None:
        home.held.close()


def without_template(home: Home) -> None:
    copied = home.path / "bare"
    shutil.copytree(home.path / "model", copied)
    (copied / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((copied / "tokenizer_config.json").read_text())
    (copied / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": None}))


def larger_than_the_disk(home: Home) -> None:
    copied = home.path / "large"
    shutil.copytree(home.path / "model", copied)
    with (copied / "more.safetensors").open("wb") as file:
        file.truncate(2**43)


def at_work(home: Home) -> None:
    home.prepare()
    home.held = (home.path / "outputs" / "train-notes" / "prepared.json").open("rb")
    fcntl.flock(home.held, fcntl.LOCK_EX)


def without_config(home: Home) -> None:
    copied = home.path / "odd"
    shutil.copytree(home.path / "model", copied)
    (copied / "config.json").unlink()


def of_other_tools(home: Home) -> None:
    home.prepare()
    home.lock()
    server = home.path / "its_notes.py"
    server.write_text(SERVER.replace("name: str", "name: str, place: str"))
    sys.modules.pop("its_notes", None)


def faulty(home: Home) -> None:
    (home.path / "tasks.jsonl").write_text("{")


def unanswered(home: Home) -> None:
    (home.path / "tasks.jsonl").write_text("".join(f'{{"prompt": "Look at {n}."}}\n' for n in range(12)))


def taken(home: Home) -> None:
    (home.path / "there").mkdir()


Prepare = Callable[[Home], None]
WRONG: dict[str, tuple[Prepare | None, str, str]] = {
    "no model": (None, "--model nowhere", "nowhere: --model: no such directory"),
    "a model without a chat template": (without_template, "--model bare", "bare: --model: has no chat template"),
    "a model without a configuration": (without_config, "--model odd", "odd/config.json: --model: is no configuration"),
    "a key with a slip": (None, "data.trian_batch_size=2", "did you mean 'data.train_batch_size'?"),
    "a key without a value": (None, "data.train_batch_size", "no key with a value: 'data.train_batch_size'"),
    "a value that is none": (None, "trainer.logger=[", "Hydra refuses the configuration"),
    "a key of the environment with a slip": (
        None,
        "++actor_rollout_ref.rollout.custom.mcp.environment.limits.assistant_turn=2",
        "environment.limits.assistant_turn: unknown key",
    ),
    "a strategy that is none": (None, "--strategy forest", "environment.strategy.use"),
    "an engine that is none": (None, "--engine sglnag", "--engine: no engine 'sglnag'"),
    "GPUs that are not there": (None, "--gpus 64", "--gpus: 64 are asked for, and"),
    "a logger that is none": (None, "--logger wandbb", "--logger: verl has no logger 'wandbb' (did you mean 'wandb'?)"),
    "a recipe that is none": (None, "--recipe [dapo,gpso]", "--recipe: no recipe 'gpso' (did you mean 'gspo'?)"),
    "no reward": (lambda home: home.write(reward={"weights": {"solved": 0}}), "", "reward: nothing gives a reward"),
    "tasks without an answer": (unanswered, "", "12 of 12 rows have neither an answer nor checks"),
    "one row": (lambda home: home.write(tasks=1), "", "rows to train on"),
    "a server that does not start": (
        lambda home: home.write(servers={"notes": {"command": "no-such-program"}}),
        "",
        "no-such-program",
    ),
    "a faulty task": (faulty, "", "tasks.jsonl: line 1"),
    "a full disk": (larger_than_the_disk, "--model large", "--out: two checkpoints of this model may need"),
    "a directory that is there": (taken, "--out there", "there: --out: is there"),
    "nothing to resume": (None, "--resume", "--resume: holds no training of this command"),
    "a training at work there": (at_work, "--resume", "a training is at work there"),
    "other options than before": (Home.prepare, "--resume --steps 9 --seed 3", "--resume: began with data.seed=0, and"),
    "all steps done": (Home.prepare, "--resume --steps 4", "--steps: has 4 steps already"),
    "other tools than the checkpoint's": (of_other_tools, "--resume --steps 9", "no longer those of the checkpoint"),
}


@pytest.mark.parametrize("use", WRONG)
def test_a_wrong_use_is_one_message_before_anything_is_written(use: str, home: Home) -> None:
    prepare, options, message = WRONG[use]
    if prepare is not None:
        prepare(home)
    before = sorted(map(str, home.path.rglob("*")))
    said = home.train(*options.split())
    assert message in said and said.count("error: ") == 1, said
    assert sorted(map(str, home.path.rglob("*"))) == before


def test_rows_lock_and_measured_sizes_lead_to_verls_own_command(home: Home) -> None:
    """With a call that the template writes, prompts as they are rendered, and what a probe needed after them."""
    from mcp_rollout.rollout.verl.launch import composed

    printed = home.train(
        "--print", "--steps", "10", "--kl", "0.1", "--recipe", "gspo,tis", "data.train_batch_size=3", status=0
    )
    words = shlex.split(printed.removeprefix("$ "))
    assert words[1:3] == ["-m", "verl.trainer.main_ppo"]
    config = composed({}, [word for word in words[words.index("mcp_grpo") + 1 :] if not word.startswith("+")])
    out = home.path / "outputs" / "train-notes"
    actor, trainer = config["actor_rollout_ref"]["actor"], config["trainer"]
    rows = {
        split: list(read_rows(Path(config["data"][f"{key}_files"])))
        for split, key in (("train", "train"), ("test", "val"))
    }
    assert sum(map(len, rows.values())) == 12 and all(rows.values())
    assert (
        config["data"]["train_batch_size"] == 3
        and actor["ppo_mini_batch_size"] == 1
        and config["actor_rollout_ref"]["rollout"]["n"] == 4
    )
    assert 0 < config["data"]["max_prompt_length"] <= 1024 and 0 < config["data"]["max_response_length"] <= 512
    assert config["data"]["max_prompt_length"] % 128 == config["data"]["max_response_length"] % 128 == 0
    assert actor["policy_loss"]["loss_mode"] == "gspo" and config["algorithm"]["rollout_correction"]["rollout_is"]
    assert actor["use_kl_loss"] and actor["kl_loss_coef"] == 0.1
    assert trainer["total_training_steps"] == trainer["test_freq"] == 10 and trainer["save_freq"] == 2
    assert trainer["val_before_train"] and Path(trainer["default_local_dir"]) == out
    assert config["actor_rollout_ref"]["rollout"]["multi_turn"]["format"] == "hermes"
    assert len(list((out / "probe").glob("*.jsonl"))) == 1 and (out / "tools.yaml").is_file()


def test_steps_are_followed_as_verl_writes_them(tmp_path: Path) -> None:
    metrics, log = tmp_path / "steps.jsonl", tmp_path / "train.log"
    log.write_text("of an earlier run\nerror: of that one\n")
    following = Following(metrics, log, 4)
    with log.open("a") as file:
        file.write(
            "\x1b[36m(Worker pid=7)\x1b[0m 2026-11-29 08:00:00 [warning  ] batch teaches nothing    defect=tied\n" * 2
        )
        file.write("WARNING: of verl's\nTrace")
    assert following.news() == ["batch teaches nothing    defect=tied"] and "start" in str(following)
    values = {"training/global_step": 1, "mcp/score/mean": 0.25, "mcp/zero_advantage_share": 0.5, "timing_s/step": 20.0}
    whole = [json.dumps({"step": step, "data": values | {"mcp/score/mean": step / 4}}) for step in (1, 2)]
    metrics.write_text("\n".join([json.dumps({"step": 0, "data": {"val/score": 1.0}}), *whole, '{"step": 3, "da']))
    assert following.news() == []
    assert str(following) == (
        "step 2 of 4, 20 s a step, 0:00:40 left: reward 0.500, withdrawn 0%, failing calls 0%, without advantage 50%"
    )
    assert following.curve == "reward 0.250 to 0.500: ▁█"
    with log.open("a") as file:
        file.write("back\nerror: the tools changed\nanew\n(Worker pid=7) of a process\n")
    following.news()
    assert following.error() == "error: the tools changed\nanew"


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_the_printed_command_trains_the_same_and_a_training_goes_on_after_an_interrupt(home: Home) -> None:
    small = ["data.train_batch_size=2", "actor_rollout_ref.rollout.n=2", "data.max_response_length=64"]
    done = mcp_rollout("train", "notes.yaml", "--model", "model", "--out", "a", *small, cwd=home.path)
    assert done.status == 0, done.out + done.err
    assert "step 2 of 2" in done.err and "held-out rows" in done.out and "python -m verl.model_merger" in done.out

    shutil.copytree(
        home.path / "a", home.path / "b", ignore=shutil.ignore_patterns("traces", "global_step_*", "latest*")
    )
    (command,) = [line.removeprefix("$ ") for line in done.err.splitlines() if line.startswith("$ ")]
    words = shlex.split(command.replace(str(home.path / "a"), str(home.path / "b")))
    by_hand = subprocess.run(words, cwd=home.path, env=os.environ | OWN, capture_output=True, text=True, check=False)
    assert by_hand.returncode == 0, by_hand.stdout[-4000:] + by_hand.stderr[-4000:]
    assert len(ids(home.path / "a")) == 2 * 2 * 2 and ids(home.path / "a") == ids(home.path / "b")

    going_on = [COMMAND, "train", "notes.yaml", "--model", "model", "--out", "a", "--resume", "--steps", "30", *small]
    imports = {"PYTHONPATH": str(home.path)}  # which a program has not, and `python -m` has
    with subprocess.Popen(
        [*going_on, VOID], cwd=home.path, env=os.environ | OWN | imports, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 3 of 30"):
                process.send_signal(signal.SIGINT)
                break
        said = process.stderr.read()
    assert process.returncode == 130, said
    assert "interrupted: the checkpoint of step 2 is kept" in said
    left = subprocess.run(["pgrep", "-f", str(home.path / "a")], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def ids(directory: Path) -> dict[tuple[object, ...], list[int]]:
    """The ids of each trained trajectory, by step, task and sample."""
    return {
        (trace.origin.step, trace.task.task, trace.origin.sample): trace.segments[-1].response_ids
        for trace in read_traces(directory / "traces")
        if not trace.origin.validate_
    }
