"""The verifier: what it lays out, what it makes of a tree, and what it leaves alone.

With the third-party server that does the work it is played in test_every_environment.py.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from mcp_types import CallToolResult

from mcp_rollout.mcp_servers import filesystem_ops
from mcp_rollout.mcp_servers.filesystem_ops.tasks import TASKS, Assignment, make_assignment, score
from mcp_rollout.mcp_servers.filesystem_ops.tree import Tree, lay_out, read

pytestmark = pytest.mark.anyio
Seats = Callable[..., AbstractAsyncContextManager[Callable[[str], Any]]]
ErrorOf = Callable[[CallToolResult], str]
TASK = TASKS.names("test")[2]
SEED = TASKS.seed(TASK)
ASSIGNMENT = make_assignment(TASK, SEED)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "lease"
    made.mkdir()
    return made


async def test_the_score_is_of_the_directory_as_it_is(players_of: Seats, place: Path):
    async with players_of(filesystem_ops.create_server(place)) as player:
        one = player("a")
        await one.begin(TASK, SEED)
        assert read(place) == ASSIGNMENT.before
        assert await one.score() == {"score": 0.0, "parts": {"done": 0.0, "intact": 1.0}}
        lay_out(place, ASSIGNMENT.goal)
        assert await one.score() == {"score": 1.0, "parts": {"done": 1.0, "intact": 1.0}}


def test_part_of_the_work_earns_its_part_and_a_move_is_one_item():
    made = single("Rename")
    old, new = next(iter(made.jobs[0].moves.items()))
    now = {new if path == old else path: text for path, text in made.before.items()}
    assert score(made, now).score == pytest.approx(1 / len(made.jobs[0].moves))


def single(words: str) -> Assignment:
    """A task of one job with these words."""
    made = (make_assignment(task, 0) for split in TASKS.sizes for task in TASKS.names(split))
    return next(one for one in made if len(one.jobs) == 1 and words in one.prompt)


def test_what_was_not_asked_for_costs():
    changed = {p for p in ASSIGNMENT.before | ASSIGNMENT.goal if ASSIGNMENT.before.get(p) != ASSIGNMENT.goal.get(p)}
    due = len(changed) - sum(len(job.moves) for job in ASSIGNMENT.jobs)
    spoilt = ASSIGNMENT.goal | {"README.txt": "x"}
    assert score(ASSIGNMENT, spoilt).score == pytest.approx((due - 1) / due)
    added = ASSIGNMENT.goal | {f"extra{n}": "" for n in range(due)}
    assert score(ASSIGNMENT, added).score == 0.0
    assert score(ASSIGNMENT, {}).score == 0.0


@pytest.mark.parametrize(("words", "attack"), [("Move all reports", "move"), ("set ", "edit")])
def test_doing_to_all_files_what_was_to_be_done_to_some_earns_little(words: str, attack: str):
    """Without opening one of them: `move` takes every report into the archive, `edit` ignores the condition."""
    scores: dict[int, list[float]] = {1: [], 2: [], 3: []}
    for task in [*TASKS.names("train"), *TASKS.names("test")]:
        made = make_assignment(task, TASKS.seed(task))
        job = next((job for job in made.jobs if words in job.words), None)
        if job is not None:
            now = moved_all(made.before, job.words) if attack == "move" else edited_all(made.before, job.words)
            scores[len(made.jobs)].append(score(made, now).score)
    assert len(scores[1]) >= 10 and max(scores[1]) == 0.0
    assert fmean([*scores[2], *scores[3]]) <= 0.1


def moved_all(tree: Tree, words: str) -> Tree:
    year = re.findall(r"archive/(\d{4})/", words)[0]
    return {path.replace("reports/", f"archive/{year}/"): text for path, text in tree.items()}


def edited_all(tree: Tree, words: str) -> Tree:
    key, value = re.findall(r"set (\w+) to (\d+)", words)[0]
    return {path: re.sub(rf"(?m)^{key} = \d+$", f"{key} = {value}", text) for path, text in tree.items()}


async def test_quoting_what_tools_said_earns_nothing(players_of: Seats, place: Path):
    async with players_of(filesystem_ops.create_server(place)) as player:
        one = player("a")
        await one.begin(TASK, SEED)
        one.messages.append({"role": "tool", "content": "Successfully moved everything"})
        await one.say("\n".join(ASSIGNMENT.goal.values()))
        assert (await one.score())["score"] == 0.0


def test_links_are_neither_followed_nor_files(place: Path, tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept.txt").write_text("kept")
    (place / "link").symlink_to(tmp_path / "outside")
    (place / "file").symlink_to(tmp_path / "outside" / "kept.txt")
    assert read(place) == {"file": "\0"}
    lay_out(place, {"a/b.txt": "x"})
    assert read(place) == {"a/b.txt": "x"} and (tmp_path / "outside" / "kept.txt").read_text() == "kept"


async def test_a_directory_with_something_in_it_is_never_overwritten(players_of: Seats, error_of: ErrorOf, place: Path):
    (place / "thesis.txt").write_text("two years of work")
    async with players_of(filesystem_ops.create_server(place)) as player:
        one = player("a")
        assert "is not empty" in error_of(await one.ask(one.world, "reset", task=TASK, seed=SEED))
        await one.harness(one.world, "release")
    assert read(place) == {"thesis.txt": "two years of work"}


async def test_two_trajectories_cannot_share_the_directory(players_of: Seats, error_of: ErrorOf, place: Path):
    async with players_of(filesystem_ops.create_server(place)) as player:
        await player("a").begin(TASK, SEED)
        other = player("b")
        assert "already holds 1 trajectories" in error_of(await other.ask(other.world, "reset", task=TASK, seed=1))
        assert read(place) == ASSIGNMENT.before


def test_directories_deeper_than_pythons_stack_are_read_and_cleared(place: Path):
    (place / "b.txt").write_text("b")
    path = "/".join(["a"] * 1100)
    subprocess.run(["mkdir", "-p", place / path], check=True)
    (place / path / "c.txt").write_text("c")
    assert list(read(place).items()) == [("b.txt", "b"), (f"{path}/c.txt", "c")]
    lay_out(place, {"d.txt": "d"})
    assert [entry.name for entry in place.iterdir()] == ["d.txt"]
