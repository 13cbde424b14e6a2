# pyright: basic, reportMissingImports=false
"""A worker of AReaL's single controller on a machine without a GPU: `scheduling_spec: [{cmd: python -m ...}]`."""

from __future__ import annotations

from mcp_rollout.rollout.areal import cpu

if __name__ == "__main__":
    cpu.prepare()
    from areal.infra.rpc.rpc_server import main

    main()
