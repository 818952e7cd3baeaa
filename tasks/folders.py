"""Steps of folders that are no runs, as tasks: the evaluation of any checkpoints, say."""

from collections.abc import Callable
from pathlib import Path

from oapl_core import launch
from oapl_core.planning.plan import Step
from oapl_core.run_folder.recorded import Recorded
from tasks.stage import progress, run_step

EVALUATING = Step("measuring the models", "evaluation.folders.evaluate", None, ("card.json",))


def run_in(
    root: Path,
    step: Step,
    opens: Callable[[Path], Recorded],
    like: str | None = None,
    limit_s: float | None = None,
) -> None:
    """Run ``step`` of the folder ``root`` as a task.

    Args:
        root: the folder.
        step: its step; the verb has a process of its own.
        opens: opens the folder.
        like: verb of a run's step whose retries and tags are used; None: the step's own.
        limit_s: seconds after which the step counts as stuck.

    Raises:
        OaplError: it failed.
    """

    def execute(root: Path, step: Step) -> None:
        progress.info("%s: starting", step.title)
        launch.run_stage(opens(root), step.verb, step.arguments, lambda line: progress.info("%s", line), limit_s)

    run_step(root, step, execute, like or step.verb)
