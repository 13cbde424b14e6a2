from mcp_rollout.mcp_servers.depot.server import main

if __name__ == "__main__":
    main()
