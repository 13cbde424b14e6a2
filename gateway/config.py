"""The typed configuration: which servers there are, how they are started, and every bound in seconds.

Reads the `mcpServers` files that desktop clients use (JSON; VS Code's `servers` too) and our own YAML. Whatever is
wrong with a file is one `ConfigError` that names the file, the key and the remedy; values that may be secret (`env`,
`headers`, `args`, `url`) never appear in it.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, cast, get_args

import structlog
import yaml
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from gateway.errors import ConfigError
from gateway.selection import TRAJECTORY_VARIABLES, ToolSelection
from gateway.types import Role, Scope

log = structlog.get_logger(__name__)

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

INHERITED_ENV = frozenset(
    "PATH HOME USER LOGNAME SHELL TERM LANG LANGUAGE TZ TMPDIR TMP TEMP "
    "VIRTUAL_ENV PYTHONPATH LD_LIBRARY_PATH XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME "
    "SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS "
    "SYSTEMROOT SYSTEMDRIVE COMSPEC PATHEXT WINDIR USERPROFILE APPDATA LOCALAPPDATA PROGRAMFILES".split()
)
"""Variables a server process inherits, besides `LC_*` and what its entry names. Everything else, tokens and proxy
addresses with credentials among it, stays with the trainer."""

TOLERATED = frozenset(
    "autoApprove alwaysAllow autoApproveTools description timeout envFile dev icon gallery note name version oauth "
    "trust transportType".split()
)
"""Keys other clients write into server entries. They mean nothing here and are logged once, by name."""

_SECRET = frozenset({"env", "headers", "args", "url", "command", "cwd", "fixed", "client_secret", "api_key"})
LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class Kind(StrEnum):
    """How a server is reached."""

    STDIO = "stdio"
    HTTP = "http"
    SSE = "sse"
    IN_PROCESS = "in_process"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, coerce_numbers_to_str=True)


class ElicitationConfig(_Model):
    """Who answers what servers ask the user within a call."""

    server: str
    """The server whose tool with the role `elicit` answers."""
    timeout_s: Seconds = 60


class SamplingConfig(_Model):
    """Which model answers servers that ask for a completion: an OpenAI-compatible endpoint."""

    url: str
    """The base, as in `https://api.example.com/v1`; `/chat/completions` is added."""
    model: str
    api_key: SecretStr | None = None
    timeout_s: Seconds = 60
    max_tokens: int = Field(default=4096, ge=1)
    """The most tokens a server may ask for at a time."""

    @field_validator("url")
    @classmethod
    def _names_a_host(cls, value: str) -> str:
        if not re.match(r"https?://[^/]+", value):
            raise ValueError("url must begin with http:// or https:// and name a host")
        return value.rstrip("/")


class ClientCredentialsConfig(_Model):
    """OAuth client credentials for a server behind a url."""

    issuer: str
    """The authorization server; credentials go nowhere else."""
    client_id: str
    client_secret: SecretStr
    scope: str | None = None
    """Space-separated scopes."""
    method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"


class ServerConfig(_Model):
    """One server: exactly one of `command`, `url` and `factory`, and what holds for all three."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default={}, repr=False)
    """Added to the inherited allow-list; the only way for a secret to reach the server."""
    cwd: str | None = None

    url: str | None = None
    headers: dict[str, str] = Field(default={}, repr=False)
    client_credentials: ClientCredentialsConfig | None = None
    transport: str | None = Field(default=None, validation_alias=AliasChoices("transport", "type"))
    """As other clients write it; only `sse` changes anything, the rest follows from `command` or `url`."""

    factory: str | None = None
    """`package.module:function`, called without arguments in this process; returns what `mcp.Client` accepts."""

    scope: Scope = Scope.SHARED
    tools: ToolSelection = ToolSelection()
    """Which tools the policy sees, and how; a list is short for `{allow: [...]}`."""
    roles: dict[Role, str] = {}
    """Roles for tools of a server that does not mark them itself."""
    trusted: bool = False
    """Whether per-turn rewards in this server's results count."""
    required: bool = False
    """Whether the gateway refuses to start without it."""
    disabled: bool = False

    start_timeout_s: Seconds = 30
    """Process start, handshake and tool listing together."""
    call_timeout_s: Seconds = 60
    close_timeout_s: Seconds = 5
    """Closing politely; after it the process group is killed."""
    max_message_bytes: int = Field(default=8 << 20, ge=1024)
    min_ready: int = Field(default=0, ge=0)
    """Warm processes kept ready under scope `process`."""
    max_processes: int | None = Field(default=None, ge=1)
    """Processes at a time under scope `process`, warm and closing ones included; a lease waits for its turn."""
    leases_per_process: int = Field(default=1, ge=1)
    """After how many leases a process is replaced; above 1 the server's reset tool makes it fresh in between."""
    max_memory_mb: int | None = Field(default=None, ge=16)
    """MiB of private writable memory for each process of the server (RLIMIT_DATA)."""
    max_cpu_s: int | None = Field(default=None, ge=1)
    """Seconds of CPU time for each process of the server, over its whole life (RLIMIT_CPU)."""

    log_level: LogLevel = "info"
    """The server's log messages from this level on are kept in the trace."""

    @property
    def kind(self) -> Kind:
        if self.command is not None:
            return Kind.STDIO
        if self.factory is not None:
            return Kind.IN_PROCESS
        return Kind.SSE if self.transport == "sse" else Kind.HTTP

    @property
    def label(self) -> str:
        """What a message may say about where the server is: the command or the bare address, never arguments."""
        return self.command or self.factory or (self.url or "").split("?", 1)[0].rpartition("@")[2]

    @model_validator(mode="before")
    @classmethod
    def _drop_tolerated(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        entry = cast("Mapping[str, Any]", data)
        if ignored := sorted(TOLERATED & entry.keys()):
            log.info("config.keys_ignored", keys=ignored)
        return {key: value for key, value in entry.items() if key not in TOLERATED}

    @field_validator("transport")
    @classmethod
    def _known_transport(cls, value: str | None) -> str | None:
        known = ("stdio", "http", "streamable-http", "streamableHttp", "streamable_http", "sse", "in_process")
        if value is not None and value not in known:
            raise ValueError(f"unknown transport {value!r}; one of {', '.join(known)}")
        return value

    @field_validator("factory")
    @classmethod
    def _factory_names_a_function(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[\w.]+:\w+", value):
            raise ValueError(f"{value!r} is not of the form package.module:function")
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [key for key in ("command", "url", "factory") if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            raise ValueError(f"a server needs exactly one of command, url and factory; found {found}")
        if self.url is not None and not re.match(r"https?://[^/]+", self.url):
            raise ValueError("url must begin with http:// or https:// and name a host")
        if self.client_credentials is not None and self.url is None:
            raise ValueError("client_credentials needs a url")
        for key in ("min_ready", "max_processes", "leases_per_process"):
            if key in self.model_fields_set and self.scope is not Scope.PROCESS:
                raise ValueError(f"{key} needs scope: process")
        if self.max_processes is not None and self.min_ready > self.max_processes:
            raise ValueError("min_ready is more than max_processes")
        if (self.max_memory_mb or self.max_cpu_s) and self.command is None:
            raise ValueError("max_memory_mb and max_cpu_s need a command; nothing else has a process of its own")
        if self.scope is Scope.PROCESS and self.url is not None:
            raise ValueError("scope: process needs a command or a factory; a url has no process of ours")
        return self


class LeaseDirConfig(_Model):
    """The directory of a lease, which servers name as `${lease.dir}`: made anew for each lease, removed after it."""

    template: str | None = None
    """A directory whose contents each lease begins with; None begins with nothing."""
    parent: str | None = None
    """Where the directories are made; None takes the system's place for temporary files."""

    @field_validator("template", "parent")
    @classmethod
    def _expanded(cls, value: str | None) -> str | None:
        return None if value is None else expand(value)


class GatewayConfig(_Model):
    """All servers of one gateway, and the bounds that are not one server's."""

    servers: dict[str, ServerConfig]
    max_sessions: int = Field(default=64, ge=1)
    """Sessions at a time; there is no limit over connections, so no session can hold one and starve for another."""
    lease_timeout_s: Seconds = 1800
    """Waiting for a place and for connections."""
    reset_timeout_s: Seconds = 30
    release_timeout_s: Seconds = 10
    lease_dir: LeaseDirConfig = LeaseDirConfig()

    elicitation: ElicitationConfig | None = None
    sampling: SamplingConfig | None = None
    max_requests_per_call: int = Field(default=10, ge=1)
    """How often a server may ask for elicitation or sampling within one call."""

    @model_validator(mode="after")
    def _elicitation_names_a_server(self) -> Self:
        if self.elicitation is not None and self.elicitation.server not in self.servers:
            raise ValueError(f"elicitation.server names {self.elicitation.server!r}, which is not one of the servers")
        return self


def load_servers(path: str | Path) -> GatewayConfig:
    """Read an `mcpServers` file: JSON or YAML, with VS Code's `servers` or our own top-level keys as well.

    Raises:
        ConfigError: the file is missing or unreadable, or anything in it is wrong.
    """
    data = read_mapping(path)
    key = next((key for key in ("mcpServers", "servers") if key in data), None)
    if key is None:
        raise ConfigError(
            "no servers here", file=path, key="mcpServers", remedy='expected {"mcpServers": {NAME: {"command": ...}}}'
        )
    servers = parse_servers(data.pop(key), file=path, key=key)
    # A desktop client's whole settings file is fine here; in a file of our own an unknown key is a mistake.
    foreign = {"$schema", "inputs"} if key == "servers" else data.keys() - GatewayConfig.model_fields.keys()
    data = {name: value for name, value in data.items() if name not in foreign}
    data = expand_sampling(data, file=path)
    return validate(GatewayConfig, {**data, "servers": servers}, file=path)


def read_mapping(path: str | Path) -> dict[str, Any]:
    """A JSON or YAML file whose top level is a mapping. Raises `ConfigError`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError("no such file", file=path, remedy="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot be read: {error}", file=path, remedy="check that it is a readable text file"
        ) from None
    try:
        data = json.loads(text) if Path(path).suffix == ".json" else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"not valid JSON: {error.msg}", file=path, key=where, remedy="fix the syntax") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else None
        problem = getattr(error, "problem", None) or "syntax error"
        raise ConfigError(f"not valid YAML: {problem}", file=path, key=where, remedy="fix the syntax") from None
    if not isinstance(data, dict):
        raise ConfigError("the top level is not a mapping", file=path, remedy="expected keys and values")
    return {str(name): value for name, value in cast("dict[Any, Any]", data).items()}


def parse_servers(raw: object, *, file: str | Path | None = None, key: str = "servers") -> dict[str, ServerConfig]:
    """Turn the mapping under `mcpServers` or `servers` into typed entries, variables expanded, disabled ones left out.

    Raises:
        ConfigError: an entry is wrong or names a variable that is not set.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError(
            "not a mapping of names to servers", file=file, key=key, remedy="expected NAME: {command: ...}"
        )
    servers: dict[str, ServerConfig] = {}
    for name, entry in cast("Mapping[Any, Any]", raw).items():
        at = f"{key}.{name}"
        if not isinstance(entry, Mapping):
            raise ConfigError("not a mapping", file=file, key=at, remedy="expected {command: ...} or {url: ...}")
        fields = dict(cast("Mapping[str, Any]", entry))
        if fields.get("disabled") is True:
            continue
        for field in ("command", "args", "env", "cwd", "url", "headers", "client_credentials"):
            if field in fields:
                fields[field] = expand(fields[field], file=file, key=f"{at}.{field}")
        fields = _expand_fixed(fields, file=file, key=f"{at}.tools.change")
        servers[str(name)] = validate(ServerConfig, fields, file=file, key=at)
    return servers


def expand_sampling(data: Mapping[str, Any], *, file: str | Path | None) -> dict[str, Any]:
    """A file's top level with the variables in `sampling` replaced. Raises `ConfigError` for one that is not set."""
    if "sampling" not in data:
        return dict(data)
    return {**data, "sampling": expand(data["sampling"], file=file, key="sampling")}


def _expand_fixed(fields: dict[str, Any], *, file: str | Path | None, key: str) -> dict[str, Any]:
    """The entry with the variables in its `tools.change.*.fixed` expanded; what is no mapping is left to validation."""
    tools: Any = fields.get("tools")
    changes: Any = cast("Mapping[str, Any]", tools).get("change") if isinstance(tools, Mapping) else None
    if not isinstance(changes, Mapping):
        return fields
    expanded: dict[str, Any] = {}
    for name, change in cast("Mapping[str, Any]", changes).items():
        expanded[name] = change
        if isinstance(change, Mapping) and "fixed" in change:
            fixed = expand(change["fixed"], file=file, key=f"{key}.{name}.fixed", keep=TRAJECTORY_VARIABLES)
            expanded[name] = {**cast("Mapping[str, Any]", change), "fixed": fixed}
    return {**fields, "tools": {**cast("Mapping[str, Any]", tools), "change": expanded}}


_VARIABLE = re.compile(r"\$\{([^{}]*)\}")


def expand(value: Any, *, file: str | Path | None = None, key: str | None = None, keep: Collection[str] = ()) -> Any:
    """Replace `${VAR}`, `${VAR:-default}`, `${env:VAR}`, `${python}` and `${here}`, the file's directory, in every
    string inside `value`.

    `${lease.dir}`, and what `keep` names, is left for the lease that knows it. Raises `ConfigError` for a variable
    that is not set.
    """
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _variable(match.group(1), file=file, key=key, keep=keep), value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {name: expand(inner, file=file, key=f"{key}.{name}", keep=keep) for name, inner in items}
    if isinstance(value, list | tuple):
        return [expand(inner, file=file, key=key, keep=keep) for inner in cast("list[Any]", value)]
    return value


def _variable(text: str, *, file: str | Path | None, key: str | None, keep: Collection[str]) -> str:
    name, has_default, default = text.removeprefix("env:").partition(":-")
    if name == "lease.dir" or name in keep:
        return f"${{{text}}}"
    if name == "python":
        return sys.executable
    if name == "here" and file is not None:
        return str(Path(file).resolve().parent)
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigError(
            f"${{{text}}} is not a variable this program knows",
            file=file,
            key=key,
            remedy="use ${NAME} for an environment variable or ${NAME:-default}",
        )
    found = os.environ.get(name)
    if has_default and not found:
        return default
    if found is None:
        raise ConfigError(
            f"environment variable {name} is not set",
            file=file,
            key=key,
            remedy=f"set {name}, or write ${{{name}:-default}}",
        )
    return found


def child_env(entry: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server process: the allow-list (see `INHERITED_ENV`) and what its entry names."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name.upper() in INHERITED_ENV or name.upper().startswith("LC_")
    }
    return inherited | dict(entry)


M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], data: Mapping[str, Any], *, file: str | Path | None, key: str = "") -> M:
    """`model.model_validate(data)`, with every failure as one `ConfigError`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise config_error(error, model=model, file=file, key=key) from None


def config_error(
    error: ValidationError, *, model: type[BaseModel], file: str | Path | None = None, key: str = ""
) -> ConfigError:
    """The first fault of a pydantic error as a `ConfigError`: file, dotted key, problem, remedy; values kept out
    where they may be secret.

    Args:
        model: The model that refused; its fields give the near miss for an unknown key.
        key: Where in the file the model's data stands.
    """
    faults = error.errors(include_url=False, include_context=False)
    fault = faults[0]
    path = [str(part) for part in fault["loc"]]
    dotted = ".".join(part for part in [key, *path] if part)
    more = f"; {len(faults) - 1} more in this entry" if len(faults) > 1 else ""
    if fault["type"] == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.6)
        remedy = f"did you mean {near[0]!r}?" if near else "known keys: " + ", ".join(sorted(known))
        return ConfigError(f"unknown key {path[-1]!r}{more}", file=file, key=dotted, remedy=remedy)
    if fault["type"] == "missing":
        return ConfigError(f"missing key {path[-1]!r}{more}", file=file, key=dotted, remedy="add it")
    problem = fault["msg"].removeprefix("Value error, ")
    shown = fault["input"]
    if isinstance(shown, str | int | float | bool) and not _SECRET & set(path) and len(str(shown)) <= 60:
        problem += f", got {shown!r}"
    return ConfigError(problem + more, file=file, key=dotted or None, remedy="correct the value")


def _fields_at(model: type[BaseModel], path: Collection[str]) -> list[str]:
    """The keys that the (possibly nested) model at `path` accepts."""
    here: Any = model
    for part in path:
        fields = _model_fields(here)
        if fields is None:
            # Inside a mapping of names to models: the name consumes one step.
            continue
        field = fields.get(part)
        here = _inner_model(field.annotation) if field is not None else None
    fields = _model_fields(here)
    if fields is None:
        return []
    return list(fields)


def _model_fields(candidate: Any) -> Any:
    return candidate.model_fields if isinstance(candidate, type) and issubclass(candidate, BaseModel) else None


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_inner_model(argument) for argument in get_args(annotation))
    return next((model for model in found if model is not None), None)
