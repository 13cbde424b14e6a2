"""A count of the optimizer steps that verl's actor takes.

Loaded into every verl process with VERL_USE_EXTERNAL_MODULES=counted_steps. OPTIMIZER_STEPS names the file: a line for
each step.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

_step = torch.optim.AdamW.step


def step(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> Any:
    with Path(os.environ["OPTIMIZER_STEPS"]).open("a") as file:
        file.write("step\n")
    return _step(self, *args, **kwargs)


torch.optim.AdamW.step = step  # type: ignore[method-assign]
