"""Where an environment's worlds are: here, on hosts at fixed addresses, or on nodes of a Ray cluster."""

from __future__ import annotations

from typing import Any, Self, cast

from pydantic import Field, field_validator, model_validator

from mcp_rollout.gateway.errors import InvalidValue
from mcp_rollout.gateway.remote.hosts import HostConfig
from mcp_rollout.rollout.environment.sections import Section

SHARD_RESOURCE = "mcp_shard"
"""The Ray resource of nodes that may hold a shard, by default."""


class ShardsConfig(Section):
    """Shards on the nodes of a Ray cluster: each is an actor that owns the servers and serves them at its own port."""

    min: int = Field(default=1, ge=1)
    """Shards that are started at the first lease."""
    max: int = Field(default=1, ge=1)
    """One more is started when every shard has `leases` leases, waiting ones included."""
    leases: int | None = Field(default=None, ge=1)
    """Leases of a shard from which on another one is started; the environment's `max_sessions` by default."""
    resources: dict[str, float] = Field(default={SHARD_RESOURCE: 1.0})
    """What a shard takes of its node. A resource that only the chosen nodes have places it there."""
    labels: dict[str, str] = Field(default={})
    """Labels that its node must have (`ray start --labels`)."""
    num_cpus: float = Field(default=0.0, ge=0)
    """CPUs that Ray counts for a shard. Nodes without CPUs get no agent workers of verl's."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """How long a shard may take to be placed and to start its servers."""
    lost_after_s: float = Field(default=15.0, gt=0)
    """For how long a shard may be out of reach before its worlds count as lost."""
    idle_s: float = Field(default=60.0, gt=0)
    """After so many seconds without a request for it, a shard frees a lease: its client has vanished."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.max < self.min:
            raise InvalidValue(f"max is {self.max}, less than min, {self.min}", "raise max")
        return self


class HostsConfig(Section):
    """`hosts: ray`, `hosts: {ray: {...}}`, or a list of addresses of `mcp-rollout serve`."""

    addresses: tuple[HostConfig, ...] = ()
    ray: ShardsConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_short_forms(cls, value: Any) -> Any:
        if value == "ray":
            return {"ray": {}}
        if isinstance(value, str):
            return {"addresses": [value]}
        return {"addresses": cast("list[Any]", value)} if isinstance(value, list | tuple) else value

    @field_validator("addresses", mode="before")
    @classmethod
    def _accept_plain_addresses(cls, value: Any) -> Any:
        entries = cast("list[Any]", value) if isinstance(value, list | tuple) else value
        return [{"url": each} if isinstance(each, str) else each for each in entries]

    @model_validator(mode="after")
    def _names_one_kind(self) -> Self:
        if bool(self.addresses) == (self.ray is not None):
            raise InvalidValue(
                "names neither addresses nor ray, or both", "hosts: ray, or hosts: [http://name:port/mcp]"
            )
        return self
