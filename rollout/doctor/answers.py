"""What a probe's calls came to, and when two answers differ."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from gateway.errors import CallTimeout, DeliveryUnknown, GatewayError
from gateway.leases.lease_dir import LEASE_DIR
from gateway.leases.session import Session
from gateway.types import canonical_json
from rollout.doctor.plan import ProbeCall

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call came to; `refused` where the tool said no, `failed` where it did not answer."""

    text: str
    refused: bool = False
    failed: bool = False

    @property
    def well(self) -> bool:
        """Whether the tool did what was asked."""
        return not (self.refused or self.failed)

    def __str__(self) -> str:
        line = " ".join(self.text.split())
        return repr(line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…")


def side_by_side(one: Answer, other: Answer) -> tuple[str, str]:
    """Two answers to be shown, from shortly before where they part."""
    lines = [" ".join(answer.text.split()) for answer in (one, other)]
    alike = next((at for at, (here, there) in enumerate(zip(*lines, strict=False)) if here != there), 0)
    start = max(alike - _SHOWN // 2, 0)
    first, second = (str(Answer(("…" if start else "") + line[start:])) for line in lines)
    return first, second


def differ(one: Answer, other: Answer) -> bool:
    """Whether two answers differ in more than the wording of an error."""
    return one != other and not (one.failed or other.failed) and not (one.refused and other.refused)


async def ask(session: Session, call: ProbeCall) -> Answer:
    """Make one call; a failure is an answer, too. The path of the lease's directory says nothing about the server."""
    directory = "" if session.lease_dir is None else str(session.lease_dir)
    try:
        result = await session.call(call.tool, _placed(call.arguments, directory))
    except (CallTimeout, DeliveryUnknown) as error:
        return Answer(error.code, failed=True)
    except GatewayError as error:
        return Answer(str(error), failed=True)
    structured = canonical_json(dict(result.structured)) if result.structured is not None and not result.text else ""
    text = result.text + structured
    for path in _spellings(directory):
        text = text.replace(path, LEASE_DIR)
    return Answer(text, refused=result.is_error)


def _placed(arguments: dict[str, Any], directory: str) -> dict[str, Any]:
    if not directory:
        return arguments
    inside_json = json.dumps(directory)[1:-1]
    return json.loads(json.dumps(arguments).replace(LEASE_DIR, inside_json))


def _spellings(directory: str) -> list[str]:
    """A path as it may stand in an answer: as given, its links resolved, its last part alone."""
    if not directory:
        return []
    return [os.path.realpath(directory), directory, os.path.basename(directory)]
