"""The problems as an MCP server: the calculator is the policy's tool; the user and the score are the harness's."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from mcp.server.mcpserver import Context, MCPServer

from mcp_rollout.mcp_servers.calculator.arithmetic import Expression, Number, answer_in, evaluate, results_within
from mcp_rollout.mcp_servers.calculator.stories import Family, Question, Step, StoryProblem, make_problem, questions
from mcp_rollout.mcp_servers.kit import (
    READ,
    Call,
    Expert,
    ExpertTurn,
    Harness,
    Reply,
    Score,
    Split,
    Splits,
    parser,
    serve,
)
from mcp_rollout.mcp_servers.kit.records import Difficulty

TASKS = Splits("gsm8k", {"train": 400, "test": 100})

MAX_ATTEMPTS = 4
DISCOUNT = 0.8
"""Factor by which a right answer loses value at each further attempt."""
STEPS_SHARE = 0.1


_DIFFICULTIES: tuple[Difficulty, ...] = ("hard", "easy", "medium", "hard")
"""The difficulties of consecutive tasks, in a cycle."""


def problem(task: str, seed: int) -> StoryProblem:
    """The problem of this task and seed, the same in every process. Difficulty goes by the steps: 2, 3, or 4 and 5.

    Raises:
        LookupError: There is no such task.
    """
    ending = "Give the result in a line of its own: 'Answer: N'."
    return make_problem(task, seed, TASKS, _DIFFICULTIES, _questions, ending=ending)


@cache
def _questions(split: Split, difficulty: Difficulty) -> list[tuple[Family, Question]]:
    steps = {"easy": (2,), "medium": (3,), "hard": (4, 5)}[difficulty]
    return [(family, asked) for family, asked in questions(split) if sum(map(len, asked.steps)) in steps]


def expert(problem: StoryProblem) -> Expert:
    turns = [_calculate(stage) for stage in problem.story.stages]
    last = problem.story.steps[-1]
    told = f"The last step gives {last.value} ({last.what}).\nAnswer: {problem.answer}"
    return Expert(turns=[*turns, ExpertTurn(thinking="That was the last step.", content=told)])


def _calculate(stage: tuple[Step, ...]) -> ExpertTurn:
    calls = [Call(name="calculate", arguments={"expression": step.expression}) for step in stage]
    return ExpertTurn(thinking=f"I need this first: {' and '.join(step.what for step in stage)}.", calls=calls)


@dataclass(kw_only=True, slots=True)
class Attempts:
    """A trajectory's answers and calculations."""

    problem: StoryProblem
    most: int = MAX_ATTEMPTS
    calculated: set[Number] = field(default_factory=set[Number])
    made: int = 0
    """Number of answers that the user judged."""
    right_at: int | None = None
    """The attempt that was right, from 1."""

    def reply(self, message: str) -> Reply:
        """The user's reply to the next attempt. A message without exactly one answer counts as an attempt, or guessing
        would be free.
        """
        self.made += 1
        answer, left = answer_in(message), self.most - self.made
        if answer == self.problem.answer:
            self.right_at = self.made
            return Reply(message="That is right. Thank you!", done=True)
        said = "I see no single line 'Answer: N'." if answer is None else "That is not right."
        if left == 0:
            return Reply(message=f"{said} Let us leave it at that.", done=True)
        tries = "one more try" if left == 1 else f"{left} more tries"
        return Reply(message=f"{said} You have {tries}: go through the steps again.", done=False)

    def score(self) -> Score:
        """``0.9 * 0.8 ** (k - 1) + 0.1 * steps`` if attempt k was right, ``0.1 * steps`` if none was.

        `steps` is the share of the solution's intermediate results that the calculator returned. Results beyond twice
        the solution's number reduce it, or trying all numbers would pay.
        """
        needed = {step.value for step in self.problem.story.steps}
        steps = len(needed & self.calculated) / max(len(needed), len(self.calculated) / 2)
        answer = DISCOUNT ** (self.right_at - 1) if self.right_at is not None else 0.0
        total = (1 - STEPS_SHARE) * answer + STEPS_SHARE * steps
        return Score(score=total, parts={"answer": answer, "steps": steps})


INSTRUCTIONS = """\
You solve word problems. Take them apart into steps and calculate each step with the tool, never in your head; steps
that do not need each other's results may be calculated together. Then say the result, with one line of exactly this
form:
Answer: N
The user says whether it is right. If it is not, go through the steps again and answer anew. The earlier an answer is
right, the better."""


def create_server(*, attempts: int = MAX_ATTEMPTS) -> MCPServer:
    """Creates the server.

    Args:
        attempts: How many answers the user takes before giving up.
    """
    server = MCPServer("gsm8k_tools", instructions=INSTRUCTIONS, log_level="WARNING")
    rehearsal = TASKS.first("test")
    harness = Harness(
        server, lambda task, seed: Attempts(problem=problem(task, seed), most=attempts), rehearsal=rehearsal
    )
    harness.tasks(lambda split: TASKS.items(split, problem))
    harness.start(lambda attempts: attempts.problem.prompt)
    harness.reply(Attempts.reply)
    harness.score(lambda attempts, _: attempts.score())
    harness.expert(lambda attempts: expert(attempts.problem))

    # READ, because the results are a set: a repeated call leaves the same state.
    @server.tool(annotations=READ)
    async def calculate(expression: Expression, ctx: Context) -> int | float:
        """Calculate an arithmetic expression."""
        harness.world(ctx).calculated |= results_within(expression)
        return evaluate(expression)

    return server


def main() -> None:
    arguments = parser(
        "mcp_rollout.mcp_servers.gsm8k_tools", "Word problems with a calculator and a user who lets one try again."
    )
    arguments.add_argument(
        "--attempts",
        type=int,
        choices=range(1, 16),
        default=MAX_ATTEMPTS,
        metavar="1..15",
        help="answers that the user takes before giving up (default: %(default)s)",
    )
    given = arguments.parse_args()
    serve(create_server(attempts=given.attempts), given.http)
