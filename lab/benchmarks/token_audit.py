# pyright: basic
"""Ids, masks and log-probabilities of a model's trajectories against its engine's own log, position by position.

    python -m lab.benchmarks.token_audit outputs/smollm2 --out outputs/audit [--weights] [--by run] [--only tree]

MODEL is a directory with a tokenizer that has a chat template. Each case is a strategy or a thinking policy, played
by verl's GRPO (`trainer`), on the CPU or, with `--gpu`, on a GPU, and by `mcp-rollout run` (`run`), against a user and
a tool whose texts are hard to tokenise. Unless `--weights` is given, the weights are not the model's: a narrow random
model with the model's tokenizer. Both learn first to think, to call and to answer, as `conversation` does.

What is counted, over all samples with their prompts: positions whose id, mask or log-probability is not what the
engine logged; generations that are in no sample; ids, masks and log-probabilities that the trainer had otherwise than
the trace (`trainer`); and the largest and the mean difference of a log-probability from the trainer's own (`trainer`)
or from one forward pass of transformers (`run`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from engine_log import (
    Generation,
    compare,
    read_generations,
    read_records,
    read_trained_rows,
    recorded,
    samples_of,
    summaries_of,
    trained_differences,
)
from thoughts import thought_tokens
from verl_run import ROOT, gpu_engine, train
from verl_run import logged as logged_steps

from lab.benchmarks.audit_server import texts
from mcp_rollout.gateway.catalogue.tool_config import read_lock
from mcp_rollout.rollout.engines.engine import Engine, EngineOptions, ModelEngine
from mcp_rollout.rollout.engines.opening import opened_engine
from mcp_rollout.rollout.tokens.template_check import parting
from mcp_rollout.rollout.tokens.verl_builder import load_tokens
from mcp_rollout.rollout.types import Completion, Policy

SAMPLES, STEPS = 8, 2
RESPONSE_TOKENS, TURN_TOKENS = 1024, 48
COMPACT = {"keep_turns": 1, "summary_tokens": 48}
CASES: dict[str, dict[str, Any]] = {
    "chain": {},
    "tree": {"strategy": {"use": "tree", "tree": {"roots": 2}}},
    "single_turn": {"strategy": {"use": "single_turn", "single_turn": {"history_tokens": 512}}},
    "compact": {"strategy": {"use": "compact", "compact": COMPACT}},
    "compact masked": {"strategy": {"use": "compact", "compact": COMPACT | {"summary_loss": "mask"}}},
    "drop_previous": {"thinking": {"context": "drop_previous"}},
    "thinking budget": {"thinking": {"tokens_per_turn": 12}},
    "thinking masked": {"thinking": {"loss": "mask", "reward": "strip"}},
}
EXCHANGES = 4
"""Of a conversation that the model learns; each is a message of the user, a call and an answer."""
THOUGHT = "It was loud enough, so I can say what it was."
_BEGUN = re.compile(r"(?:(?!<think>|<tool_call>).)*?</think>", re.DOTALL)
"""A turn that began with a thought."""
CPU = {
    "engine": "cpu_135m",
    # Without padding, which would be two thirds of what the trainer computes.
    "actor_rollout_ref.model.use_remove_padding": True,
    # Logits of one sample of 1,500 tokens, with 248,000 ids, are 1.5 GB, of which an update holds several copies.
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
}
_LOG = "TOKEN_AUDIT_LOG"
_WAIT_S = 6 * 3600


@dataclass
class Found:
    """Counts of one case; of what differs, all must be 0."""

    case: str
    samples: int = 0
    positions: int = 0
    sampled: int = 0
    ids: int = 0
    masks: int = 0
    logprobs: int = 0
    left: int = 0
    """Generations in no sample."""
    twice: int = 0
    """Generations in several samples that are not of one tree."""
    trained: int = 0
    """Samples that the trainer had otherwise, or not at all."""
    apart: float = 0.0
    """Largest difference of a log-probability."""
    mean_apart: float | None = None
    """Mean difference of the trainer's log-probabilities, over the tokens in the loss."""
    step_s: list[float] = field(default_factory=list)
    """Duration of each of the trainer's steps."""
    texts: set[int] = field(default_factory=set)
    """Ids that occur."""

    @property
    def is_clean(self) -> bool:
        return (
            not (self.ids or self.masks or self.logprobs or self.left or self.twice or self.trained)
            and self.positions > 0
        )


def main() -> None:
    given = _arguments()
    # By default it would end this process alone, and leave the training that it waits for.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    home: Path = given.out.absolute()
    home.mkdir(parents=True, exist_ok=True)
    environment = _environment({})
    (home / "lock").mkdir(exist_ok=True)
    file = home / "lock" / "audit.yaml"
    file.write_text(yaml.safe_dump(environment))
    _command("tool-config", file, "-o", home / "lock.yaml")
    tools = [entry.definition.openai_schema() for entry in read_lock(home / "lock.yaml")]
    model = home / "model"
    if not model.is_dir():
        make_model(given.model, model, tools, weights=given.weights)
    where = parting(load_tokens(str(model)), conversation(0)[:2], tools, has_user=True)
    print(f"rollout and template part: {where or 'nowhere'}", flush=True)
    results: list[Found] = []
    for by in ("trainer", "run"):
        for name, changes in CASES.items():
            if given.by in (None, by) and given.only in (None, name):
                place = home / f"{by}-{name.replace(' ', '_')}"
                place.mkdir(exist_ok=True)
                environment = _environment(changes)
                if compact := environment.get("strategy", {}).get("compact"):
                    environment["strategy"] = {"use": "compact", "compact": compact | {"at_tokens": given.at_tokens}}
                (place / "audit.yaml").write_text(yaml.safe_dump(environment))
                rows = given.rows // 2 if name == "single_turn" else given.rows
                case, masked = f"{by}, {name}", name == "thinking masked"
                if by == "trainer":
                    engine = gpu_engine(given.gpu, given.dtype) if given.gpu else CPU
                    results.append(by_trainer(case, place, model, rows, engine=engine, masked=masked))
                else:
                    results.append(by_run(case, place, model, rows, masked=masked))
                print(line(results[-1]), flush=True)
    file = home / "results.json"
    found = {each["case"]: each for each in json.loads(file.read_text())} if file.exists() else {}
    found |= {each.case: _record(each) for each in results}
    file.write_text(json.dumps(list(found.values()), indent=2))
    if not all(each.is_clean for each in results):
        raise SystemExit("error: something differs")


def _record(found: Found) -> dict[str, Any]:
    return {**vars(found), "texts": len(found.texts)}


def line(found: Found) -> str:
    return (
        f"{found.case}: {found.positions:,} positions in {found.samples:,} samples, {found.sampled:,} sampled, "
        f"{len(found.texts):,} ids; different: {found.ids} ids, {found.masks} masks, {found.logprobs} logprobs, "
        f"{found.trained} trained; {found.left} generations left over, {found.twice} twice; "
        f"at most {found.apart:.1e} apart"
    )


def conversation(seed: int) -> list[dict[str, Any]]:
    """The world's texts, and answers with thoughts."""
    rng = Random(seed)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Shout what the user says."}]
    for _ in range(EXCHANGES):
        call = {"function": {"name": "shout", "arguments": {"text": "plum"}}}
        messages += [
            {"role": "user", "content": f"Shout {texts(rng)}"},
            {"role": "assistant", "reasoning_content": "plum", "tool_calls": [call]},
            {"role": "tool", "content": f"PLUM {texts(rng)}"},
            {"role": "assistant", "content": "PLUM", "reasoning_content": THOUGHT},
        ]
    return messages


def teach(model: Any, tokenizer: Any, tools: Sequence[dict[str, Any]], *, steps: int, rate: float) -> None:
    """Train what the assistant says, each step in another conversation."""

    def ids(messages: Sequence[dict[str, Any]], **more: bool) -> list[int]:
        return tokenizer.apply_chat_template(list(messages), tools=list(tools), return_dict=False, **more)

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in range(steps):
        messages = conversation(step)
        answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        parts = [(len(ids(messages[:at], add_generation_prompt=True)), len(ids(messages[: at + 1]))) for at in answers]
        said = torch.tensor([place for begin, end in parts for place in range(begin, end)])
        whole = torch.tensor([ids(messages)])
        hidden = model.base_model(input_ids=whole).last_hidden_state[0]
        # Of the answers alone: the vocabulary is most of the work.
        logits = model.get_output_embeddings()(hidden[said - 1])
        torch.nn.functional.cross_entropy(logits, whole[0, said]).backward()
        optimizer.step()
        optimizer.zero_grad()


def make_model(source: Path, path: Path, tools: Sequence[dict[str, Any]], *, weights: bool) -> None:
    """A model with the tokenizer of `source`, and with its weights or narrow random ones."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    if weights:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        steps, rate = 12, 1e-4
    else:
        kind = AutoConfig.from_pretrained(source).model_type
        config = AutoConfig.for_model(
            kind,
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=32768,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        model.generation_config = GenerationConfig(**ends)
        steps, rate = 160, 4e-3
    teach(model, tokenizer, tools, steps=steps, rate=rate)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def by_trainer(
    case: str, home: Path, model: Path, rows: int, *, engine: Mapping[str, object], masked: bool = False
) -> Found:
    """Two steps of GRPO through verl's own trainer.

    Args:
        engine: verl's overrides for it.
    """
    lock, parquet = home.parent / "lock.yaml", home / "rows.parquet"
    _command("data", home / "audit.yaml", "--split", "train", "-n", str(rows * STEPS), "-o", parquet)
    overrides = {
        **engine,
        "data.train_files": parquet,
        "data.val_files": parquet,
        "data.train_batch_size": rows,
        "data.max_prompt_length": 1024,
        "data.max_response_length": RESPONSE_TOKENS,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.rollout.n": SAMPLES,
        "actor_rollout_ref.rollout.max_num_seqs": 64,
        "actor_rollout_ref.rollout.multi_turn.tool_config_path": lock,
        "actor_rollout_ref.rollout.custom.mcp.environments_dir": home,
        "++actor_rollout_ref.rollout.custom.mcp.environment.limits.tokens_per_turn": TURN_TOKENS,
        "actor_rollout_ref.rollout.custom.mcp.record_trained": True,
        "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log": home / "engine.jsonl",
        "trainer.total_training_steps": STEPS,
    }
    if not (played := home / "played").exists():
        done = train(home, overrides, timeout_s=_WAIT_S)
        (home / "verl.log").write_text(done.stdout)
        if done.returncode:
            raise SystemExit(f"error: {case}: verl ended with status {done.returncode}\n{done.stdout[-4000:]}")
        played.touch()
    records, found = read_records(home / "traces"), Found(case)
    _judge(found, records, read_generations(home / "engine.jsonl"), _thoughts(model) if masked else None)
    found.step_s = [step["timing_s/step"] for step in logged_steps(home).values()]
    trained = read_trained_rows(home / "traces")
    found.trained = sum(trained_differences(trained, records).values())
    differences = [
        abs(one - other)
        for row in trained
        for one, other in zip(row["trainer_logprobs"], row["sampled_logprobs"] or (), strict=True)
    ]
    if differences:
        found.apart, found.mean_apart = max(differences), math.fsum(differences) / len(differences)
    return found


def by_run(case: str, home: Path, model: Path, rows: int, *, masked: bool) -> Found:
    """`mcp-rollout run` with the model in process."""
    log, played = home / "engine.jsonl", home / "played"
    engine = ("--engine", f"{__spec__.name}:logged", "--tokenizer", model)
    lengths = ("--response-tokens", str(RESPONSE_TOKENS), "--max-tokens", str(TURN_TOKENS), "--concurrency", "32")
    several = ("--split", "train", "-n", str(rows * STEPS), "--samples", str(SAMPLES))
    if not played.exists():
        _command("run", home / "audit.yaml", *engine, *lengths, *several, "--out", home / "traces", **{_LOG: str(log)})
        played.touch()
    records, found = read_records(home / "traces"), Found(case)
    _judge(found, records, read_generations(log), _thoughts(model) if masked else None)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for record in records:
        for sample in samples_of(record):
            found.apart = max(found.apart, _apart(plain, sample))
    return found


@torch.inference_mode()
def _apart(model: Any, sample: dict[str, Any]) -> float:
    """The largest difference of a sample's log-probabilities from those of one forward pass."""
    prompt, response = sample["prompt_ids"], torch.tensor(sample["response_ids"])
    trained = torch.tensor(sample["loss_mask"], dtype=torch.bool)
    if not trained.any():
        return 0.0
    hidden = model.base_model(input_ids=torch.tensor([prompt + sample["response_ids"]])).last_hidden_state[0]
    # Of the sampled tokens alone: the vocabulary is most of the work.
    logits = model.get_output_embeddings()(hidden[len(prompt) - 1 : -1][trained])
    own = logits.gather(1, response[trained][:, None])[:, 0] - logits.logsumexp(-1)
    return float((own - torch.tensor(sample["logprobs"])[trained]).abs().max())


def _judge(
    found: Found,
    records: Sequence[dict[str, Any]],
    generations: Sequence[Generation],
    thoughts: Callable[[list[int]], list[bool]] | None,
) -> None:
    """Count what differs between traces and the engine's log.

    Args:
        thoughts: of a turn's ids, which are parts of a thought and therefore not in the loss; None where they are.
    """
    masked = summaries_of(records) if found.case.endswith("compact masked") else set[tuple[int, ...]]()

    def in_loss(generation: Generation) -> list[bool]:
        ids = generation["token_ids"]
        if thoughts is None:
            return [tuple(ids) not in masked] * len(ids)
        return [not is_thought for is_thought in thoughts(ids)]

    samples = recorded(records)
    counted = compare(generations, samples, in_loss=in_loss)
    found.samples, found.positions, found.sampled = counted.samples, counted.positions, counted.sampled
    found.ids, found.masks, found.logprobs = counted.ids, counted.masks + counted.lengths, counted.logprobs
    found.left, found.twice = len(counted.left), counted.twice
    for each in samples:
        found.texts.update(each.prompt_ids, each.response_ids)


def _thoughts(model: Path) -> Callable[[list[int]], list[bool]]:
    tokenizer = AutoTokenizer.from_pretrained(model)

    def of(ids: list[int]) -> list[bool]:
        """As docs/train.md has it: the end of the turn is in no thought, and a first `</think>` may end one."""
        said = len(ids) - (ids[-1] == tokenizer.eos_token_id)
        found = thought_tokens("hermes", tokenizer, ids[:said]) + [False] * (len(ids) - said)
        if begun := _BEGUN.match(tokenizer.decode(ids)):
            lengths = (len(tokenizer.decode(ids[:count])) for count in range(1, len(ids) + 1))
            last = next(at for at, length in enumerate(lengths, 1) if length >= begun.end())
            found[:last] = [True] * last
        return found

    return of


@asynccontextmanager
async def logged(options: EngineOptions) -> AsyncGenerator[Engine]:
    """The engine of the directory that `--tokenizer` names, with a log of its generations."""
    async with opened_engine(replace(options, engine=str(options.tokenizer), max_sequences=64)) as engine:
        assert isinstance(engine, ModelEngine)
        yield replace(engine, make_policy=lambda origin: _Logged(engine.make_policy(origin)))


@dataclass
class _Logged:
    policy: Policy

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        prompt = list(ids)
        made = await self.policy.generate(ids, max_tokens=max_tokens, turn=turn)
        record = {"prompt_ids": prompt, "token_ids": made.ids, "log_probs": made.logprobs}
        with open(os.environ[_LOG], "a", encoding="utf-8") as log:  # noqa: ASYNC230 - a line, at once
            log.write(json.dumps(record) + "\n")
        return made


def _environment(changes: dict[str, Any]) -> dict[str, Any]:
    server = {"command": "${python}", "args": [str(Path(__file__).with_name("audit_server.py"))]}
    return {
        "servers": {"audit": server | {"scope": "shared", "trusted": True}},
        "system": {"instructions_of": "audit"},
        "user": {"server": "audit"},
        "reward": {"server": "audit", "parts": ["letters"]},
        "limits": {"assistant_turns": 6, "parallel_calls": 1, "wall_clock_s": _WAIT_S},
        "tasks": {"server": "audit"},
        **changes,
    }


def _command(*arguments: object, **variables: str) -> None:
    program = [sys.executable, "-m", "mcp_rollout", *map(str, arguments)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(program, cwd=ROOT, env=os.environ | {"PYTHONPATH": path} | variables, check=False)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(program)} ended with status {done.returncode}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="directory with a tokenizer, and with a model for --weights")
    parser.add_argument(
        "--out", type=Path, required=True, help="directory to write; what a case has played there is not played again"
    )
    parser.add_argument("--weights", action="store_true", help="the model's own weights, in place of random ones")
    parser.add_argument("--by", choices=("trainer", "run"), help="(default: both)")
    parser.add_argument(
        "--gpu", choices=("cuda", "cpu"), help="verl's actor on a GPU; the value is where its engine generates"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="what both compute in")
    parser.add_argument("--only", choices=list(CASES), help="one case")
    parser.add_argument("--rows", type=int, default=10, help="of a step; each has 8 trajectories (default: 10)")
    parser.add_argument(
        "--at-tokens", type=int, default=450, help="of compaction; more for a template with long prompts (default: 450)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
