from pathlib import Path

from mcp_servers.filesystem_ops.server import create_server
from mcp_servers.kit.serve import parser, serve


def main() -> None:
    arguments = parser(
        "mcp_servers.filesystem_ops", "Lays out a tree of files for each task and scores what became of it."
    )
    arguments.add_argument(
        "--directory",
        type=Path,
        required=True,
        metavar="DIR",
        help="an empty directory that the filesystem server works in too, such as ${lease.dir}; resets overwrite it",
    )
    given = arguments.parse_args()
    if not given.directory.is_dir():
        arguments.error(f"--directory {given.directory} is no directory")
    serve(create_server(given.directory), given.http)


if __name__ == "__main__":
    main()
