"""The CPU engine while its trainer holds it: calls end, wait or are rejected, and continue as if never interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import torch
from transformers import AutoModelForCausalLM
from verl_config import composed

from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("imported_verl")]

PROMPT, PARAMS = list(range(20, 60)), {"max_tokens": 48, "logprobs": True, "seed": 3}
LOG = "actor_rollout_ref.rollout.engine_kwargs.transformers_cpu.engine_log"


@pytest.fixture
async def server(tmp_path: Path) -> Any:
    from mcp_rollout.rollout.verl_cpu.server import TransformersServer

    path = make_tiny_model(tmp_path / "model", hidden=64, layers=2)
    config = composed(path, f"{LOG}={tmp_path / 'engine.jsonl'}").actor_rollout_ref
    started = TransformersServer(config.rollout, config.model, 0)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    await started.update_weights({name: each.numpy() for name, each in model.state_dict().items()}, 1)
    return started


async def test_an_interrupted_generation_goes_on_as_the_uninterrupted_one_and_waits_while_the_engine_is_held(
    server: Any, tmp_path: Path
) -> None:
    whole = await server.generate("whole", PROMPT, PARAMS)
    parts: list[Any] = []

    async def generate() -> None:
        ids: list[int] = []
        while not parts or parts[-1].stop_reason == "aborted":
            left = {**PARAMS, "max_tokens": PARAMS["max_tokens"] - len(ids)}
            parts.append(await server.generate("part", PROMPT + ids, left))
            ids += parts[-1].token_ids

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate)
            while not server._decoder._batch:
                await anyio.lowlevel.checkpoint()
            await server.abort_all_requests()
            await anyio.wait_all_tasks_blocked()  # it has called again, and waits
            assert [part.stop_reason for part in parts] == ["aborted"]
            state = {name: each.numpy() for name, each in server._model.state_dict().items()}
            await server.update_weights(state, 2)
            await server.resume_generation()
    assert [part.extra_fields["global_steps"] for part in parts] == [1, 2]
    assert [token for part in parts for token in part.token_ids] == whole.token_ids
    assert [value for part in parts for value in part.log_probs] == pytest.approx(whole.log_probs, abs=1e-5)
    logged = list(map(json.loads, (tmp_path / "engine.jsonl").read_text().splitlines()))
    assert [each["weights_version"] for each in logged] == [[1, 1], [1, 1], [2, 2]]


async def test_calls_that_wait_return_at_once_when_the_trainer_rejects_them(server: Any) -> None:
    await server.abort_all_requests()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            found: list[Any] = []

            async def generate() -> None:
                found.append(await server.generate("waits", PROMPT, PARAMS))

            tasks.start_soon(generate)
            await anyio.wait_all_tasks_blocked()
            assert not found
            await server.abort_all_requests(reject_request=True)
        late = await server.generate("late", PROMPT, PARAMS)
        await server.resume_generation()
        after = await server.generate("after", PROMPT, PARAMS)
    assert [(each.token_ids, each.stop_reason) for each in (*found, late)] == [([], "aborted")] * 2
    assert after.token_ids
