"""``python -m oapl_core.evaluation.evaluate RUN_DIR``: chooses the last round's epoch, then measures what was gained.

Reads problems.parquet, prompts.parquet and the checkpoints; writes parts for each checkpoint and split, then
5_evaluation/<objective>.parquet of all parts (tables.EVALUATIONS), and the card of the held-out ones (``run_card.py``).
Validation problems decide between the last round's epochs (highest mean reward; of equal ones the earlier); base, the
end of each earlier round and the chosen epoch answer the held-out problems. One engine process for all checkpoints;
while one set is judged the next is sampled.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core.errors import DataError
from oapl_core.evaluation.answering import Answering, Answers, JudgeFactory, Questions, Start, Target
from oapl_core.evaluation.breakdown import tables
from oapl_core.evaluation.choice import ON, WARNING, basis, best
from oapl_core.evaluation.measures import comparisons, measures
from oapl_core.evaluation.run_card import write_card
from oapl_core.progress import say
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.run_folder.run import Run
from oapl_core.seeds import derive_seed
from oapl_core.stage import run_verb
from oapl_core.tables import EVALUATIONS, PROMPTS, read_table, write_batches
from oapl_core.verdicts.extraction import opens_thinking
from oapl_core.verdicts.verifier import VERIFIER_VERSION, Verifier

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Checkpoint:
    """A policy to be measured."""

    label: str
    folder: Path


def evaluate(run: Run, start: Start = SamplingEngine, judge: JudgeFactory = Verifier) -> None:
    """Evaluate the run, or what of its evaluation is missing.

    Args:
        run: the run folder.
        start: what to sample with; tests give a made-up sampler.
        judge: what to grade with.

    Raises:
        DataError: a checkpoint is missing, broken or not the recorded one.
        StageFailed: too many answers could not be judged.
    """
    last = len(run.config.rounds) - 1
    epochs = {e: Checkpoint(f"round {last} epoch {e}", run.checkpoint(last, e)) for e in _epochs(run, last)}
    earlier = [Checkpoint("base", run.base_model())]
    earlier += [Checkpoint(f"round {n}", run.policy(n + 1)) for n in range(last)]
    asked = {split: questions(run, split) for split in ("validation", "heldout")}
    on = basis(run.config.evaluation.choose_on, bool(asked["validation"].prompts), len(epochs))
    candidates = epochs if on == "heldout" else {}
    total = len(epochs) * asked["validation"].answers
    total += (len(earlier) + max(1, len(candidates))) * asked["heldout"].answers
    targets: dict[tuple[str, str], Target] = {}
    with Answering(run, run.config.engine, run.config.verifier, total, start, judge) as answering:

        def answers(checkpoint: Checkpoint, split: str) -> Answers:
            target = _target(run, checkpoint, asked[split])
            targets[split, checkpoint.label] = target
            return answering.ask(target)

        validation = {}
        if asked["validation"].prompts:
            validation = {c.label: answers(c, "validation") for c in epochs.values()}
        heldout = {c.label: answers(c, "heldout") for c in (*earlier, *candidates.values())}
        deciding = {c.label: (heldout if candidates else validation)[c.label] for c in epochs.values() if on != "last"}
        chosen = _chosen(deciding, epochs[len(epochs)].label)
        epoch = next(e for e, c in epochs.items() if c.label == chosen)
        say(f"epoch {epoch} of {len(epochs)}: {ON[on]}")
        heldout[chosen] = heldout.pop(chosen) if chosen in heldout else answers(epochs[epoch], "heldout")
        found = {"heldout": heldout, "validation": validation}
        choice = {"chosen": chosen, "chosen_epoch": epoch, "chosen_on": on}
        _conclude(run, found, choice)
        _card(run, {label: targets["heldout", label] for label in heldout}, choice)


def _epochs(run: Run, number: int) -> range:
    return range(1, run.config.rounds[number].epochs + 1)


def _chosen(deciding: Mapping[str, Answers], last: str) -> str:
    return best({label: answers.rows() for label, answers in deciding.items()}) if deciding else last


def questions(run: Run, split: str) -> Questions:
    """The problems of one split of the run, as its settings ask them; of validation problems perhaps none.

    Raises:
        DataError: there are none to measure on.
    """
    settings = run.config.evaluation
    samples = {"validation": settings.validation_samples, "heldout": settings.heldout_samples}[split]
    rows = read_table(run.prompts, PROMPTS, only=("split", [split])).to_pylist()
    if not rows and split == "heldout":
        raise DataError(
            f"{run.prompts}: has no heldout prompts; look at problems.heldout and problems.max_prompt_tokens"
        )
    return Questions(
        split,
        run.problems,
        {row["problem_id"]: row["prompt_ids"] for row in rows},
        frozenset(row["problem_id"] for row in rows if opens_thinking(row["prompt"])),
        samples,
        run.config.seed,
        settings.max_tokens,
        settings.temperature,
        settings.top_p,
    )


def _target(run: Run, checkpoint: Checkpoint, asked: Questions) -> Target:
    settings = {
        "seed": run.config.seed,
        "split": asked.split,
        "samples": asked.samples,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "max_tokens": asked.max_tokens,
        "dtype": run.config.engine.dtype,
        "verifier_version": VERIFIER_VERSION,
        **run.config.verifier.slice,
    }
    return Target(
        checkpoint.label,
        checkpoint.folder,
        run.check_policy(checkpoint.folder),
        asked,
        run.evaluations() / f"{checkpoint.label.replace(' ', '_')}_{asked.split}",
        run.inputs([run.problems, run.prompts, checkpoint.folder]),
        settings,
    )


def _conclude(run: Run, found: Mapping[str, Mapping[str, Answers]], choice: Mapping[str, Any]) -> None:
    """Write every row into one file, and the measures into its line of the ledger.

    An epoch chosen by what is reported is called that in both.
    """
    parts = [path for sets in found.values() for answers in sets.values() for path in answers.files]
    rows = {split: {label: answers.rows() for label, answers in sets.items()} for split, sets in found.items()}
    resamples = run.config.evaluation.bootstrap_resamples
    inputs, settings = run.inputs(parts), {"seed": run.config.seed, "bootstrap_resamples": resamples, **choice}
    if run.is_done(run.evaluation(), inputs, settings):
        say("evaluation: done")
        return
    seed = derive_seed(run.config.seed, "bootstrap")
    names = _renamed_by(choice)
    details = {
        split: {
            _name(label, split, names): measures(mine, resamples, seed)
            | {"tables": tables(run.problems, mine, resamples, seed)}
            for label, mine in sets.items()
        }
        for split, sets in rows.items()
    }
    heldout = {_name(label, "heldout", names): mine for label, mine in rows["heldout"].items()}
    pairs = comparisons(heldout, sorted({1, run.config.evaluation.heldout_samples}), resamples, seed)
    with run.writing(run.evaluation(), inputs, settings) as draft:
        draft.rows = write_batches(draft.path, EVALUATIONS, _renamed(parts, names))
        chosen = names.get(choice["chosen"], choice["chosen"])
        words = ON[choice["chosen_on"]]
        draft.details = {**choice, "chosen": chosen, "chosen_in_words": words, **details, "comparisons": pairs}
    for label, measured in details["heldout"].items():
        mean, low, high = measured["pass_at_k"]["1"]
        say(f"held-out pass@1 of {label}: {mean:.1%} (95 % interval {low:.1%} to {high:.1%})")


def _renamed_by(choice: Mapping[str, Any]) -> dict[str, str]:
    """Other names on held-out problems: of the epoch that was chosen by them."""
    return {choice["chosen"]: f"{choice['chosen']} ({WARNING})"} if choice["chosen_on"] == "heldout" else {}


def _card(run: Run, targets: Mapping[str, Target], choice: Mapping[str, Any]) -> None:
    names = _renamed_by(choice)
    origins = {label: ON[choice["chosen_on"]] if label == choice["chosen"] else _origin(label) for label in targets}
    write_card(
        run,
        {_name(label, "heldout", names): target for label, target in targets.items()},
        {_name(label, "heldout", names): origin for label, origin in origins.items()},
    )
    say(f"card: {run.card_text()}")


def _origin(label: str) -> str:
    return "base model of the run" if label == "base" else "a checkpoint of the run"


def _name(label: str, split: str, names: Mapping[str, str]) -> str:
    """What a checkpoint is called on the problems of a split: it has another name on those that it was chosen by."""
    return names.get(label, label) if split == "heldout" else label


def _renamed(parts: Sequence[Path], names: Mapping[str, str]) -> "Iterator[pa.Table]":
    """The rows of every part, one part at a time, with other names for some checkpoints."""
    import pyarrow as pa

    for path in parts:
        table = read_table(path, EVALUATIONS)
        pairs = zip(table["checkpoint"].to_pylist(), table["split"].to_pylist(), strict=True)
        labels = [_name(label, split, names) for label, split in pairs]
        place = table.schema.get_field_index("checkpoint")
        yield table.set_column(place, table.schema.field(place), pa.array(labels, pa.string()))


if __name__ == "__main__":
    raise SystemExit(run_verb(evaluate, has_round=False))
