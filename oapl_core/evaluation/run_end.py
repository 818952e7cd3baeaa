"""The evaluation of a run: which of its checkpoints answer which of its problems, and which epoch is chosen by that.

Validation problems decide between the last round's epochs (highest mean reward; of equal ones the earlier), if asked
for also between those of earlier rounds. Base (what round 0 starts from) and the end of each earlier round answer the
held-out problems. So do the best epoch of the last round and the chosen checkpoint. Some may have answered during the
run (`Experiment.evaluated_rounds`). Reads problems.parquet, prompts.parquet and the checkpoints. Writes each one's
answers and verdicts, and 5_evaluation/<objective>.parquet of them all, with a card of the held-out ones. With that
card `oapl evaluate --card` repeats them: an answer's seed is the same there and here.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from oapl_core.errors import DataError
from oapl_core.evaluation.answering import Answering, Answers
from oapl_core.evaluation.measures import ON, WARNING, basis, best
from oapl_core.evaluation.questions import Questions, Target
from oapl_core.evaluation.results import Evaluation, write_results
from oapl_core.evaluation.workers import Workers
from oapl_core.planning.stage_row import earlier_choices
from oapl_core.progress import say
from oapl_core.run_folder.run import Run
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig, ModelConfig
from oapl_core.settings.problems import PromptConfig

_REPORTED = "heldout"


def evaluate_run(run: Run, workers: Workers) -> None:
    """Evaluate the run, or what of its evaluation is missing.

    Raises:
        DataError: a checkpoint is missing, broken or not the recorded one.
        StageFailed: too many answers could not be judged.
    """
    last = len(run.config.rounds) - 1
    asked = {split: questions(run, split) for split in ("validation", _REPORTED)}
    on = basis(run.config.evaluation.choose_on, bool(asked["validation"].prompts), run.config.rounds[last].epochs)
    places = _choosable(run, last, on)
    choosable = [checkpoint(label, run.checkpoint(*place)) for label, place in places.items()]
    earlier = [base(run), *(checkpoint(f"round {number}", run.policy(number + 1)) for number in range(last))]
    epochs = [one for one in choosable if places[one.label][0] == last]
    candidates = epochs if on == _REPORTED else []
    # the chosen epoch is one more, unless it is among the candidates, who all answer; an earlier round's may be another
    more = max(1, len(candidates)) + any(one not in (*earlier, *epochs) for one in choosable)
    total = len(choosable) * asked["validation"].answers + (len(earlier) + more) * asked[_REPORTED].answers
    with Answering(asked[_REPORTED].config, total, workers) as answering:

        def answers(models: Iterable[ModelConfig], split: str) -> dict[str, Answers]:
            return {one.label: answering.ask(target(run, one, asked[split])) for one in models}

        # all validation first: while its last answers are judged, the earlier checkpoints are sampled
        validation = answers(choosable if asked["validation"].prompts else [], "validation")
        heldout = answers([*earlier, *candidates], _REPORTED)
        deciding = heldout if candidates else validation
        chosen = _choose(choosable, deciding, on)
        # the last round is measured as in every run, whatever was chosen
        models = [*earlier, *(candidates or [_choose(epochs, deciding, on)])]
        models += [] if chosen in models else [chosen]
        heldout |= answers((one for one in models if one.label not in heldout), _REPORTED)
        number, epoch = places[chosen.label]
        choice: dict[str, str | int] = {"chosen": chosen.label, "chosen_epoch": epoch, "chosen_on": on}
        choice |= {"chosen_round": number} if len(choosable) > len(epochs) else {}
        say(f"{chosen.label}: {ON[on]}")
        # an epoch that was chosen by what is reported is called that wherever it is named, and comes last
        named = chosen.model_copy(update={"origin": ON[on]})
        if candidates:
            named = named.model_copy(update={"label": f"{chosen.label} ({WARNING})"})
            heldout[named.label] = heldout.pop(chosen.label)
            models.remove(chosen)
        models = [*(named if one == chosen else one for one in models), *([named] if candidates else [])]
        for one in heldout.values():  # also of those who conclude nothing: parts of a replica that dies are free again
            one.rows()
        if workers.replica.concludes:
            _conclude(run, {_REPORTED: heldout, "validation": validation}, choice, models, named)


def _choosable(run: Run, last: int, on: str) -> dict[str, tuple[int, int]]:
    """Return round and epoch of every checkpoint that may be chosen, by the name that results give it."""
    known = earlier_choices(run) if on == run.config.evaluation.choose_on else {}
    return known | {f"round {last} epoch {n + 1}": (last, n + 1) for n in range(run.config.rounds[last].epochs)}


def _choose(models: Sequence[ModelConfig], deciding: Mapping[str, Answers], on: str) -> ModelConfig:
    label = best({one.label: deciding[one.label].rows() for one in models}) if on != "last" else ""
    return next((one for one in models if one.label == label), models[-1])


def base(run: Run) -> ModelConfig:
    """Return the model that round 0 starts from, as results name it."""
    return ModelConfig(label="base", path=run.base_model(), origin="base model of the run")


def checkpoint(label: str, path: Path) -> ModelConfig:
    """Return a checkpoint that training made, with the name that results give it."""
    return ModelConfig(label=label, path=path, origin="a checkpoint of the run")


def questions(run: Run, split: str) -> Questions:
    """Return the problems of one split of the run, as its settings ask them; of validation problems perhaps none.

    Raises:
        DataError: there are none to measure on.
    """
    asked = Questions.read(run.problems, run.prompts, _config(run, split))
    if not asked.prompts and split == _REPORTED:
        raise DataError(
            f"{run.prompts}: has no heldout prompts; look at problems.heldout and problems.max_prompt_tokens"
        )
    return asked


def _config(run: Run, split: str) -> EvaluationFolderConfig:
    """Return the settings that `oapl evaluate` would have; with absolute paths, since a card is read from anywhere."""
    config, evaluation = run.config, run.config.evaluation
    samples = {"validation": evaluation.validation_samples, _REPORTED: evaluation.heldout_samples}
    return EvaluationFolderConfig.model_validate(
        {
            "models": [ModelConfig(label="base", path=run.base_model().absolute())],
            # the run's own table, not the files that it was made from: those may be gone where the card is read
            "problems": {"path": run.problems.absolute(), "split": split},
            **config.problems.model_dump(include=set(PromptConfig.model_fields)),
            **evaluation.model_dump(include={"temperature", "top_p", "max_tokens", "bootstrap_resamples"}),
            # what chooses is asked in one way
            "also": evaluation.also if split == _REPORTED else (),
            "stop": config.sampling.stop if evaluation.stop is None else evaluation.stop,
            "samples": samples[split],
            "seed": config.seed,
            "engine": config.engine,
            "environment": config.environment,
            "verifier": config.verifier,
            "reward": config.reward and config.reward.for_longest(config.sampling.max_tokens),
            "engine_python": config.engine_python,
        }
    )


def target(run: Run, model: ModelConfig, asked: Questions) -> Target:
    """Ask a checkpoint; its answers lie with the first evaluation that asks it, of a round or of the run's end.

    Raises:
        DataError: it is not the recorded one.
    """
    rounds = run.config.evaluated_rounds
    first = {run.base_model(): rounds[0], **{run.checkpoints(number): number for number in rounds}}
    number = first.get(model.path, first.get(model.path.parent))
    place = run.evaluations(number) / f"{model.label.replace(' ', '_')}_{asked.split}"
    return Target.of(run, model.label, model.path, run.check_policy(model.path), asked, place)


def _conclude(
    run: Run,
    answers: Mapping[str, Mapping[str, Answers]],
    choice: Mapping[str, str | int],
    models: Sequence[ModelConfig],
    chosen: ModelConfig,
) -> None:
    """Write the results; ``models`` are those that answered what is reported, ``chosen`` among them."""
    absolute = tuple(model.model_copy(update={"path": model.path.absolute()}) for model in models)
    config = _config(run, _REPORTED).model_copy(update={"models": absolute})
    made = Evaluation(run, config, run.evaluation(), run.card(), run.card_text())
    settings = {"seed": config.seed, "bootstrap_resamples": config.bootstrap_resamples, **choice}
    details = {**choice, "chosen": chosen.label, "chosen_in_words": chosen.origin}
    for label, measured in write_results(made, answers, settings, details).items():
        mean, low, high = measured["pass_at_k"]["1"]
        earned = f"; mean reward {measured['mean_reward']:.3f}" if "reward" in measured else ""
        say(f"held-out pass@1 of {label}: {mean:.1%} (95 % interval {low:.1%} to {high:.1%}){earned}")
        for name, other in measured.get("also", {}).items():
            say(f"held-out pass@1 of {label}, {name}: {other['pass_at_k']['1'][0]:.1%}")
    say(f"card: {run.card_text()}")
