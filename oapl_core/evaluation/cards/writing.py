"""Writes the evaluation card beside the results, as JSON and as Markdown: for a run, and for an evaluation folder.

Reads the ledger, problems.parquet and the prompts; writes card.json and card.md. ``write_card`` is found by the name
`evaluation` of the kind `card` (oapl_core/plugins).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oapl_core.evaluation.cards import card, card_text
from oapl_core.evaluation.cards.identities import Prompted, content_hash
from oapl_core.evaluation.questions import Target
from oapl_core.run_folder.run import Run
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig
from oapl_core.tables import PROBLEMS, read_table

if TYPE_CHECKING:
    from oapl_core.evaluation.folders.folder import EvaluationFolder
    from oapl_core.evaluation.results import Evaluation


def write_card(
    made: "Evaluation",
    targets: Sequence[Target],
    measured: Mapping[str, Mapping[str, Any]],
    pairs: Sequence[Mapping[str, Any]],
) -> None:
    """Write the card, unless it is there and made from the same answers."""
    folder, files = made.folder, (made.card, made.card_text)
    inputs, settings = folder.inputs([made.answers]), {"card": card.VERSION}
    if all(folder.is_done(path, inputs, settings) for path in files):
        return
    basis = _of_run(folder, made.config, targets) if isinstance(folder, Run) else of_folder(folder, targets)
    content = card.made(folder, basis, targets, measured, pairs)
    for path, text in zip(files, (card.as_json(content), card_text.markdown(content)), strict=True):
        with folder.writing(path, inputs, settings) as draft:
            draft.path.write_text(text)


def of_folder(folder: "EvaluationFolder", targets: Sequence[Target]) -> card.Basis:
    """Tell the foundation of an evaluation folder: its ledger says where the problems come from."""
    done = folder.ledger.artifacts()
    problems = done[folder.name(folder.problems)]
    dropped = {one.label: done[folder.name(one.questions.prompts_table)].details["dropped"] for one in targets}
    return card.Basis(folder.config, problems.rows, problems.details, problems.inputs, _prompts(targets, dropped))


def _of_run(run: Run, config: EvaluationFolderConfig, targets: Sequence[Target]) -> card.Basis:
    split, sets = config.problems.split, run.config.problems
    assert split is not None, "a run's table of problems has several splits"
    entry = run.ledger.artifacts().get(run.name(run.prompts))
    dropped = {"prompt too long": entry.details.get("dropped_by_split", {}).get(split, 0) if entry else 0}
    # the run's table has problems of every split; the card is of one
    count = read_table(run.problems, PROBLEMS, ["split"], only=("split", [split])).num_rows
    origin = {
        "set": f"{run.root.name} ({', '.join(path.name for path in sets.heldout or sets.train)})",
        "dropped": {},
        "split": split,
        "content_sha256": content_hash(run.problems, split),
    }
    prompts = _prompts(targets, dict.fromkeys((one.label for one in targets), dropped))
    return card.Basis(config, count, origin, run.inputs([run.problems]), prompts)


def _prompts(targets: Sequence[Target], dropped: Mapping[str, Mapping[str, int]]) -> dict[str, Prompted]:
    """Read the prompts of each model; ``dropped`` has those that were too long for it."""
    return {
        one.label: Prompted.read(
            one.questions.prompts_table, one.questions.config.problems.split, one.folder, dropped[one.label]
        )
        for one in targets
    }
