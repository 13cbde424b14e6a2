"""Which share of 200 small changes of the code, drawn with a fixed seed, the tests catch.

    python -m lab.benchmarks.mutations --commit REV --list        # what is drawn
    python -m lab.benchmarks.mutations --commit REV --probe 20    # which tests reach it, for 20 minutes
    python -m lab.benchmarks.mutations --commit REV --minutes 40  # measures; goes on where it was cut
    python -m lab.benchmarks.mutations --report lab/benchmarks/results/mutations-*.jsonl

Each package has as many changes as its share of code lines. Within it a line that can be changed is drawn, and one of
its changes. The draw depends on the seed and on what is changed, never on where it stands: two versions are compared by
drawing from each with the same seed and operators, and code that both have mostly has the same changes in both draws.
`--report` with two files compares what both drew, too. Equivalent changes are not left out, on neither side.

Everything runs in a copy of the commit, in an environment like this one's whose product is the copy, one change at a
time. A change is tried with the tests that reached its statement, in any of their processes, while they were probed: a
call inserted before each statement drawn notes the test. In place of files not probed, and for what no test was seen to
reach, as what runs at import or in a jail, these are tried: files whose name has the module's, then those whose imports
lead to it, in four steps at most, then those of its directory. The closest come first, and after `--budget` seconds no
test begins: `complete` says whether that was all, and survivors that were cut are tried again with a larger budget. A
test counts if it passes without the change. A change that no test notices is given to pyright, which `make test` runs
too. A timeout is a test that runs on for 240 s after the budget, and passes without the change; it counts as caught.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import hashlib
import io
import json
import math
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lab.benchmarks.mutation_copy import Copy
from lab.benchmarks.mutation_sites import Site, Sites

SEED = 51
DRAWN = 200
PACKAGES = ("gateway", "rollout", "mcp_servers", "mcp_wire", "mcp_rollout")
ROOT = Path(__file__).parents[2]
NAMED = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
CAUGHT = ("caught", "timeout", "pyright")


def chance(site: Site, use: str = "draw") -> float:
    """Uniform in (0, 1): the same for the same change, wherever it stands."""
    return (int(hashlib.sha256(f"{SEED}|{use}|{site.key}".encode()).hexdigest()[:13], 16) + 1) / (16**13 + 2)


def draw(sources: dict[str, str]) -> list[Site]:
    lines, found = Counter[str](), defaultdict[str, list[Site]](list)
    for path, text in sources.items():
        lines[path.split("/")[0]] += code_lines(text)
        found[path.split("/")[0]] += Sites(path, text).found
    counts = {package: max(1, round(DRAWN * each / lines.total())) for package, each in lines.items()}
    counts[lines.most_common(1)[0][0]] += DRAWN - sum(counts.values())
    drawn = list[Site]()
    for package, sites in found.items():
        beside = Counter((site.path, site.line) for site in sites)
        # The smallest of these are a draw without replacement in which each line weighs as much as another.
        sites.sort(key=lambda site, beside=beside: -math.log(chance(site)) * beside[site.path, site.line])
        drawn += sites[: counts[package]]
    return sorted(drawn, key=lambda site: chance(site, "order"))


def code_lines(text: str) -> int:
    doc = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            doc |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in doc for number, line in lines)


class Distances:
    """In how many steps a test file's imports, and the modules that its text names, lead to a module; -1 by name."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.paths = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in texts}
        self.paths |= {Path(path).stem: path for path in texts if path.startswith("tests/support/")}
        self.uses = {path: set(self._used(text)) - {path} for path, text in texts.items()}
        self.files = [path for path in texts if re.match(r"tests/(?!support/).*test_\w+\.py$", path)]
        self.steps = {path: dict(self._reached(path)) for path in self.files}

    def of(self, file: str, path: str) -> int | None:
        steps, name, module = self.steps[file].get(path), Path(file).stem, Path(path).stem
        if name == f"test_{module}" or (module in name and steps is not None):
            return -1
        # Commands and adapters are imported by a name that is put together.
        return 5 if steps is None and Path(file).parent.parts[1:] == Path(path).parent.parts else steps

    def _used(self, text: str) -> Iterator[str]:
        names = set(NAMED.findall(text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        for name in names:
            while name and name not in self.paths:
                name = name.rpartition(".")[0]
            if name:
                yield self.paths[name]

    def _reached(self, file: str) -> Iterator[tuple[str, int]]:
        seen, last = {file}, {file}
        for step in range(5):
            last = {path for each in last for path in self.uses[each]} - seen
            seen |= last
            yield from ((path, step) for path in last)


def with_calls(text: str, places: dict[tuple[int, int], list[int]]) -> str:
    """A module with a call before each of the statements at these places."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                body[:] = [
                    one for each in body for one in (*map(_call, places.get((each.lineno, each.col_offset), ())), each)
                ]
    return ast.unparse(ast.fix_missing_locations(tree))


def _call(site: int) -> ast.stmt:
    """A process in a jail may be unable to import it."""
    return ast.parse(f"try:\n __import__('mutation_probe').hit({site})\nexcept Exception: pass").body[0]


def probe(copy: Copy, sites: list[Site], distances: Distances, minutes: float) -> None:
    """Which tests reach the sites, five files a run, until the minutes are over."""
    worth = Counter[str]()
    for file in distances.files:
        slow = re.search(r"mark\.(verl|full)\b", (copy.tree / file).read_text())
        found = [distances.of(file, site.path) for site in sites]
        worth[file] = sum(0 if steps is None else 100 >> steps + 1 for steps in found) - (10**6 if slow else 0)
    for path in {site.path for site in sites}:
        places = defaultdict[tuple[int, int], list[int]](list)
        for number, site in enumerate(sites):
            if site.path == path and site.reached:
                places[site.reached].append(number)
        copy.write(path, with_calls(copy.sources[path], places))
    ends = time.monotonic() + 60 * minutes
    files = [file for file, _ in worth.most_common() if file not in copy.probed]
    for batch in (files[place : place + 5] for place in range(0, len(files), 5)):
        if time.monotonic() > ends:
            break
        (copy.notes / "hits").write_text("")
        _, passed, failed = copy.pytest(batch, math.inf, "--timeout", "120")
        hits = defaultdict[str, list[str]](list)
        for line in (copy.notes / "hits").read_text().splitlines():
            site, test = line.split("\t")
            hits[test].append(sites[int(site)].key)
        copy.learn(files=batch, passed=passed, failed=failed, hits=hits)
        say(f"probed {len(copy.probed)} of {len(distances.files)}; {len(passed)} passed, failed: {failed}")


def choose(copy: Copy, site: Site, distances: Distances, budget_s: float) -> tuple[list[str], bool]:
    """Tests, or whole files, that take about that long, and whether there are no more."""
    tests = defaultdict[str, list[str]](list)
    for name in copy.took:
        tests[name.split("::")[0]].append(name)
    candidates = list[tuple[tuple[float, ...], list[str]]]()
    for file in distances.files:
        steps = distances.of(file, site.path)
        if file in copy.probed and site.key in copy.hits:
            names = sorted(copy.hits[site.key].intersection(tests[file]), key=copy.took.__getitem__)
        else:
            names = [] if steps is None or file in copy.broken else [file]
        beside = len({*Path(file).parts} & {*Path(site.path).parts})
        for part in (names[place : place + 20] for place in range(0, len(names), 20)):
            seconds = sum(copy.took[each] for each in (tests[file] if part == [file] else part)) or 10
            key = (6 if steps is None else steps, -beside, len(distances.uses[file]), seconds)
            candidates.append((key, part))
    chosen, total = list[str](), 0.0
    for (*_, seconds), part in sorted(candidates):
        if chosen and total + seconds > budget_s:
            return chosen, False
        chosen, total = chosen + part, total + seconds
    return chosen, True


def measure(copy: Copy, site: Site, distances: Distances, budget_s: float) -> dict[str, Any]:
    source = copy.sources[site.path].encode()
    changed = (source[: site.span[0]] + site.after.encode() + source[site.span[1] :]).decode()
    while True:
        chosen, complete = choose(copy, site, distances, budget_s)
        copy.write(site.path, changed)
        try:
            started = time.monotonic()
            code, passed, failed = copy.pytest(chosen, budget_s, "-x") if chosen else (5, {}, [])
            complete = complete and time.monotonic() - started < budget_s
            copy.learn(passed=passed)
            found = {"passed": len(passed), "complete": complete, "budget": budget_s}
            if code in (0, 5):
                pyright = [str(copy.bin / "pyright"), "--pythonpath", str(copy.bin / "python"), site.path]
                typed = copy.run(pyright, 300) == 0
                return found | {"outcome": "pyright" if not typed else "survived" if passed else "no test"}
        finally:
            copy.write(site.path)
        failing = failed[0] if failed else (copy.notes / "current").read_text() if code is None else ""
        found |= {"outcome": "timeout" if code is None else "caught", "by": failing or "collection"}
        if failing in copy.took:
            return found
        if failing:
            again, without, _ = copy.pytest([failing], 60)
        else:
            again, without, _ = copy.pytest(chosen, 60, "--collect-only")
        if again == 0 and (without or not failing):
            copy.learn(passed=without)
            return found
        copy.learn(failed=[failing] if failing else chosen)
        if code is None:
            return found | {"outcome": "survived" if passed else "no test", "by": "", "complete": False}
        # It was not the change: once more without that test, or without these files.


def report(paths: list[Path]) -> None:
    """The share caught per package, with Wilson's interval of 95%; of two files also what both drew."""
    runs = [{record["key"]: record for record in read(path) if "outcome" in record} for path in paths]
    outcomes = ("caught", "timeout", "pyright", "survived", "no test")
    for path, run in zip(paths, runs, strict=True):
        print(path.name)
        print(f"{'package':14}{'measured':>9}" + "".join(f"{each:>9}" for each in outcomes) + f"{'share':>8}   95%")
        for package in (*PACKAGES, "all"):
            counts = Counter(r["outcome"] for r in run.values() if package in ("all", r["file"].split("/")[0]))
            if n := counts.total():
                caught = sum(counts[each] for each in CAUGHT)
                low, high = wilson(caught, n)
                row = f"{package:14}{n:9}" + "".join(f"{counts[each]:9}" for each in outcomes)
                print(f"{row}{caught / n:8.1%}   {low:.1%} to {high:.1%}")
    if len(runs) == 2:
        both = runs[0].keys() & runs[1].keys()
        caught = [{key for key in both if run[key]["outcome"] in CAUGHT} for run in runs]
        print(f"measured in both: {len(both)}, caught in both: {len(caught[0] & caught[1])}, in one only:")
        for key in sorted(caught[0] ^ caught[1]):
            where = runs[0][key]
            print(f"  {1 if key in caught[0] else 2}: {where['file']}:{where['line']} {where['after'][:60]}")


def wilson(caught: int, n: int) -> tuple[float, float]:
    z = 1.96
    middle, half = caught / n + z * z / (2 * n), z * math.sqrt(caught * (n - caught) / n**3 + (z / (2 * n)) ** 2)
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def read(path: Path) -> Iterable[dict[str, Any]]:
    return map(json.loads, path.read_text().splitlines()) if path.exists() else ()


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--probe", type=float, metavar="MINUTES")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--budget", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--only", default=":", metavar="I:J")
    parser.add_argument("--report", nargs="+", type=Path)
    given = parser.parse_args()
    if given.report:
        return report(given.report)
    ends = time.monotonic() + 60 * given.minutes
    commit = subprocess.check_output(["git", "rev-parse", given.commit], cwd=ROOT, text=True).strip()
    archive = tarfile.open(fileobj=io.BytesIO(subprocess.check_output(["git", "archive", commit], cwd=ROOT)))
    paths = sorted(name for name in archive.getnames() if name.endswith(".py"))
    texts = {name: file.read().decode() for name in paths if (file := archive.extractfile(name))}
    sources = {path: text for path, text in texts.items() if path.split("/")[0] in PACKAGES}
    sites = draw(sources)
    if given.list:
        for number, site in enumerate(sites):
            before, after = (" ".join(text.split())[:60] for text in (site.before, site.after))
            print(f"{number:3} {site.path}:{site.line} {site.operator}: {before} -> {after}")
        return None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER, for `Copy.run`
    distances = Distances({path: text for path, text in texts.items() if path.split("/")[0] in (*PACKAGES, "tests")})
    known = Path(tempfile.gettempdir()) / f"mutations-{commit[:10]}.jsonl"
    out = ROOT / "benchmarks" / "results" / f"mutations-{commit[:10]}.jsonl"
    with tempfile.TemporaryDirectory(prefix="mutations-", ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o755)  # as a checkout: tests start processes of other users
        archive.extractall(Path(place) / "tree", filter="tar")
        copy = Copy(Path(place), sources, known)
        if given.probe:
            return probe(copy, sites, distances, given.probe)
        done = {r["key"]: r for r in read(out) if r.get("outcome", "no test") != "no test"}
        if not out.exists():
            head = {
                "commit": commit,
                "seed": SEED,
                "drawn": len(sites),
                "command": "python -m lab.benchmarks.mutations",
            }
            out.write_text(json.dumps(head) + "\n")
        for number in list(range(len(sites)))[slice(*(int(end) if end else None for end in given.only.split(":")))]:
            site, started = sites[number], time.monotonic()
            key = hashlib.sha256(site.key.encode()).hexdigest()[:16]
            last = done.get(key, {"outcome": "survived", "complete": False, "budget": 0})
            if started > ends or last["outcome"] in CAUGHT or last["complete"] or last["budget"] >= given.budget:
                continue
            record = {"number": number, "key": key, "file": site.path, "line": site.line, "operator": site.operator}
            record |= {
                "before": site.before[:400],
                "after": site.after[:400],
                **measure(copy, site, distances, given.budget),
            }
            record["seconds"] = round(time.monotonic() - started, 1)
            with out.open("a") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
            say(f"{number} {site.path}:{site.line} {record['outcome']} {record.get('by', '')} {record['seconds']} s")
    return None


if __name__ == "__main__":
    main()
