"""The scripted customers: `python -m mcp_servers.user_simulator --scenarios mcp_servers.retail.users:scenario`."""

from __future__ import annotations

from mcp_servers.retail.parts import Say
from mcp_servers.retail.tasks import make_case
from mcp_servers.user_simulator.scenario import END, Cue, Scenario, Step

ASKED_WHO = r"e-?mail|zip code|verify|authenticate"
VAGUE = "I am not sure I understand. What does that mean for my request?"


def scenario(task: str, seed: int) -> Scenario:
    """The customer of this task and seed, who reveals one request after the other.

    Raises:
        LookupError: There is no such task.
    """
    case = make_case(task, seed)
    says = [beat for beat in case.beats() if isinstance(beat, Say)]
    steps = {
        f"{index}": _step(
            f"{index}", say, f"{index + 1}" if index < len(says) else END, case.who, patience=0 if case.express else 3
        )
        for index, say in enumerate(says, 1)
    }
    return Scenario(opening=case.opening, first="1", steps=steps)


def _step(name: str, say: Say, to: str, who: str, *, patience: int) -> Step:
    onwards = Cue(when=say.cues, says=say.answer, to=to)
    asked = Cue(when=(ASKED_WHO,), says=who, to=name)
    return Step(cues=(onwards, asked), otherwise=(say.hint, VAGUE), patience=patience)
