from mcp_rollout.mcp_servers.bfcl.server import main

if __name__ == "__main__":
    main()
