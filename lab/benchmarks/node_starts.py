"""CPU time of a start of node's servers with and without node's compile cache, in turns.

    python -m lab.benchmarks.node_starts [--rounds 9]

The servers are those of `make third-party`. A start is the program's, the handshake and a listing of its tools, and its
end. With the cache, `NODE_COMPILE_CACHE` names a directory in which an earlier start left compiled code. Prints a line
for each server.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from third_party import NODE, PLACE

PACKAGES = PLACE / "node_modules" / "@modelcontextprotocol"
SERVERS = {"everything": ["stdio"], "filesystem": ["/tmp"], "memory": [], "sequential-thinking": []}
CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
MESSAGES = [
    {"id": 1, "method": "initialize", "params": CLIENT},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list"},
]
LINES = b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in MESSAGES)


def start_ms(argv: list[str], env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(
        [NODE, *argv], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(LINES)
        process.stdin.flush()
        while b'"id":2' not in process.stdout.readline():
            assert process.poll() is None, f"{argv} ended with status {process.returncode}"
        process.stdin.close()
        process.wait(20)  # by itself: only then is the cache written
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    for name, more in SERVERS.items():
        argv = [str(PACKAGES / f"server-{name}" / "dist" / "index.js"), *more]
        with tempfile.TemporaryDirectory() as cache:
            plain = {"PATH": os.environ["PATH"], "HOME": cache}
            cached = {**plain, "NODE_COMPILE_CACHE": cache}
            start_ms(argv, cached)
            sides = [(start_ms(argv, plain), start_ms(argv, cached)) for _ in range(given.rounds)]
        without, with_cache = (round(statistics.median(side)) for side in zip(*sides, strict=True))
        print(json.dumps({"server": name, "cpu_ms": without, "cpu_ms_with_cache": with_cache}), flush=True)
