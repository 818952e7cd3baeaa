"""`oapl judge`: canaries for a language model that judges, made of a run's own answers."""

from pathlib import Path
from typing import Annotated

import typer

from deployments.arguments import OpenedRun
from deployments.terminal import tell
from oapl_core.storable import one_line
from oapl_extras.judge.made_canaries import judge_of, make

_CHARACTERS = 300


def judge(
    run: OpenedRun,
    canaries: Annotated[
        Path, typer.Option("--make-canaries", metavar="FILE.jsonl", help="File to write; one that is there stays.")
    ],
    count: Annotated[int, typer.Option("-n", min=2, metavar="N", help="Stored answers to ask the judge about.")] = 32,
) -> None:
    """Ask a run's judge about answers that were sampled, and write the best and the worst as its canaries."""
    made = make(run, canaries, count)
    for one in made:
        tell(f"--- {one.call.problem['problem_id']}: {_short(one.call.problem['statement'])}")
        tell(f"[answer] {_short(one.call.text)}")
        tell(f"[judge] {one.value:g}, kept as {one.key} {one.bound:g}")
    tell(f"{canaries}: {len(made)} canaries; read them: what the judge says of each is what it must say from now on")
    named = judge_of(run).canaries
    if canaries.absolute() != named.absolute():
        tell(f"the run reads {named}: give the file that name")
    tell(f"`oapl run {run.root}` continues")


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _CHARACTERS else f"{line[:_CHARACTERS]} ..."
