"""An asynchronous run derived again from the engine's own log and the weights that it was sent.

`problems` shares no code with what it checks: it reads traces, trained files, the log and the weights as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import torch
from engine_log import plain_record
from transformers import AutoModelForCausalLM

TOLERANCE = 1e-5
_MOST_TURNS = 20
_SEEDS = 2**31 - 1
"""Seeds of a trajectory's turns follow each other, modulo this."""
_SAMPLED = ("thinking", "completion")


@dataclass(kw_only=True)
class AsyncRun:
    """What a run left; a test changes copies of it."""

    traces: list[dict[str, Any]]
    generations: list[dict[str, Any]]
    """The engine's log, a line for each request."""
    trained: list[dict[str, Any]]
    """The samples of the trained files, dropped ones included."""
    model: Path
    weights: Path
    """Directory with `weights_VERSION.pt`."""


class _Request(NamedTuple):
    """A request of which something was sampled, as the log has it and a trace should."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_cut: bool
    """Whether it was interrupted with something left to sample."""

    def __str__(self) -> str:
        return f"{len(self.prompt)} tokens, then {list(self.ids)}{', cut' if self.is_cut else ''}"


def read_run(home: Path, generations: list[dict[str, Any]] | None = None) -> AsyncRun:
    """Read a run's directory.

    Args:
        generations: the log of an engine that is not ours, where sampling was not seeded.
    """
    if generations is None:
        generations = list(map(json.loads, (home / "engine.jsonl").read_text().splitlines()))
    lines = [line for path in (home / "traces").glob("*.jsonl") for line in path.read_text().splitlines()]
    files = sorted((home / "traces" / "trained").glob("*.parquet"))
    return AsyncRun(
        traces=list(map(plain_record, lines)),
        generations=generations,
        trained=[row for file in files for row in pq.read_table(file).to_pylist()],
        model=home / "model",
        weights=home,
    )


def turns_of(run: AsyncRun) -> list[dict[str, Any]]:
    """The turns of training."""
    return [turn for trace in run.traces if not trace["origin"]["validate"] for turn in trace["turns"]]


def problems(run: AsyncRun) -> list[str]:
    """Everything in which traces or trained samples differ from what the engine did; the weights, if nothing else."""
    is_seeded = any(turn["seeds"] for turn in turns_of(run))
    of_traces = _of_traces(run) if is_seeded else _of_unseeded_traces(run)
    found = [*of_traces, *_of_training(replace(run, traces=_latest(run.traces)))]
    return found or [*_of_weights(run)]


def _latest(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without attempts that were followed by another, which alone may be trained on."""
    last = {
        _key(trace): trace["origin"]["attempt"] for trace in sorted(traces, key=lambda each: each["origin"]["attempt"])
    }
    return [trace for trace in traces if trace["origin"]["attempt"] == last[_key(trace)]]


def _key(trace: dict[str, Any]) -> tuple[str, int]:
    return trace["origin"]["uid"], trace["origin"]["sample"]


def _of_traces(run: AsyncRun) -> Iterator[str]:
    """Ids, log-probabilities and attempts of each turn against the log; every request is in one trace."""
    by_seed: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for record in run.generations:
        if record["weights_version"][0] != record["weights_version"][1]:
            yield f"the weights changed within the request {record['request_id']}"
        if record["token_ids"] and record["sampling_params"]["temperature"]:  # validation takes the likeliest tokens
            by_seed[record["seed"]].append(record)
    traces = [trace for trace in run.traces if not trace["origin"]["validate"]]
    own = {trace["id"]: trace["turns"][_shared(trace) :] for trace in traces}
    seeds = Counter(turn["seeds"][0] for turns in own.values() for turn in turns)
    yield from (f"seed {seed} of {count} turns" for seed, count in seeds.items() if count > 1)
    by_id = {trace["id"]: trace for trace in traces}
    for trace in traces:
        for number, turn in enumerate(trace["turns"][: _shared(trace)]):
            root = by_id.get(trace["origin"]["parent"])
            if root is None or turn["attempts"] != root["turns"][number]["attempts"]:
                yield f"trace {trace['id']} turn {number}: not its root's attempts"
        for number, turn in enumerate(own[trace["id"]], _shared(trace)):
            where, requests = f"trace {trace['id']} turn {number}", _requests(by_seed, turn["seeds"][0])
            context: list[int] = []
            for request in requests:
                if context and request["prompt_ids"] != context:
                    yield f"{where}: a request does not continue the one before"
                context = request["prompt_ids"] + request["token_ids"]
            done = [(len(each["token_ids"]), each["weights_version"][0], each["seed"]) for each in requests]
            if (noted := [tuple(each.values()) for each in turn["attempts"]]) != done:
                yield f"{where}: attempts {noted} instead of {done}"
            ids, logprobs = _sampled(trace, number)
            if ids != [token for each in requests for token in each["token_ids"]][: len(ids)]:
                yield f"{where}: other ids than the engine's"
            if logprobs != [value for each in requests for value in each["log_probs"]][: len(logprobs)]:
                yield f"{where}: other log-probabilities than the engine's"
    # What is left was under way when the job, or a worker, ended: of trajectories without a trace.
    of_traces = {
        (turns[0]["seeds"][0] + later) % _SEEDS: trace
        for trace, turns in own.items()
        if turns
        for later in range(_MOST_TURNS)
    }
    for seed in by_seed.keys() & of_traces.keys():
        yield f"trace {of_traces[seed]} lacks a turn that the engine has sampled, with seed {seed}"


def _of_unseeded_traces(run: AsyncRun) -> Iterator[str]:
    """Each attempt is one finished request of the log: its prompt, ids and log-probabilities, and how it ended.

    Siblings may sample alike, and no seed tells their requests apart; whichever it was, there are as many of each.
    """
    noted: Counter[_Request] = Counter()
    traces = [trace for trace in run.traces if not trace["origin"]["validate"]]
    for trace in traces:
        for number, turn in enumerate(trace["turns"]):
            ids, logprobs = _sampled(trace, number)
            if sum(each["tokens"] for each in turn["attempts"]) != len(ids):
                yield f"trace {trace['id']} turn {number}: attempts of another number of tokens"
            spans = [span for span in trace["spans"] if span["turn"] == number and span["kind"] in _SAMPLED]
            start, done = min((span["start"] for span in spans), default=0), 0
            prompt = [*trace["prompt_ids"], *trace["response_ids"][:start]]
            for attempt in turn["attempts"]:
                end = done + attempt["tokens"]
                is_cut = attempt is not turn["attempts"][-1]
                sampled = tuple(ids[done:end]), tuple(logprobs[done:end])
                noted[_Request((*prompt, *ids[:done]), *sampled, is_cut)] += 1
                done = end
    ends = {each["finish_reason"].get("matched") for each in run.generations}
    asked: Counter[_Request] = Counter()
    for each in run.generations:
        if each["token_ids"] and each["sampling_params"]["temperature"]:
            ids, is_full = each["token_ids"], len(each["token_ids"]) == each["sampling_params"]["max_new_tokens"]
            is_cut = each["finish_reason"]["type"] == "abort" and not is_full and ids[-1] not in ends
            asked[_Request(tuple(each["prompt_ids"]), tuple(ids), tuple(each["log_probs"]), is_cut)] += 1
    yield from (f"an attempt that the engine did not make: {each}" for each in (noted - asked).elements())
    # What is left was under way when the job ended, from the first turn on: of trajectories without a trace.
    openings, begun = {tuple(trace["prompt_ids"]) for trace in traces}, set[tuple[int, ...]]()
    for left in sorted((asked - noted).elements(), key=lambda each: len(each.prompt + each.ids)):
        if left.prompt in openings or any(left.prompt[: len(context)] == context for context in begun):
            begun.add(left.prompt + left.ids)
        else:
            yield f"a request of no trace: {left}"


def _shared(trace: dict[str, Any]) -> int:
    """Turns that a branch of a tree has from its root."""
    return trace["strategy"]["shared_turns"] if trace["origin"]["parent"] else 0


def _requests(by_seed: dict[int, list[dict[str, Any]]], seed: int) -> list[dict[str, Any]]:
    """The requests of a turn, in order: all with its seed, or each attempt with one that is made of it."""
    found = by_seed.pop(seed, [])
    while (resumed := _resumed(seed, len(found))) in by_seed:
        found += by_seed.pop(resumed)
    return found


def _resumed(seed: int, attempt: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _SEEDS


def _sampled(trace: dict[str, Any], turn: int) -> tuple[list[int], list[float]]:
    ids: list[int] = []
    logprobs: list[float] = []
    for segment in (*trace["earlier"], trace):
        for span in segment["spans"]:
            if span["turn"] == turn and span["kind"] in _SAMPLED:
                ids += segment["response_ids"][span["start"] : span["end"]]
                logprobs += segment["logprobs"][span["start"] : span["end"]]
    return ids, logprobs


def _of_training(run: AsyncRun) -> Iterator[str]:
    """Which trajectories were trained on, how often, and on which of their tokens."""
    traces = {trace["id"]: trace for trace in run.traces}
    if len(traces) < len(run.traces):
        yield "two traces have one id"
    trained = [row for row in run.trained if row["dropped"] is None]
    for key in (("trace", "segment"), ("uid", "sample", "output")):
        counts = Counter(tuple(row[name] for name in key) for row in trained)
        yield from (f"{key} {found} was trained on {count} times" for found, count in counts.items() if count > 1)
    for row in trained:
        trace = traces.get(row["trace"])
        if trace is None:
            yield f"the sample {row['trace']} has no trace"
            continue
        if trace["stop_reason"] in (None, "failed", "aborted") or trace["origin"]["validate"]:
            yield f"trace {trace['id']} was trained on, and is withdrawn or of the validation"
        segment = [*trace["earlier"], trace][row["segment"]]
        versions = _versions(trace, segment)
        if [bool(value) for value in segment["loss_mask"]] != row["mask"]:
            yield f"trace {trace['id']}: another mask"
        elif [versions.get(place) for place in _places(row)] != row["versions"]:
            yield f"trace {trace['id']}: other versions than those of its attempts"
    last = max((row["step"] for row in trained), default=0)
    done = {row["trace"] for row in run.trained}
    for trace in run.traces:
        # A group that ended in time is trained on or dropped; the prompts of the last steps may be left over.
        is_left = trace["id"] not in done and not trace["origin"]["validate"]
        if is_left and trace["stop_reason"] not in ("failed", "aborted") and trace["origin"]["step"] < last - 2:
            yield f"trace {trace['id']} of step {trace['origin']['step']} was neither trained on nor dropped"


@torch.inference_mode()
def _of_weights(run: AsyncRun) -> Iterator[str]:
    """The log-probability of each trained token under the version that is recorded for it."""
    traces = {trace["id"]: trace for trace in run.traces}
    wanted: defaultdict[int, list[tuple[dict[str, Any], list[int]]]] = defaultdict(list)
    for row in run.trained:
        if row["dropped"] is None and row["trace"] in traces:
            by_version: defaultdict[int, list[int]] = defaultdict(list)
            for place, version in zip(_places(row), row["versions"], strict=True):
                by_version[version].append(place)
            for version, places in by_version.items():
                wanted[version].append((row, places))
    model = AutoModelForCausalLM.from_pretrained(run.model, dtype=torch.float32).eval()
    for version, rows in sorted(wanted.items()):
        file = run.weights / f"weights_{version}.pt"
        if not file.exists():
            yield f"version {version} was never sent to the engine"
            continue
        model.load_state_dict(torch.load(file), strict=False)
        model.tie_weights()
        for row, places in rows:
            trace = traces[row["trace"]]
            segment = [*trace["earlier"], trace][row["segment"]]
            prompt, response = segment["prompt_ids"], segment["response_ids"]
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
            found = logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
            recorded = dict(zip(_places(row), row["sampled_logprobs"], strict=True))
            apart = max(abs(found[place].item() - recorded[place]) for place in places)
            if apart > TOLERANCE:
                yield f"trace {row['trace']}: {apart:.1e} from what version {version} gives"


def _versions(trace: dict[str, Any], segment: dict[str, Any]) -> dict[int, int]:
    """The version of each sampled token of a segment, by the attempts of its turns."""
    found: dict[int, int] = {}
    for number, turn in enumerate(trace["turns"]):
        spans = [span for span in segment["spans"] if span["turn"] == number and span["kind"] in _SAMPLED]
        places = [place for span in spans for place in range(span["start"], span["end"])]
        versions = [each["weights_version"] for each in turn["attempts"] for _ in range(each["tokens"])]
        found |= dict(zip(places, versions, strict=False))
    return found


def _places(row: dict[str, Any]) -> list[int]:
    return [place for place, is_in_loss in enumerate(row["mask"]) if is_in_loss]
