from mcp_servers.gsm8k_tools.attempts import MAX_ATTEMPTS
from mcp_servers.gsm8k_tools.server import create_server
from mcp_servers.kit.serve import parser, serve


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


if __name__ == "__main__":
    main()
