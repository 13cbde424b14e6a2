"""Two GRPO steps through verl's v1 trainer, the trajectories played by unchanged programs: a process for each."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
import recorded_programs
from agent_training import (
    SAMPLES,
    STEPS,
    Conversation,
    Run,
    assert_every_token_is_the_engines_or_rendered,
    assert_trained_in_each_step,
    assert_trained_on,
    train_agents,
)

from rollout.environment.config import load_environment
from rollout.programs.trial import try_out
from rollout.tokens.chatml import ByteTokens

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(2400)]

PROGRAMS = ("openai_agents_chat", "codex", "claude_code")


@pytest.fixture(scope="module", params=PROGRAMS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    missing = [each for each in (recorded_programs.NODE, recorded_programs.CLIENTS) if not each.is_dir()]
    assert not missing, f"{missing} are missing: run `make programs clients`"
    home = tmp_path_factory.mktemp(request.param)
    path = f"{recorded_programs.NODE}:{os.environ['PATH']}"

    def as_the_program_tells_it(prompt: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Conversation:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PATH", path)
            return anyio.run(told, home)

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


async def told(home: Path) -> Conversation:
    """A task with the expert's first call and its answer, as the program shows them to the policy."""
    environment = load_environment("sums", home / "environments")
    trace = (await try_out(environment, home / "trial")).trace
    assert trace.failure is None and not trace.earlier, trace.failure
    listed = re.search(r"<tools>\n(.*?)\n</tools>", ByteTokens().decode(trace.prompt_ids), re.DOTALL)
    assert listed is not None
    tools = [json.loads(line) for line in listed[1].splitlines()]
    names = [tool["function"]["name"] for tool in tools]
    called = next(at for at, message in enumerate(trace.messages) if message.get("tool_calls"))
    for call in trace.messages[called]["tool_calls"]:
        # The trace has the world's name, before which programs put a server's.
        call["function"]["name"] = next(name for name in names if name.endswith(call["function"]["name"]))
    return [*trace.messages[: called + 2], trace.messages[-1]], tools


def test_an_unchanged_program_was_trained_in_both_steps_with_one_prompt_for_all_siblings(run: Run) -> None:
    assert_trained_in_each_step(run)
    for step in range(1, STEPS + 1):
        prompts = [record["prompt_ids"] for record in run.records if record["origin"]["step"] == step]
        assert prompts == [prompts[0]] * SAMPLES
    assert any(turn["tools"] for record in run.records for turn in record["turns"])


def test_every_token_is_the_engines_or_rendered_and_only_sampled_ones_are_in_the_loss(run: Run) -> None:
    assert_every_token_is_the_engines_or_rendered(run.records, run.generations)
    assert_trained_on(run.home, run.records)
