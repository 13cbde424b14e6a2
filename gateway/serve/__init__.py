"""The gateway behind streamable HTTP: worlds for other gateways, and a policy's tools for any MCP client."""
