"""Programs as processes: a directory, a defined end whatever they do, and nothing left."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import told
from told import Engine, note, played
from worlds import environment

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.sections import AgentConfig
from mcp_rollout.rollout.loop.agent import build_agent
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.trace.events import MarkKind
from mcp_rollout.rollout.trace.record import StopReason

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("imported_verl")]
ODD = Path(__file__).parents[2] / "support" / "odd_program.py"
PLAY = [note(), "Done."]
WORKER = """
import asyncio, sys
from pathlib import Path
from mcp_rollout.rollout.programs.process import Limits, run_process

home, *command = sys.argv[1:]
asyncio.run(run_process(command, Path(home), "", Limits(None, None, 256, 0.5), files={}, env={}))
"""


def odd(how: str, *more: str, **fields: Any) -> dict[str, Any]:
    command = [sys.executable, str(ODD), how, "${model.url}", "${mcp.url}", *more]
    return {
        "use": "mcp_rollout.rollout.programs.program:Program",
        "with": {"command": command, "close_timeout_s": 1, **fields},
    }


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


async def test_siblings_read_one_name_of_their_directory_and_one_time(tmp_path: Path) -> None:
    played_at: list[list[int]] = []
    outcomes: list[Any] = []
    paths: list[str] = []

    async def one(number: int) -> None:
        agent = odd("plain", frozen={"at [0-9T-]+": "at noon"})
        texts = [note('{"text": "/home/rollout-program/plum"}'), "Done."]
        made = await played(tmp_path / str(number), texts, agent=agent, trajectory=f"{number}{'a' * 9}")
        outcomes.append((made.trace.failure, made.trace.stop_reason, made.differences()))
        ((path, _),) = made.notes
        paths.append(path)
        played_at.append(made.trace.earlier[0].prompt_ids if made.trace.earlier else made.trace.prompt_ids)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(one, number)
    assert outcomes == [(None, StopReason.ANSWERED, 0)] * 3
    # What the policy writes of the directory is each program's own.
    assert len(set(paths)) == 3 and all(re.fullmatch(r".*/lease-\d+/plum", path) for path in paths)
    assert played_at[0] == played_at[1] == played_at[2]
    assert "In /home/rollout-program, HOME /home/rollout-program, at noon" in told.tokenizer_for("hermes").decode(
        played_at[0]
    )


@pytest.mark.parametrize("how", ["hang", "ignore"])
async def test_a_program_that_hangs_after_the_end_is_ended_and_scored(tmp_path: Path, how: str) -> None:
    file = tmp_path / "pid"
    limits = Limits(response_tokens=100_000, assistant_turns=1)
    made = await played(tmp_path, PLAY, agent=odd(how, str(file)), limits=limits)
    assert made.trace.stop_reason is StopReason.TURN_LIMIT and made.trace.reward is not None
    assert not file.exists() or gone(int(file.read_text()))


async def test_what_a_program_leaves_in_sessions_of_their_own_is_gone_when_it_is_scored(tmp_path: Path) -> None:
    file, begun, done = tmp_path / "pids", anyio.Event(), anyio.Event()

    async def gate() -> None:
        begun.set()
        await done.wait()

    async with anyio.create_task_group() as tasks:
        # Another trajectory goes on meanwhile, and what ends with the worker's last program has not ended.
        other = Engine(PLAY, gate=gate)
        tasks.start_soon(partial(played, tmp_path / "other", (), engine=other, agent=odd("plain"), trajectory="f" * 9))
        await begun.wait()
        made = await played(tmp_path, PLAY, agent=odd("fork", str(file)))
        assert made.trace.failure is None and made.trace.reward is not None
        pids = list(map(int, file.read_text().split()))
        assert len(pids) == 3 and all(map(gone, pids))
        done.set()


async def test_a_program_with_too_many_processes_is_ended_with_all_of_them_and_scored(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    made = await played(tmp_path, PLAY, agent=odd("bomb", str(file), max_processes=20))
    (mark,) = [mark for mark in made.trace.turns[0].marks if mark.kind is MarkKind.PROGRAM_ENDED]
    assert made.trace.failure is None and mark.detail.endswith("it had more than 20 processes")
    pids = list(map(int, file.read_text().split()))
    assert len(pids) > 20 and all(map(gone, pids))


async def test_a_worker_that_dies_leaves_nothing_of_its_programs(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    program = "trap '' TERM; echo $$ >> $0; env -i setsid sh -c 'echo $$ >> $0; sleep 600' $0 & sleep 600"
    worker = await anyio.open_process([sys.executable, "-c", WORKER, str(tmp_path), "sh", "-c", program, str(file)])
    with anyio.fail_after(60):
        while not file.exists() or len(pids := list(map(int, file.read_text().split()))) < 2:
            assert worker.returncode is None
            await anyio.lowlevel.checkpoint()
        ends = [os.pidfd_open(pid) for pid in pids]
        worker.kill()
        for end in ends:
            await anyio.wait_readable(end)
            os.close(end)
        await worker.aclose()


async def test_a_flood_of_output_is_read_and_its_end_is_on_record(tmp_path: Path) -> None:
    made = await played(tmp_path, PLAY, agent=odd("flood"))
    (mark,) = [mark for mark in made.trace.turns[0].marks if mark.kind is MarkKind.PROGRAM_ENDED]
    assert made.trace.failure is None and made.trace.reward is not None
    assert mark.detail.startswith("the program exited with status 3: ") and mark.detail.endswith("end of the flood")
    assert len(mark.detail) < 5000


@pytest.mark.parametrize("how", ["die", "orphan"])
async def test_a_program_that_is_killed_is_withdrawn(tmp_path: Path, how: str) -> None:
    made = await played(tmp_path, PLAY, agent=odd(how))
    assert made.trace.failure is not None
    assert made.trace.failure.message == "the program was killed by SIGKILL"


async def test_a_program_has_the_limits_of_servers(tmp_path: Path) -> None:
    made = await played(tmp_path, PLAY, agent=odd("memory", max_memory_mb=300))
    (mark,) = [mark for mark in made.trace.turns[0].marks if mark.kind is MarkKind.PROGRAM_ENDED]
    assert "it used up its 300 MB of memory" in mark.detail


async def test_a_guessed_key_is_refused_and_touches_no_trajectory(tmp_path: Path) -> None:
    made = await played(tmp_path, PLAY, agent=odd("guess"))
    (mark,) = [mark for mark in made.trace.turns[0].marks if mark.kind is MarkKind.PROGRAM_ENDED]
    assert '400 {"error":{"message":"there is no such trajectory"' in mark.detail
    assert len(made.engine.log) == 1 and made.trace.failure is None


async def test_a_program_that_takes_no_turn_is_withdrawn_with_what_it_said(tmp_path: Path) -> None:
    agent = {
        "use": "mcp_rollout.rollout.programs.program:Program",
        "with": {"command": ["sh", "-c", "echo no ${mcp.url}x; exit 2"]},
    }
    made = await played(tmp_path, PLAY, agent=agent)
    assert made.trace.failure is not None and made.trace.failure.kind == "agent_error"
    assert made.trace.failure.message.startswith("the program exited with status 2: no http://127.0.0.1:")
    assert made.trace.failure.message.endswith("/mcpx, without a turn")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "names no program"),
        ({"command": ["sh"], "env": {"A": "${model.nmae}"}}, "has ${model.nmae}, which is none of"),
        ({"command": ["sh"], "files": {"../x": ""}}, "files must be in the program's directory"),
        ({"command": ["sh"], "frozen": {"(": ""}}, "frozen has '('"),
        ({"command": ["no-such-program"]}, "no program 'no-such-program'"),
        ({"preset": "codx"}, "there is no preset 'codx'"),
    ],
)
def test_what_cannot_be_started_is_an_error_before_anything_is(fields: dict[str, Any], said: str) -> None:
    section = AgentConfig.model_validate({"use": "mcp_rollout.rollout.programs.program:Program", "with": fields})
    with pytest.raises(ConfigError) as found:
        build_agent(environment(told.desk([]), agent=section))
    assert said in str(found.value)


@pytest.mark.parametrize(
    ("fields", "key"),
    [({"strategy": "tree"}, "strategy.use"), ({"user": {"server": "desk"}}, "user")],
)
def test_an_environment_that_a_program_cannot_play_is_refused(fields: dict[str, Any], key: str) -> None:
    section = AgentConfig.model_validate(
        {"use": "mcp_rollout.rollout.programs.program:Program", "with": {"command": ["sh"]}}
    )
    with pytest.raises(ConfigError) as found:
        build_agent(environment(told.desk([]), agent=section, **fields))
    assert found.value.key == key
