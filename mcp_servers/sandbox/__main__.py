from mcp_servers.kit.serve import parser, serve
from mcp_servers.sandbox import create_server


def main() -> None:
    arguments = parser("mcp_servers.sandbox", "Programming problems; code runs isolated. Linux only.")
    arguments.add_argument(
        "--parallel",
        type=int,
        choices=range(1, 257),
        default=4,
        metavar="1..256",
        help="runs at a time, each on one core and with 256 MB of its own at most; others wait (default: %(default)s)",
    )
    given = arguments.parse_args()
    serve(create_server(parallel=given.parallel), given.http)


if __name__ == "__main__":
    main()
