"""Cases of the frozen corpus, played by verl's own agent loop worker with our agent loop over in-process servers.

What is ours is entered as verl and a user enter it: environments as YAML files, rows, and verl's configuration. What
comes out is what verl's worker writes into TransferQueue, what its inference client was asked, and what a reader of
the traces sees. `view_of` and `statistics_of` are the only places that know the readers' API.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import frozen_worlds
import numpy as np
import yaml
from frozen_worlds import VAULT, Book
from tool_formats import DIALECTS, tokenizer_for

Case = dict[str, Any]
"""What is played: `kind`, `number`, `format`, `environment`, `row`, `leaves`, and what it differs in from others."""
Seen = dict[str, Any]
"""What came of it: `engine`, `world`, `samples`, `traces`, `statistics`; dicts, lists, JSON values and arrays."""
LEFT_OUT = frozenset({"raw_prompt", "extra_info", "metrics", "multi_modal_inputs", "mm_processor_kwargs"})
"""Of a sample: what it was given as a row, and times."""
_SERVERS = {
    "desk": {"factory": "frozen_worlds:desk", "trusted": True},
    "user": {"factory": "frozen_worlds:user", "trusted": True},
}


class Recorded:
    """An inference server that answers as its log says, found by the request's sampling seed."""

    def __init__(self, log: Sequence[Mapping[str, Any]]) -> None:
        self._left: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for each in log:
            self._left[each["seed"]].append(each)

    def __call__(self, prompt: list[int], seed: int, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self._left[seed]:
            return {"ids": [], "logprobs": None, "reason": "stop", "version": None, "error": "not recorded"}
        return self._left[seed].pop(0)


Answering = Callable[[list[int], int, Mapping[str, Any]], Mapping[str, Any]]
"""(prompt, seed, sampling parameters) -> a generation."""


@dataclass
class Server:
    """Takes the place of verl's inference server, and of its load balancer."""

    answering: Answering
    log: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def generate(self) -> Server:
        return self

    async def remote(self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        params = dict(sampling_params)
        seed, read = params.pop("seed"), list(prompt_ids)
        said = self.answering(read, seed, params)
        prompt = np.array(read, dtype=np.int32)
        kept = {key: said.get(key) for key in ("reason", "version", "error")}
        ids, logprobs = np.array(said["ids"], dtype=np.int32), said["logprobs"]
        if logprobs is not None:
            logprobs = np.array(logprobs, dtype=np.float32)
        self.log.append({"seed": seed, "params": params, "prompt": prompt, "ids": ids, "logprobs": logprobs, **kept})
        if said.get("error"):
            raise RuntimeError(said["error"])
        own = None if logprobs is None else [float(each) for each in logprobs]
        extra = {"global_steps": said["version"]}
        return TokenOutput(token_ids=ids.tolist(), log_probs=own, stop_reason=said["reason"], extra_fields=extra)


@dataclass
class Queue:
    """Takes the place of TransferQueue, which is processes of Ray: what verl's worker puts there."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    tags: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    async def put(self, *, key: str, partition_id: str, tag: dict[str, Any], **_: Any) -> None:
        self.tags[f"{partition_id}/{key}"] = tag

    async def batch_put(self, *, keys: list[str], fields: Any, tags: list[dict[str, Any]], partition_id: str) -> None:
        columns = {name: _rows(column) for name, column in fields.items()}
        for at, (key, tag) in enumerate(zip(keys, tags, strict=True)):
            self.rows[key] = {name: column[at] for name, column in columns.items()}
            self.tags[f"{partition_id}/{key}"] = tag

    def get(self, keys: list[str], partition: str, select_fields: list[str]) -> dict[str, list[Any]]:
        return {
            name: [self.rows[key][name] for key in keys]
            for name in select_fields
            if all(name in self.rows[key] for key in keys)
        }


def _rows(column: Any) -> list[Any]:
    import torch

    if isinstance(column, torch.Tensor):
        return list(column.unbind())
    return [getattr(each, "data", each) for each in column]


@dataclass
class Collected:
    """Takes the place of the Ray actor that collects statistics."""

    trajectories: list[Any] = field(default_factory=list[Any])

    @property
    def add(self) -> Collected:
        return self

    async def remote(self, trajectory: Any) -> None:
        self.trajectories.append(trajectory)


@contextmanager
def _same_ids() -> Iterator[None]:
    """The ids of trajectories, which programs see as a part of the ids of calls, are the same on each run."""
    numbers = count()

    def urandom(size: int) -> bytes:
        return (bytes.fromhex("a1b2c3d4") + next(numbers).to_bytes(size - 4, "big"))[:size]

    with patch("uuid.os", SimpleNamespace(urandom=urandom, **{k: getattr(os, k) for k in ("getpid", "name")})):
        yield


@contextmanager
def _numbered_worlds() -> Iterator[None]:
    """A trajectory's world is numbered by its sample, whichever trajectory gets its world first."""
    from mcp_rollout.rollout.trace.record import Trace

    begin = Trace.begin

    def numbered(id: str, task: Any, origin: Any) -> Trace:
        frozen_worlds.BOOK[0].worlds[id] = int(origin.sample > 1)
        return begin(id, task, origin)

    with patch.object(Trace, "begin", numbered):
        yield


@contextmanager
def _without_ray(queue: list[Queue], collected: list[Collected]) -> Iterator[None]:
    """verl's TransferQueue and our collector are processes of Ray; here they are objects, the last of these lists."""

    async def put(**given: Any) -> None:
        await queue[-1].put(**given)

    async def batch_put(**given: Any) -> None:
        await queue[-1].batch_put(**given)

    class Collector:
        @property
        def add(self) -> Collected:
            return collected[-1]

    with (
        patch("transfer_queue.init", lambda *_: None),
        patch("transfer_queue.async_kv_put", put),
        patch("transfer_queue.async_kv_batch_put", batch_put),
        patch(
            "transfer_queue.kv_batch_get",
            lambda keys, partition, select_fields: queue[-1].get(keys, partition, select_fields),
        ),
        patch("mcp_rollout.rollout.verl.runtime.statistics_collector", Collector),
    ):
        yield


@dataclass(kw_only=True)
class Stage:
    """A worker for one tool format and one mode of the engine, with the environments of its cases."""

    worker: Any
    server: list[Server]
    queue: list[Queue]
    collected: list[Collected]

    async def play(self, case: Case, answering: Answering, world: dict[str, Any] | None) -> Seen:
        """Play a case, without the view of its traces; `world` has its servers' answers, None has them made up."""
        from verl.utils.tensordict_utils import assign_non_tensor_data, list_of_dict_to_tensordict

        book = Book(seed=name_of(case), recorded=world, breaks=case.get("breaks", {}))
        server, queue, collected = Server(answering), Queue(), Collected()
        frozen_worlds.BOOK[:] = [book]
        self.server[:], self.queue[:], self.collected[:] = [server], [queue], [collected]
        rollout = self.worker.config.actor_rollout_ref.rollout
        rollout.n = rollout.val_kwargs.n = case["leaves"]
        prompt = {"uid": name_of(case), "agent_name": "mcp_agent", **case["row"]}
        batch = list_of_dict_to_tensordict([prompt])
        assign_non_tensor_data(batch, "validate", case.get("validate", False))
        assign_non_tensor_data(batch, "global_steps", case["step"])
        await self.worker.generate_sequences(batch)
        while tasks := list(self.worker.background_tasks):
            for task in tasks:
                await task
        return {
            "engine": sorted(server.log, key=lambda each: each["seed"]),  # of equal seeds, in their order
            "world": book.asked,
            "unknown": sorted(book.unknown),
            "samples": {key: sample_of(row) for key, row in sorted(queue.rows.items())},
            "tags": dict(sorted(queue.tags.items())),
            "advantages": advantages_of(queue),
            "statistics": sorted((statistics_of(each) for each in collected.trajectories), key=json.dumps),
        }


async def play(
    cases: Sequence[Case],
    environments: Mapping[str, Any],
    answering: Callable[[Case], Answering],
    world: Callable[[Case], dict[str, Any] | None],
) -> list[Seen]:
    """Play cases of one stage, in their order."""
    with tempfile.TemporaryDirectory() as directory:
        async with staged(cases[0], environments, Path(directory)) as stage:
            found = [await stage.play(case, answering(case), world(case)) for case in cases]
        views = read_views(Path(directory) / "traces")
    for case, seen in zip(cases, found, strict=True):
        traces = views.get(name_of(case), {})
        seen["traces"] = dict(traces.values())
        names = {trajectory: label for trajectory, (label, _) in traces.items()} | {directory: "DIRECTORY"}
        for key in ("samples", "statistics", "traces"):
            seen[key] = renamed(seen[key], names)
    return found


async def play_stages(
    cases: Sequence[Case],
    environments: Mapping[str, Any],
    answering: Callable[[Case], Answering],
    world: Callable[[Case], dict[str, Any] | None],
) -> list[Seen]:
    """Play cases of any stages; what came of them in the order of the cases."""
    stages: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for at, case in enumerate(cases):
        stages[stage_of(case)].append(at)
    found: dict[int, Seen] = {}
    for places in stages.values():
        own = [cases[at] for at in places]
        found.update(zip(places, await play(own, environments, answering, world), strict=True))
    return [found[at] for at in range(len(cases))]


def stage_of(case: Case) -> tuple[str, bool, bool, int, int]:
    """Cases with equal stages are played by one worker."""
    return case["format"], case["asynchronous"], case["logprobs"], *case["lengths"]


def name_of(case: Case) -> str:
    return f"{case['kind']}-{case['number']}"


@cache
def _worker() -> tuple[Any, Any]:
    """verl's agent loop worker with our agent loop, and the configuration of its clients; made once, for a second."""
    from verl_config import composed

    from mcp_rollout.rollout.verl.agent_loop import MCPAgentLoopWorker
    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    directory = tempfile.mkdtemp(prefix="frozen-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    config = composed(make_tiny_model(Path(directory), hidden=32, layers=1))
    config.actor_rollout_ref.rollout.custom.mcp.sampling_seed_key = "seed"
    of_clients = config.copy()
    of_clients.actor_rollout_ref.rollout.name = "sglang"  # each attempt of a generation has a seed of its own
    return MCPAgentLoopWorker(config, None), of_clients


@asynccontextmanager
async def staged(case: Case, environments: Mapping[str, Any], directory: Path) -> AsyncIterator[Stage]:
    from verl.workers.rollout.llm_server import LLMServerClient

    from mcp_rollout.rollout.verl.client import AttemptsClient
    from mcp_rollout.rollout.verl.runtime import WORKER

    name, is_asynchronous, has_logprobs, most_prompt, most_response = stage_of(case)
    files = directory / "environments"
    files.mkdir()
    for each, body in environments.items():
        text = yaml.safe_dump({"servers": _SERVERS, **body})
        (files / f"{each}.yaml").write_text(text.replace(VAULT, str(Path(__file__).with_name(VAULT))))
    servers, queue, collected = list[Server](), list[Queue](), list[Collected]()
    base: Any = AttemptsClient if is_asynchronous else LLMServerClient

    class Client(base):
        async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
            return "server", servers[-1]

        def _release_server(self, server_id: str, request_id: str | None = None) -> None:
            pass

    tokenizer = tokenizer_for(name)
    with _without_ray(queue, collected), _same_ids(), _numbered_worlds():
        worker, of_clients = _worker()
        config = worker.config
        config.trainer.default_local_dir = str(directory)
        config.data.max_prompt_length, config.data.max_response_length = most_prompt, most_response
        rollout = config.actor_rollout_ref.rollout
        rollout.custom.mcp.environments_dir = str(files)
        rollout.multi_turn.format, rollout.calculate_log_probs = name, has_logprobs
        options = {"end_ids": frozenset([tokenizer.eos_token_id])} if is_asynchronous else {}
        worker.llm_client = Client(of_clients, **options)
        worker.tokenizer, worker.hf_model_type = tokenizer, DIALECTS[name].model_type
        try:
            yield Stage(worker=worker, server=servers, queue=queue, collected=collected)
        finally:
            await WORKER.close()


def sample_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A sample's fields, without those of its row, and times."""
    return {name: neutral(value) for name, value in sorted(row.items()) if name not in LEFT_OUT}


def neutral(value: Any) -> Any:
    """A value as JSON values and arrays."""
    import torch

    if isinstance(value, torch.Tensor):
        array = value.detach().numpy()
        is_id = array.dtype == np.int64 and array.ndim == 1 and (abs(array) < 2**31).all()
        return array.astype(np.int32) if is_id else array
    if isinstance(value, Mapping):
        return {str(name): neutral(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [neutral(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def advantages_of(queue: Queue) -> dict[str, dict[str, Any]]:
    """What our estimators make of the case as a batch, by estimator and sample."""
    import torch
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from mcp_rollout.rollout.verl.estimators import columns_of
    from mcp_rollout.rollout.verl.settings import ESTIMATORS, AdvantagesConfig

    keys = [key for key in sorted(queue.rows) if f"train/{key}" in queue.tags]
    if not keys:
        return {}
    pad = torch.nn.utils.rnn.pad_sequence
    rewards, masks = (
        pad([queue.rows[key][name] for key in keys], batch_first=True) for name in ("rm_scores", "response_mask")
    )
    batch = tq.KVBatchMeta(keys=keys, tags=[queue.tags[f"train/{key}"] for key in keys], partition_id="train")
    found: dict[str, dict[str, Any]] = {}
    for name in ESTIMATORS:
        with columns_of(batch, AdvantagesConfig()):
            values, _ = get_adv_estimator_fn(name)(
                token_level_rewards=rewards, response_mask=masks, config=OmegaConf.create({"gamma": 1.0})
            )
        found[name] = {
            key: own[: len(queue.rows[key]["response_mask"])].numpy() for key, own in zip(keys, values, strict=True)
        }
    return found


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The value with the names of trajectories, which are random, replaced by labels."""
    if isinstance(value, dict):
        return {renamed(name, names): renamed(each, names) for name, each in value.items()}
    if isinstance(value, list):
        return [renamed(each, names) for each in value]
    if isinstance(value, str):
        for trajectory, label in names.items():
            value = value.replace(trajectory, label)
    return value


# What follows knows the API of the readers of traces.


def read_views(directory: Path) -> dict[str, dict[str, tuple[str, dict[str, Any]]]]:
    """By group and trajectory, a label that is the same on each run, and what a reader sees."""
    from mcp_rollout.rollout.trace.store import read_traces

    found: defaultdict[str, dict[str, tuple[str, dict[str, Any]]]] = defaultdict(dict)
    for trace in read_traces(directory):
        label = f"trajectory {trace.origin.sample} attempt {trace.origin.attempt}"
        found[trace.origin.uid][trace.id] = label, view_of(trace)
    return {group: dict(sorted(traces.items(), key=lambda each: each[1][0])) for group, traces in found.items()}


def view_of(trace: Any) -> dict[str, Any]:
    """A trace as its readers see it, without times."""
    origin, reward, failure, strategy = trace.origin, trace.reward, trace.failure, trace.strategy
    return neutral(
        {
            "origin": {
                "row": origin.row,
                "step": origin.step,
                "validate": origin.validate_,
                "parent": origin.parent,
                "branched_at": origin.branched_at,
            },
            "messages": trace.messages,
            "opening": trace.opening,
            "turns": [_turn(turn) for turn in trace.turns],
            "stop_reason": trace.stop_reason and str(trace.stop_reason),
            "failure": failure and {"kind": failure.kind, "message": failure.message},
            "is_withdrawn": trace.is_withdrawn,
            "reward": reward
            and {
                "score": reward.score,
                "parts": dict(reward.parts),
                "turns": list(reward.turns),
                "penalty": reward.penalty,
            },
            "setup": [_called(event) for event in trace.setup],
            "checks": [_called(each.call) | {"holds": each.holds} for each in trace.checks],
            "strategy": {
                "use": str(strategy.use),
                "shared_turns": strategy.shared_turns,
                "shared_tokens": strategy.shared_tokens,
                "replayed_calls": strategy.replayed_calls,
                "restored": strategy.restored,
                "diverged": strategy.diverged,
                "note": strategy.note,
            },
            "control_text": trace.control_text,
            "has_logprobs": trace.has_logprobs,
            "tokens_used": trace.tokens_used,
        }
    ) | {"segments": [_segment(trace, segment) for segment in trace.segments]}


def _segment(trace: Any, segment: Any) -> dict[str, Any]:
    length = len(segment.response_ids)
    turns, kinds = np.full(length, -1, dtype=np.int16), np.full(length, "-", dtype="S1")
    for span in segment.spans:
        turns[span.start : span.end] = span.turn
        kinds[span.start : span.end] = {"thinking": "t", "completion": "s", "context": "c", "forced": "f"}[span.kind]
    versions = [-1 if version is None else version for version in trace.versions(segment)]
    return {
        "prompt_ids": np.array(segment.prompt_ids, dtype=np.int32),
        "response_ids": np.array(segment.response_ids, dtype=np.int32),
        "loss_mask": np.array(segment.loss_mask, dtype=np.int8),
        "logprobs": np.array(segment.logprobs, dtype=np.float32),
        "versions": np.array(versions, dtype=np.int16),
        "turns": turns,
        "kinds": kinds,
        "images": segment.images,
    }


def _turn(turn: Any) -> dict[str, Any]:
    user = turn.user
    return {
        "content": turn.content,
        "thinking": turn.thinking,
        "finish_reason": str(turn.finish_reason),
        "sampled": turn.sampled,
        "generations": turn.generations,
        "trimmed": list(turn.trimmed),
        "weights_version": list(turn.weights_version),
        "seeds": list(turn.seeds),
        "attempts": [[each.tokens, each.weights_version, each.seed] for each in turn.attempts],
        "tools": [_called(event) for event in turn.tools],
        "user": user
        and {
            "seq": user.seq,
            "message": user.message,
            "done": user.done,
            "reward": user.reward,
            "state": user.state,
        },
        "agent_message": turn.agent_message,
        "marks": [[str(mark.kind), mark.detail, str(mark.action)] for mark in turn.marks],
        "reward": turn.reward,
    }


def _called(event: Any) -> dict[str, Any]:
    names = ("name", "arguments", "text", "is_error", "server", "id", "reward", "shown", "cut_tokens", "coerced")
    found = {name: getattr(event, name) for name in (*names, "structured", "state", "resends")}
    return found | {"fault": event.fault and str(event.fault)}


def statistics_of(trajectory: Any) -> dict[str, Any]:
    """What the trainer is told of a trajectory, without times."""
    names = ("tool_calls", "tool_errors", "failure", "sampled_tokens", "is_in_loss", "has_branched", "worlds_lost")
    values = {name: value for name, value in trajectory.values.items() if not name.endswith("_s")}
    return neutral({name: getattr(trajectory, name) for name in names} | {"values": values})
