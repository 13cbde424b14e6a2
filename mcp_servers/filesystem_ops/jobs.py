"""Jobs: each has a description, changes the goal tree, and lists the expert's calls.

The calls are those of @modelcontextprotocol/server-filesystem. Training and test tasks have different kinds of jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from random import Random

from mcp_rollout.mcp_servers.filesystem_ops.office import COMMON, Office
from mcp_rollout.mcp_servers.filesystem_ops.tree import Tree
from mcp_rollout.mcp_servers.kit import Call, Split


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    words: str
    reads: tuple[str, ...]
    """Files that the expert has to read first."""
    makes: tuple[str, ...]
    """Directories to create before files are written to them."""
    changes: tuple[Call, ...]
    apply: Callable[[Tree], None]
    """Changes a tree to the goal."""
    moves: Mapping[str, str] = field(default_factory=dict[str, str])
    """New paths by old path."""


Kind = Callable[[Random, Office], Job]


def archive(rng: Random, office: Office) -> Job:
    """Archives at most half of the reports, so that moving all of them is far from right."""
    count = Counter(report.year for report in office.reports)
    rarest = min(count.values())
    year = rng.choice(
        [year for year in sorted(count) if 2 * count[year] <= len(office.reports) or count[year] == rarest]
    )
    moves = {
        report.path: f"archive/{year}/{PurePosixPath(report.path).name}"
        for report in office.reports
        if report.year == year
    }
    return Job(
        words=f"Move all reports of the year {year} from reports/ into archive/{year}/, under the names they have. The "
        "year is stated in each report.",
        reads=tuple(report.path for report in office.reports),
        makes=(f"archive/{year}",),
        changes=_moves(moves),
        apply=lambda tree: _move(tree, moves),
        moves=moves,
    )


def rename(rng: Random, office: Office) -> Job:
    order = rng.choice(["date, then the writer", "writer, then the date"])
    moves: dict[str, str] = {}
    for letter in office.letters:
        writer = letter.writer.lower()
        name = f"{letter.date}-{writer}" if order.startswith("date") else f"{writer}-{letter.date}"
        moves[letter.path] = f"letters/{name}.txt"
    example = "2020-01-31-zoe.txt" if order.startswith("date") else "zoe-2020-01-31.txt"
    return Job(
        words=f"Rename each letter in letters/ by its {order} in lower case, as in {example}.",
        reads=tuple(moves),
        makes=(),
        changes=_moves(moves),
        apply=lambda tree: _move(tree, moves),
        moves=moves,
    )


def edit(rng: Random, office: Office) -> Job:
    """Edits at most half of the files that have the key, so that editing all of them is far from right."""
    keys = Counter(key for setting in office.settings for key in setting.values)
    key = rng.choice(sorted(key for key, files in keys.items() if files >= COMMON))
    value = rng.randint(100, 400)
    old = {setting.path: setting.values[key] for setting in office.settings if key in setting.values}
    bound = sorted(old.values(), reverse=True)[rng.randrange(len(old) // 2)]
    lines = {path: (f"{key} = {was}\n", f"{key} = {value}\n") for path, was in old.items() if was >= bound}

    def apply(tree: Tree) -> None:
        for path, (before, after) in lines.items():
            tree[path] = tree[path].replace(before, after)

    return Job(
        words=f"In the files in settings/, set {key} to {value} wherever it is {bound} or more now. Change no other "
        "line.",
        reads=tuple(setting.path for setting in office.settings),
        makes=(),
        changes=tuple(
            Call(name="edit_file", arguments={"path": path, "edits": [{"oldText": before, "newText": after}]})
            for path, (before, after) in lines.items()
        ),
        apply=apply,
    )


def _written(path: str, text: str, words: str, *, reads: tuple[str, ...], makes: tuple[str, ...] = ()) -> Job:
    """The job to write one new file."""
    return Job(
        words=words,
        reads=reads,
        makes=makes,
        changes=(Call(name="write_file", arguments={"path": path, "content": text}),),
        apply=lambda tree: tree.update({path: text}),
    )


def index(rng: Random, office: Office) -> Job:
    path = rng.choice(["notes/INDEX.md", "index.md", "notes-index.md"])
    form = rng.choice(["- {name}: {title}", "* {title} ({name})"])
    text = "".join(form.format(name=PurePosixPath(note.path).name, title=note.title) + "\n" for note in office.notes)
    shown = form.format(name="fire.md", title="Fire in Oslo, 2020")
    words = (
        f"Make {path} with one line for each note in notes/, sorted by file name: file name and title (its "
        f"first line without the #), as in '{shown}'."
    )
    return _written(path, text, words, reads=tuple(note.path for note in office.notes))


def summarise(rng: Random, office: Office) -> Job:
    year = rng.choice(sorted({report.year for report in office.reports}))
    of_year = sorted((report.town, report.total) for report in office.reports if report.year == year)
    text = "town,total\n" + "".join(f"{town},{total}\n" for town, total in of_year)
    path = f"summary/{year}.csv"
    words = (
        f"Write {path} from the reports of {year}: a first line 'town,total', then town and total of each, "
        "sorted by town, with a comma between them and no spaces."
    )
    return _written(path, text, words, reads=tuple(report.path for report in office.reports), makes=("summary",))


def tally(rng: Random, office: Office) -> Job:
    path = rng.choice(["tally.txt", "counts.txt", "reports/COUNT.txt"])
    counts = Counter(report.year for report in office.reports)
    text = "".join(f"{year} = {counts[year]}\n" for year in sorted(counts))
    words = (
        f"How are the reports spread over the years? Put it down in {path}: every year that some report is "
        "about, in ascending order, each on its line with the number of those reports, in the style of '2020 = 7'."
    )
    return _written(path, text, words, reads=tuple(report.path for report in office.reports))


def register(rng: Random, office: Office) -> Job:
    path = rng.choice(["letters/register.csv", "register.csv", "correspondence.csv"])
    columns = rng.choice([("file", "writer"), ("writer", "file")])
    rows = [{"file": PurePosixPath(letter.path).name, "writer": letter.writer} for letter in office.letters]
    lines = [",".join(columns), *(",".join(row[column] for column in columns) for row in rows)]
    text = "\n".join(lines) + "\n"
    words = (
        f"The correspondence needs a register, {path}, headed '{lines[0]}'. It has a row per letter, ordered by "
        "file name; nothing but a comma separates the two entries."
    )
    return _written(path, text, words, reads=tuple(letter.path for letter in office.letters))


def stamp(rng: Random, office: Office) -> Job:
    """Stamps at most half of the reports, so that stamping all of them is far from right."""
    totals = sorted(report.total for report in office.reports)
    bound, word = totals[rng.randint(2, len(totals) // 2)], rng.choice(["small", "minor", "low"])
    # The smallest totals are below the bound, which is itself a report's total.
    lines = {report.path: f"Total: {report.total}\n" for report in office.reports if report.total < bound}

    def stamped(line: str) -> str:
        return f"{line}Class: {word}\n"

    def apply(tree: Tree) -> None:
        for path, line in lines.items():
            tree[path] = tree[path].replace(line, stamped(line))

    return Job(
        words=f"Whatever report has a total under {bound} gets a new line 'Class: {word}', directly below the line of "
        "its total.",
        reads=tuple(report.path for report in office.reports),
        makes=(),
        changes=tuple(
            Call(name="edit_file", arguments={"path": path, "edits": [{"oldText": line, "newText": stamped(line)}]})
            for path, line in lines.items()
        ),
        apply=apply,
    )


def sort_letters(rng: Random, office: Office) -> Job:
    place = rng.choice(["letters", "people", "senders"])
    moves = {
        letter.path: f"{place}/{letter.writer.lower()}/{PurePosixPath(letter.path).name}" for letter in office.letters
    }
    directories = dict.fromkeys(str(PurePosixPath(path).parent) for path in moves.values())
    return Job(
        words=f"Everybody who wrote to us shall have a directory: sort the letters so that one by Zoe lies in "
        f"{place}/zoe/ and keeps its file name.",
        reads=tuple(moves),
        makes=tuple(directories),
        changes=_moves(moves),
        apply=lambda tree: _move(tree, moves),
        moves=moves,
    )


def retire(rng: Random, office: Office) -> Job:
    """Retires at most half of the notes, and at least one."""
    towns = Counter(note.town for note in office.notes)
    rarest = min(towns.values())
    town = rng.choice([it for it in sorted(towns) if 2 * towns[it] <= len(office.notes) or towns[it] == rarest])
    place = rng.choice(["old", "attic", "notes/retired"])
    moves = {note.path: f"{place}/{PurePosixPath(note.path).name}" for note in office.notes if note.town == town}
    return Job(
        words=f"The branch in {town} has closed. Notes that bear {town} in their title retire to {place}/; nothing "
        "else about them changes.",
        reads=tuple(note.path for note in office.notes),
        makes=(place,),
        changes=_moves(moves),
        apply=lambda tree: _move(tree, moves),
        moves=moves,
    )


KINDS: dict[Split, tuple[Kind, ...]] = {
    "train": (summarise, index, edit, rename, archive),
    "test": (tally, register, stamp, sort_letters, retire),
}
"""In an order in which they can be done one after the other: no job reads a file that an earlier one moves."""


def _moves(moves: dict[str, str]) -> tuple[Call, ...]:
    return tuple(Call(name="move_file", arguments={"source": old, "destination": new}) for old, new in moves.items())


def _move(tree: Tree, moves: dict[str, str]) -> None:
    for old, new in moves.items():
        tree[new] = tree.pop(old)
