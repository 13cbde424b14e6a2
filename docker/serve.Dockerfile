# `mcp-rollout serve`: worlds for gateways and MCP clients on other machines. From the repository's root:
#
#   docker build -f docker/serve.Dockerfile -t mcp-rollout-serve .
#   docker run -p 8600:8600 -v ./tokens:/run/secrets/tokens:ro mcp-rollout-serve retail
#
# The arguments are environments, by name or as files that are mounted; `tokens` is described in docs/serve.md.
FROM python:3.12-slim
WORKDIR /source
COPY . .
RUN python -m venv /opt/mcp-rollout
RUN /opt/mcp-rollout/bin/pip install --no-cache-dir .
# nobody: a world needs no account.
USER 65534:65534
WORKDIR /tmp
ENV HOME=/tmp
EXPOSE 8600
ENTRYPOINT ["/opt/mcp-rollout/bin/mcp-rollout", "serve", "--host", "0.0.0.0", "--port", "8600", "--token-file", "/run/secrets/tokens"]
