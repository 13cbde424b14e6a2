"""`init`: from a servers file to an environment with tasks and a reward, and the commands that follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import anyio
import typer

from mcp_rollout.gateway.catalogue.names import policy_tools
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.types import ToolDefinition
from mcp_rollout.rollout.cli.doctor import Probes, fitness, reported
from mcp_rollout.rollout.cli.new_directory import new_directory
from mcp_rollout.rollout.cli.option_models import with_option_models
from mcp_rollout.rollout.cli.options import Target, load_target
from mcp_rollout.rollout.doctor.fix import write_fixed
from mcp_rollout.rollout.doctor.report import Verdict
from mcp_rollout.rollout.doctor.throwaway import PREFIX, on_copies
from mcp_rollout.rollout.environment.config import Environment, load_environment
from mcp_rollout.rollout.environment.startup import opened

_LONGEST = 2000
"""Characters of a result that an example's check may compare."""
_ENVIRONMENT = """\
# What a trajectory needs besides a policy. Each key that is not here has its default; docs/write.md has them all.

servers: servers.json  # your servers, with the scopes and directories that the doctor found

tasks:
  file: tasks.jsonl    # a task on each line: prompt, and optionally answer, check, setup, tools, seed, id
  test_share: 0.2      # held out from training; the content of a prompt decides, so that no prompt is on both sides

system: |-
  Use the tools where they help. End your last message with a line "Answer: ..." that has the answer and nothing else.

reward:
  weights:
    solved: 1.0        # the share of what a row asks for: its answer, and each of its checks
    own: 0.0           # computed and reported; give it a weight to train on it
  match: text          # how answers are compared: text, exact, number, regex or json
  answer_pattern: "Answer: *(.+)"
  functions:
    own: reward.py:compute_score

limits:
  assistant_turns: 10
"""
_REWARD = '''\
"""A reward of your own, with the arguments that verl's reward functions have."""


def compute_score(data_source, solution_str, ground_truth, extra_info):
    """A number, for example in [0, 1].

    Args:
        data_source: of the row, or the environment's name.
        solution_str: what the policy wrote in all of its turns, without the results of tools.
        ground_truth: the row's answer; None if it has none.
        extra_info: of the row; its key "mcp_trajectory" has the messages and the trace with all calls.
    """
    calls = [call for turn in extra_info["mcp_trajectory"]["trace"].turns for call in turn.tools]
    return float(bool(calls) and not any(call.is_error for call in calls))
'''
_NEXT = """\
{report}
wrote {out}/{{servers.json,{name}.yaml,tasks.jsonl,reward.py}}. Put your tasks into {out}/tasks.jsonl, then:
  mcp-rollout check-env {out}/{name}.yaml
  mcp-rollout run {out}/{name}.yaml --split all --engine MODEL --out outputs/{name}
  mcp-rollout train {out} --model MODEL
These play on your servers as {out}/servers.json has them: data outside of ${{lease.dir}} is your own."""

app = typer.Typer(add_completion=False)


@app.command()
@with_option_models
def init(
    servers: Annotated[Path, typer.Argument(metavar="SERVERS", help="Your mcpServers file.")],
    probes: Probes,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The directory to make; its name is the environment's.")
    ] = None,
) -> int:
    """Examine servers and write an environment with them, three tasks and a reward.

    The examination is that of `doctor`. Exit status 0 where all servers can be trained against as written, else 1 or 3
    as of `doctor`. A server that does not start is written as disabled.
    """
    out = out or Path(servers.stem)
    if out.exists():
        raise ConfigError("is there already", file=out, key="--out", remedy="name another directory")
    target = load_target(str(servers), None, all_valid=False)
    if target.environment is not None:
        raise ConfigError("is an environment already", file=servers, key="SERVERS", remedy="give an mcpServers file")
    reports, interrupted = reported(target, probes.options, calls=probes.call)
    if interrupted:
        raise KeyboardInterrupt
    name = out.resolve().name
    if not any(report.tools for report in reports):
        raise ConfigError("no server starts and has tools", file=servers, key=target.key, remedy="see the report")
    with new_directory(out) as made:
        copy = made / "servers.json"
        changes = write_fixed(target.source, copy, target.key, reports, disable_unusable=True)
        (made / f"{name}.yaml").write_text(_ENVIRONMENT)
        (made / "reward.py").write_text(_REWARD)
        examples = anyio.run(_examples, load_environment(made / f"{name}.yaml"), target)
        (made / "tasks.jsonl").write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in examples))
        # The template of lease directories is there, and has had to exist for the examples.
        there, here = str(made), str(out.absolute())
        copy.write_text(copy.read_text().replace(json.dumps(there)[1:-1], json.dumps(here)[1:-1]))
    for change in changes:
        typer.echo(f"{out / 'servers.json'}: {change.replace(there, here)}", err=True)
    # The copy of the servers file has what the others lacked.
    fit = fitness([report for report in reports if report.verdict is not Verdict.LEASE_DIR])
    states = {
        True: "all servers can be trained against",
        False: "a server is unfit",
        None: "a server's fitness is open",
    }
    typer.echo(_NEXT.format(report=f"{states[fit]}, as {out}/servers.json has them", out=out, name=name))
    return {True: 0, False: 1, None: 3}[fit]


async def _examples(environment: Environment, target: Target) -> list[dict[str, Any]]:
    """Three tasks that can be played at once, all with an answer, and one with a check too if a tool suits it."""
    # Errors name the user's file: the copy is gone when they are read.
    with on_copies(environment) as copied:
        async with opened(copied, name=copied.name, source=target.source, key=target.key) as gateway:
            tools = policy_tools(gateway.catalogue)
            if not tools:
                raise ConfigError("the servers offer no tools", file=target.source)
            examples: list[dict[str, Any]] = [
                {"prompt": "How many tools do you have?", "answer": len(tools)},
                {"prompt": "What is the name of your first tool?", "answer": tools[0].exposed_name},
            ]
            for tool in tools:
                if tool.read_only and not tool.input_schema.get("required") and (text := await _same(gateway, tool)):
                    check = {"name": tool.exposed_name, "returns": text, "match": "exact"}
                    # With an answer, since the check holds from the start: doing nothing is not to be the whole reward.
                    prompt = f"Call {tool.exposed_name}, leave everything as it is, and answer with the tool's name."
                    return [*examples, {"prompt": prompt, "answer": tool.exposed_name, "check": [check]}]
            return [*examples, {"prompt": "What is the name of your last tool?", "answer": tools[-1].exposed_name}]


async def _same(gateway: Gateway, tool: ToolDefinition) -> str | None:
    """What a tool returns without arguments in two leases; None if it refuses, answers differently, or at length."""
    texts: set[str] = set()
    for _ in range(2):
        async with gateway.lease(trajectory=f"init-{uuid4().hex}", task=None, seed=0) as session:
            result = await session.call(tool.exposed_name, {})
        texts.add("" if result.is_error else result.text)
    (text, *others) = texts
    # What names the place of a copy does not hold elsewhere.
    return None if others or len(text) > _LONGEST or PREFIX in text else text
