"""``python -m oapl_core.evaluation.measure EVALUATION_DIR``: checkpoints answer a problem set; the result is a card.

Reads the problem set and the models that evaluation.json names; writes what ``measurement.py`` lists. Models of one
architecture and tokenizer share one engine. Of several architectures one process does those of the first that is not
finished, since an engine's memory is only returned with its process; `oapl evaluate` starts it until all are.
"""

from collections.abc import Mapping

from oapl_core.errors import DataError
from oapl_core.evaluation import agreement, card, card_text
from oapl_core.evaluation.answering import Answering, Answers, JudgeFactory, Start, Target
from oapl_core.evaluation.asking import questions, take_problems
from oapl_core.evaluation.breakdown import tables
from oapl_core.evaluation.measurement import Measurement
from oapl_core.evaluation.measures import comparisons, measures
from oapl_core.model_folder import check_model_folder, check_same_architecture, policy_hash
from oapl_core.progress import say
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.seeds import derive_seed
from oapl_core.settings.measurement import ModelConfig
from oapl_core.stage import run_verb
from oapl_core.tables import EVALUATIONS, read_table, write_batches
from oapl_core.verdicts.verifier import VERIFIER_VERSION, Verifier


def measure(folder: Measurement, start: Start = SamplingEngine, judge: JudgeFactory = Verifier) -> None:
    """Measure the checkpoints of one architecture that are not finished; with the last of them, write the card.

    Args:
        folder: the evaluation folder.
        start: what to sample with; tests give a made-up sampler.
        judge: what to grade with.

    Raises:
        ConfigError: the problem set cannot be asked as the settings say.
        DataError: a model or the problem set cannot be used, or is not what the card to be repeated says.
        StageFailed: too many answers could not be judged.
    """
    config = folder.config
    for model in config.models:
        check_model_folder(model.path)
    take_problems(folder)
    targets = [_target(folder, model) for model in config.models]
    if config.repeats:
        agreement.check_asked(
            card.read(config.repeats), card.asked(card.basis_of(folder, targets), targets), config.repeats
        )
    left = [target for target in targets if not _is_done(folder, target)]
    now = [target for target in left if _fits(left[0], target)]
    total = sum(t.questions.answers for t in targets if t in now or t not in left)
    with Answering(folder, config.engine, config.verifier, total, start, judge) as answering:
        answers = {t.label: answering.ask(t) for t in targets if t in now or t not in left}
        for found in answers.values():
            found.rows()
    if len(now) < len(left):
        say(f"{len(left) - len(now)} models are of another architecture and get an engine of their own")
        return
    _conclude(folder, targets, answers)


def _target(folder: Measurement, model: ModelConfig) -> Target:
    config, asked = folder.config, questions(folder, model.path)
    settings = {
        "seed": config.seed,
        "split": asked.split,
        "samples": asked.samples,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "max_tokens": asked.max_tokens,
        "dtype": config.engine.dtype,
        "verifier_version": VERIFIER_VERSION,
        **config.verifier.slice,
    }
    inputs = folder.inputs([folder.problems, card.prompts_of(folder, model.path), model.path])
    return Target(model.label, model.path, policy_hash(model.path), asked, folder.parts(model), inputs, settings)


def _is_done(folder: Measurement, target: Target) -> bool:
    return all(folder.is_done(path, target.inputs, target.settings) for path in target.files)


def _fits(first: Target, other: Target) -> bool:
    """Whether an engine that runs the one can go on with the weights of the other."""
    try:
        check_same_architecture(first.folder, other.folder)
    except DataError:
        return first.folder == other.folder
    return True


def _conclude(folder: Measurement, targets: list[Target], answers: Mapping[str, Answers]) -> None:
    files = [path for target in targets for path in target.files]
    inputs, settings = (
        folder.inputs(files),
        folder.config.model_dump(mode="json", include={"ks", "bootstrap_resamples"}),
    )
    if not folder.is_done(folder.answers, inputs, settings):
        with folder.writing(folder.answers, inputs, settings) as draft:
            draft.rows = write_batches(draft.path, EVALUATIONS, (read_table(path, EVALUATIONS) for path in files))
    rows = {target.label: answers[target.label].rows() for target in targets}
    seed, resamples = derive_seed(folder.config.seed, "bootstrap"), folder.config.bootstrap_resamples
    measured = {
        label: measures(mine, resamples, seed, folder.config.ks)
        | {"tables": tables(folder.problems, mine, resamples, seed)}
        for label, mine in rows.items()
    }
    pairs = comparisons(rows, folder.config.ks or sorted({1, folder.config.samples}), resamples, seed)
    content = card.made(folder, card.basis_of(folder, targets), targets, measured, pairs)
    inputs = folder.inputs([folder.answers])
    for path, text in ((folder.card, card.as_json(content)), (folder.card_text, card_text.markdown(content))):
        with folder.writing(path, inputs, settings) as draft:
            draft.path.write_text(text)


if __name__ == "__main__":
    raise SystemExit(run_verb(measure, has_round=False, opens=Measurement.open))
