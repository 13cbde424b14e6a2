"""Run records: what all trajectories of an environment in a run share, once per run, in a file beside the traces.

A trace names its run record in `run`; the file is `{run}.run.json`. The name ends with a digest of the content, so that
the processes of a run write the same file, and a run that is resumed with other settings writes another one.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from mcp_rollout.gateway.catalogue.names import Catalogue, policy_tools
from mcp_rollout.gateway.private_files import make_private, write_private
from mcp_rollout.gateway.types import canonical_json
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.trace.files import Skipped

SUFFIX = ".run.json"
GIT_TIMEOUT_S = 5.0
_PACKAGES = ("mcp-rollout", "mcp", "verl", "torch", "transformers", "sglang", "vllm", "ray")
_MODEL_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


class TokenIds(StrEnum):
    """What the token ids of a trace are."""

    MODEL = "model"
    """The ids that a model sampled and read."""
    BYTES = "bytes"
    """UTF-8 bytes and markers of `rollout.tokens.chatml`: the policy gave text only. They cannot be trained on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """The setting of trajectories: equal for all that name it."""

    kind: str
    """`evaluation` or `training`."""
    environment: dict[str, Any]
    """`name`, `file`, its `sha256`, and `reward`, `limits`, `thinking`, `filters`, `results` and `strategy` as they
    applied."""
    tools: list[dict[str, Any]]
    """OpenAI-style schemas of the policy's tools."""
    tool_digests: dict[str, str]
    """Digest of each tool's definition, by exposed name; the lock has the same."""
    servers: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """`name`, `version` and `protocol` of each server, as it says itself."""
    engine: str
    token_ids: TokenIds = TokenIds.MODEL
    sampling: dict[str, Any]
    model: dict[str, Any] = field(default_factory=dict[str, Any])
    """`path`, and the SHA-256 of the files that identify model, tokenizer and template, where it is a directory."""
    lock: dict[str, Any] | None = None
    """`file` and `sha256`."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further settings of the run."""
    versions: dict[str, str] = field(default_factory=dict[str, str])
    commit: str | None = None
    """Of this package's source; ends with `-dirty` where files differ from it."""

    @property
    def name(self) -> str:
        """The environment's name and a digest of the record."""
        digest = hashlib.sha256(canonical_json(asdict(self)).encode()).hexdigest()
        return f"{self.environment['name']}-{digest[:16]}"


_RECORD = TypeAdapter(RunRecord)


class Described(Protocol):
    """What a record takes from a `gateway.gateway.Gateway`."""

    @property
    def catalogue(self) -> Catalogue: ...

    @property
    def identities(self) -> Mapping[str, Any]: ...


def describe_run(
    kind: str,
    environment: Environment,
    gateway: Described,
    tools: Mapping[str, dict[str, Any]] | None = None,
    *,
    engine: str,
    sampling: Mapping[str, Any],
    model: str | None,
    chat_template: str | None,
    settings: Mapping[str, Any],
    token_ids: TokenIds = TokenIds.MODEL,
    lock: str | None = None,
) -> RunRecord:
    """What the trajectories of an environment share. Reads files and asks git: not for an event loop.

    Args:
        environment: as it applies, with a trainer's overrides.
        gateway: running.
        tools: schemas from the lock; None without one.
        engine: the engine's or trainer's name.
        sampling: settings of sampling and lengths.
        model: a directory with model or tokenizer; None without one.
        chat_template: a template that replaces the model's own.
        lock: its file; None without one.
    """
    catalogue = gateway.catalogue
    shown = [tool.openai_schema() for tool in policy_tools(catalogue)] if tools is None else list(tools.values())
    return RunRecord(
        kind=kind,
        environment=environment_identity(environment),
        tools=shown,
        tool_digests={tool.exposed_name: tool.digest for offered in catalogue.values() for tool in offered},
        servers={server: asdict(identity) for server, identity in gateway.identities.items()},
        engine=engine,
        token_ids=token_ids,
        sampling=dict(sampling),
        model=_model_identity(model) | {"custom_chat_template": chat_template} if model else {},
        lock={"file": lock, "sha256": file_digest(lock)} if lock else None,
        settings=dict(settings),
        versions=_installed_versions(),
        commit=_source_commit(),
    )


def environment_identity(environment: Environment) -> dict[str, Any]:
    """The environment's name, file and what of it shapes trajectories."""
    shaping = environment.model_dump(
        mode="json", include={"reward", "limits", "thinking", "filters", "results", "strategy"}
    )
    path = str(Path(environment.file).resolve())
    return {"name": environment.name, "file": path, "sha256": file_digest(environment.file)} | shaping


def _model_identity(path: str) -> dict[str, Any]:
    """The path of a model or tokenizer, and digests of its files where it is a directory."""
    found = {name: file_digest(Path(path) / name) for name in _MODEL_FILES}
    # A hub's name stays; a place here is found from other directories, too.
    place = str(Path(path).resolve()) if Path(path).exists() else path
    return {"path": place, "sha256": {name: digest for name, digest in found.items() if digest is not None}}


def file_digest(path: str | Path) -> str | None:
    """SHA-256 of a file; None if there is none."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that trajectories depend on, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _source_commit() -> str | None:
    """The commit of this package's source; None outside a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def write_run_record(directory: Path, record: RunRecord) -> str:
    """Write the record, unless it is there, and return its name; the file appears whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    make_private(directory)
    path = directory / f"{record.name}{SUFFIX}"
    if not path.exists():
        write_private(path, _RECORD.dump_json(record, indent=2).decode() + "\n")
    return record.name


def read_run_records(directory: Path, *, skipped: Skipped | None = None) -> dict[str, RunRecord]:
    """The run records of a directory and its sub-directories by name; `skipped` logs an unreadable one."""
    skipped = skipped or Skipped()
    found: dict[str, RunRecord] = {}
    for path in sorted(directory.rglob(f"*{SUFFIX}")):
        try:
            found[path.name.removesuffix(SUFFIX)] = _RECORD.validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            skipped.log(path, f"is not a run record: {error}")
    return found
