"""The pretrained model's desk, and the runs of its experiment; with `make model`, the model itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from commands import mcp_rollout

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "outputs" / "smollm2"
# Politeness among them, and the verbs that any question has.
FUNCTION_WORDS = frozenset(
    "a am an and any are at be by can could do does for from give go good has have hello hi how i in is it me my of on "
    "or please t tell that the them there to what which will with would you your".split()
)


def part_words(part: str, *, wordings: bool = True, items: bool = True) -> set[str]:
    """The beginnings of a part's keywords."""
    from lab.worlds.desk.words import SHOP

    texts = [text for tool in SHOP.tools.values() for text in tool.wordings[part]] if wordings else []  # type: ignore[index]
    texts += SHOP.items[part] if items else ()  # type: ignore[index]
    words = re.findall(r"[a-z]+", " ".join(texts).lower())
    return {word[:4] for word in words if word not in FUNCTION_WORDS}


def test_training_validation_and_test_share_no_keyword() -> None:
    from lab.worlds.desk.words import HARBOUR, PARTS, SHOP

    parts = {part: part_words(part) for part in PARTS}
    assert min(map(len, parts.values())) > 30
    for one, other in combinations(PARTS, 2):
        assert parts[one] & parts[other] == set(), (one, other)
    # Nor with what the prompt says of the tools, nor with the other domain's warm-up.
    told = " ".join(f"{name} {tool.description}" for name, tool in {**SHOP.tools, **HARBOUR.tools}.items())
    told += " ".join(text for tool in HARBOUR.tools.values() for text in tool.wordings["train"])
    known = {word[:4] for word in re.findall(r"[a-z]+", told.lower()) if word not in FUNCTION_WORDS}
    assert known & (parts["validation"] | parts["test"]) == set()


def test_training_validation_and_test_share_no_number() -> None:
    from lab.worlds.desk.words import PARTS, SHOP

    rng = Random(0)
    for tool in SHOP.tools.values():
        drawn = [{tool.value(rng, remainder) for _ in range(3000)} for remainder in range(len(PARTS))]
        assert min(map(len, drawn)) > 100
        assert not any(one & other for one, other in combinations(drawn, 2))


def test_the_desk_rewards_its_expert_and_neither_chance_nor_silence(tmp_path: Path) -> None:
    def played(engine: str, count: int, *slices: str) -> Any:
        desks = [ROOT / "lab" / "worlds" / f"desk.yaml:slice={name}" for name in slices]
        done = mcp_rollout("run", *desks, "--engine", engine, "-n", str(count), "--out", tmp_path / engine, "--json")
        assert done.status == 0, done.out + done.err
        return done.json

    expert = played("expert", 9, "fitting", "validation", "half", "blind", "form")
    assert (expert["failed"], expert["reward_mean"]) == (0, 1.0)
    assert played("random", 30, "fitting")["reward_mean"] <= 0.1


def test_a_warm_ups_expert_is_right_as_often_as_its_name_says() -> None:
    server = json.loads(
        subprocess.run(
            [sys.executable, "-c", COUNT],
            cwd=ROOT / "lab" / "worlds" / "desk",
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    assert server == {"fitting": 600, "validation": 600, "half": pytest.approx(300, abs=40)} | {
        "blind": pytest.approx(200, abs=40),
        "form": 600,
    }


COUNT = """
import json, server
def right(of):
    made = [server.begin(of, task, of.tasks.seed(task)) for task in of.tasks.names("train")]
    return sum(world.chosen == world.wish for world in made)
print(json.dumps({name: right(of) for name, of in server.SLICES.items()}))
"""


CLERK = """
import json, re
from pathlib import Path
from mcp_rollout.rollout.engines.chat import ChatEngine, Reply
from mcp_rollout.rollout.types import Call

ROWS = [json.loads(line) for line in Path({tasks!r}).read_text().splitlines()]
COLUMNS = ["price", "stock", "shelf"]

async def ask(messages, tools):
    assert [tool["function"]["name"] for tool in tools] == ["read_query"]
    if messages[-1]["role"] == "tool":
        return Reply(content="It is " + re.search(r": '?([^'}}]+)", messages[-1]["content"]).group(1) + ".")
    (row,) = [each for each in ROWS if each["prompt"][-1]["content"] == messages[-1]["content"]]
    column = COLUMNS[(COLUMNS.index(row["fitting"]) + {shift}) % 3]
    query = f"SELECT {{column}} FROM items WHERE name = '{{row['item']}}'"
    return Reply(calls=[Call(name="read_query", arguments={{"query": query}})])

def engine(options):
    return ChatEngine(name="clerk", complete=ask)
"""


@pytest.mark.full
def test_a_table_of_the_third_partys_server_rewards_the_column_that_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lab.pretrained.table import Table

    monkeypatch.syspath_prepend(tmp_path)
    table = Table(tmp_path / "table")
    table.home.mkdir()
    table.prepare(3)
    tasks = table.environments / "table.jsonl"
    for shift, reward in ((0, 1.0), (1, 0.0)):
        (tmp_path / f"clerk{shift}.py").write_text(CLERK.format(tasks=str(tasks), shift=shift))
        out = tmp_path / f"out{shift}"
        done = mcp_rollout(
            "run", *map(str, table.played("table", 3)), "--engine", f"clerk{shift}:engine", "--out", out, "--json"
        )
        assert done.status == 0, done.out + done.err
        assert (done.json["failed"], done.json["reward_mean"]) == (0, reward)
    taught = [json.loads(line) for line in table.expert("blind").read_text().splitlines()]
    asked = {json.dumps(row["messages"][1]) for row in taught}
    tested = {json.dumps(json.loads(line)["prompt"][1]) for line in tasks.read_text().splitlines()}
    assert len(tested) == 3 and not asked & tested
    assert all(str(row["messages"][3]["content"]).count(":") == 1 for row in taught)


@pytest.mark.usefixtures("imported_verl")
def test_what_smollm2s_template_renders_is_what_a_rollout_builds(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from mcp_rollout.rollout.tokens.template_check import parting
    from mcp_rollout.rollout.tokens.verl_builder import load_tokens
    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    model = make_tiny_model(tmp_path, hidden=64, layers=1)
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    template = (ROOT / "lab" / "smollm2" / "chat_template.jinja").read_text()
    schema = {
        "type": "object",
        "properties": {
            "item": {"type": "string", "description": "Its name."},
            "kind": {"enum": ["a", "b"], "type": "string"},
            "sizes": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["item"],
    }
    tools = [{"type": "function", "function": {"name": "price", "description": "What it costs.", "parameters": schema}}]
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How much?"}]
    assert parting(load_tokens(str(model), chat_template=template), prompt, tools, has_user=True) is None
    tokenizer = AutoTokenizer.from_pretrained(model)
    shown = tokenizer.apply_chat_template(prompt, tools=tools, chat_template=template, tokenize=False)
    kinds = 'kind?: "a" or "b", sizes?: {"type": "array", "items": {"type": "integer"}}'
    line = f"price(item: string (Its name.), {kinds}): What it costs."
    assert line in shown.splitlines()


def test_a_run_begins_again_from_its_checkpoint_with_its_seed(tmp_path: Path) -> None:
    from lab.pretrained.desk import Desk
    from lab.pretrained.runs import Run
    from lab.pretrained.settings import SETTINGS

    given = {"home": tmp_path, "world": Desk(tmp_path), "model": tmp_path, "label": "half"}
    run = Run(**given, setting=SETTINGS["half"], seed=2, is_control=True)
    run.directory.mkdir()
    found = run.overrides(tmp_path)
    assert (found["data.seed"], found["actor_rollout_ref.rollout.custom.mcp.seed"]) == (2, 2)
    assert (found["actor_rollout_ref.actor.optim.lr"], found["trainer.resume_mode"]) == (0.0, "auto")
    assert found["trainer.val_before_train"]
    last = run.setting.steps
    logs = ({"step": 0, "data": {"val-core/x": 0.3}}, {"step": last, "data": {"critic/score/mean": 0.4}})
    for start, each in enumerate(logs):
        (run.directory / f"metrics-{start:03d}.jsonl").write_text(json.dumps(each) + "\n")
        assert not run.is_trained
    assert not run.overrides(tmp_path)["trainer.val_before_train"]
    (run.directory / "metrics-002.jsonl").write_text(json.dumps({"step": last, "data": {"val-core/x": 0.5}}) + "\n")
    assert run.is_trained


def test_an_interval_over_three_seeds_is_students() -> None:
    from lab.demo.seeds import over_seeds

    assert over_seeds([0.5, 0.6, 0.7]) == pytest.approx((0.6 - 0.2484, 0.6 + 0.2484), abs=1e-4)
    assert over_seeds([0.5]) is None


@pytest.mark.full
@pytest.mark.needs("model")
@pytest.mark.usefixtures("imported_verl")
def test_the_converted_model_ends_its_turns_and_speaks_english(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(MODEL), AutoModelForCausalLM.from_pretrained(MODEL)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id == end
    assert model.config.vocab_size == len(tokenizer) == model.get_input_embeddings().num_embeddings
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    said = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :].tolist()
    assert "Paris" in tokenizer.decode(said) and said[-1] == end


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.needs("model")
@pytest.mark.parametrize("case", ["tree", "drop_previous", "thinking masked"])
def test_trajectories_with_its_tokenizer_are_what_the_engine_logged(case: str, tmp_path: Path) -> None:
    """A short part of `python -m lab.benchmarks.token_audit`, which fails where a position differs."""
    command = [sys.executable, "-m", "lab.benchmarks.token_audit", MODEL, "--out", tmp_path, "--by", "run"]
    command += ["--only", case, "--rows", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (found,) = json.loads((tmp_path / "results.json").read_text())
    assert found["positions"] > 5000 and found["apart"] < 1e-3
    assert (found["samples"] > 2 * 2 * 8) == (case == "drop_previous")  # a thought left a context


@pytest.mark.full
@pytest.mark.verl
@pytest.mark.timeout(1800)
@pytest.mark.needs("model")
def test_the_model_raw_warmed_up_and_trained_is_one_command_that_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lab.pretrained", "--smoke", "--only", "half-seed1"]
    command += ["--out", tmp_path]
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    (run,) = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert (run["seed"], run["tasks"], len(run["curve"]), set(run["held_out"])) == (1, 6, 2, {"0", "2"})
    assert len(list((tmp_path / "half-seed1").glob("verl-*.log"))) == 1  # the second call had nothing left to do
