# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Train with AReaL's own trainer over MCP.

    python -m mcp_rollout.rollout.areal.train --config configs/areal/grpo.yaml train_dataset.path=ROWS.parquet ...

As AReaL's own scripts do, it takes a file and overrides, and runs in both modes: with a single controller (the
default), which starts all other processes, or with `AREAL_SPMD_MODE=1` as one process per rank.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from typing import Any

import torch

from mcp_rollout.rollout.areal import cpu

if importlib.util.find_spec("areal") is None:
    sys.stderr.write("error: AReaL is not installed here: run `make sglang`, then `. .venv-sglang/bin/activate`\n")
    raise SystemExit(2)

if not torch.cuda.is_available():
    cpu.prepare()

from areal import PPOTrainer

from mcp_rollout.gateway.catalogue.hidden_text import visible
from mcp_rollout.gateway.errors import ConfigError, GatewayError, printed
from mcp_rollout.rollout.areal.command_line import configuration_file, read_config, with_file
from mcp_rollout.rollout.areal.config import WORKFLOW, MCPConfig, settings_of, workflow_arguments
from mcp_rollout.rollout.areal.preflight import preflight
from mcp_rollout.rollout.areal.stopping import Rows, TrainingStopped, clear_stop
from mcp_rollout.rollout.environment.parquet import read_rows


def main(arguments: list[str] | None = None) -> int:
    """Train; returns the exit status: 2 where the run cannot work, 1 where it was stopped."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        config = read_config(given)
        # Once for the job: every rank would start every server, and remove a reason that another has just written.
        if os.environ.get("RANK", "0") == "0":
            asyncio.run(preflight(config))
            clear_stop(settings_of(config).trace_dir)
        train(config)
    except ConfigError as error:
        sys.stderr.write(visible(printed(with_file(error, configuration_file(given)))))
        return 2
    except GatewayError as error:
        sys.stderr.write(visible(printed(error)))
        return 2
    except TrainingStopped as error:
        sys.stderr.write(visible(f"error: {error}\n"))
        return 1
    return 0


class Trainer(PPOTrainer):
    """AReaL's trainer; where it cannot be built, the workers that its single controller has started end with it."""

    scheduler = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(*args, **kwargs)
        except BaseException:  # also an interrupt: nothing else knows the workers
            if self.scheduler is not None:
                self.scheduler.delete_workers()
            raise


def train(config: MCPConfig) -> None:
    """Run AReaL's trainer to its end.

    Raises:
        TrainingStopped: too many trajectories were withdrawn, or a server changed its tools.
    """
    directory = settings_of(config).trace_dir
    train_rows = Rows(list(read_rows(config.train_dataset.path)), directory)
    valid_rows = Rows(list(read_rows(config.valid_dataset.path)), directory) if config.valid_dataset else None
    with Trainer(config, train_dataset=train_rows, valid_dataset=valid_rows) as trainer:
        trainer.train(
            workflow=WORKFLOW,
            workflow_kwargs=workflow_arguments(config),
            eval_workflow=WORKFLOW,
            eval_workflow_kwargs=workflow_arguments(config, validate=True),
        )


if __name__ == "__main__":
    raise SystemExit(main())
