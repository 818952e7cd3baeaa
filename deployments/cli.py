"""The `oapl` command: run an experiment, look at a run, judge an answer, check a machine.

Exit codes: 0 done; 1 a stage, an arm or an answer failed; 2 something a person wrote or gave is wrong; 3 no sandbox; 4
the run folder is held by another process or its ledger is broken; 5 training diverged; 130 interrupted. Every error is
one line on standard error.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from deployments import cli_evaluate, cli_problems
from deployments.run_names import open_run

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

ExperimentFile = Annotated[
    Path, typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file, see deployments/experiments/.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="For example seed=1 training.learning_rate=1e-6.")
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=2, metavar="N", help="Rehearse: N problems of each file, short answers, few rounds, a name of its own."
    ),
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Run folder, or its name below data/runs.")]


@app.command()
def run(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved experiment and its steps, start nothing.")
    ] = False,
    redo: Annotated[
        str | None, typer.Option(metavar="STAGE", help="Make this stage again, and what then comes out otherwise.")
    ] = None,
    from_stage: Annotated[str | None, typer.Option(metavar="STAGE", help="Make it and all after it again.")] = None,
    number: Annotated[
        int | None, typer.Option("--round", help="Round of --redo or --from-stage, from 0; unset: the newest.")
    ] = None,
    limit: Limit = None,
) -> None:
    """Run an experiment (or a run folder) to its end; a stopped run continues, a finished one says so.

    STAGE is sampling, verification, groups, training, evaluation, report, problems-and-prompts or base-model.
    """
    from deployments import starting

    again = starting.what_again(redo, from_stage, number)
    if dry_run:
        starting.show_plan(experiment, overrides or [], limit)
    else:
        starting.run(experiment, overrides or [], again, limit)


@app.command()
def plan(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    parameters: Annotated[
        float | None, typer.Option("--model-parameters", help="Such as 14.8e9, where the model's folder is not there.")
    ] = None,
    limit: Limit = None,
) -> None:
    """Estimate what an experiment will make and cost: rollouts, tokens, steps, checkpoints, GPU-hours, disk."""
    from deployments.planning import show_estimate

    given = [] if parameters is None else [f"estimate.model_parameters={parameters!r}"]
    show_estimate(experiment, [*(overrides or []), *given], limit)


@app.command()
def fork(
    run: RunName,
    name: Annotated[str, typer.Argument(metavar="NEWNAME", help="Of the new run.")],
    overrides: Overrides = None,
    number: Annotated[int, typer.Option("--round", help="Where the new run begins, from 0.")] = 0,
    from_stage: Annotated[
        str, typer.Option(metavar="STAGE", help="The first stage of that round it does.")
    ] = "sampling",
) -> None:
    """Make another run that shares what came before a round, without copies, and has other settings from there on."""
    from deployments import starting

    starting.fork_run(open_run(run), name, number, overrides or [], from_stage)


@app.command()
def compare(
    comparison: Annotated[
        Path, typer.Argument(metavar="COMPARISON.toml", help="Such as deployments/experiments/baselines.toml.")
    ],
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the arms and their states, start nothing.")] = False,
) -> None:
    """Train several objectives and seeds on one groups file and report them side by side; a stopped one continues.

    An arm that fails is reported as failed and the others go on; the exit code is then 1.
    """
    from deployments import comparing

    raise typer.Exit((comparing.show_plan if dry_run else comparing.compare)(comparison, overrides or []))


@app.command()
def status(run: RunName) -> None:
    """Show which steps of a run are finished and what they made."""
    from deployments.terminal import print_status, print_times

    opened = open_run(run)
    print_status(opened)
    print_times(opened)


@app.command()
def report(run: RunName) -> None:
    """Write the report of a run again and print where it is; works on unfinished runs too."""
    from deployments.starting import write_report

    write_report(open_run(run))


@app.command()
def figures(
    runs: Annotated[list[str], typer.Argument(metavar="[LABEL=]RUN...", help="Several with one label: their mean.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write index.html, PNGs and CSVs in.")],
) -> None:
    """Draw runs side by side: pass@k, accuracy and entropy over training, accuracy against samples; finished or not."""
    from deployments.reporting import draw

    draw(runs, to)


@app.command()
def rollouts(
    run: RunName,
    number: Annotated[int | None, typer.Option("--round", help="From 0; unset: the last with rollouts.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help='For example "reward == 1" or "outcome = \'time_limit\'".')
    ] = None,
    problem: Annotated[str | None, typer.Option(metavar="ID", help="Only this problem's.")] = None,
    show: Annotated[int, typer.Option(min=0, help="How many to print.")] = 3,
    whole: Annotated[bool, typer.Option("--whole", help="Print long texts to their end.")] = False,
) -> None:
    """Print sampled answers with their verdicts; --where may name any column of data/README.md."""
    from deployments.looking import look

    look(open_run(run), number, where, problem, show, whole)


app.command()(cli_problems.problems)
app.command()(cli_problems.prompt)
app.command()(cli_evaluate.evaluate)


@app.command()
def verify(
    program: Annotated[Path | None, typer.Argument(metavar="[PROGRAM.py]", help="A program to judge.")] = None,
    tests: Annotated[
        Path | None, typer.Option(help="JSON: a list of {input, output}, or {kind, entry_point, tests, checker}.")
    ] = None,
    rollouts: Annotated[
        Path | None, typer.Option(metavar="DIR", help="RUN/round_NN/1_rollouts: judge them again, show what changed.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="With --rollouts: replace the stored verdicts.")] = False,
    answer: Annotated[str | None, typer.Option(help="A maths answer to judge.")] = None,
    expected: Annotated[str | None, typer.Option(help="What the maths answer should mean.")] = None,
) -> None:
    """Judge one program test by test, one maths answer, or a round's rollouts again; 1 unless all pass."""
    from deployments import verifying

    raise typer.Exit(verifying.verify(program, tests, rollouts, answer, expected, write))


@app.command()
def check(run: RunName) -> None:
    """Compare every byte of a run with what was recorded; name what is damaged, for `oapl run` to make it again."""
    from deployments import keeping

    raise typer.Exit(keeping.check(open_run(run)))


@app.command()
def du(run: RunName) -> None:
    """Show what a run takes on the disk, by kind and round, and what `oapl clean` would free."""
    from deployments import housekeeping

    housekeeping.show_usage(open_run(run))


@app.command()
def clean(
    run: RunName,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=RULE", help="checkpoints=last, checkpoints=chosen, rollouts=2, groups=0; again for more."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it nothing is.")] = False,
) -> None:
    """Let go of what no later round, report or resume needs: leftovers, and what --keep does not keep."""
    from deployments import housekeeping

    housekeeping.clean(open_run(run), keep or [], yes)


@app.command()
def fetch(
    url: Annotated[str, typer.Argument(metavar="URL", help="The run's folder below the `mirror` of its experiment.")],
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Run folder to make; unset: data/runs/<end of URL>.")
    ] = None,
) -> None:
    """Fetch a run from its mirror, so that `oapl run` goes on here."""
    from deployments import keeping

    keeping.fetch(url, folder)


@app.command(name="import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Parquet, .jsonl or .jsonl.gz file, or a folder.")],
    experiment: ExperimentFile,
    overrides: Overrides = None,
    number: Annotated[int, typer.Option("--round", help="Round whose rollouts they become, from 0.")] = 0,
) -> None:
    """Take rollouts in the OAPL authors' schema as a round's; `oapl run EXPERIMENT` goes on from there."""
    from deployments import exchanging

    exchanging.import_rollouts(source, experiment, overrides or [], number)


@app.command()
def export(
    run: RunName,
    destination: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="File to make.")],
    number: Annotated[int, typer.Option("--round", help="From 0.")] = 0,
) -> None:
    """Write a round's judged rollouts in the OAPL authors' schema, which verl-style trainers read."""
    from deployments import exchanging

    exchanging.export(open_run(run), destination, number)


@app.command()
def doctor() -> None:
    """Check this machine: Python, packages, engine, sandbox, GPUs, disk; say what to do about what is missing."""
    from deployments.doctor import examine

    raise typer.Exit(examine())


def main() -> int:
    """Entry point: turn every expected error into one line and its exit code."""
    from oapl_core.errors import OaplError
    from oapl_core.stage import disk_error

    try:
        app()
    except OaplError as error:
        return _complain(str(error), error.exit_code)
    except OSError as error:
        complaint = disk_error(error)
        return _complain(str(complaint), complaint.exit_code)
    return 0


def _complain(message: str, code: int) -> int:
    from deployments.terminal import errors

    errors.print(f"error: {message}", markup=False, soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
