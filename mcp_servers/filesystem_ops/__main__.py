from mcp_rollout.mcp_servers.filesystem_ops.server import main

if __name__ == "__main__":
    main()
