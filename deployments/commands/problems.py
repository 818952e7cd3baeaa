"""`oapl problems`: a published set, or one's own, becomes a problem set of ours."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from deployments.arguments import Release, Revision, SetFile, Solutions, Split, Window
from deployments.curation_judge import VerifierJudge
from deployments.terminal import tell
from oapl_core.errors import ConfigError
from oapl_core.importing import import_set as importing
from oapl_core.importing.curation import Tally
from oapl_core.importing.screening import screened
from oapl_core.importing.sources import Source, fetch, local_files, released_files, source, sources
from oapl_core.problems.problem_set import SPLITS
from oapl_core.problems.raw_rows import raw_rows
from oapl_core.problems.storing import check_name
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.storable import json_text

_Distinct = Annotated[
    bool | None, typer.Option(help="Whether a statement may come once only; unset: in training sets.")
]
_Screen = Annotated[
    Path | None, typer.Option(metavar="LIST.jsonl", help="Write no set, but which of its problems pay for nothing.")
]
_FAULTY = ("keep", "drop", "only")


def problems(
    name: Annotated[str | None, typer.Argument(metavar="[SET]", help="Unset: list the sets.")] = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help=".jsonl, .jsonl.gz or .parquet to write.")] = None,
    path: SetFile = None,
    revision: Revision = None,
    split: Split = None,
    release: Release = None,
    window: Window = None,
    faulty: Annotated[str, typer.Option(help="Problems known to be faulty: keep, drop or only.")] = "keep",
    minimum_tests: Annotated[int, typer.Option(min=1, help="Programs with fewer are dropped.")] = 1,
    longest_tests: Annotated[int | None, typer.Option(min=1, help="Keep those with the longest inputs.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Run reference solutions, verify gold answers.")] = False,
    cpu_s: Annotated[float, typer.Option(help="With --check: CPU seconds for a test.")] = 12.0,
    against: Annotated[list[Path] | None, typer.Option(help="Drop what is in this set; again for more.")] = None,
    evaluation: Annotated[list[Path] | None, typer.Option(help="Drop what this set is contaminated by.")] = None,
    similarity: Annotated[float, typer.Option(min=0.5, max=1.0, help="From which on statements are the same.")] = 0.8,
    distinct: _Distinct = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many problems.")] = None,
    solutions: Solutions = None,
    screen: _Screen = None,
) -> None:
    """Import a published problem set, or curate one of your own; print the kept and dropped (docs/problem_sets.md)."""
    if name is None:
        _show_sets()
        return
    origin = source(name)
    split = _one_of(SPLITS, "--split", split or origin.split)
    choice = importing.Choice(
        split=split,
        window=importing.window(window),
        faulty=_one_of(_FAULTY, "--faulty", faulty),
        minimum_tests=minimum_tests,
        longest_tests=longest_tests,
        similarity=similarity,
        # a published evaluation set stays as it is, with all that is alike in it
        distinct=split == "train" or bool(against) if distinct is None else distinct,
        limit=limit,
    )
    to = _target(screen or to)
    files, published = files_of(origin, path, release, revision)
    if screen:
        _screen(origin, files, split, screen, cpu_s)
        return
    # a solution that waits for a core is not slow: only its CPU time decides
    with VerifierJudge(VerifierConfig(cpu_s=cpu_s, wall_s=3 * cpu_s)) if check else nullcontext() as judge:
        # statements only, earlier ones one at a time: the tests of a set of 25,000 programs take gigabytes
        earlier, shown = _statements(against), list(_statements(evaluation))
        tally = importing.import_set(origin, files, to, choice, earlier, shown, judge, tell, solutions)
    _summary(to, tally, published if limit is None else None)  # with a limit fewer rows are read than are published


def _target(to: Path | None) -> Path:
    """What is written, refused before a download of gigabytes."""
    if to is None:
        raise ConfigError("say which file to write with --to FILE.jsonl")
    check_name(to)
    return to


def _screen(origin: Source, files: Sequence[Path], split: str, to: Path, cpu_s: float) -> None:
    """Name the problems of a set that pay for nothing; `problems.exclude` takes the list."""
    tally, named = Tally(), 0
    with VerifierJudge(VerifierConfig(cpu_s=cpu_s, wall_s=3 * cpu_s)) as judge, to.open("w", encoding="utf-8") as file:
        problems = importing.converted(origin, files, split, tally, tell)
        for problem, reasons in screened(problems, judge):
            named += 1
            tell(f"{problem}: {'; '.join(reasons)}")
            file.write(json_text({"problem_id": problem, "flaw": "; ".join(reasons)}) + "\n")
    tell(f"{to}: {named:,} of {tally.read - sum(tally.dropped.values()):,} problems; problems.exclude leaves them out")


def _show_sets() -> None:
    """What can be imported."""
    tell(f"{'set':<25}{'rows':>6}  {'for':<8} from, licence")
    for found in sources().values():
        rows = found.rows or (found.releases[-1] if found.releases else "")
        tell(f"{found.name:<25}{rows:>6}  {found.split:<8} {found.hub or 'a file'}, {found.licence}")


def _one_of(words: Sequence[str], option: str, word: str) -> str:
    if word not in words:
        raise ConfigError(f"{option} {word!r}: choose one of {', '.join(words)}")
    return word


def files_of(
    origin: Source, path: Path | None, release: str | None = None, revision: str | None = None
) -> tuple[list[Path], int | None]:
    """The files of a set to read, here or from the hub, and how many rows they should have."""
    patterns, published = released_files(origin, release)
    path = fetch(origin, patterns, revision) if path is None else path
    return local_files(path, patterns), published


def _summary(target: Path, tally: Tally, published: int | None) -> None:
    tell(f"{target}: kept {tally.kept:,} of {tally.read:,} problems")
    for reason, count in tally.dropped.most_common():
        tell(f"  dropped {count:>7,}  {reason}")
    for note, count in tally.noted.most_common():
        tell(f"  kept    {count:>7,}  {note}")
    if published is not None and published != tally.read:
        tell(f"  its publishers say {published:,} rows: this is another version or a part of it")


def _statements(paths: Sequence[Path] | None) -> Iterator[tuple[str, str]]:
    """(problem_id, statement) of problem sets of ours; their tests are not kept."""
    for path in paths or ():
        for _, row in raw_rows(path):
            if not isinstance(row, dict) or not isinstance(row.get("statement"), str):
                raise ConfigError(f"{path}: is not a problem set of ours; import it with `oapl problems` first")
            yield str(row.get("problem_id")), row["statement"]
