"""``python -m oapl_core.evaluation.folders.evaluate DIR``: the models of an evaluation folder answer its problem set.

Writes rows, measures and a card. Models of one architecture and tokenizer share one engine. Of several architectures
one process does those of the first that is not finished, since an engine's memory is only returned with its process.
`oapl evaluate` starts it until all are.
"""

import sys
from collections.abc import Sequence
from functools import partial

from oapl_core.errors import DataError
from oapl_core.evaluation.answering import Answering
from oapl_core.evaluation.cards import agreement, card
from oapl_core.evaluation.cards.writing import of_folder
from oapl_core.evaluation.folders.asking import questions, take_problems
from oapl_core.evaluation.folders.folder import EvaluationFolder
from oapl_core.evaluation.questions import Target
from oapl_core.evaluation.results import Evaluation, write_results
from oapl_core.evaluation.workers import REPLICA, Replica, Start, VerifierFactory, Workers
from oapl_core.model_files.model_folder import check_model_folder, check_same_architecture, policy_hash
from oapl_core.progress import say
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.settings.evaluation_folder import ModelConfig
from oapl_core.stage import run_verb
from oapl_core.verdicts.verifier import Verifier

VERB = "evaluation.folders.evaluate"
_COMMAND = (sys.executable, "-m", f"oapl_core.{VERB}")


def evaluate_folder(
    folder: EvaluationFolder,
    start: Start | None = None,
    verifier: VerifierFactory = Verifier,
    replica: int = 0,
    command: Sequence[str] = _COMMAND,
) -> None:
    """Evaluate the checkpoints of one architecture in an evaluation folder; what is finished is kept.

    Args:
        folder: what to evaluate, and where results go.
        start: what to sample with, unset the real engine; tests give a made-up sampler.
        verifier: what to judge with.
        replica: which of ``engine.replicas`` this process is; 0 starts the others and writes the results.
        command: what starts another replica, without its arguments.

    Raises:
        ConfigError: the problem set cannot be asked as the settings say.
        DataError: a checkpoint or the problem set cannot be used, or is not what was recorded.
        StageFailed: too many answers could not be judged.
    """
    # no share of several machines: a folder has no [fleet]
    mine = Replica(replica, (*command, str(folder.root)), folder.log(VERB))
    with Workers(start or partial(SamplingEngine, replica=replica), verifier, mine) as workers:
        _evaluate(folder, workers)
        workers.wait()


def _evaluate(folder: EvaluationFolder, workers: Workers) -> None:
    config = folder.config
    for model in config.models:  # before problems are downloaded and an engine spends half a minute
        check_model_folder(model.path)
    take_problems(folder)
    targets = [_target(folder, model) for model in config.models]
    if config.repeats:
        asked = card.asked(of_folder(folder, targets), targets)
        agreement.check_asked(card.read(config.repeats), asked, config.repeats)
    left = [
        target
        for target in targets
        if not all(one.is_judged(part) for one in (target, *target.others) for part in one.rollouts)
    ]
    now = [one for one in targets if one not in left or _fits(left[0], one)]
    with Answering(config, sum(one.questions.answers for one in now), workers) as answering:
        answers = {one.label: answering.ask(one) for one in now}
        for one in answers.values():
            one.rows()  # what could not be judged is said here, before anything is concluded from the rest
    if not workers.replica.concludes:
        return
    if len(now) < len(targets):
        say(f"{len(targets) - len(now)} models are of another architecture and get an engine of their own")
        return
    made = Evaluation(folder, config, folder.answers, folder.card, folder.card_text)
    settings = config.model_dump(mode="json", include={"ks", "bootstrap_resamples"})
    write_results(made, {targets[0].questions.split: answers}, settings, {})


def _target(folder: EvaluationFolder, model: ModelConfig) -> Target:
    asked, place = questions(folder, model.path), folder.answers_of(model)
    return Target.of(folder, model.label, model.path, policy_hash(model.path), asked, place)


def _fits(first: Target, other: Target) -> bool:
    """Tell whether an engine that runs the one can continue with the weights of the other."""
    try:
        check_same_architecture(first.folder, other.folder)
    except DataError:
        return first.folder == other.folder
    return True


if __name__ == "__main__":
    options = {"replica": REPLICA}
    raise SystemExit(run_verb(evaluate_folder, has_round=False, options=options, opens=EvaluationFolder.open))
