# pyright: basic, reportMissingImports=false
"""AReaL's configuration from its command line: `--config FILE KEY=VALUE ...`, with each fault as one message."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

from areal.api.cli_args import load_expr_config
from hydra.errors import HydraException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from mcp_rollout.gateway.config.mapping_file import read_mapping
from mcp_rollout.gateway.config.pydantic_errors import near
from mcp_rollout.gateway.errors import ConfigError, faults_of, one_error
from mcp_rollout.rollout.areal.config import MCPConfig
from mcp_rollout.rollout.areal.settings import Settings


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
    except (HydraException, OmegaConfBaseException) as error:
        _raise_fault(error, file)
    except (ValueError, TypeError) as error:  # AReaL's sections validate themselves
        raise ConfigError(str(error), file=file, remedy="correct it in the file or on the command line") from error
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


def _raise_fault(error: Exception, file: Path) -> NoReturn:
    # Hydra wraps OmegaConf's errors, which know the key.
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    problem = str(error).split("\n", 1)[0]
    if not isinstance(cause, OmegaConfBaseException) or not cause.full_key:
        raise ConfigError(problem, file=file, remedy="write KEY=VALUE, in Hydra's grammar") from error
    key, known = str(cause.full_key), _keys(str(cause.full_key).split(".")[:-1])
    last = key.rpartition(".")[2]
    if isinstance(cause, MissingMandatoryValue):
        problem, remedy = "is missing", f"write {key}=VALUE"
    elif last not in known and known:
        problem, remedy = "there is no such key", near(last, known, "keys")
    elif isinstance(error, HydraException):
        problem, remedy = "the file does not have this key", f"write +{key}=VALUE"
    else:
        problem, remedy = str(cause).split("\n", 1)[0], "correct the value"
    raise ConfigError(problem, file=file, key=key, remedy=remedy) from error


def _keys(section: Sequence[str]) -> set[str]:
    """The keys of a section of AReaL's configuration or of ours; none if it is a mapping of any keys."""
    if list(section) == ["mcp"]:
        return set(Settings.model_fields)
    kind: Any = MCPConfig
    for part in section:
        annotation = get_type_hints(kind).get(part) if dataclasses.is_dataclass(kind) else None
        kind = next((each for each in (*get_args(annotation), annotation) if dataclasses.is_dataclass(each)), None)
    return {field.name for field in dataclasses.fields(kind)} if kind else set()
