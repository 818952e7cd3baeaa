"""Costs of a run so far, from its ledger and the sizes of its files: hours, GPU-hours, a judge's calls, bytes. Pure.

A stage's process is recorded when it ends, also when it was cancelled. Not counted: a process that died together with
whoever started it (SIGKILL, a power cut), as nobody was left to record it.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from oapl_core.planning.plan import times
from oapl_core.planning.stages import SAMPLING
from oapl_core.run_folder.ledger import ArtifactEntry
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.storage import stored_files, total

JUDGE = "judge"
"""Key of a judge's costs in the details of verdicts."""


@dataclass(frozen=True)
class Costs:
    """Cost of a run."""

    wall_s: float
    """Seconds during which stages worked, at once or one after the other."""
    gpu_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds times GPUs, by stage; stages without GPUs are left out."""
    judge: Mapping[str, int] = field(default_factory=dict)
    """Requests to the judge, and tokens: `calls`, `prompt_tokens`, `completion_tokens`."""
    bytes: int = 0
    """Bytes of the files in the run folder."""

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all stages together."""
        return sum(self.gpu_s.values()) / 3600

    @property
    def judge_calls(self) -> int:
        """Requests to the judge."""
        return self.judge.get("calls", 0)

    @property
    def judge_tokens(self) -> int:
        """Tokens of the judge's prompts and replies."""
        return self.judge.get("prompt_tokens", 0) + self.judge.get("completion_tokens", 0)

    @property
    def figures(self) -> dict[str, float]:
        """The costs by the tags of trackers."""
        judged = {"judge_calls": self.judge_calls, "judge_tokens": self.judge_tokens} if self.judge else {}
        gpus = {"gpu_hours": self.gpu_hours} if self.gpu_s else {}
        values = {"hours": self.wall_s / 3600, **gpus, **judged, "gb": self.bytes / 1e9}
        return {f"costs/{tag}": value for tag, value in values.items()}

    @property
    def line(self) -> str:
        """The costs in one line for a person."""
        stages = ", ".join(f"{stage} {seconds / 3600:.2f}" for stage, seconds in self.gpu_s.items())
        parts = [f"{self.wall_s / 3600:.2f} hours"]
        parts += [f"{self.gpu_hours:.2f} GPU-hours ({stages})"] if self.gpu_s else []
        parts += [f"{self.judge_calls:,} calls of the judge with {self.judge_tokens:,} tokens"] if self.judge else []
        return "; ".join([*parts, f"{self.bytes / 1e9:.2f} GB"])


def costs(run: Run) -> Costs:
    """Sum up what ``run`` has cost until now."""
    gpu_s, judge, rows = defaultdict[str, float](float), Counter[str](), list(times(run))
    # the GPUs of this machine are counted once: what works during sampling adds the time by which it outlasts that
    here = {row.step.label: row for row in rows if row.step.options and _is_here(run, row.step.verb)}
    for ended in run.ledger.stages():
        # of a process that used no GPU the time is in the wall time alone
        if ended.gpus:
            row = here.get(ended.stage)
            share = row.added_s / row.seconds if row and row.seconds else 1
            gpu_s[ended.stage.partition(" ")[0].partition(".")[0]] += ended.seconds * ended.gpus * share
    # every line: what was put aside since has been paid all the same
    for entry in run.ledger.entries():
        if isinstance(entry, ArtifactEntry):
            judge.update(entry.details.get(JUDGE, {}))
    wall_s = sum(row.added_s for row in rows)
    return Costs(wall_s, dict(gpu_s), dict(judge), total(stored_files(run.root)).total())


def _is_here(run: Run, verb: str) -> bool:
    """Tell whether ``verb`` works on the machine that samples, beside the process that samples."""
    return not run.config.is_elsewhere(verb) and not run.config.is_elsewhere(SAMPLING.verb)
