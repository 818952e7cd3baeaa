"""Any checkpoints on any problem set: what `oapl evaluate` does, as a flow that can be scheduled.

Reads models, runs and the problem set; writes an evaluation folder with its card (oapl_core/evaluation/folder.py).
On a schedule the flow evaluates what is new: a run names its newest epoch. A model or problem file that was replaced is
evaluated again. Else the flow ends at once.
"""

from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import Field

from flows.start import listen
from oapl_core.errors import Held
from oapl_core.evaluation import card
from oapl_core.evaluation.card_text import headline
from oapl_core.evaluation.folder import EvaluationFolder
from oapl_core.evaluation.wanted import default_folder, settings_of
from oapl_core.run_folder.following import observer
from oapl_core.run_folder.lock import hold
from oapl_core.settings.evaluation_folder import SetConfig
from oapl_core.settings_group import Settings
from tasks.folders import EVALUATING, run_in
from tasks.stage import progress


class EvaluateStart(Settings):
    """Models to evaluate, and the problems to evaluate them on. Whatever is finished is never done again."""

    models: tuple[str, ...] = Field(default=("demo-seed0:base", "demo-seed0"), min_length=1, title="Models")
    """Each one [LABEL=]MODEL: a Hugging Face folder, RUN (its chosen epoch, else the last), RUN:base, RUN:round_00 or
    RUN:round_00/epoch_01. A relative path starts at the folder that was deployed from."""
    problems: SetConfig = Field(default=SetConfig(path=Path("data/demo/heldout.jsonl")), title="Problem set")
    """A `name` that `oapl problems` lists, from the hub or from `path`; or only the `path` of a set of ours."""
    overrides: tuple[str, ...] = Field(default=(), title="Settings that differ from the defaults")
    """Each one KEY=VALUE, for example samples=8, prompt_style=plain, max_tokens=4096 or engine.max_num_seqs=64."""
    to: Path | None = Field(default=None, title="Evaluation folder")
    """Folder of the answers and the card; unset: below data/evaluations, named as the set and the models."""


def evaluation_name() -> str:
    """Name of a flow run: ``demo-seed0 on heldout``."""
    given = flow_run.parameters.get("start") or {}
    start = given if isinstance(given, EvaluateStart) else EvaluateStart.model_validate(given)
    more = f" and {len(start.models) - 1} more" if len(start.models) > 1 else ""
    problems = start.problems.name or Path(str(start.problems.path)).name.partition(".")[0]
    return f"{start.models[0]}{more} on {problems}"


@flow(name="oapl-evaluate", flow_run_name=evaluation_name)
def oapl_evaluate(start: EvaluateStart) -> State[None]:
    """Evaluate checkpoints on a problem set, in a folder that nobody else holds, and write the evaluation card.

    Raises:
        OaplError: the evaluation failed, or what was given cannot be used; the flow run fails with that line.
    """
    listen()
    problems = start.problems.model_dump(mode="json", exclude_defaults=True)
    config = settings_of(start.models, problems, {}, start.overrides)
    root = start.to or default_folder(config)
    # the folder is held before it is made: of two that start at once, the other makes nothing
    try:
        with hold(root):
            return Completed(message=evaluate(EvaluationFolder.create(root, config)))
    except Held as error:
        return Completed(name="Skipped", message=f"nothing was done: {error}")


def evaluate(folder: EvaluationFolder) -> str:
    """Bring the evaluation to its end; says what came out."""
    changed = folder.changed
    for name in changed:
        progress.info("%s is not what it was: what depends on it is measured again", name)
    if changed or not folder.is_finished:
        for _ in folder.turns():  # a process, and so an engine, for each architecture
            run_in(folder.root, EVALUATING, EvaluationFolder.open)
        observer("page", folder, progress.info).end(False)
    return f"{folder.card_text}: {'; '.join(headline(card.read(folder.card)))}"
