"""`oapl problems`: a set of others, or one's own, as a problem set of ours; `oapl prompt`: what a model is shown."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deployments.terminal import tell
from oapl_core.errors import ConfigError
from oapl_core.importing.curation import Tally, Word
from oapl_core.importing.import_set import Choice, converted, import_set, window
from oapl_core.importing.sources import Source, fetch, local_files, released_files, source, sources
from oapl_core.problems.prepare import load_encoder
from oapl_core.problems.problem_set import SPLITS, read_problem_set
from oapl_core.problems.prompts import STYLES, Style, messages
from oapl_core.problems.raw_rows import raw_rows
from oapl_core.problems.storing import check_name
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.attacks import rewards_doing_nothing
from oapl_core.verdicts.extraction import fenced, maths
from oapl_core.verdicts.maths_pool import MathsPool
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verifier

_WORDS: dict[Outcome, Word] = {
    Outcome.PASSED: "passes",
    Outcome.NOT_JUDGEABLE: "not judgeable",
    Outcome.VERIFIER_ERROR: "broken",
}
_FAULTY = ("keep", "drop", "only")


class VerifierJudge:
    """The real verifier as the judge of curation (oapl_core/importing/curation.py). Use as a context manager."""

    def __init__(self, config: VerifierConfig) -> None:
        """Starts nothing yet."""
        self._verifier = Verifier(config)
        self._threads = ThreadPoolExecutor(config.workers or 2)
        self._maths = MathsPool(config.workers or 2)

    def __enter__(self) -> Self:
        self._verifier.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        self._threads.shutdown()
        self._maths.close()
        self._verifier.__exit__(kind, error, t)

    def programs(self, problems: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> list[Word]:
        """Each program as a response with one fence, judged like any other."""
        texts = [fenced(text) for text in sources]
        verdicts = self._verifier.verify(problems, texts, ["stop"] * len(texts))
        return [_WORDS.get(verdict.outcome, "fails") for verdict in verdicts]

    def answers(self, answers: Sequence[str]) -> list[bool]:
        """Each answer against itself, by the worker's word and not by the shortcut for equal texts; one that does not
        come out of a box, for its braces say, nobody could give."""
        replies = self._threads.map(lambda answer: self._maths.judge(answer, answer), answers)
        boxed = [maths(f"\\boxed{{{answer}}}") is not None for answer in answers]
        return [reply["equal"] is True and fits for reply, fits in zip(replies, boxed, strict=True)]

    def unearned(self, problems: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """The strategy that passes each problem by doing nothing, if there is one."""
        return rewards_doing_nothing(self._verifier, problems)


def show_sets() -> None:
    """What can be imported."""
    tell(f"{'set':<25}{'rows':>6}  {'for':<8} from, licence")
    for found in sources().values():
        rows = found.rows or (found.releases[-1] if found.releases else "")
        tell(f"{found.name:<25}{rows:>6}  {found.split:<8} {found.hub or 'a file'}, {found.licence}")


@dataclass(frozen=True)
class Place:
    """Where a set is read from."""

    path: Path | None = None
    revision: str | None = None
    release: str | None = None


@dataclass(frozen=True)
class Checking:
    """What problems are compared with and proven by."""

    proves: bool = False
    cpu_s: float = 12.0
    against: tuple[Path, ...] = ()
    evaluation: tuple[Path, ...] = ()


def import_problems(
    name: str, target: Path | None, place: Place, checking: Checking, options: Mapping[str, Any]
) -> None:
    """Import a set and say what was kept and dropped; ``options`` are fields of `Choice`.

    Raises:
        ConfigError: an option cannot be used.
        DataError: the files cannot be read, or are not of this set.
    """
    found = source(name)
    choice = _choice(found, checking, options)
    if target is None:
        raise ConfigError("say which file to write with --to FILE.jsonl")
    check_name(target)
    files, published = _files(found, place)
    config = VerifierConfig(cpu_s=checking.cpu_s, wall_s=3 * checking.cpu_s)
    with ExitStack() as stack:
        judge = stack.enter_context(VerifierJudge(config)) if checking.proves else None
        earlier = (pair for file in checking.against for pair in statements(file))
        shown = [pair for file in checking.evaluation for pair in statements(file)]
        tally = import_set(found, files, target, choice, earlier, shown, judge, tell)
    _summary(target, tally, published if choice.limit is None else None)


def _choice(found: Source, checking: Checking, options: Mapping[str, Any]) -> Choice:
    """``options`` with what is unset; a published evaluation set stays as it is, with all that is alike in it."""
    if options["faulty"] not in _FAULTY:
        raise ConfigError(f"--faulty {options['faulty']!r}: choose one of {', '.join(_FAULTY)}")
    split = options["split"] or found.split
    if split not in SPLITS:
        raise ConfigError(f"--split {split!r}: choose one of {', '.join(SPLITS)}")
    distinct = options["distinct"]
    if distinct is None:
        distinct = split == "train" or bool(checking.against)
    return Choice(**{**options, "split": split, "window": window(options["window"]), "distinct": distinct})


def _files(found: Source, place: Place) -> tuple[list[Path], int | None]:
    """The files to read, and how many rows they should have."""
    patterns, published = released_files(found, place.release)
    path = fetch(found, patterns, place.revision) if place.path is None else place.path
    return local_files(path, patterns), published


def _summary(target: Path, tally: Tally, published: int | None) -> None:
    tell(f"{target}: kept {tally.kept:,} of {tally.read:,} problems")
    for reason, count in tally.dropped.most_common():
        tell(f"  dropped {count:>7,}  {reason}")
    for note, count in tally.noted.most_common():
        tell(f"  kept    {count:>7,}  {note}")
    if published is not None and published != tally.read:
        tell(f"  its publishers say {published:,} rows: this is another version or a part of it")


def statements(path: Path) -> Iterator[tuple[str, str]]:
    """(problem_id, statement) of a problem set of ours; its tests are not kept."""
    for _, row in raw_rows(path):
        if not isinstance(row, dict) or not isinstance(row.get("statement"), str):
            raise ConfigError(f"{path}: is not a problem set of ours; import it with `oapl problems` first")
        yield str(row.get("problem_id")), row["statement"]


def show_prompts(
    name: str, path: Path | None, style: str, show: int, model: Path | None, thinking: bool | None
) -> None:
    """Print the prompts of the first problems of a set: the messages, or with a model what it is really given.

    Raises:
        ConfigError: the style is unknown, or ``name`` is neither a file nor a set.
        DataError: the set cannot be read.
    """
    if style not in STYLES:
        raise ConfigError(f"--style {style!r}: choose one of {', '.join(STYLES)}")
    chosen: Style = style  # type: ignore[assignment]
    encode = load_encoder(model, thinking) if model else None
    for problem, _ in zip(_problems(name, path), range(show), strict=False):
        conversation = messages(problem, chosen)
        tell(f"--- {problem['problem_id']} ({problem['kind']}, style {style})")
        if encode:
            text, ids = encode(conversation)
            tell(f"{text}\n--- {len(ids)} tokens")
        else:
            for turn in conversation:
                tell(f"[{turn['role']}]\n{turn['content']}")


def _problems(name: str, path: Path | None) -> Iterator[Mapping[str, Any]]:
    file = Path(name)
    if path is None and file.suffix:
        split = next((row.get("split") for _, row in raw_rows(file) if isinstance(row, dict)), None)
        yield from read_problem_set(file, split if split in SPLITS else "heldout")
        return
    found = source(name)
    files, _ = _files(found, Place(path))
    for imported in converted(found, files, found.split, Tally()):
        yield imported.problem
