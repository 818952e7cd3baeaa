"""`oapl report`: the report of a run, made again."""

from deployments.arguments import OpenedRun
from deployments.terminal import tell
from oapl_core.launch import run_stage
from oapl_core.planning.plan import conclusion
from oapl_core.run_folder.lock import hold


def report(run: OpenedRun) -> None:
    """Write the report of a run again and print where it is; works on unfinished runs too."""
    with hold(run.root):
        # a stage of its own process, as at the end of a run: matplotlib stays out of this one
        run_stage(run, conclusion(run.config)[-1].verb, on_progress=tell)
    tell(f"report: {run.report / 'index.html'}")
