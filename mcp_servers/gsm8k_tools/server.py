"""The problems as an MCP server: the calculator is the policy's tool; the user and the score are the harness's."""

from __future__ import annotations

from mcp.server.mcpserver import Context, MCPServer

from mcp_servers.calculator.arithmetic import Expression, evaluate, results_within
from mcp_servers.gsm8k_tools.problems import MAX_ATTEMPTS, TASKS, Attempts, expert, problem
from mcp_servers.kit import READ, Harness, parser, serve

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
    arguments = parser("mcp_servers.gsm8k_tools", "Word problems with a calculator and a user who lets one try again.")
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
