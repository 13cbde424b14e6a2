"""`run` as evaluation: several environments, interruptions, and settings that must not change in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import mcp_rollout

from mcp_rollout.rollout.cli.new_server import new_server
from mcp_rollout.rollout.engines.scripted import WithoutModel
from mcp_rollout.rollout.evaluation.play import lengths_for
from mcp_rollout.rollout.evaluation.resume import is_done
from mcp_rollout.rollout.trace.store import read_traces

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("mcp-rollout")


def run(*arguments: str | Path, status: int = 0) -> Any:
    done = mcp_rollout("run", *arguments, "--json")
    assert done.status == status, done.out + done.err
    return done.json if status == 0 else done.err.splitlines()[-1]


def records(out: Path) -> list[Any]:
    lines = [line for file in sorted(out.glob("*.jsonl")) for line in file.read_bytes().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def test_several_environments_are_evaluated_together_and_apart(tmp_path: Path) -> None:
    names = ("calculator", "examples/guess/guess.yaml")
    report = run(*names, "--engine", "random", "-n", "4", "--samples", "4", "--success-at", "0.5", "--out", tmp_path)
    parts = report["environments"]
    assert list(parts) == ["calculator", "guess"] and report["trajectories"] == 32 and report["tasks"] == 8
    assert report["failed"] == 0 and list(report["pass_at_k"]) == list(report["pass_hat_k"]) == ["1", "2", "4"]
    for k, whole in report["pass_at_k"].items():
        both = [part["pass_at_k"][k]["value"] for part in parts.values()]
        assert whole["value"] == pytest.approx(sum(both) / 2) and whole["low"] <= whole["value"] <= whole["high"]
    for summary in (report, *parts.values()):
        assert summary["pass_at_k"]["1"] == summary["pass_hat_k"]["1"]
        assert summary["pass_at_k"]["1"]["value"] == pytest.approx(successes(tmp_path, summary, parts))
        assert summary["pass_at_k"]["4"]["value"] >= summary["pass_hat_k"]["4"]["value"]


def successes(out: Path, summary: Any, parts: Any) -> float:
    """The share of successes, counted from the records themselves."""
    names = [name for name, part in parts.items() if part is summary] or list(parts)
    scores = [trace["reward"]["score"] for trace in records(out) if trace["task"]["environment"] in names]
    return sum(score >= 0.5 for score in scores) / len(scores)


def test_a_run_that_is_killed_goes_on_without_repeating_or_losing_a_row(tmp_path: Path) -> None:
    arguments = ["calculator", "examples/guess/guess.yaml", "--engine", "expert", "-n", "10", "--samples", "4"]
    arguments += ["--concurrency", "2", "--out", str(tmp_path)]
    killed = subprocess.Popen(
        [COMMAND, "run", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 90
    while len(records(tmp_path)) < 5:
        assert killed.poll() is None and time.monotonic() < deadline
        with suppress(subprocess.TimeoutExpired):
            killed.wait(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    before = records(tmp_path)
    assert 5 <= len(before) < 80
    # The last record may be half written when the end comes.
    (journal,) = tmp_path.glob("*.jsonl")
    with journal.open("ab") as file:
        file.write(b'{"id": "half')
    report = run(*arguments, "--resume")
    assert (report["trajectories"], report["resumed"], report["failed"]) == (80, len(before), 0)
    played = Counter(
        (trace["task"]["environment"], trace["origin"]["row"], trace["origin"]["sample"])
        for file in tmp_path.glob("*.jsonl")
        for trace in (
            json.loads(line) for line in file.read_bytes().splitlines() if not line.startswith(b'{"id": "half')
        )
    )
    wanted = {(name, row, sample) for name in ("calculator", "guess") for row in range(10) for sample in range(4)}
    assert set(played) == wanted and set(played.values()) == {1}


def test_a_run_goes_on_only_with_the_settings_it_began_with(tmp_path: Path) -> None:
    arguments = ("calculator", "--engine", "none", "--out", tmp_path)
    run(*arguments, "-n", "1")
    assert run(*arguments, "-n", "2", "--samples", "2", "--resume")["resumed"] == 1
    said = run(*arguments, "-n", "2", "--resume", "--split", "train", status=2)
    assert "run.json: --split: the run in this directory had 'test', not 'train'" in said


def test_a_changed_reward_is_refused_until_what_is_kept_is_scored_by_it(tmp_path: Path) -> None:
    raw = yaml.safe_load((ROOT / "configs" / "environments" / "calculator.yaml").read_text())
    made, out, again = tmp_path / "calculator.yaml", tmp_path / "out", tmp_path / "out-rescored"
    arguments = (made, "--engine", "expert", "-n", "2", "--resume", "--out")
    made.write_text(yaml.safe_dump(raw))
    run(made, "--engine", "expert", "-n", "1", "--out", out)
    raw["reward"]["weights"] = {"valid_calls": 1.0}
    made.write_text(yaml.safe_dump(raw))
    said = run(*arguments, out, status=2)
    assert f"{made}: reward.weights: is not what it was for the traces in {out}" in said and "`rescore`" in said
    assert mcp_rollout("rescore", out, made).status == 0
    report = run(*arguments, again)
    assert report["resumed"] == 1 and report["environments"]["calculator"]["reward_parts"]["valid_calls"] == 1.0


def test_a_run_says_how_much_was_sampled_a_second(tmp_path: Path) -> None:
    arguments = ("calculator", "--engine", "expert", "--out", tmp_path)
    said = run(*arguments, "-n", "2")
    sampled = sum(turn.sampled for trace in read_traces(tmp_path) for turn in trace.turns)
    assert said["bytes_per_second"] == pytest.approx(sampled / said["seconds"], rel=0.01) and sampled > 0
    done = mcp_rollout("run", *arguments, "-n", "2", "--resume")
    assert "0 bytes of text sampled in " in done.out  # all are from before


def test_other_settings_are_refused_before_an_engine_is_reached(tmp_path: Path) -> None:
    run("calculator", "--engine", "none", "-n", "1", "--out", tmp_path)
    unreachable = ("--engine", "http://127.0.0.1:9", "--out", tmp_path, "--resume", "--split", "train")
    said = run("calculator", *unreachable, status=2)
    assert "run.json: --split" in said and "nothing answers" not in said


def test_environments_in_directories_of_one_place_run_together_and_are_exported_from_anywhere(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        new_server(name, tmp_path)
    both = ("alpha", "beta", "--environments-dir", tmp_path, "--engine", "expert", "-n", "1")
    assert run(*both, "--out", tmp_path / "both")["trajectories"] == 2
    played = {trace.task.environment: trace.reward for trace in read_traces(tmp_path / "both")}
    assert {name: reward and reward.score for name, reward in played.items()} == {"alpha": 1.0, "beta": 1.0}
    run(tmp_path / "beta" / "beta.yaml", "--engine", "expert", "-n", "1", "--out", tmp_path / "one")
    done = subprocess.run(
        [COMMAND, "trace", "export", "one", "--sft", "-o", "sft.jsonl"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "sft.jsonl").read_text().splitlines()
    assert json.loads(line)["tools"]


@pytest.mark.parametrize(("given", "context", "room"), [(None, 2048, 2048), (None, None, 65536), (500, 2048, 500)])
def test_a_trajectory_has_the_tokens_that_the_engines_context_holds(
    given: int | None, context: int | None, room: int
) -> None:
    class Small(WithoutModel):
        context_tokens = context

    lengths = lengths_for(Small("none"), response_tokens=given, tokens_per_turn=None)
    assert (lengths.response_tokens, lengths.context_tokens) == (room, context)


def test_a_slip_that_ends_a_run_before_it_begins_does_not_bind_the_next(tmp_path: Path) -> None:
    arguments = ("calculator", "--engine", "none", "-n", "1", "--out", tmp_path)
    assert "one of train, test" in run(*arguments, "--split", "validation", status=2)
    assert run(*arguments)["trajectories"] == 1


def test_random_calls_are_those_of_the_seed(tmp_path: Path) -> None:
    arguments = ("calculator", "--engine", "random", "-n", "1")
    said = {}
    for seed in ("0", "7"):
        run(*arguments, "--out", tmp_path / seed, "--seed", seed)
        said[seed] = [trace["response_ids"] for trace in records(tmp_path / seed)]
    assert said["0"] != said["7"]
    refused = run(*arguments, "--out", tmp_path / "7", "--resume", "--seed", "8", status=2)
    assert "run.json: --seed: the run in this directory had 7, not 8" in refused


def test_an_interrupted_run_says_what_it_kept_and_how_to_go_on(tmp_path: Path) -> None:
    # Where the tests run in a shell's background, SIGINT is ignored by all that they start.
    command = ["env", "--default-signal=INT", COMMAND, "run", "calculator", "--engine", "expert"]
    command += ["--samples", "100", "--out", tmp_path]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not records(tmp_path):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said, said
    kept = sum(is_done(trace) for trace in read_traces(tmp_path))
    assert f"interrupted: {kept} trajector" in said and "--resume" in said, said


def test_the_faults_of_all_environments_are_reported_together(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text("servers: {a: {command: x}}\nreward: {server: b}\n")
    done = subprocess.run(
        [
            COMMAND,
            "run",
            tmp_path / "one.yaml",
            tmp_path / "two.yaml",
            "nine",
            "--engine",
            "none",
            "--out",
            tmp_path / "o",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        str(tmp_path / "one.yaml"),
        str(tmp_path / "two.yaml"),
        "configs/environments/nine.yaml",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["calculator", "calculator", "--engine", "none"], "two of the environments have one name"),
        (["calculator", "--engine", "http://127.0.0.1:9/v1"], "nothing answers at http://127.0.0.1:9"),
        (["calculator", "--engine", "none", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
        (["calculator", "--engine", "none", "--samples", "10001"], "are more than 1000000 trajectories (give fewer"),
        (
            ["calculator", "--engine", "expart"],
            "none, recorded:DIR, a model's directory, the http:// address",
        ),
    ],
)
def test_what_cannot_be_run_is_said_at_once(tmp_path: Path, arguments: list[str], said: str) -> None:
    assert said in run(*arguments, "--out", tmp_path, status=2)


@pytest.mark.full
def test_the_table_shows_each_environment_and_all(tmp_path: Path) -> None:
    command = [COMMAND, "run", "calculator", "examples/guess/guess.yaml", "--engine", "expert", "-n", "2"]
    environment = os.environ | {"COLUMNS": "120"}
    shown = subprocess.run(
        [*command, "--out", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env=environment,
    ).stdout
    assert all(word in shown for word in ("calculator", "guess", "all", "pass@1", "1.000 [0.342, 1.000]")), shown
