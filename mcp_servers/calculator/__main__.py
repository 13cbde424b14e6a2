from mcp_servers._serve import main
from mcp_servers.calculator import create_server

if __name__ == "__main__":
    main(create_server(), "mcp_servers.calculator", "Arithmetic tools and word problems.")
