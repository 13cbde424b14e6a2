"""What the strategies' experiment warms up on, and what it reports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

ROOT = Path(__file__).parents[2]
WORLDS = ROOT / "lab" / "worlds"
REST: dict[str, Any] = {"trained": 0.5, "minutes": 1.0, "turns": 14}
CLI = Path(sys.executable).with_name("mcp-rollout")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Days of the expert of the slice `any`."""
    home = tmp_path_factory.mktemp("days")
    run = ["run", f"{WORLDS}/depot.yaml:slice=any", "--engine", "expert", "--split", "train", "-n", "24"]
    run += ["--out", home / "expert"]
    subprocess.run([CLI, *run], check=True, stdout=subprocess.DEVNULL)
    export = ["trace", "export", home / "expert", "--sft", "-o", home / "sft.jsonl"]
    subprocess.run([CLI, *export], check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in (home / "sft.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> Any:
    from transformers import AutoTokenizer

    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    corpus = [json.dumps(row) for row in rows]
    model = make_tiny_model(tmp_path_factory.mktemp("model"), corpus=corpus, hidden=64, layers=1)
    return AutoTokenizer.from_pretrained(model)


@pytest.mark.parametrize("words", ["random", "known"])
def test_thoughts_copy_what_was_inspected_and_calls_what_was_thought(
    rows: list[dict[str, Any]], tokenizer: Any, words: Any
) -> None:
    from lab.strategies.conversations import Days
    from lab.strategies.words import CONDITIONS, OWN, TREATMENTS

    days = Days(tokenizer, rows, seed=0, parcels=None, words=words)
    chosen: dict[str, set[str]] = {condition: set() for condition in CONDITIONS}
    for day in [day for _ in range(25) for day in days.conversations(len(rows))]:
        text = tokenizer.decode(day.ids)
        inspected = re.findall(r"([A-Z]\d\d): (\w+), to ", text)
        thought = re.findall(r"It is (\w+), (\w+) it\.\n</think>", text)
        called = re.findall(r'"name": "(\w+)", "arguments": {"parcel": "([A-Z]\d\d)"', text)
        treated = [(name, parcel) for name, parcel in called if name != "inspect"]
        assert [condition for _, condition in inspected] == [condition for condition, _ in thought]
        assert [treatment for _, treatment in thought] == [name for name, _ in treated]
        assert [parcel for parcel, _ in inspected] == [parcel for _, parcel in treated]
        for condition, treatment in thought:
            chosen[condition].add(treatment)
    for kind, condition in enumerate(CONDITIONS):
        any_of = TREATMENTS if words == "random" else TREATMENTS[:OWN] if kind < OWN else [TREATMENTS[kind]]
        assert chosen[condition] == set(any_of)


def test_a_days_tokens_are_those_of_its_text(rows: list[dict[str, Any]], tokenizer: Any) -> None:
    """The shared prefix may be cut off without changing what is left."""
    from lab.demo.warm_up import rendered
    from lab.strategies.conversations import Days

    days = Days(tokenizer, rows, seed=0, parcels=1, words="known")
    for day in days.draw(len(rows)):
        prompt = days.prefix + day.ids[: day.sampled.index(True)]
        assert prompt == tokenizer.encode(tokenizer.decode(prompt), add_special_tokens=False)
    assert tokenizer.decode(days.prefix) == rendered(tokenizer, rows[0])[0].text.partition("<|im_start|>user")[0]


def test_a_single_turn_follows_a_history_without_thoughts(rows: list[dict[str, Any]]) -> None:
    from lab.strategies.conversations import reduced

    turn = max(index for index, message in enumerate(rows[0]["messages"]) if message["role"] == "assistant")
    messages = reduced(rows[0], turn)["messages"]
    assert messages[-1] == rows[0]["messages"][turn] and len(messages) == turn + 1
    assert not any("reasoning_content" in message for message in messages[:-1])
    assert sum(len(message.get("tool_calls") or ()) for message in messages) == 9  # two for each parcel, and the book's


def test_an_interval_is_that_of_the_paired_tasks(tmp_path: Path) -> None:
    from lab.strategies.results import Curve
    from lab.strategies.runs import Run

    run = Run(home=tmp_path, strategy="chain", budget=1)
    before, after = [0.1 * task for task in range(10)], [0.1 * task + 0.25 for task in range(10)]
    same = Curve(run=run, tokens=[0, 1], evaluated=[0, 5], rewards=[before, after], **REST)
    assert same.interval() == pytest.approx((0.25, 0.25))
    halves = [[0.0] * 60, [1.0] * 30 + [0.0] * 30]
    mixed = Curve(run=run, tokens=[0, 1], evaluated=[0, 5], rewards=halves, **REST)
    low, high = mixed.interval()
    assert mixed.lift == 0.5 and 0.3 < low < 0.45 and 0.55 < high < 0.7


def test_arms_are_compared_by_seed_at_equal_tokens_and_at_equal_steps(tmp_path: Path) -> None:
    from lab.strategies.results import Curve, by_arm, differences
    from lab.strategies.runs import Run

    def curve(strategy: str, seed: int, tokens: list[float], means: list[float]) -> Curve:
        run = Run(home=tmp_path, strategy=strategy, seed=seed, budget=1)
        steps = [5 * at for at in range(len(tokens))]
        return Curve(run=run, tokens=tokens, evaluated=steps, rewards=[[mean] for mean in means], **REST)

    # A step of a tree samples half the tokens.
    chains = [curve("chain", seed, [0, 100, 200], [0.1, 0.3, 0.5 + seed / 10]) for seed in (0, 1, 2)]
    trees = [curve("tree", seed, [0, 50, 100, 150], [0.1, 0.2, 0.6, 0.8]) for seed in (1, 0)]
    arms = by_arm([*chains, *trees])
    assert list(arms) == ["chain", "tree"]
    found = differences(arms["tree"], arms["chain"])
    assert found is not None
    by_tokens, by_steps = found
    # After 150 tokens, half way between two evaluations of the chains; and after step 10.
    assert by_tokens.at == 150 and by_tokens.by_seed == pytest.approx([0.8 - 0.45, 0.8 - 0.4])
    assert by_steps.at == 10 and by_steps.by_seed == pytest.approx([0.6 - 0.6, 0.6 - 0.5])
    assert by_steps.interval == pytest.approx((0.05 - 12.706 * 0.05, 0.05 + 12.706 * 0.05), abs=1e-3)
    assert differences([trees[0]], [chains[0]]) is None


def test_a_run_ends_at_the_first_evaluation_after_its_budget_and_a_repeated_step_counts_once(tmp_path: Path) -> None:
    from lab.strategies.runs import Run

    run = Run(home=tmp_path, strategy="chain", budget=60)

    def log(start: int, steps: range) -> None:
        run.directory.mkdir(exist_ok=True)
        lines: list[str] = []
        for step in steps:
            data = {"mcp/sampled_tokens": 10.0} | ({"val-core/depot/reward/mean@1": 0.5} if step % 5 == 0 else {})
            lines.append(json.dumps({"step": step, "data": data}))
        (run.directory / f"metrics-{start:03d}.jsonl").write_text("\n".join(lines) + "\n")

    log(0, range(1, 8))
    assert run.evaluated_at() is None  # spent at step 6, evaluated at step 5
    log(1, range(6, 10))
    assert run.evaluated_at() is None
    log(2, range(10, 11))
    assert run.evaluated_at() == 10


def test_a_run_that_was_cut_early_is_evaluated_before_its_first_step_all_the_same(tmp_path: Path) -> None:
    from lab.strategies.runs import Run

    run = Run(home=tmp_path, strategy="chain", budget=60)
    evaluated = {"step": 0, "data": {"val-core/depot/reward/mean@1": 0.5}}
    run.directory.mkdir()
    for start, written in enumerate(("", '{"step": 0, "data": {"val-core/depot}', json.dumps(evaluated))):
        assert run.overrides()["trainer.val_before_train"]
        (run.directory / f"metrics-{start:03d}.jsonl").write_text(written)
    assert not run.overrides()["trainer.val_before_train"]


def test_the_seed_of_a_run_is_that_of_its_rows_and_its_sampling(tmp_path: Path) -> None:
    from lab.strategies.runs import Run

    found = Run(home=tmp_path, strategy="chain", budget=60, seed=2).overrides()
    assert (found["data.seed"], found["actor_rollout_ref.rollout.custom.mcp.seed"]) == (2, 2)


def test_a_run_goes_on_where_it_is_given_a_larger_budget(tmp_path: Path) -> None:
    from lab.strategies.runs import Run

    done = tmp_path / "chain-0" / "done.json"
    done.parent.mkdir()
    done.write_text(json.dumps({"step": 25, "budget": 60}))
    assert [Run(home=tmp_path, strategy="chain", budget=budget).is_done for budget in (10, 60, 61)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("given", "status", "problem"),
    [
        (("--only", "chain-9"), 1, "--only: no run 'chain-9'; there are chain-0, chain_n5-0, tree-0"),
        pytest.param(("--tokens", "0"), 2, "--tokens: must be at least 1", marks=pytest.mark.full),
        pytest.param(("--out", str(ROOT / "Makefile")), 1, "--out: [Errno 17] File exists: ", marks=pytest.mark.full),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_prepared(
    given: tuple[str, str], status: int, problem: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "lab.strategies", "--out", out, *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status and problem in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()


def test_parts_of_long_days_copy_the_key_that_their_context_has(tmp_path: Path, tokenizer: Any) -> None:
    from lab.strategies.long_days import INSTRUCTION, UNKNOWN, LongDays

    run = ["run", WORLDS / "depot_long.yaml", "--engine", "expert", "--split", "train", "-n", "12"]
    run += ["--out", tmp_path / "expert"]
    subprocess.run([CLI, *run], check=True, stdout=subprocess.DEVNULL)
    export = ["trace", "export", tmp_path / "expert", "--sft", "-o", tmp_path / "sft.jsonl"]
    subprocess.run([CLI, *export], check=True, stdout=subprocess.DEVNULL)
    long = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    days = LongDays(tokenizer, long, seed=0, parcels=None, words="known")
    texts = [tokenizer.decode(day.ids) for _ in range(10) for day in days.conversations(len(long))]
    closed = [text for text in texts if '"key": "' in text]
    summed = [text for text in texts if INSTRUCTION in text]
    assert len(closed) > 5 and len(summed) > 25
    for text in closed:
        before, _, key = text.rpartition('"key": "')
        known = re.findall(r"The book has the key (\w+)\.", before) or [UNKNOWN]
        assert key.startswith(f'{known[-1]}"'), text
    held = 0
    for text in summed:
        before, _, after = text.rpartition(INSTRUCTION)
        known = re.findall(r"The book has the key (\w+)\.", before)
        said = re.findall(r"The book has the key (\w+)\.", after)
        assert said in ([], known[:1]), text
        held += bool(said)
    assert 0.1 < held / len(summed) < 0.9
    assert max(len(day.ids) for day in days.conversations(len(long))) < 900
    practice = LongDays(tokenizer, long, seed=0, parcels=1, words="random")
    for text in (tokenizer.decode(day.ids) for day in practice.conversations(len(long))):
        said, closings = re.findall(r"The book has the key (\w+)\.", text), re.findall(r'"key": "(\w+)"', text)
        assert (len(said), len(closings), len({*said, *closings})) == (3, 2, 1), text


def test_a_warm_up_of_another_length_is_not_taken_for_the_one_that_is_asked_for(tmp_path: Path) -> None:
    from lab.strategies.prepare import prepare

    (tmp_path / "prepared.json").write_text(json.dumps({"seed": 0, "scale": 0.05, "loss": 3.0}))
    prepare(tmp_path, scale=0.05)
    with pytest.raises(SystemExit, match=r"--warm-up: .* was warmed up with 0.05"):
        prepare(tmp_path)
