"""Become the server: `server.py`, run by the interpreter of the package's environment."""

import os
import sys
from pathlib import Path

from mcp_rollout.mcp_servers.tau3_airline.package import environment

if __name__ == "__main__":
    try:
        python = str(environment() / "bin" / "python")
    except LookupError as error:
        sys.exit(f"error: {error}")
    # -I: neither PYTHONPATH nor this directory may bring modules of another environment along.
    os.execv(python, [python, "-I", str(Path(__file__).with_name("server.py")), *sys.argv[1:]])
