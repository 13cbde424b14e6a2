# pyright: basic, reportMissingImports=false
"""AReaL's configuration from its command line: `--config FILE KEY=VALUE ...`, with each fault as one message."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from areal.api.cli_args import load_expr_config
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from mcp_rollout.gateway.config.mapping_file import read_mapping
from mcp_rollout.gateway.errors import ConfigError, faults_of, one_error
from mcp_rollout.rollout.areal.config import MCPConfig


def read_config(arguments: Sequence[str]) -> MCPConfig:
    """AReaL's configuration with our section, as AReaL reads it.

    Raises:
        ConfigError: there is no such file, or it is not YAML; a key is unknown, missing or not in the file; or a value
            is not valid.
        SystemExit: `--config` is missing, or help was asked for.
    """
    file = configuration_file(arguments)
    if not file.is_file():
        raise ConfigError("no such file", file=file, key="--config", remedy="name AReaL's configuration")
    read_mapping(file)  # Hydra's message about a file that is not YAML is a traceback
    try:
        config, _ = load_expr_config(list(arguments), MCPConfig)
    except (
        HydraException,
        OmegaConfBaseException,
        ValueError,
        TypeError,
    ) as error:  # AReaL's sections raise the last two
        # Hydra wraps OmegaConf's errors, which know the key.
        cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
        key = str(cause.full_key) if isinstance(cause, OmegaConfBaseException) and cause.full_key else None
        problem, remedy = str(error).split("\n", 1)[0], "correct it in the file or on the command line"
        raise ConfigError(problem, file=file, key=key, remedy=remedy) from error
    return config


def configuration_file(arguments: Sequence[str]) -> Path:
    """The file that `--config` names. Raises SystemExit where it is missing, or help was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m mcp_rollout.rollout.areal.train", usage="%(prog)s --config FILE [KEY=VALUE ...]"
    )
    parser.add_argument("--config", required=True, type=Path, help="AReaL's configuration, as configs/areal/grpo.yaml")
    return parser.parse_known_args(arguments)[0].config


def with_file(error: ConfigError, file: Path) -> ConfigError:
    """The faults of `error`; one that has a key only is about the configuration, and gets its file."""
    return one_error(
        [
            ConfigError(fault.problem, file=file, key=fault.key, remedy=fault.remedy)
            if fault.key and not fault.file
            else fault
            for fault in faults_of(error)
        ]
    )
