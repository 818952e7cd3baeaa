"""Any checkpoints on any problem set: what `oapl evaluate` does, as a flow that can be scheduled.

Reads models, runs and the problem set; writes an evaluation folder with its card (oapl_core/evaluation/folders/).
On a schedule the flow evaluates what is new: a run names its newest epoch. A model or problem file that was replaced is
evaluated again. Else the flow ends at once.
"""

from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import Field

from flows.start import listen, skipped
from oapl_core.errors import Held
from oapl_core.evaluation.cards import card
from oapl_core.evaluation.cards.card_text import headline
from oapl_core.evaluation.folders.folder import EvaluationFolder
from oapl_core.evaluation.folders.wanted import default_folder, settings_of
from oapl_core.planning.stages import EVALUATION
from oapl_core.run_folder.following import observer
from oapl_core.run_folder.lock import hold
from oapl_core.settings.evaluation_folder import SetConfig
from tasks.folders import EVALUATING, run_in
from tasks.stage import progress

MODELS = ("demo-seed0:base", "demo-seed0")
PROBLEMS = SetConfig(path=Path("data/demo/heldout.jsonl"))


def evaluation_name() -> str:
    """Name of a flow run: ``demo-seed0 on heldout``."""
    models = flow_run.parameters.get("models", MODELS)
    problems = SetConfig.model_validate(flow_run.parameters.get("problems", PROBLEMS))
    more = f" and {len(models) - 1} more" if len(models) > 1 else ""
    return f"{models[0]}{more} on {problems.name or Path(str(problems.path)).name.partition('.')[0]}"


@flow(name="oapl-evaluate", flow_run_name=evaluation_name)
def oapl_evaluate(
    models: Annotated[tuple[str, ...], Field(min_length=1)] = MODELS,
    problems: SetConfig = PROBLEMS,
    overrides: tuple[str, ...] = (),
    to: Path | None = None,
) -> State[None]:
    """Evaluate checkpoints on a problem set, in a folder that nobody else holds, and write the evaluation card.

    Args:
        models: Each one [LABEL=]MODEL: a Hugging Face folder, RUN (its chosen epoch, else the last), RUN:base,
            RUN:round_00 or RUN:round_00/epoch_01. A relative path starts at the folder that was deployed from.
        problems: A `name` that `oapl problems` lists, from the hub or from `path`; or only the `path` of a set of ours.
        overrides: Settings that differ from the defaults, each KEY=VALUE: samples=8, prompt_style=plain,
            max_tokens=4096 or engine.max_num_seqs=64.
        to: Folder of the answers and the card; unset: below data/evaluations, named as the set and the models.

    Raises:
        OaplError: the evaluation failed, or what was given cannot be used; the flow run fails with that line.
    """
    listen()
    asked = problems.model_dump(mode="json", exclude_defaults=True)
    config = settings_of(models, asked, overrides, lambda line: progress.info("%s", line))
    root = to or default_folder(config)
    # the folder is held before it is made: of two that start at once, the other makes nothing
    try:
        with hold(root):
            return Completed(message=evaluate(EvaluationFolder.create(root, config)))
    except Held as error:
        return skipped(error)


def evaluate(folder: EvaluationFolder) -> str:
    """Bring the evaluation to its end; says what came out."""
    changed = folder.changed
    for name in changed:
        progress.info("%s is not what it was: what depends on it is measured again", name)
    if changed or not folder.is_finished:
        for _ in folder.turns():  # a process, and so an engine, for each architecture
            run_in(folder.root, EVALUATING, EvaluationFolder.open, like=EVALUATION.verb)
        observer("page", folder, progress.info).end(False)
    return f"{folder.card_text}: {'; '.join(headline(card.read(folder.card)))}"
