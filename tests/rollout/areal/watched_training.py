"""`mcp_rollout.rollout.areal.train`, which also writes what AReaL trains on in each step, and loses one weight update.

WATCHED_DIR=DIR [LOST_VERSION=N] python -m watched_training ...
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from mcp_rollout.rollout.areal import train  # first: it prepares the process

from areal.engine import FSDPPPOActor  # isort: skip
from areal.trainer.ppo.actor import PPOActor  # isort: skip

DIRECTORY = Path(os.environ["WATCHED_DIR"])
LOST_VERSION = int(os.environ.get("LOST_VERSION", "-1"))


def main() -> int:
    compute, update = PPOActor._compute_advantages, FSDPPPOActor.update_weights

    def watched(actor: PPOActor, data: dict[str, Any]) -> dict[str, Any]:
        given = {key: value.clone() for key, value in data.items() if isinstance(value, torch.Tensor)}
        done = compute(actor, data)
        step = len(list(DIRECTORY.glob("*.pt"))) + 1
        torch.save({**given, "advantages": done["advantages"].clone()}, DIRECTORY / f"{step:03d}.pt")
        return done

    def forgetful(engine: FSDPPPOActor, meta: Any) -> None:
        if meta.version != LOST_VERSION:
            update(engine, meta)

    PPOActor._compute_advantages = watched
    FSDPPPOActor.update_weights = forgetful
    return train.main()


if __name__ == "__main__":
    raise SystemExit(main())
