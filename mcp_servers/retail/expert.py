"""The scripted expert: what a perfect agent does in a case, turn by turn."""

from __future__ import annotations

from mcp_servers.kit import Expert, ExpertTurn
from mcp_servers.retail.case import Case
from mcp_servers.retail.parts import Beat, Look, Say


def expert(case: Case) -> Expert:
    return Expert(turns=[_turn(beat) for beat in case.beats()])


def _turn(beat: Beat) -> ExpertTurn:
    if isinstance(beat, Say):
        return ExpertTurn(thinking=beat.thinking, content=beat.text)
    calls = beat.calls if isinstance(beat, Look) else (beat.call,)
    return ExpertTurn(thinking=beat.thinking, calls=list(calls))
