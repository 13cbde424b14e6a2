from mcp_rollout.mcp_servers.kit import main
from mcp_rollout.mcp_servers.research import create_server

if __name__ == "__main__":
    main(
        create_server(),
        "mcp_rollout.mcp_servers.research",
        "A library to search and read, and questions over several articles.",
    )
