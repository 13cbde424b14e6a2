from mcp_rollout.mcp_servers.sandbox.server import main

if __name__ == "__main__":
    main()
