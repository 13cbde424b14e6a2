"""The tasks: an office and one to three jobs in it, with their scripted expert and score."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from mcp_rollout.mcp_servers import kit
from mcp_rollout.mcp_servers.filesystem_ops.jobs import KINDS, Job
from mcp_rollout.mcp_servers.filesystem_ops.office import make_office
from mcp_rollout.mcp_servers.filesystem_ops.tree import Tree, same
from mcp_rollout.mcp_servers.kit import Call, Expert, ExpertTurn, Score, Split, Splits

TASKS = Splits("files", {"train": 200, "test": 60})
EXPERT_CALLS = 8
"""The expert's maximum of changes per turn."""
MIN_DUE = 2
"""Smallest number of items that wrong paths are weighed against, so that one slip does not void a small job."""
_WORDINGS: dict[Split, tuple[str, str]] = {
    "train": (
        "Please do these things, and nothing else:",
        "Office number {a} keeps its files in {places}. It has {b} desks.",
    ),
    "test": ("The to-do list:", "You look after {places} for a firm with {b} clerks and the telephone extension {a}."),
}
"""What introduces several jobs, and how a prompt begins, with two numbers that do not matter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment(kit.Problem):
    """A task; `difficulty` goes by the number of jobs: 1, 2 or 3."""

    jobs: tuple[Job, ...]
    before: Tree
    goal: Tree


def make_assignment(task: str, seed: int) -> Assignment:
    """The assignment of this task and seed, the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    split, index = TASKS.parse(task)
    rng = Random(f"{task}/{seed}")
    office = make_office(rng)
    kinds = KINDS[split]
    jobs = tuple(kinds[kind](rng, office) for kind in sorted(rng.sample(range(len(kinds)), 1 + index % 3)))
    goal = dict(office.tree)
    for job in jobs:
        job.apply(goal)
    numbered = "\n".join(f"{number}. {job.words}" for number, job in enumerate(jobs, 1))
    lead, frame = _WORDINGS[split]
    asked = jobs[0].words if len(jobs) == 1 else f"{lead}\n{numbered}"
    places = ", ".join(sorted({f"{path.partition('/')[0]}/" for path in office.tree if "/" in path}))
    return Assignment(
        task=task,
        seed=seed,
        prompt=f"{frame.format(places=places, a=rng.randint(10, 9999), b=rng.randint(3, 90))} {asked}",
        difficulty=("easy", "medium", "hard")[len(jobs) - 1],
        jobs=jobs,
        before=office.tree,
        goal=goal,
    )


def expert(assignment: Assignment) -> Expert:
    """Lists the tree, then does job after job: reads files, creates directories, makes the changes."""
    turns = [_turn("I look around first.", Call(name="directory_tree", arguments={"path": "."}))]
    for job in assignment.jobs:
        read = Call(name="read_multiple_files", arguments={"paths": list(job.reads)})
        turns.append(_turn("I have to know what is in these files.", read))
        if job.makes:
            made = [Call(name="create_directory", arguments={"path": path}) for path in job.makes]
            turns.append(_turn(f"{' and '.join(job.makes)}: not there yet.", *made))
        starts = range(0, len(job.changes), EXPERT_CALLS)
        turns += [_turn("Now I can do it.", *job.changes[start : start + EXPERT_CALLS]) for start in starts]
    return Expert(turns=[*turns, ExpertTurn(thinking="That was all.", content="It is done.")])


def _turn(thinking: str, *calls: Call) -> ExpertTurn:
    return ExpertTurn(thinking=thinking, calls=list(calls))


def score(assignment: Assignment, now: Tree) -> Score:
    """``done * intact``, each 0 to 1.

    `done`: the share of the items that are as in the goal. A moved file is one item, its old and its new path; each
    other path that differs between the initial tree and the goal is one. `intact`: 1 minus a share for each other path
    that changed, new files included; 0 if there are as many of those as items. So doing to all files what was asked for
    some of them earns nothing, and neither does a move to a wrong name.

    Args:
        now: The tree at the end of the trajectory.
    """
    before, goal = assignment.before, assignment.goal
    items = [{old, new} for job in assignment.jobs for old, new in job.moves.items()]
    due = {path for path in before | goal if before.get(path) != goal.get(path)}
    items += [{path} for path in due.difference(*items)]
    wrong = sum(not same(now.get(path), before.get(path)) for path in (before.keys() | now.keys()) - due)
    done = sum(all(same(now.get(path), goal.get(path)) for path in item) for item in items) / len(items)
    intact = max(0.0, 1 - wrong / max(len(items), MIN_DUE))
    return Score(score=done * intact, parts={"done": done, "intact": intact})
