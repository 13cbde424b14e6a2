from mcp_rollout.mcp_servers.calculator import create_server
from mcp_rollout.mcp_servers.kit import main

if __name__ == "__main__":
    main(create_server(), "mcp_rollout.mcp_servers.calculator", "Arithmetic tools and word problems.")
