"""`oapl run`: check what was given, hold the run folder, run the flow, show the result; or show the plan of it."""

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from deployments.arguments import ExperimentFile, Limit, Overrides
from deployments.step_tables import print_plan, print_times
from deployments.terminal import Narrator, console, tell
from oapl_core.changing.redoing import Again, put_aside
from oapl_core.errors import ConfigError, Interrupted
from oapl_core.planning.plan import finished, steps
from oapl_core.pretraining.solutions import check_solutions
from oapl_core.run_folder.following import follow, made, observer
from oapl_core.run_folder.opening import check, find, opened
from oapl_core.run_folder.run import Run
from oapl_core.settings.rehearsal import rehearsal, rehearsal_changes


def run(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved experiment and its steps, start nothing.")
    ] = False,
    redo: Annotated[
        str | None, typer.Option(metavar="STAGE", help="Make this stage again, and all that then comes out otherwise.")
    ] = None,
    from_stage: Annotated[str | None, typer.Option(metavar="STAGE", help="Make it and all later stages again.")] = None,
    number: Annotated[
        int | None, typer.Option("--round", help="Round of --redo or --from-stage, from 0; unset: the newest.")
    ] = None,
    limit: Limit = None,
) -> None:
    """Run an experiment (or a run folder) to its end; a stopped run continues, a finished one says so.

    STAGE is sampling, verification, groups, training, evaluation, report, base-model, problems-and-prompts.
    """
    again = _again(redo, from_stage, number)
    if dry_run:
        _show_plan(experiment, overrides or [], limit)
    else:
        _carry_out(experiment, overrides or [], again, limit)


def _again(redo: str | None, from_stage: str | None, number: int | None) -> Again | None:
    """Parse the options that ask for a stage to be made again.

    Raises:
        ConfigError: they do not go together.
    """
    if redo and from_stage:
        raise ConfigError("--redo and --from-stage: give one of them")
    stage = redo or from_stage
    if not stage:
        if number is not None:
            raise ConfigError("--round: says which round --redo or --from-stage means; give one of them")
        return None
    return Again(stage, number, and_all_after=from_stage is not None)


def _show_plan(path: Path, overrides: Sequence[str], limit: int | None) -> None:
    """Print the resolved experiment and every step with its state; start and write nothing."""
    run = find(path, overrides, limit)
    check(run.config)
    check_solutions(run)
    console.print_json(json.dumps(run.config.model_dump(mode="json")))
    exists = (run.root / "run.json").exists()
    if exists and not path.is_dir():
        Run.of(run.config)  # says which settings differ
    print_plan(run, [step.title for step in finished(run)] if exists else [])


def _carry_out(path: Path, overrides: Sequence[str], again: Again | None, limit: int | None) -> None:
    # a run folder has its settings; only an experiment file is made smaller
    is_smaller = limit is not None and not path.is_dir()
    named = _rehearsed(find(path, overrides), limit or 0) if is_smaller else find(path, overrides, limit)
    if not (named.root / "run.json").exists():
        # before there is a folder with these settings; the flow tells of what may be slow
        observer("fit", named, lambda _line: None)
        check_solutions(named)
    with opened(named, tell, path.is_dir()) as run:
        if again:
            put_aside(run, again, tell)
        done, planned = finished(run), steps(run.config)
        if len(done) == len(planned):
            # sends what was missing while the mirror could not be reached
            with follow(run, made(run, tell, ("mirror",)), tell):
                tell(f"{run.root}: every step is finished, nothing to do")
        else:
            if done:
                tell(f"{run.root}: {len(done)} of {len(planned)} steps are finished, continuing")
            _run_flow(run)
        _show_result(run)


def _run_flow(run: Run) -> None:
    import httpx

    from deployments.embedded import prefect_for, server_away

    # A scheduler's warning goes to every process of the job; the stage answers it, and its exit code ends the run.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    narrator = Narrator([step.title for step in steps(run.config)])
    try:
        with prefect_for(run.root, run.place(run.config.cache_dir), narrator):
            # Prefect reads its settings when it is imported, so only after prefect_for has set them
            from flows.experiment import oapl_experiment

            try:
                oapl_experiment(run.root)
            except (httpx.TransportError, RuntimeError) as error:
                # the server went away; the first contact with it fails without a type of its own
                if isinstance(error, RuntimeError) and "Failed to reach API" not in str(error):
                    raise
                raise server_away(error) from None
    except KeyboardInterrupt:
        raise Interrupted("interrupted; finished parts are kept, run the same command again to continue") from None
    finally:
        narrator.close()


def _rehearsed(whole: Run, limit: int) -> Run:
    """Make the run smaller, with a line for each setting that changes."""
    small = rehearsal(whole.config, limit)
    tell(f"--limit {limit}: a rehearsal called {small.name}; what it changes:")
    for change in rehearsal_changes(whole.config, small):
        tell(f"  {change}")
    return Run(small.run_dir, small)


def _show_result(run: Run) -> None:
    """Print the headline table, the time of each stage, and the report's path."""
    from oapl_core.reports.headline import headline_table

    print_times(run)
    console.print()
    console.print(headline_table(run))
    tell(f"report: {run.report / 'index.html'}")
