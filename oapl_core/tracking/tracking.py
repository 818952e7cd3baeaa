"""Sends rows to trackers from a thread each, and keeps a record of what each has, so that nothing is sent twice.

The record is logs/trackers/<name>.jsonl: first the tracker's identity of the run, then a line for each row, written
after the row was sent. A resumed process leaves out rows that are there. A row can be left when a tracker could not be
reached. The next process that has the tracker open sends that row, at last `oapl report`. Deleting the file begins a
new run there. Nothing a tracker does ends a stage, nor holds one up for more than a minute.
"""

import json
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from itertools import chain
from queue import SimpleQueue
from typing import Any

from oapl_core import plugins
from oapl_core.errors import ConfigError
from oapl_core.progress import say
from oapl_core.run_folder.run import Run
from oapl_core.tracking.doors import PATIENCE_S, Opening
from oapl_core.tracking.figures import Row, rows

_NOT_SHOWN = {"estimate", "fleet", "mirror", "sampler"}
"""Settings that say where a run is kept going; addresses among them are nobody else's business."""


def check_trackers(names: Sequence[str]) -> None:
    """Before anything is loaded.

    Raises:
        ConfigError: a tracker's package is not installed, or one of a person's own cannot be imported.
    """
    for name in names:
        if name not in plugins.BUILT_IN["tracker"]:
            plugins.resolve("tracker", name)
        elif find_spec(name) is None:
            raise ConfigError(
                f"training.trackers: {name!r} needs the package {name}, which is not installed here; "
                f"`pip install {name}` in the engine's environment, or take it out of the list"
            )


class Record:
    """Rows of a run that one tracker has."""

    def __init__(self, run: Run, name: str) -> None:
        """Read it; a line that a kill cut off does not count."""
        self._path = run.root.absolute() / "logs" / "trackers" / f"{name.replace(':', '.')}.jsonl"
        # TensorBoard forgets what is later on an axis when a step comes again, the others keep both
        self._forgets = name == "tensorboard"
        self._has: dict[str, dict[int, str]] = {}
        lines = self._path.read_text(encoding="utf-8").split("\n") if self._path.exists() else []
        whole = [json.loads(line) for line in lines[:-1]]
        for line in whole[1:]:
            self._take(**line)
        self.is_new = not whole
        self.identity: str = whole[0]["identity"] if whole else secrets.token_hex(6)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if lines and lines[-1]:
            self._path.write_text("".join(f"{line}\n" for line in lines[:-1]), encoding="utf-8")
        if self.is_new:  # before the tracker hears of it: killed in between, the next process names it the same
            self._append({"identity": self.identity})

    def has(self, row: Row) -> bool:
        """Tell whether the tracker has the row, from the same source."""
        return self._has.get(row.axis, {}).get(row.step) == row.source

    def note(self, row: Row) -> None:
        """Note that the tracker has the row now."""
        self._take(row.axis, row.step, row.source)
        self._append({"axis": row.axis, "step": row.step, "source": row.source})

    def _take(self, axis: str, step: int, source: str) -> None:
        mine = self._has.setdefault(axis, {})
        if self._forgets and mine and step <= next(reversed(mine)):
            for later in [known for known in mine if known >= step]:
                del mine[later]
        mine[step] = source

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class _Lane(threading.Thread):
    """One tracker: opened by its first row, fed from a queue until None."""

    def __init__(self, name: str, run: Run) -> None:
        super().__init__(name=f"tracker {name}", daemon=True)
        self.tracker, self.queue = name, SimpleQueue[Row | None]()
        self._run, self._record = run, Record(run, name)
        self.start()

    def run(self) -> None:
        """Send rows until the end; a tracker that fails is told of, and the rest of its rows waits in the files."""
        rows = (row for row in iter(self.queue.get, None) if not self._record.has(row))
        try:
            self._send(rows)
        except Exception as error:  # each library has errors of its own, and a person's tracker may raise anything
            text = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            say(
                f"tracker {self.tracker} is not to be reached ({text}); the run continues, `oapl report` sends the rest"
            )

    def _send(self, rows: Iterator[Row]) -> None:
        first = next(rows, None)
        if first is None:  # a stage that has nothing new does not even open it
            return
        settings = self._run.config.model_dump(mode="json", exclude=_NOT_SHOWN)
        opening = Opening(self._run.root.absolute(), self._record.identity, self._record.is_new, settings)
        door = plugins.resolve("tracker", self.tracker)(opening)
        try:
            for row in chain([first], rows):
                door.log(row.axis, row.step, row.values)
                self._record.note(row)
        finally:
            door.close()


class Tracking:
    """All trackers of a run, fed by one process; without any it does nothing."""

    def __init__(self, names: Sequence[str], run: Run) -> None:
        """They are opened by the first row that they do not have.

        Raises:
            ConfigError: a tracker's package is not installed.
        """
        check_trackers(names)
        self._lanes = [_Lane(name, run) for name in names]

    def log(self, rows: Iterable[Row]) -> None:
        """Give rows to every tracker, steps of an axis ascending; returns at once."""
        for row in rows if self._lanes else ():
            for lane in self._lanes:
                lane.queue.put(row)

    def close(self) -> None:
        """Wait until everything is sent, but for no tracker longer than a minute."""
        for lane in self._lanes:
            lane.queue.put(None)
        deadline = time.monotonic() + PATIENCE_S
        for lane in self._lanes:
            lane.join(max(0.0, deadline - time.monotonic()))
            if lane.is_alive():
                say(f"tracker {lane.tracker} does not answer; the run continues, `oapl report` sends the rest")


def catch_up(run: Run) -> None:
    """Send what trackers of the run do not have; one that cannot be used here is told of and left out."""
    here = list[str]()
    for name in run.config.training.trackers:
        try:
            check_trackers([name])
            here.append(name)
        except ConfigError as error:
            say(f"tracker {name}: nothing is sent ({error})")
    with closing(Tracking(here, run)) as tracking:
        tracking.log(rows(run))
