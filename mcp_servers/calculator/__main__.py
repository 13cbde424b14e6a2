from mcp_servers.calculator import create_server
from mcp_servers.kit import main

if __name__ == "__main__":
    main(create_server(), "mcp_servers.calculator", "Arithmetic tools and word problems.")
