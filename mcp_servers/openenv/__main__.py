from mcp_rollout.mcp_servers.openenv.server import main

if __name__ == "__main__":
    main()
