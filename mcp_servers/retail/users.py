"""The scripted customers of the user simulator.

Its option is `--scenarios mcp_rollout.mcp_servers.retail.users:scenario`.
"""

from __future__ import annotations

from mcp_rollout.mcp_servers.retail.case import Case
from mcp_rollout.mcp_servers.retail.script import Say
from mcp_rollout.mcp_servers.retail.tasks import make_case
from mcp_rollout.mcp_servers.user_simulator.scripted import END, Cue, Scenario, Step

ASKED_WHO = r"e-?mail|zip code|verify|authenticate"
VAGUE = "I am not sure I understand. What does that mean for my request?"


def scenario(task: str, seed: int) -> Scenario:
    """The customer of this task and seed, who states one request after the other.

    Raises:
        LookupError: There is no such task.
    """
    return scenario_of(make_case(task, seed))


def scenario_of(case: Case, *, patience: int = 3) -> Scenario:
    """The customer of a case.

    Args:
        patience: Messages that a request waits for; see `Step`.
    """
    says = [turn for turn in case.turns() if isinstance(turn, Say)]
    steps = {f"{index}": _step(index, says, case.who, patience=patience) for index in range(1, len(says) + 1)}
    return Scenario(opening=case.opening, first="1", steps=steps)


def _step(index: int, says: list[Say], who: str, *, patience: int) -> Step:
    """Step `index`, from 1, in which the customer waits for the expert's message of that number."""
    say = says[index - 1]
    onwards = [_cue(index, says)]
    if say.sooner:
        onwards.insert(0, _cue(index + 1, says))
    asked = Cue(when=(ASKED_WHO,), says=who, to=f"{index}")
    return Step(cues=(*onwards, asked), otherwise=(say.hint, VAGUE), patience=patience)


def _cue(index: int, says: list[Say]) -> Cue:
    say = says[index - 1]
    return Cue(when=say.cues, says=say.answer, to=f"{index + 1}" if index < len(says) else END)
