"""At most once end to end: servers that record each execution, behind a served gateway, while connections break."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import pytest
from breaking import HTTP_BREAKS, BreakingHttp, breaking
from dropping import dropping
from served import at, served
from storm import Storm, config

from mcp_rollout import Gateway

pytestmark = pytest.mark.anyio


async def storm(breaks: int, *, seed: str, dropped: float, kinds: tuple[str, ...]) -> tuple[Counter[str], int]:
    """Until connections to the server broke so often, or those between the gateways: how the calls ended, and drops."""
    async with breaking(BreakingHttp, seed, unread=0.0) as server:

        def plan(call: str, drawn: list[str]) -> dict[str, Any]:
            server.plan[call] = drawn
            return {}

        raging = Storm(seed=seed, kinds=kinds, plan=plan, ended=server.call_over, share=0.5 if kinds else 0.0)
        made = config(world={**server.entry, "scope": "session"})
        async with (
            served(made) as running,
            dropping(urlsplit(running.url).port or 0, share=dropped, seed=1) as relay,
            Gateway(made, hosts=at(f"{relay.url}/mcp")) as gateway,
        ):
            drops = lambda: relay.dropped_on_the_way + relay.dropped_on_the_way_back  # noqa: E731
            await raging.rage(gateway, lambda: server.broken.total() + drops() >= breaks)
            return raging.check(server.ran), drops()


async def test_a_connection_between_gateways_that_breaks_costs_no_call_and_runs_none_twice() -> None:
    found, drops = await storm(60, seed="between", dropped=0.1, kinds=())
    assert drops >= 60
    assert found.keys() <= {"result", "twice", "twice, then a result"} and not found["twice"], found


async def test_breaks_on_both_hops_run_no_call_twice_that_may_do_harm() -> None:
    found, drops = await storm(200, seed="both", dropped=0.05, kinds=HTTP_BREAKS)
    assert drops and found["result"] and found["delivery_unknown"], found
    assert found["twice, then a result"], found  # the inner hop alone sends again, where the tool allows it
