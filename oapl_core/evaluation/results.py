"""The common half of every evaluation, of an evaluation folder or of a run's end: what is asked, and what came of it.

Reads the rollouts and verdicts that `answering.py` writes; writes one table of them all (tables.EVALUATIONS) and the
evaluation card, as JSON and as Markdown. The table's line in the ledger has the measures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core.evaluation import card, card_text
from oapl_core.evaluation.answering import Answers
from oapl_core.evaluation.card import Basis
from oapl_core.evaluation.folder import EvaluationFolder
from oapl_core.evaluation.measures import Row, comparisons, measures, table
from oapl_core.evaluation.questions import Target
from oapl_core.run_folder.run import Run
from oapl_core.seeds import derive_seed
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig
from oapl_core.tables import EVALUATIONS, PROBLEMS, open_table, write_batches

if TYPE_CHECKING:
    import pyarrow as pa

_DIVIDING = ("source", "difficulty", "platform", "kind")

Named = Mapping[str, Answers]
"""Answers of each checkpoint, by the name that results give it; its parts have its label."""


@dataclass(frozen=True)
class Evaluation:
    """Place of results in a folder with a ledger, and the settings by which they were made."""

    folder: Run | EvaluationFolder
    config: EvaluationFolderConfig
    answers: Path
    card: Path
    card_text: Path
    basis: Callable[[Sequence[Target]], Basis]
    """Problems and prompts as the card tells of them; asked for only if there is a card to be written."""


def write_results(
    made: Evaluation, answers: Mapping[str, Named], settings: Mapping[str, Any], details: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Write rows, measures and card, as far as they are not there.

    Args:
        made: where to.
        answers: by split, the one that is reported first.
        settings: of the table; with its inputs they say when it may be kept.
        details: what the ledger shall say beside the measures.

    Returns:
        The measures of each checkpoint on the reported split.

    Raises:
        StageFailed: too many answers could not be judged.
    """
    folder, config = made.folder, made.config
    seed, resamples = derive_seed(config.seed, "bootstrap"), config.bootstrap_resamples
    measured = dict[str, dict[str, dict[str, Any]]]()
    for split, named in answers.items():
        rows = {name: one.rows() for name, one in named.items()}
        measured[split] = {
            name: measures(mine, resamples, seed, config.ks, config.reward)
            | {"tables": _tables(folder.problems, mine, resamples, seed)}
            for name, mine in rows.items()
        }
        details = {**details, split: measured[split]}
    reported, named = next(iter(answers.items()))
    ks = config.ks or sorted({1, config.samples})
    # differences need few k: every pair of checkpoints costs a bootstrap at each
    pairs = comparisons({name: one.rows() for name, one in named.items()}, ks, resamples, seed)
    # inputs after rows(): only then are all parts written
    inputs = folder.inputs(path for named in answers.values() for one in named.values() for path in one.target.files)
    if not folder.is_done(made.answers, inputs, settings):
        with folder.writing(made.answers, inputs, settings) as draft:
            draft.rows = write_batches(draft.path, EVALUATIONS, _rows(answers))
            draft.details = {**details, "comparisons": pairs}
    _write_card(made, answers[reported], measured[reported], pairs)
    return measured[reported]


def _tables(problems: Path, rows: Sequence[Row], resamples: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Divide results by what is known of the problems, for each column that divides them (measures.table)."""
    with open_table(problems, PROBLEMS) as file:
        columns = file.read(columns=["problem_id", *_DIVIDING]).to_pydict()
    labels = {name: dict(zip(columns["problem_id"], columns[name], strict=True)) for name in _DIVIDING}
    lines = {name: table(rows, labels[name], resamples, seed) for name in _DIVIDING}
    return {name: each for name, each in lines.items() if len(each) > 1}


def _rows(answers: Mapping[str, Named]) -> "Iterator[pa.Table]":
    """Yield the rows of every part, one part at a time, under the names that results give to checkpoints."""
    for named in answers.values():
        for name, one in named.items():
            yield from map(replace(one.target, label=name).table, one.target.rollouts)


def _write_card(
    made: Evaluation, named: Named, measured: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]
) -> None:
    folder, files = made.folder, (made.card, made.card_text)
    inputs, settings = folder.inputs([made.answers]), {"card": card.VERSION}
    if all(folder.is_done(path, inputs, settings) for path in files):
        return
    # a card names everybody as the results do, also where parts have the plain label
    targets = [replace(one.target, label=name) for name, one in named.items()]
    content = card.made(folder, made.basis(targets), targets, measured, pairs)
    for path, text in zip(files, (card.as_json(content), card_text.markdown(content)), strict=True):
        with folder.writing(path, inputs, settings) as draft:
            draft.path.write_text(text)
