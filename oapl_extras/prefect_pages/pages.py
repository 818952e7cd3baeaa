"""Artifacts of a run on Prefect's pages: a bar for each long stage, a page for each round, the report, and failures.

Reads the run folder through ``oapl_core.reports``, and the logs. Writes Prefect artifacts, whose keys begin with the
run's name, so that a key's versions are one run's history. Nothing depends on them: a server that does not answer is
said once, and the stage continues.
"""

import contextvars
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, cast
from uuid import UUID

import httpx
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.exceptions import PrefectException

from oapl_core.errors import Interrupted, OaplError, StageFailed
from oapl_core.evaluation.folders.folder import EvaluationFolder
from oapl_core.planning.plan import Step, steps
from oapl_core.planning.stages import REPORT, TRAINING
from oapl_core.progress import Reading
from oapl_core.run_folder.following import Observer, Tell
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from oapl_core.temporary import temporary_folder

UPDATE_S = 10.0
"""Between two updates of a bar; a stage that ends sooner has none."""
_LAST_LINES = 30
_GIVE_UP_S = 5.0
"""Seconds that the end of a stage waits for the last update of its bar."""


def key(*words: object) -> str:
    """Make a key that Prefect allows: lowercase letters, digits and single dashes."""
    return "-".join(re.findall(r"[a-z0-9]+", " ".join(map(str, words)).lower()))


@contextmanager
def shown(tell: Tell) -> Iterator[None]:
    """Say what cannot be shown in Prefect; it is no reason to fail a stage."""
    try:
        yield
    except (httpx.HTTPError, PrefectException, RuntimeError, OaplError, OSError) as error:
        tell(f"not shown in Prefect ({type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''})")


@contextmanager
def watched(run: Run, step: Step, tell: Tell, update_s: float = UPDATE_S) -> Iterator[Tell]:
    """Show a bar beside a stage: what the yielded function is told is passed to ``tell``, and progress to Prefect.

    A failure of the body becomes a page too, and is raised as it is.
    """
    bar = _Bar(key(run.root.name, step.title), tell, update_s)
    try:
        yield bar.tell
    except OaplError as error:
        if not isinstance(error, Interrupted):
            show_failure(run, step, error, tell)
        raise
    finally:
        bar.close()


class _Bar:
    """A progress artifact, written from a thread: a slow server must not hold up the stage's watcher."""

    def __init__(self, name: str, tell: Tell, update_s: float) -> None:
        self._name, self._forward, self._update_s = name, tell, update_s
        self._newest: Reading | None = None
        self._sent: Reading | None = None
        self._artifact: UUID | None = None
        self._over = threading.Event()
        context = contextvars.copy_context()  # says which task run the artifact belongs to
        self._thread = threading.Thread(target=context.run, args=(self._work,), name=f"bar of {name}", daemon=True)
        self._thread.start()

    def tell(self, line: str) -> None:
        """Take in a line of the stage."""
        self._forward(line)
        self._newest = Reading.of(line) or self._newest

    def close(self) -> None:
        """Close the bar; its last line is shown too, if the server answers soon."""
        self._over.set()
        self._thread.join(_GIVE_UP_S)

    def _work(self) -> None:
        with shown(self._forward):
            while not self._over.wait(self._update_s):
                self._send()
            if self._artifact:
                self._send()

    def _send(self) -> None:
        reading = self._newest
        if reading is None or reading == self._sent:
            return
        if self._artifact is None:
            made = create_progress_artifact(reading.percent, key=self._name, description=reading.line)
            self._artifact = cast(UUID, made)
        else:
            update_progress_artifact(self._artifact, reading.percent, description=reading.line)
        self._sent = reading


class Pages(Observer):
    """Shows a bar beside a stage, each round once it is trained, and the report once it is written."""

    def __init__(self, run: Run, tell: Tell) -> None:
        """Take the steps of the run; ``tell`` gets a line where something cannot be shown."""
        self._run, self._tell, self._steps = run, tell, {step.label: step for step in steps(run.config)}

    def around(self, step: Step, tell: Tell) -> AbstractContextManager[Tell]:
        """Show how far the stage is, and its failure."""
        return watched(self._run, step, tell)

    def on_stage(self, entry: StageEntry) -> None:
        """Show what the stage completed, if it ended well."""
        step = None if entry.exit_code else self._steps.get(entry.stage)
        if step and step.verb == TRAINING.verb and step.round is not None:
            show_round(self._run, step.round, self._tell)
        elif step and step.verb == REPORT.verb:
            show_report(self._run, self._tell)


def show_round(run: Run, number: int, tell: Tell) -> None:
    """Show a page of a finished round, and its counts by stage and reason as a table."""
    from oapl_extras.prefect_pages.round_summary import summarize

    name = key(run.root.name, "round", number)
    with shown(tell), temporary_folder() as folder:
        summary = summarize(run, number, folder)
        _markdown(name, summary.text, summary.headline)
        rows = [dict(zip(summary.counts.columns, row, strict=True)) for row in summary.counts.rows]
        create_table_artifact(cast(list[dict[str, Any]], rows), key=f"{name}-counts", description=summary.headline)


class Page(Observer):
    """Shows at its end what a folder that is no run came to: the card of an evaluation, or a comparison's report."""

    def __init__(self, folder: "EvaluationFolder | Reported", tell: Tell) -> None:
        """Take the folder; ``tell`` gets a line where it cannot be shown."""
        self._folder, self._tell = folder, tell

    def end(self, behind: bool) -> None:
        """Show the card, or the report."""
        # a comparison is another extra's class, known here by its report alone
        if isinstance(self._folder, EvaluationFolder):
            show_card(self._folder, self._tell)
        else:
            show_report(self._folder, self._tell)


class Reported(Protocol):
    """Folder with a report: a run's, or a comparison's."""

    @property
    def root(self) -> Path:
        """Folder of the run or comparison."""

    @property
    def report(self) -> Path:
        """Folder of the report."""


def show_report(run: Reported, tell: Tell) -> None:
    """Show the report with its figures, and where it lies."""
    from oapl_extras.prefect_pages.pictures import with_pictures

    text, index = run.report / "report.md", run.report.resolve() / "index.html"
    with shown(tell):
        content = with_pictures(text.read_text(encoding="utf-8"), run.report)
        _markdown(key(run.root.name, "report"), content, f"Report of {run.root.name}")
        create_link_artifact(index.as_uri(), str(index), key=key(run.root.name, "report", "file"))


def show_card(folder: EvaluationFolder, tell: Tell) -> None:
    """Show the card of an evaluation."""
    with shown(tell):
        text = folder.card_text.read_text(encoding="utf-8")
        _markdown(key(folder.root.name, "card"), text, f"Evaluation card of {folder.root.name}")


def show_failure(run: Run, step: Step, error: OaplError, tell: Tell) -> None:
    """Show which stage failed, why, its last lines, and what to do."""
    with shown(tell):
        _markdown(key(run.root.name, "failed"), failure_text(run, step, error), f"{step.title} failed")


def failure_text(run: Run, step: Step, error: OaplError) -> str:
    """Write the page of a failed stage, as Markdown."""
    from oapl_core.markdown import fenced, plain

    log = run.log(step.label)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:] if log.is_file() else []
    again = (
        "Nothing that was finished is lost. Start the same run again (`oapl-round`, or the next one on schedule): it "
        "continues with this stage."
    )
    mend = "" if isinstance(error, StageFailed) else "Mend what the first line names; it is not tried again before. "
    return "\n\n".join(
        [
            f"# {plain(run.root.name)}: {plain(step.title)} failed",
            f"**{plain(str(error))}**",
            "## What to do",
            mend + again,
            f"`oapl status {run.root}` shows how far the run got.",
            f"## Last lines of {plain(str(log))}",
            fenced("\n".join(lines) or "(it printed nothing)"),
        ]
    )


def _markdown(name: str, text: str, description: str) -> None:
    create_markdown_artifact(text, key=name, description=description)
