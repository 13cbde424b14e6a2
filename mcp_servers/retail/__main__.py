from mcp_servers._serve import main
from mcp_servers.retail import create_server

if __name__ == "__main__":
    main(create_server(), "mcp_servers.retail", "Customer service of a small shop, one database per trajectory.")
