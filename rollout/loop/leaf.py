"""The position of a trajectory in its group: chain, root of a tree, or branch."""

from __future__ import annotations

from time import monotonic

from gateway.leases.session import Session
from rollout.environment.config import Environment
from rollout.environment.sections import BranchAt, Strategy, TreeConfig
from rollout.loop.group import Group
from rollout.loop.replay import Branch, Replay
from rollout.loop.tape import RecordingPolicy, RecordingSession, Tape
from rollout.trace.record import Trace
from rollout.types import Policy, TurnSession


class Leaf:
    """A chain."""

    def joined(self, trace: Trace, session: Session, policy: Policy) -> tuple[TurnSession, Policy]:
        """The world and the policy that the trajectory is played with."""
        return session, policy

    def check(self) -> None:
        """Called when the agent has played. Raises Diverged where a branch did not reach its branching point."""


class Root(Leaf):
    """A chain that others branch off."""

    def __init__(self, group: Group, tape: Tape, tree: TreeConfig) -> None:
        self._group, self._tape, self._tree = group, tape, tree

    def joined(self, trace: Trace, session: Session, policy: Policy) -> tuple[TurnSession, Policy]:
        recording = RecordingPolicy(
            policy,
            self._tape,
            session,
            last=self._tree.first_turns if self._tree.branch_at is BranchAt.FIRST_TURNS else None,
            snapshots=self._tree.restore,
            changed=self._group.changed,
        )
        return RecordingSession(session, self._tape), recording


class Branching(Leaf):
    """A trajectory that shares its beginning with a root."""

    def __init__(self, branch: Branch) -> None:
        self._branch = branch
        self._replay: Replay | None = None

    def joined(self, trace: Trace, session: Session, policy: Policy) -> tuple[TurnSession, Policy]:
        self._replay = Replay(self._branch, session, policy, trace)
        return self._replay, self._replay

    def check(self) -> None:
        assert self._replay is not None
        self._replay.check()


async def leaf_of(trace: Trace, environment: Environment, group: Group | None) -> Leaf:
    """The trajectory's place in its group. A branch waits here for its branching point, before it asks for a lease."""
    tree, sample = environment.strategy.tree, trace.origin.sample
    if group is None or environment.strategy.use is not Strategy.TREE or trace.strategy.diverged:
        # A branch that diverged once is rolled out again as a chain, which cannot diverge.
        return Leaf()
    if sample < tree.roots:
        return Root(group, group.record(sample, trace.id), tree)
    began = monotonic()
    found = await group.branch(trace.origin, tree)
    trace.strategy.waited_s = monotonic() - began
    if isinstance(found, Branch):
        return Branching(found)
    trace.strategy.note = found
    return Leaf()
