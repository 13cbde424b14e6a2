from mcp_rollout.mcp_servers.retail.server import main

if __name__ == "__main__":
    main()
