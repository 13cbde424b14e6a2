"""verl's worker makes a group of each prompt, and no sibling waits for one that never began."""

from __future__ import annotations

from types import SimpleNamespace

import anyio
import pytest

from rollout.environment.sections import TreeConfig
from rollout.environment.task import Origin
from rollout.loop.group import Group

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(("validate", "own", "leaves"), [(False, None, 4), (True, None, 2), (False, 3, 3)])
async def test_trajectories_that_never_begin_leave_their_group(
    transfer_queue: None, validate: bool, own: int | None, leaves: int
) -> None:
    """No agent loop has this name, so each session ends before it asks for anything."""
    from rollout.verl import agent_loop

    worker = object.__new__(agent_loop.MCPAgentLoopWorker)
    rollout = SimpleNamespace(n=4, val_kwargs=SimpleNamespace(n=2))
    worker._held, worker._seed = {"u"}, 0
    worker.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    prompt = {"uid": "u", "agent_name": "no such agent"} | ({} if own is None else {"__rollout_n__": own})
    trajectory = {"step": 1, "validate": validate, "sample_index": 0, "rollout_n": 0}
    with anyio.fail_after(60):
        await worker._run_prompt(prompt, {}, trajectory)
        group = agent_loop._BATCH.get().group
        assert isinstance(group, Group) and group.size == leaves
        assert isinstance(await group.branch(Origin(sample=leaves), TreeConfig(roots=leaves)), str)
