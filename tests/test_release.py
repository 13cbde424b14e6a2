"""What a release consists of beside the wheel: images whose build lines run, workflows that call the Makefile."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCKERFILES = {path.stem: path for path in sorted((ROOT / "docker").glob("*.Dockerfile"))}
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
IN_THE_IMAGE = "/opt/mcp-rollout"


def instructions(name: str) -> Iterator[tuple[str, str]]:
    for line in DOCKERFILES[name].read_text().replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            yield line.split(" ", 1)[0], line.split(" ", 1)[1]


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(DOCKERFILES))
def test_the_build_lines_of_an_image_run_in_an_empty_environment(name: str, tmp_path: Path) -> None:
    """A train image takes ten gigabytes and some minutes: it is the whole lock of an engine."""
    ignored = [line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().split()]
    source, home = tmp_path / "source", tmp_path / "image"
    shutil.copytree(
        ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*ignored, ".ci", "*_cache", ".hypothesis")
    )
    given = dict(rest.split("=", 1) for kind, rest in instructions(name) if kind == "ARG")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    environ = {**given, "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path)}
    for line in (rest for kind, rest in instructions(name) if kind == "RUN"):
        command = line.replace(IN_THE_IMAGE, str(home))
        done = subprocess.run(
            ["sh", "-c", command], cwd=source, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (line, done.stderr[-2000:])
    (entry,) = (yaml.safe_load(rest) for kind, rest in instructions(name) if kind == "ENTRYPOINT")
    program = entry[0].replace(IN_THE_IMAGE, str(home)) if "/" in entry[0] else str(home / "bin" / entry[0])
    started = [program, *entry[1:], "--help"]
    done = subprocess.run(started, cwd=source, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_an_image_is_built_of_files_that_exist() -> None:
    assert sorted(DOCKERFILES) == ["serve", "train"]
    named = {
        path
        for name in DOCKERFILES
        for _, rest in instructions(name)
        for path in re.findall(r"\bconstraints/\S+", rest)
    }
    assert named == {"constraints/${ENGINE}_gpu.txt"}
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {"constraints", "configs", "LICENSE"}.isdisjoint(ignored) and ".git" in ignored


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_of_the_makefile(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    jobs = yaml.safe_load(path.read_text())["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {word for run in runs if run.startswith("make ") for word in run.split()[1:] if "=" not in word}
    assert called and called <= targets
    assert all(job["timeout-minutes"] for job in jobs.values())


def test_a_link_in_the_repository_leads_to_a_file_of_it() -> None:
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    links = [ROOT / line.split("\t")[1] for line in listed.splitlines() if line.startswith("120000")]
    assert links and all(link.exists() and link.resolve().is_relative_to(ROOT) for link in links)
