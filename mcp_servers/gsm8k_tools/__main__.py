from mcp_rollout.mcp_servers.gsm8k_tools.server import main

if __name__ == "__main__":
    main()
