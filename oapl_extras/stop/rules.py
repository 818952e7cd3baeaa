"""Rules of `[stop]`: what ends a run by itself, each with the reason in words. Pure but for sizes of files.

Reads the ledger and the sizes of the run folder's files. A rule that has ended a run ends it again at once until its
limit is raised: nothing but the ledger remembers.
"""

from collections.abc import Iterator

from oapl_core.devices import visible_gpus
from oapl_core.errors import ConfigError
from oapl_core.planning.measurements import deciding
from oapl_core.planning.stages import BY_VERB
from oapl_core.reports.alarms import alarms
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord
from oapl_extras.stop.costs import Costs


def reasons(run: Run, cost: Costs) -> Iterator[str]:
    """Yield each rule that ends ``run`` now, in words that name its setting."""
    stop = run.config.stop
    spent = {
        "gpu_hours": cost.gpu_hours,
        "wall_hours": cost.wall_s / 3600,
        "judge_calls": cost.judge_calls,
        "judge_tokens": cost.judge_tokens,
        "disk_gb": cost.bytes / 1e9,
    }
    for name, used in spent.items():
        limit = getattr(stop, name)
        if limit is not None and used >= limit:
            yield f"{used:,.6g} of stop.{name} = {limit:g} are used"
    if stop.without_gain is not None:
        # the first of equal ones is the best: a run that stands still has no gain
        past = without_gain([reward for _, reward in deciding(run)])
        if past >= stop.without_gain:
            yield f"{past} evaluations brought no gain (stop.without_gain = {stop.without_gain})"
    if stop.alarms:
        yield from _alarms(run)


def without_gain(rewards: list[float]) -> int:
    """Count the evaluations since the first one that had the highest reward: an equal one later is no gain."""
    return len(rewards) - 1 - rewards.index(max(rewards)) if rewards else 0


def _alarms(run: Run) -> Iterator[str]:
    record = RunRecord(run)
    for number in range(len(run.config.rounds)):
        for alarm in alarms(record, number) if record.entry(run.groups(number)) else ():
            if alarm.rule in run.config.stop.alarms:
                yield f"the alarm {alarm.rule} of stop.alarms: {alarm.line}"


def refuse_idle(run: Run) -> None:
    """Refuse a rule that can never end the run: whoever wrote it counts on it.

    Raises:
        ConfigError: one line that names the setting and what it would need.
    """
    config, stop = run.config, run.config.stop
    if (stop.judge_calls or stop.judge_tokens) and not (config.reward and config.reward.judge):
        name = "judge_calls" if stop.judge_calls else "judge_tokens"
        raise ConfigError(f"stop.{name} can never end this run: no [reward.judge] is asked; leave it out")
    measured = len(config.evaluated_rounds) - 1
    if stop.without_gain is not None and stop.without_gain >= measured:
        raise ConfigError(
            f"stop.without_gain = {stop.without_gain} can never end this run: it has {measured} evaluations before its "
            "end; give evaluation.every_rounds a smaller number, or leave the rule out"
        )
    # other machines may have GPUs that nobody sees from here
    works_here = [verb for verb, stage in BY_VERB.items() if "gpu" in stage.needs and not config.is_elsewhere(verb)]
    if stop.gpu_hours is not None and len(works_here) == _gpu_stages() and not visible_gpus():
        raise ConfigError(
            "stop.gpu_hours can never end this run: this machine has no GPU that is visible and [fleet] names no other "
            "machine; leave it out, or give stop.wall_hours"
        )


def _gpu_stages() -> int:
    return sum("gpu" in stage.needs for stage in BY_VERB.values())
