"""Notes on the trees of a run: what keeps them from having branches, and what their branches mean for the estimates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gateway.errors import ConfigError
from rollout.environment.config import Environment
from rollout.environment.sections import BranchAt, Strategy
from rollout.evaluation.summary import Outcome


def note_on_roots(environment: Environment, samples: int) -> str | None:
    """Report before the run that no trajectory of a row would branch; None where some do, or there is no tree."""
    strategy = environment.strategy
    if strategy.use is not Strategy.TREE or strategy.tree.roots < samples:
        return None
    trajectories = "1 trajectory" if samples == 1 else f"{samples} trajectories"
    return _note(
        environment,
        f"is {strategy.tree.roots}, and a row has {trajectories} (--samples), so none branches",
        key="strategy.tree.roots",
        remedy="give more --samples, make it smaller, or use chains",
    )


def notes_on_trees(outcomes: Sequence[Outcome], environments: Iterable[Environment]) -> list[str]:
    """Notes on a run that has ended, by environment: leaves that are chains, turns without entropy, shared samples."""
    notes: list[str] = []
    for environment in environments:
        own = [outcome for outcome in outcomes if outcome.key.environment == environment.name]
        leaves = [outcome for outcome in own if outcome.strategy.use is Strategy.TREE]
        branches = [leaf for leaf in leaves if leaf.is_branch]
        notes += _chains(environment.name, leaves, len(branches))
        roots = [leaf for leaf in leaves if not leaf.is_branch]
        is_by_entropy = environment.strategy.tree.branch_at is BranchAt.ENTROPY
        if is_by_entropy and branches and not any(leaf.has_surprisal for leaf in roots):
            problem = "entropy needs log-probabilities, and the roots have none: their turns were branched at in order"
            remedy = "use an engine that samples and gives log-probabilities, or branch at uniform"
            notes.append(_note(environment, problem, key="strategy.tree.branch_at", remedy=remedy))
        if branches:
            notes.append(
                f"{environment.name}: leaves of a tree share beginnings, so pass@k is not that of independent samples"
            )
    return notes


def _chains(name: str, leaves: Sequence[Outcome], branches: int) -> list[str]:
    """Why leaves that were to branch are chains, if there are any."""
    reasons = Counter(leaf.chain_because for leaf in leaves if leaf.chain_because)
    if not reasons:
        return []
    counts = ", ".join(f"{count} x {reason}" for reason, count in reasons.most_common())
    note = f"{name}: {reasons.total()} of {reasons.total() + branches} leaves that were to branch are chains: {counts}"
    diverged = next((leaf.strategy.diverged for leaf in leaves if leaf.strategy.diverged), "")
    return [f"{note}; the first that diverged: {diverged}" if diverged else note]


def _note(environment: Environment, problem: str, *, key: str, remedy: str) -> str:
    """In the form of an error: file, key, problem and remedy."""
    return str(ConfigError(problem, file=environment.file or environment.name, key=key, remedy=remedy))
