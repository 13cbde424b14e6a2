"""The client of the asynchronous modes: each attempt of an interrupted generation, through verl's own resuming loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from omegaconf import OmegaConf

from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.types import Attempt, FinishReason

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("imported_verl")]
END, STOP = 7, 8


@dataclass
class Server:
    """Replaces an inference server: answers with tokens, stop reasons and versions, and keeps what it was sent."""

    answers: list[tuple[list[int], str, int]]
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def generate(self) -> Server:
        return self

    async def remote(self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        ids, reason, version = self.answers[len(self.asked)]
        self.asked.append(sampling_params | {"prompt": list(prompt_ids)})
        logprobs = [-float(token) for token in ids]
        return TokenOutput(
            token_ids=ids, log_probs=logprobs, stop_reason=reason, extra_fields={"global_steps": version}
        )


def policy(server: Server, engine: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Our policy over the client of the asynchronous modes; a stand-in takes the place of verl's load balancer."""
    from mcp_rollout.rollout.verl.client import AttemptsClient
    from mcp_rollout.rollout.verl.policy import VerlPolicy

    async def acquire(*_: Any, **__: Any) -> tuple[str, Any]:
        return "server", server

    monkeypatch.setattr(AttemptsClient, "_acquire_server", acquire)
    monkeypatch.setattr(AttemptsClient, "_release_server", lambda *_, **__: None)
    rollout = {"name": engine, "response_length": 64, "custom": {"mcp": {"sampling_seed_key": "seed"}}}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    client = AttemptsClient(config, end_ids=frozenset([END]))
    params = {"logprobs": True}
    return VerlPolicy(client, "t", Origin(), params, stop_token_ids=[STOP], end_ids=[END], seed_key="seed")


INTERRUPTED = [([1, 2, 3], "aborted", 4), ([], "aborted", 4), ([5, END], "completed", 6)]


@pytest.mark.parametrize(("engine", "goes_on"), [("vllm", False), ("transformers_cpu", True)])
async def test_each_attempt_has_its_version_and_a_seed_that_draws_no_number_twice(
    engine: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(INTERRUPTED)
    completion = await policy(server, engine, monkeypatch).generate([9], max_tokens=20, turn=0)
    assert completion.ids == [1, 2, 3, 5, END] and completion.logprobs == [-1, -2, -3, -5, -END]
    first, _, last = (asked["seed"] for asked in server.asked)
    assert completion.attempts == (
        Attempt(tokens=3, weights_version=4, seed=first),
        Attempt(tokens=2, weights_version=6, seed=last),
    )
    assert (first == last) is goes_on and completion.seeds == (first,)
    assert completion.weights_version == (4, 6)
    assert [asked["prompt"] for asked in server.asked] == [[9], [9, 1, 2, 3], [9, 1, 2, 3]]


async def test_weights_that_sampled_no_token_are_not_among_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([([], "aborted", 1), ([5, END], "completed", 2)])
    completion = await policy(server, "vllm", monkeypatch).generate([9], max_tokens=20, turn=0)
    assert completion.weights_version == (2, 2)
    # An attempt that drew nothing leaves the seed as it was: what is sampled does not depend on when it came.
    assert len({asked["seed"] for asked in server.asked}) == 1


@pytest.mark.parametrize("last", [END, STOP])
@pytest.mark.parametrize("reason", ["abort", "aborted"])
async def test_a_generation_that_was_interrupted_at_its_last_token_is_complete(
    last: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server([([1, 2], reason, 4), ([5, last], reason, 5)])
    completion = await policy(server, "sglang", monkeypatch).generate([9], max_tokens=20, turn=0)
    assert (completion.ids, completion.finish_reason) == ([1, 2, 5, last], FinishReason.STOP)
    assert [attempt.weights_version for attempt in completion.attempts] == [4, 5]
