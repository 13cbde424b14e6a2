"""The scripted expert: tries its solution on an example, submits it, and says so."""

from __future__ import annotations

from mcp_servers.kit.answers import Call, Expert, ExpertTurn
from mcp_servers.sandbox.problems import FUNCTION, Problem


def expert(problem: Problem) -> Expert:
    tried = f"{problem.solution}\nprint({FUNCTION}({problem.examples[0].argument!r}))\n"
    return Expert(
        turns=[
            ExpertTurn(
                thinking="One line for each step. I try it on the first example.",
                calls=[Call(name="run_python", arguments={"code": tried})],
            ),
            ExpertTurn(
                thinking=f"The example gives {problem.examples[0].expected!r}, as it should.",
                calls=[Call(name="submit", arguments={"code": problem.solution})],
            ),
            ExpertTurn(thinking="All examples passed.", content="The function is submitted."),
        ]
    )
