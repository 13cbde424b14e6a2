from mcp_servers.kit import parser, serve
from mcp_servers.user_simulator.load import load_scenarios
from mcp_servers.user_simulator.server import create_server


def main() -> None:
    arguments = parser("mcp_servers.user_simulator", "A scripted user over several turns.")
    arguments.add_argument(
        "--scenarios",
        required=True,
        metavar="MODULE:FUNCTION|FILE.json",
        help="a function (task, seed) -> Scenario, or a JSON object of scenarios by task ('*' serves every other task)",
    )
    given = arguments.parse_args()
    try:
        scenarios = load_scenarios(given.scenarios)
    except ValueError as error:
        arguments.error(str(error))
    serve(create_server(scenarios), given.http)


if __name__ == "__main__":
    main()
