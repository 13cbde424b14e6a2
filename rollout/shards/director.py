"""The director of a job's shards: a Ray actor that starts them, looks at them, and chooses one for each lease.

It only hands out addresses: calls go from the trajectory's worker to the shard. A shard whose process dies is restarted
by Ray, wherever its resources are available, and serves at a new port; its address is asked again by its handle.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import ray
import structlog
from ray._private.services import get_ray_address_from_environment
from ray.exceptions import ActorDiedError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.hosts_config import ShardsConfig
from mcp_rollout.rollout.shards.shard import Shard, ShardState

log = structlog.get_logger(__name__)

ACTOR_NAME = "mcp_rollout_shards"
_POLL_S = 1.0
_CONCURRENCY = 10_000
"""Leases of a job that may wait for the first shard at a time."""


@dataclass(eq=False, slots=True)
class _Running:
    """A shard, and what is known of it."""

    actor: Any
    url: str = ""
    """Empty while it is starting, and while it may be dead."""
    leases: int = 0
    """When it was last looked at."""
    given: int = 0
    """Leases that were sent there since."""
    was_at: str = ""
    process: int = 0

    @property
    def load(self) -> int:
        return self.leases + self.given


@dataclass(eq=False)
class _Shards:
    """The shards of one environment."""

    environment: Environment
    config: ShardsConfig
    argument: Any
    """The environment as an object of Ray's."""
    running: list[_Running] = field(default_factory=list[_Running])
    restarts: int = 0
    problem: str = ""
    """Why the last start failed; empty once one has succeeded."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def ready(self) -> list[_Running]:
        return [shard for shard in self.running if shard.url]

    @property
    def most_leases(self) -> int:
        return self.config.leases or self.environment.max_sessions


@dataclass(frozen=True, slots=True)
class Place:
    """Where a lease goes; or, with a problem, why there is no such place."""

    url: str = ""
    token: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ShardsStatus:
    """The shards of an environment."""

    load: dict[str, int]
    """Leases by address, waiting ones included; without shards that do not answer."""
    processes: list[int]
    restarts: int


class ShardDirector:
    """One per job. Its shards end with it, and it ends with the process that made it."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(32)
        self._shards: dict[str, _Shards] = {}
        self._watching: set[asyncio.Task[None]] = set()

    async def open(self, environment: Environment, config: ShardsConfig) -> None:
        """Start the first shards of an environment; further calls for it change nothing."""
        if environment.name not in self._shards:
            self._shards[environment.name] = shards = _Shards(environment, config, ray.put(environment))
            for _ in range(config.min):
                self._start(shards)

    async def take(self, name: str) -> Place:
        """The least loaded shard of an environment that answers; waits for one up to `start_timeout_s`."""
        shards = self._shards[name]
        try:
            async with asyncio.timeout(shards.config.start_timeout_s), shards.changed:
                await shards.changed.wait_for(lambda: bool(shards.ready or shards.problem))
        except TimeoutError:
            wanted = shards.config.resources | shards.config.labels
            return Place(problem=f"no shard within {shards.config.start_timeout_s:g} s: has a node of Ray's {wanted}?")
        if not shards.ready:
            return Place(problem=shards.problem)
        # Nothing is awaited from here on, so that the next lease counts this one.
        shard = min(shards.ready, key=lambda shard: shard.load)
        # For later leases: this one takes what there is instead of waiting for a start.
        if shard.load >= shards.most_leases and len(shards.running) < shards.config.max:
            self._start(shards)
        # The shard's own count is up to a second old, in which a burst of leases would all go to the same one.
        shard.given += 1
        return Place(url=shard.url, token=self._token)

    async def lost(self, name: str, url: str) -> None:
        """A shard could not be reached there: nothing is sent there until it answers again."""
        for shard in self._shards[name].running:
            if shard.url == url:
                shard.url = ""

    async def status(self, name: str) -> ShardsStatus:
        """The shards of an environment that answer, for logs and tests."""
        shards = self._shards[name]
        return ShardsStatus(
            {shard.url: shard.load for shard in shards.ready},
            [shard.process for shard in shards.ready],
            shards.restarts,
        )

    def _start(self, shards: _Shards) -> None:
        config = shards.config
        actor = ray.remote(Shard).options(
            num_cpus=config.num_cpus,
            resources=config.resources,
            label_selector=config.labels or None,
            max_restarts=-1,
            # On as many nodes as there are; never bound to one, which may die.
            scheduling_strategy="SPREAD",
        )
        # By reference, which the director keeps: a restart needs the arguments again.
        shard = _Running(actor.remote(shards.argument, self._token, config.idle_s))
        shards.running.append(shard)
        watching = asyncio.create_task(self._watch(shards, shard))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        log.info("shard.started", environment=shards.environment.name, shards=len(shards.running))

    async def _watch(self, shards: _Shards, shard: _Running) -> None:
        """Look at a shard again and again, which is also what finds a restarted one at its new address."""
        while True:
            try:
                state = await shard.actor.state.remote()
            except ActorDiedError as error:
                shards.running.remove(shard)
                await self._note(shards, lambda problem=str(error): _set_problem(shards, problem))
                return
            except RayTaskError as error:
                await self._note(shards, lambda problem=str(error.cause): _set_problem(shards, problem))
            except RayError:  # Ray is restarting it, whatever ended it: OutOfMemoryError is not a RayActorError
                shard.url = ""
            else:
                await self._note(shards, lambda state=state: _take_state(shards, shard, state))
            await asyncio.sleep(_POLL_S)

    async def _note(self, shards: _Shards, change: Callable[[], None]) -> None:
        async with shards.changed:
            change()
            shards.changed.notify_all()


def _set_problem(shards: _Shards, problem: str) -> None:
    log.error("shard.failed", environment=shards.environment.name, problem=problem)
    shards.problem = problem


def _take_state(shards: _Shards, shard: _Running, state: ShardState) -> None:
    if shard.was_at and shard.was_at != state.url:
        shards.restarts += 1
        log.warning("shard.restarted", environment=shards.environment.name, before=shard.was_at, now=state.url)
    shard.url = shard.was_at = state.url
    shard.process = state.process
    shard.leases, shard.given, shards.problem = state.leases, 0, ""


def shard_director() -> Any:
    """Handle of the job's `ShardDirector`, made if there is none. Ray ends it with its last handle."""
    # On the node of the process that makes it, which it does not outlive: the end of another node must not end it.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    made = ray.remote(ShardDirector).options(
        name=ACTOR_NAME,
        get_if_exists=True,
        num_cpus=0,
        max_concurrency=_CONCURRENCY,
        scheduling_strategy=here,
    )
    return made.remote()


@contextmanager
def connected(shards: Mapping[str, ShardsConfig]) -> Generator[None]:
    """Connect to the cluster that RAY_ADDRESS names or that runs on this machine, or start one here with all resources.

    The director lives as long as the block.

    Args:
        shards: What is to be placed, by the key that names it.

    Raises:
        ConfigError: no node of the cluster has what a shard takes.
    """
    ours = not ray.is_initialized()
    if ours:
        has_cluster = get_ray_address_from_environment(cast(Any, None), None) is not None
        ray.init(
            resources=None if has_cluster else _resources(shards.values()),
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    try:
        for key, config in shards.items():
            check_nodes(config, key=key)
        director = shard_director()  # the handle keeps it
        try:
            yield
        finally:
            del director
    finally:
        if ours:
            ray.shutdown()


def _resources(shards: Iterable[ShardsConfig]) -> dict[str, float]:
    """What all of these take together, in whole numbers, as Ray has it of what is more than one."""
    taken: dict[str, float] = {}
    for config in shards:
        for name, amount in config.resources.items():
            taken[name] = taken.get(name, 0.0) + amount * config.max
    return {name: float(math.ceil(amount)) for name, amount in taken.items()}


def check_nodes(config: ShardsConfig, *, key: str) -> None:
    """Raise ConfigError where no living node of the cluster has what a shard takes."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    for node in nodes:
        has, labels = node["Resources"], node.get("Labels", {})
        if all(has.get(name, 0) >= most for name, most in config.resources.items()) and (
            config.labels.items() <= labels.items()
        ):
            return
    wanted = ", ".join(f"{name}: {value}" for name, value in (config.resources | config.labels).items())
    raise ConfigError(
        f"none of {len(nodes)} nodes of the Ray cluster has {wanted}",
        key=key,
        remedy="start nodes for shards: ray start --address=HEAD:6379 --num-cpus=0 --resources='{\"mcp_shard\": 1}'",
    )
