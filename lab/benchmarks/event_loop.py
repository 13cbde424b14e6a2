"""How long a hostile server or policy can hold the event loop: every callback above 100 ms of CPU, by attack.

    python -m lab.benchmarks.event_loop [--above-ms 100] [--only WORD]

Each attack runs through a gateway of its own, with a server in another process. Every callback and every iteration of
the loop is timed in CPU time of its thread, without the garbage collector's, so that a busy machine does not count.
Prints a table: the longest callback of each attack, the longest time between another task's turns, how many callbacks
were above the bound, and which tasks they belong to. Exits with 1 where a callback, or a time between turns, is above.
"""

import argparse
import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from lab.benchmarks.callbacks import Callbacks, timed
from mcp_rollout.gateway.config.models import GatewayConfig
from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.gateway.leases.session import Session

logging.disable(logging.CRITICAL)
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

HOSTILE = Path(__file__).parents[2] / "tests" / "hostile"
Attack = Callable[[Session], Awaitable[Any]]


def stdio(behaviour: str, **entry: Any) -> Any:
    @asynccontextmanager
    async def serving() -> AsyncIterator[dict[str, Any]]:
        yield {"command": sys.executable, "args": ["-I", "-S", str(HOSTILE / "hostile_server.py"), behaviour], **entry}

    return serving


def http(behaviour: str, path: str = "mcp", **entry: Any) -> Any:
    @asynccontextmanager
    async def serving() -> AsyncIterator[dict[str, Any]]:
        argv = [sys.executable, "-I", "-S", str(HOSTILE / "hostile_http.py"), behaviour]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:  # noqa: ASYNC220
            try:
                assert process.stdout is not None
                yield {"url": f"http://127.0.0.1:{int(process.stdout.readline())}/{path}", **entry}
            finally:
                process.kill()

    return serving


def harm(arguments: Any = None) -> Attack:
    return lambda session: session.call("harm", {} if arguments is None else arguments)


async def change(session: Session) -> None:
    """The attack is in what the server lists after it announced a change."""
    await session.call("harm", {})
    await session.wait_for_tool_changes()


async def nothing(session: Session) -> None:
    """The attack is in what the server lists."""


async def many_calls(session: Session) -> Any:
    return [await session.call("harm", {}) for _ in range(20)][-1]


SECRETS = {f"KEY_{number}": f"pass/word {number} with signs" for number in range(5)}
BIG = [(1 << 64) + number for number in range(3000)]
NESTED: Any = 1
for _ in range(300):
    NESTED = [NESTED]
ATTACKS: list[tuple[str, Any, Attack]] = [
    ("none", stdio("none"), harm()),
    ("descriptions of hidden text", stdio("hidden text"), nothing),
    ("hidden text in 2,500 tools", stdio("much hidden text"), nothing),
    ("10,000 tools", stdio("10,000 tools"), nothing),
    ("small tools without an end", stdio("many small tools"), nothing),
    ("10,000 tools that all change", stdio("10,000 tools that change"), change),
    ("an enumeration that is reordered", stdio("enumeration that changes"), change),
    ("pages of tools without an end", stdio("endless large pages"), nothing),
    ("pages with a malformed tool each", stdio("endless large malformed pages"), nothing),
    ("unique big integers", stdio("unique integers"), harm({"x": BIG})),
    (
        "unique integers of 63 bits",
        stdio("unique integers"),
        harm({"x": [(1 << 62) + number for number in range(30_000)]}),
    ),
    ("unique objects", stdio("unique integers"), harm({"x": [{"a": [number]} for number in range(20_000)]})),
    ("unique fractions", stdio("unique integers"), harm({"x": [number + 0.5 for number in range(20_000)]})),
    ("unique texts", stdio("unique integers"), harm({"x": ["y" * 50 + str(number) for number in range(20_000)]})),
    ("rejected patterns", stdio("rejected patterns"), harm()),
    ("patterns of many escapes", stdio("escapes"), harm()),
    ("a pattern without regard to case", stdio("caseless"), harm()),
    ("unevaluated keywords that fan out", stdio("unevaluated"), harm()),
    ("a long text and a pattern of 220 loops", stdio("loops"), harm({"x": "ab" * 1000})),
    ("large enumerations", stdio("large enumerations"), harm({f"p{number}": "no" for number in range(20)})),
    ("multiples of a tiny number", stdio("tiny multiples"), harm({"x": [1.7976931348623157e308] * 5000})),
    ("multiples of a hundredth", stdio("multiples"), harm({"x": [1e308] * 20_000})),
    ("multiples, few enough to be divided", stdio("multiples"), harm({"x": [1e308] * 2_200})),
    ("schemas that fan out", stdio("costly schemas"), lambda session: session.call("doubling", {"x": [1] * 10_000})),
    ("a flood of short lines", stdio("short lines"), harm()),
    ("a flood of long lines", stdio("many lines"), harm()),
    ("a line of 50 MB", stdio("long line"), harm()),
    ("50 MB of standard error", stdio("stderr"), harm()),
    ("a result of 400,000 objects", stdio("many values"), harm()),
    ("a result of 95,000 names", stdio("many names"), harm()),
    ("a result of 190,000 strings, secrets", stdio("many strings", env=SECRETS), harm()),
    ("a result of 10,000 blocks, secrets", stdio("10,000 blocks", env=SECRETS), harm()),
    ("a result of 7 MB, secrets", stdio("7 MB of text", env=SECRETS), harm()),
    ("a result of 7 MB, nearly a secret", stdio("near misses", env={"KEY_0": SECRETS["KEY_0"]}), harm()),
    ("a result of 7 MB, nearly five secrets", stdio("near misses", env=SECRETS), harm()),
    (
        "a notification of 7 MB, nearly a secret",
        stdio("near misses in a notification", env={"KEY_0": SECRETS["KEY_0"]}),
        harm(),
    ),
    ("a result of 1,800 long integers", stdio("long integers"), harm()),
    ("a result of 1,800 long integers, secrets", stdio("long integers", env=SECRETS), harm()),
    ("a result to repair", stdio("repaired"), harm()),
    ("a result of 20,000 blocks", stdio("many blocks"), harm()),
    ("a result of 9,999 annotated texts", stdio("annotated texts"), harm()),
    ("a result of 2,000 resources", stdio("2,000 resources"), harm()),
    ("20,000 notifications", stdio("20,000 notifications"), harm()),
    ("2,000 requests", stdio("requests"), harm()),
    ("arguments of 7 MB", stdio("none"), harm({"x": "y" * (7 << 20)})),
    ("arguments of 500,000 values", stdio("none"), harm({"x": list(range(500_000))})),
    ("the same as text", stdio("none"), harm(json.dumps({"x": list(range(500_000))}))),
    ("arguments of 1,800 long integers", stdio("none"), harm({"x": [10**3999 + number for number in range(1800)]})),
    ("300 levels as text", stdio("none"), harm(json.dumps({"x": NESTED}))),
    ("HTTP: an event of 1,000,000 lines", http("many data lines"), harm()),
    ("HTTP: 5,000 notifications, such an event", http("notifications, many data lines"), harm()),
    ("HTTP: 1,000,000 lines of no field", http("short lines"), harm()),
    ("HTTP: a large event", http("large event"), harm()),
    ("HTTP: many events", http("many events"), harm()),
    ("HTTP: a large document", http("large answer"), harm()),
    ("HTTP: 20,000 notifications", http("20,000 notifications"), harm()),
    ("HTTP: 1xx heads for ever", http("informational heads"), harm()),
    ("HTTP: 1xx heads, CRLF", http("informational heads, CRLF"), harm()),
    ("HTTP: 1xx heads before the tools", http("informational heads in list", start_timeout_s=5), nothing),
    ("HTTP: blank lines after notifications", http("blank lines"), harm()),
    ("HTTP: cookies", http("cookies"), many_calls),
    ("HTTP: 3,000 pings", http("3,000 pings"), harm()),
    ("SSE: an event of 1,000,000 lines", http("sse many data lines", "sse", type="sse"), harm()),
    ("SSE: 1,000,000 lines of no field", http("sse short lines", "sse", type="sse"), harm()),
]


async def attack(serving: Any, run: Attack, above_s: float) -> tuple[Callbacks, str]:
    """The callbacks of one attack, and its outcome."""
    outcome = "no call"
    async with serving() as entry:
        config = {"servers": {"bad": {"call_timeout_s": 30, "close_timeout_s": 0.5, **entry}}}
        with timed(above_s) as found:
            async with Gateway(GatewayConfig.model_validate(config)) as gateway:
                with suppress(GatewayError):
                    async with gateway.lease(trajectory="t", task=None, seed=1) as session:
                        try:
                            if (result := await run(session)) is not None:
                                outcome = "error result" if result.is_error else "result"
                        except GatewayError as error:
                            outcome = error.code
    return found, outcome


def say(line: str) -> None:
    print(line, flush=True)


def main(above_ms: float, only: str) -> int:
    slow = 0
    say(f"{'attack':38} {'outcome':18} {'longest ms':>10} {'turn ms':>8} {'above':>6}  where")
    for name, serving, run in ATTACKS:
        if only not in name:
            continue
        found, outcome = asyncio.run(attack(serving, run, above_ms / 1e3))
        where = ", ".join(f"{place} ({count})" for place, count in found.slow.most_common(3))
        times = f"{1e3 * found.longest_s:10.0f} {1e3 * found.longest_turn_s:8.0f}"
        say(f"{name:38} {outcome:18} {times} {found.slow.total():6}  {where}")
        slow += found.slow.total() + (1e3 * found.longest_turn_s > above_ms)
    return int(slow > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--above-ms", type=float, default=100)
    parser.add_argument("--only", default="", help="run the attacks whose name contains this")
    options = parser.parse_args()
    sys.exit(main(options.above_ms, options.only))
