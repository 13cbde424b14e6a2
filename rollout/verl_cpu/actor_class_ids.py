# pyright: basic
"""Ids of Ray's actor classes from the operating system, in a process that forks workers.

Ray draws ids in C++ from generators that cannot be seeded anew: one for each thread, seeded from a pool of the process.
A fork copies the pool, so threads of forked workers would draw the same ids. Two agent workers then call the engine
with one task id, and when one of them dies Ray aborts the engine. A process that has drawn nothing yet has no pool, and
importing a module that defines an actor draws this kind of id only.
"""

from __future__ import annotations

import os

import ray.actor
from ray import ActorClassID


class _OwnActorClassID(ActorClassID):
    @classmethod
    def from_random(cls) -> ActorClassID:
        return ActorClassID(os.urandom(ActorClassID.size()))


ray.actor.ActorClassID = _OwnActorClassID  # pyright: ignore[reportPrivateImportUsage]
