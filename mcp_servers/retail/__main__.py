from mcp_servers.kit import parser, serve
from mcp_servers.retail import create_server


def main() -> None:
    arguments = parser("mcp_servers.retail", "Customer service of a small shop, one database per trajectory.")
    arguments.add_argument(
        "--slice",
        dest="slice_",
        choices=["all", "any", "fitting"],
        default="all",
        help="whose tasks are listed: the whole shop's, or the counter's short ones (default: %(default)s)",
    )
    given = arguments.parse_args()
    serve(create_server(slice_=given.slice_), given.http)


if __name__ == "__main__":
    main()
