"""The hosts of an environment, from its `hosts`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import SecretStr

from mcp_rollout.gateway.errors import ServerUnavailable
from mcp_rollout.gateway.remote.hosts import HostConfig, HostList, Hosts
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.hosts_config import ShardsConfig


class _Shard(HostConfig):
    direct: ClassVar[bool] = True  # a node of this cluster


class RayHosts:
    """Asks the job's director for a shard, lease by lease. The job is the one that this process is connected to."""

    def __init__(self, environment: Environment, config: ShardsConfig) -> None:
        self._environment, self._config = environment, config
        self._director: Any = None

    @property
    def count(self) -> int:
        return self._config.max

    async def take(self) -> HostConfig:
        """The least loaded shard.

        Raises:
            ServerUnavailable: no shard could be started, or the job's director has ended.
        """
        from ray.exceptions import RayError, RayTaskError  # here, since ray takes seconds to import

        from mcp_rollout.rollout.shards.director import shard_director

        try:
            if self._director is None:
                director = shard_director()
                await director.open.remote(self._environment, self._config)
                # Only after `open`: a lease that comes meanwhile calls it too, which changes nothing, and does not ask
                # too early.
                self._director = director
            place = await self._director.take.remote(self._environment.name)
        except RayTaskError:  # a defect of the director's, which has not ended
            raise
        except RayError as error:
            raise ServerUnavailable(f"the director of the job's shards has ended: {error}") from error
        if place.problem:
            raise ServerUnavailable(place.problem)
        return _Shard(url=place.url, token=SecretStr(place.token), lost_after_s=self._config.lost_after_s)

    def give_back(self, host: HostConfig, *, lost: bool) -> None:
        """The director counts by looking at the shards, so only a lost one matters to it."""
        if lost:
            self._director.lost.remote(self._environment.name, host.url)


def hosts_of(environment: Environment) -> Hosts | None:
    """What an environment's `hosts` names; None if its worlds are here."""
    hosts = environment.hosts
    if hosts is None:
        return None
    return HostList(hosts.addresses) if hosts.ray is None else RayHosts(environment, hosts.ray)
