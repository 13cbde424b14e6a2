"""The scripted expert: calculates stage by stage, then answers."""

from __future__ import annotations

from mcp_servers.gsm8k_tools.problems import Problem
from mcp_servers.gsm8k_tools.work import Step
from mcp_servers.kit.answers import Call, Expert, ExpertTurn


def expert(problem: Problem) -> Expert:
    turns = [_calculate(stage) for stage in problem.stages]
    last = problem.steps[-1]
    told = f"The last step gives the {last.what}: {last.value}.\nAnswer: {problem.answer}"
    return Expert(turns=[*turns, ExpertTurn(thinking="That was the last step.", content=told)])


def _calculate(stage: tuple[Step, ...]) -> ExpertTurn:
    calls = [Call(name="calculate", arguments={"expression": step.expression}) for step in stage]
    return ExpertTurn(thinking=f"I need the {' and the '.join(step.what for step in stage)}.", calls=calls)
