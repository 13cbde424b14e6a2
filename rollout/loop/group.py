"""The trajectories of one row as a tree: roots begin as chains, and the others branch off their turns.

A branch waits for its branching point without a lease and without asking for one, so a root always finds the slots that
it would find in a group of chains. The caller of a trajectory calls `leave` when it ends in any way, and a branch whose
roots have all left without a turn to branch at becomes a chain: no branch waits for a trajectory that is not there.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from time import monotonic

import anyio
import structlog

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import BranchAt, Strategy, TreeConfig
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.loop.clock import Clock
from mcp_rollout.rollout.loop.recording import Recording, RecordingPolicy, RecordingSession
from mcp_rollout.rollout.loop.replay import Branch, Replay
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.types import Policy, TurnSession

log = structlog.get_logger(__name__)
PLAYED_EARLIER = "played by an earlier run"
"""Why a trajectory of a resumed run is not played: it cannot be branched at, since its recording is gone."""


class Group:
    """The siblings of a row, which are played in one process and know each other through this object.

    Args:
        size: Number of trajectories, which have the samples 0 to `size - 1`.
        name: The trainer's uid of the row, for logs.
        seed: Seed of the run.
        clock: What branches wait by; None for one that never stops.
    """

    def __init__(self, size: int, name: str = "", *, seed: int = 0, clock: Clock | None = None) -> None:
        self.size, self._name, self._seed = size, name, seed
        self._clock = clock or Clock()
        self._recordings: dict[int, Recording] = {}
        self._left: set[int] = set()
        """Samples that have ended, or never began."""
        self._usable: set[int] = set()
        """Those of them that ended without a failure."""
        self._lost: dict[int, str] = {}
        """Why the others of them cannot be branched at, or are not a leaf of the tree."""
        self._change = anyio.Event()
        self._is_tree = False

    def record(self, sample: int, trajectory: str) -> Recording:
        """A recording for the root with this sample; branches may use it while it grows."""
        self._is_tree = True
        self._recordings[sample] = recording = Recording(trajectory=trajectory)
        return recording

    def changed(self) -> None:
        """Let waiting branches look again."""
        # Set and replaced in one step: all that wait look again, and the next to wait waits for the next change.
        self._change.set()
        self._change = anyio.Event()

    def leave(self, sample: int, trace: Trace | None = None, *, reason: str = "not played") -> None:
        """A trajectory has ended; further calls for it change nothing.

        Args:
            trace: Its trace; None if it never began.
            reason: Why there is no trace.
        """
        if sample in self._left:
            return
        self._left.add(sample)
        if trace is not None and not trace.is_withdrawn:
            self._usable.add(sample)
        else:
            self._lost[sample] = trace.failure.kind if trace and trace.failure else reason
        # Nothing can branch any more: a recording holds every completion and result of its root.
        if len(self._left) == self.size:
            self._recordings.clear()
            reasons = dict(Counter(reason for reason in self._lost.values() if reason != PLAYED_EARLIER))
            if self._is_tree and reasons:
                log.warning("group has fewer leaves", group=self._name, leaves=len(self._usable), reasons=reasons)
        self.changed()

    async def branch(self, origin: Origin, tree: TreeConfig) -> Branch | str:
        """Wait for a turn that this trajectory branches at.

        Its own root is tried first, the roots in turn; then the others.

        Returns:
            The branch, or why there is none.
        """
        own, rank = (origin.sample - tree.roots) % tree.roots, (origin.sample - tree.roots) // tree.roots
        with self._clock.move_on_after(tree.wait_timeout_s):
            for root in ((own + number) % tree.roots for number in range(tree.roots)):
                # Seeded by a text, which is hashed: numbers that differ little give first draws that differ little.
                own_seed = f"/{self._seed}" if self._seed else ""
                random = Random(f"{origin.row}/{origin.sample}/{origin.step}{own_seed}")
                found = await self._branch_off(root, rank, random, tree)
                if found is not None:
                    return found
            return self._without_root(tree.roots)
        return f"no root had a turn to branch at within {tree.wait_timeout_s:g} s"

    def _without_root(self, roots: int) -> str:
        """Why none of the roots, which have all ended, can be branched at."""
        reasons = Counter(self._lost.get(root, "ended after one turn") for root in range(roots))
        return f"no root to branch at: {', '.join(f'{count} {reason}' for reason, count in reasons.items())}"

    async def _branch_off(self, root: int, rank: int, random: Random, tree: TreeConfig) -> Branch | None:
        """Wait for a turn of this root; None if it ended without one."""
        # Chosen once, whatever the root has played when it is looked at.
        first = random.randint(1, tree.first_turns)
        while True:
            # No `await` between this look and the wait below, so no change is missed.
            has_ended, recording = root in self._left, self._recordings.get(root)
            if has_ended and (root not in self._usable or recording is None or not recording.turns):
                return None
            if recording is not None and tree.branch_at is BranchAt.FIRST_TURNS and first in recording.turns:
                return Branch(recording, first)
            if recording is not None and has_ended:
                return Branch(recording, _chosen(recording, rank, random, tree))
            await self._change.wait()


def _chosen(recording: Recording, rank: int, random: Random, tree: TreeConfig) -> int:
    """A turn of a root that has ended."""
    if tree.branch_at is BranchAt.ENTROPY:
        ordered = sorted(recording.turns, key=lambda turn: -recording.surprisal(turn))
        return ordered[rank % len(ordered)]
    # Under `first_turns` this is reached where the root ended before the turn that was drawn.
    most = tree.first_turns if tree.branch_at is BranchAt.FIRST_TURNS else len(recording.turns)
    return random.choice(recording.turns[:most])


class Leaf:
    """A chain."""

    def joined(self, trace: Trace, session: Session, policy: Policy) -> tuple[TurnSession, Policy]:
        """The world and the policy that the trajectory is played with."""
        return session, policy

    def check(self) -> None:
        """Called when the agent has played. Raises Diverged where a branch did not reach its branching point."""


class Root(Leaf):
    """A chain that others branch off."""

    def __init__(self, group: Group, recording: Recording, tree: TreeConfig) -> None:
        self._group, self._recording, self._tree = group, recording, tree

    def joined(self, trace: Trace, session: Session, policy: Policy) -> tuple[TurnSession, Policy]:
        recording = RecordingPolicy(
            policy,
            self._recording,
            session,
            last=self._tree.first_turns if self._tree.branch_at is BranchAt.FIRST_TURNS else None,
            snapshots=self._tree.restore,
            changed=self._group.changed,
        )
        return RecordingSession(session, self._recording), recording


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
