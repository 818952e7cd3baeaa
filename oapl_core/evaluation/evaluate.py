"""``python -m oapl_core.evaluation.evaluate DIR``: checkpoints answer problems; writes rows, measures and a card.

DIR is an evaluation folder (`oapl evaluate`), which says which models answer which problem set. Or it is a run, whose
own checkpoints answer its validation and held-out problems (``run_end.py``). Models of one architecture and tokenizer
share one engine. Of several architectures one process does those of the first that is not finished, since an engine's
memory is only returned with its process. `oapl evaluate` starts it until all are.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from oapl_core.errors import DataError
from oapl_core.evaluation import agreement, card
from oapl_core.evaluation.answering import Answering
from oapl_core.evaluation.asking import Prompted, prompts_of, questions, take_problems
from oapl_core.evaluation.folder import RECORD, EvaluationFolder
from oapl_core.evaluation.questions import Target
from oapl_core.evaluation.results import Evaluation, write_results
from oapl_core.evaluation.run_end import evaluate_run
from oapl_core.evaluation.workers import Replica, Start, VerifierFactory, Workers
from oapl_core.model_files.model_folder import check_model_folder, check_same_architecture, policy_hash
from oapl_core.progress import say
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.run_folder.run import Run
from oapl_core.settings.evaluation_folder import ModelConfig
from oapl_core.stage import run_verb
from oapl_core.verdicts.verifier import Verifier

_COMMAND = (sys.executable, "-m", "oapl_core.evaluation.evaluate")


def evaluate(
    folder: Run | EvaluationFolder,
    start: Start | None = None,
    verifier: VerifierFactory = Verifier,
    replica: int = 0,
    command: Sequence[str] = _COMMAND,
    share: int = 1,
) -> None:
    """Evaluate a run, or the checkpoints of one architecture in an evaluation folder; what is finished is kept.

    Args:
        folder: what to evaluate, and where results go.
        start: what to sample with, unset the real engine; tests give a made-up sampler.
        verifier: what to judge with.
        replica: which of ``engine.replicas`` this process is; 0 starts the others and writes the results.
        command: what starts another replica, without its arguments.
        share: which of the machines of `fleet.evaluation` this is, counted from 1; only the first writes the results.

    Raises:
        ConfigError: the problem set cannot be asked as the settings say.
        DataError: a checkpoint or the problem set cannot be used, or is not what was recorded.
        StageFailed: too many answers could not be judged.
    """
    log = folder.log("evaluation.evaluate" if share == 1 else f"evaluation.evaluate share {share}")
    mine = Replica(replica, (*command, str(folder.root), "--share", str(share)), log, share)
    with Workers(start or partial(SamplingEngine, replica=replica), verifier, mine) as workers:
        if isinstance(folder, Run):
            evaluate_run(folder, workers)
        else:
            _evaluate_folder(folder, workers)
        workers.wait()


def opened(root: Path) -> Run | EvaluationFolder:
    """Open the folder, whichever it is.

    Raises:
        DataError: it is neither.
    """
    return EvaluationFolder.open(root) if (root / RECORD).exists() else Run.open(root)


def _evaluate_folder(folder: EvaluationFolder, workers: Workers) -> None:
    config = folder.config
    for model in config.models:  # before problems are downloaded and an engine spends half a minute
        check_model_folder(model.path)
    take_problems(folder)
    targets = [_target(folder, model) for model in config.models]
    if config.repeats:
        asked = card.asked(_basis(folder, targets), targets)
        agreement.check_asked(card.read(config.repeats), asked, config.repeats)
    left = [one for one in targets if not all(map(one.is_judged, one.rollouts))]
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
    made = Evaluation(folder, config, folder.answers, folder.card, folder.card_text, partial(_basis, folder))
    settings = config.model_dump(mode="json", include={"ks", "bootstrap_resamples"})
    write_results(made, {targets[0].questions.split: answers}, settings, {})


def _target(folder: EvaluationFolder, model: ModelConfig) -> Target:
    asked, place = questions(folder, model.path), folder.answers_of(model.label)
    return Target.of(folder, model.label, model.path, policy_hash(model.path), asked, place)


def _fits(first: Target, other: Target) -> bool:
    """Tell whether an engine that runs the one can continue with the weights of the other."""
    try:
        check_same_architecture(first.folder, other.folder)
    except DataError:
        return first.folder == other.folder
    return True


def _basis(folder: EvaluationFolder, targets: Sequence[Target]) -> card.Basis:
    done = folder.ledger.artifacts()
    problems, prompts = done[folder.name(folder.problems)], {}
    for one in targets:
        path = prompts_of(folder, one.folder)
        dropped = done[folder.name(path)].details["dropped"]
        prompts[one.label] = Prompted.read(path, folder.config.problems.split, one.folder, dropped)
    return card.Basis(folder.config, problems.rows, problems.details, problems.inputs, prompts)


if __name__ == "__main__":
    replica = {"type": int, "default": 0, "help": "which replica of this machine this is; 0 starts the rest"}
    share = {"type": int, "default": 1, "help": "which of several machines this is, counted from 1"}
    raise SystemExit(run_verb(evaluate, has_round=False, options={"replica": replica, "share": share}, opens=opened))
