"""Two GRPO steps through verl's v1 trainer, the trajectories played by unchanged programs: a process for each."""

from __future__ import annotations

import os
from typing import Any

import anyio
import pytest
import recorded_programs
from agent_training import (
    SAMPLES,
    STEPS,
    Conversation,
    Run,
    as_the_program_shows_it,
    assert_every_token_is_the_engines_or_rendered,
    assert_trained_in_each_step,
    assert_trained_on,
    train_agents,
)

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(2400), pytest.mark.needs("programs")]

PROGRAMS = ("openai_agents_chat", "codex", "claude_code")


@pytest.fixture(scope="module", params=PROGRAMS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp(request.param)
    path = f"{recorded_programs.NODE}:{os.environ['PATH']}"

    def as_the_program_tells_it(prompt: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Conversation:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PATH", path)
            return anyio.run(as_the_program_shows_it, "sums", home)

    agents = {"sums": recorded_programs.agent(request.param)}
    return train_agents(
        home,
        "calculator",
        agents,
        as_the_program_tells_it,
        limits={"wall_clock_s": 900},
        prompt_tokens=20_000,
        taught={"vocab_size": 2048, "learns_prompt": False},
        timeout_s=2300,
        PATH=path,
    )


def test_an_unchanged_program_was_trained_in_both_steps_with_one_prompt_for_all_siblings(run: Run) -> None:
    assert_trained_in_each_step(run)
    for step in range(1, STEPS + 1):
        prompts = [record["prompt_ids"] for record in run.records if record["origin"]["step"] == step]
        assert prompts == [prompts[0]] * SAMPLES
    assert any(turn["tools"] for record in run.records for turn in record["turns"])


def test_every_token_is_the_engines_or_rendered_and_only_sampled_ones_are_in_the_loss(run: Run) -> None:
    assert_every_token_is_the_engines_or_rendered(run.records, run.generations)
    assert_trained_on(run.home, run.records)
