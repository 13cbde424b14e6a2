"""What tests of the laboratory's worlds share."""

from __future__ import annotations

import pytest
from bare_players import Seats, seated

from lab.worlds import shop
from lab.worlds.shop.users import scenario
from mcp_rollout.mcp_servers import user_simulator


@pytest.fixture
def shop_players() -> Seats:
    """`async with shop_players("fitting") as player:`, see `seated`."""
    return lambda slice_: seated(shop.create_server(slice_), user_simulator.create_server(scenario))
