"""Make the frozen corpus anew: `python tests/frozen/make.py [KIND ...]`, with the code as it is."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]


def main(names: list[str]) -> None:
    import anyio
    import frozen_corpus
    from frozen_cases import Author, kinds
    from frozen_playing import play_stages

    directory = Path(__file__).with_name("corpus")
    directory.mkdir(exist_ok=True)
    for kind, environments, cases in kinds():
        if names and kind not in names:
            continue
        seen = anyio.run(play_stages, cases, environments, Author, lambda case: None)
        played = [{"case": case, "seen": each} for case, each in zip(cases, seen, strict=True)]
        path = directory / f"{kind}.zst"
        frozen_corpus.write(path, {"environments": environments, "cases": played})
        count = sum(len(each["traces"]) for each in seen)
        sys.stdout.write(f"{kind}: {len(cases)} cases, {count} trajectories, {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
