"""AReaL learns over our servers: thirty steps of the demo's tasks in which the state alone decides.

Three seeds, and a control with a learning rate of zero.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from areal_run import needs_areal

from lab.demo import with_areal

pytestmark = [pytest.mark.verl, pytest.mark.full, pytest.mark.timeout(5400), needs_areal]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_reward_rises_and_that_of_the_control_does_not(seed: int, tmp_path: Path) -> None:
    with_areal.main(["--seed", str(seed), "--out", str(tmp_path)])
    learning, control = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("learning", "control"))
    assert len(learning["curve"]) == len(control["curve"]) == 30
    assert learning["last"] - learning["first"] >= 0.2
    # 360 trajectories at each end, of different rows: 0.1 is 2.5 standard errors.
    assert abs(control["last"] - control["first"]) < 0.1
