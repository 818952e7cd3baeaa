"""Rows for trainers of other kinds, chosen by reward from the groups of a round: answers to imitate, pairs, problems.

Reads 3_groups.parquet (the rows that the round's filter kept, with their rewards) and 1_rollouts; writes nothing. Every
rollout is in a row or counted under a reason. The answers of one part are in memory at a time.

    sft          prompt, completion          TRL's conversational prompt-completion
    preference   prompt, chosen, rejected    TRL's conversational preference, with an explicit prompt
    verl         a problem each              verl's for RL: data_source, prompt, ability, reward_model, extra_info
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field, PositiveFloat, PositiveInt

from oapl_core import tables
from oapl_core.errors import ConfigError, DataError
from oapl_core.run_folder.run import Run
from oapl_core.settings_group import Settings
from oapl_core.storable import json_text
from oapl_extras.exchange.offline_row import ABOUT

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["rollouts", "sft", "preference", "verl"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SAID = ("completion", "chosen", "rejected")
"""Columns whose messages a policy said."""
_OF = {"min_reward": ("sft", "preference"), "min_gap": ("preference",), "per_problem": ("sft", "preference")}
"""Settings of ``ExportChoice`` by the kinds that have a use for them."""

Row = dict[str, Any]


class ExportChoice(Settings):
    """Choice among the answers of a problem, KEY=VALUE on the command line."""

    min_reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Least reward of an answer to imitate, or of a chosen one; unset: sft takes the correct ones, preference any."""
    min_gap: PositiveFloat | None = None
    """Least difference of the rewards of a pair; unset: they differ."""
    per_problem: PositiveInt | None = None
    """How many answers, or pairs, of a problem at most; unset: sft takes all, preference one pair."""

    def check(self, kind: Kind) -> None:
        """Raise ConfigError if a setting says nothing of that kind of rows."""
        for key in self.model_fields_set:
            if kind not in _OF[key]:
                raise ConfigError(f"oapl export: {key} is for --as {' and '.join(_OF[key])}, not {kind}; leave it out")


@dataclass(frozen=True)
class ExportedAnswer:
    """An answer as chat messages, with what chooses it."""

    sample: int
    rollout_id: str
    policy_hash: str
    reward: float
    correct: bool
    is_cut: bool
    said: Sequence[Mapping[str, Any]]


def rewards_of(run: Run, number: int) -> tuple[dict[str, tuple[float, bool]], Counter[str]]:
    """Read rewards of the rollouts that the filter of round ``number`` kept, and count the others by their reasons.

    Returns:
        Reward and whether it is correct, by rollout id; rollouts that were left out, by reason.

    Raises:
        DataError: the groups are not made, or were removed.
    """
    path = run.groups(number)
    entry = run.ledger.artifacts().get(run.name(path))
    if entry is None or not path.exists():
        raise DataError(
            f"{path}: is not there; `oapl run {run.root} --until groups --round {number}` makes it, and stops there"
        )
    if "kept_groups" not in entry.details:
        raise DataError(f"{path}: its rows were read from files, which have no rewards to choose by")
    columns = ["rollout_id", "group", "reward", "correct"]
    rows = tables.read_table(path, tables.GROUPS, columns).to_pylist()
    # what a round replays follows its own groups, and belongs to the rounds that sampled it
    own = [row for row in rows if row["group"] < entry.details["kept_groups"]]
    return {row["rollout_id"]: (row["reward"], row["correct"]) for row in own}, Counter(entry.details["dropped"])


def distinct(answers: Iterable[ExportedAnswer], left_out: Counter[str]) -> list[ExportedAnswer]:
    """Keep the first sampled of the answers to a problem that say the same, letter by letter."""
    found = dict[str, ExportedAnswer]()
    for answer in sorted(answers, key=lambda one: one.sample):
        if found.setdefault(json_text(answer.said), answer) is not answer:
            left_out["same_answer"] += 1
    return list(found.values())


def imitated(answers: Sequence[ExportedAnswer], choice: ExportChoice, left_out: Counter[str]) -> list[ExportedAnswer]:
    """Choose the answers to imitate, best first. One that was cut would teach not to end, so it is left out."""
    least = choice.min_reward
    good = [one for one in answers if (one.correct if least is None else _reaches(one.reward, least))]
    # sorted() keeps the order of sampling among equals
    whole = sorted((one for one in good if not one.is_cut), key=lambda one: -one.reward)
    chosen = whole[: choice.per_problem]
    left_out["not_correct" if least is None else "reward_too_low"] += len(answers) - len(good)
    left_out["truncated"] += len(good) - len(whole)
    left_out["enough_of_the_problem"] += len(whole) - len(chosen)
    return chosen


def pairs(
    answers: Sequence[ExportedAnswer], choice: ExportChoice, left_out: Counter[str]
) -> list[tuple[ExportedAnswer, ExportedAnswer]]:
    """Pair the best answers with the worst: first and last, second and last but one, as long as their rewards differ.

    A chosen answer was not cut.
    """
    ordered = sorted(answers, key=lambda one: -one.reward)
    least = choice.min_reward
    best = [one for one in ordered if not one.is_cut and (least is None or _reaches(one.reward, least))]
    # no answer is in two pairs: gaps shrink from pair to pair, and before an answer would meet itself they are 0
    every = zip(best, reversed(ordered), strict=False)
    gap = choice.min_gap or 0.0
    apart = [(a, b) for a, b in every if a.reward > b.reward and _reaches(a.reward - b.reward, gap)]
    chosen = apart[: choice.per_problem or 1]
    rest = len(answers) - 2 * len(chosen)
    left_out["in_no_pair" if chosen else "no_two_apart"] += rest
    return chosen


def _reaches(reward: float, least: float) -> bool:
    # a stored 0.9 is less than 0.9 as it is written
    return tables.as_stored(reward) >= tables.as_stored(least)


def sft_rows(
    problem: Row, answers: Sequence[ExportedAnswer], choice: ExportChoice, left_out: Counter[str], shared: Row
) -> Iterator[Row]:
    """Yield a row for each chosen answer to ``problem``; ``shared``: columns of every row."""
    for one in imitated(distinct(answers, left_out), choice, left_out):
        about = {"reward": one.reward, "rollout_id": one.rollout_id, "policy_hash": one.policy_hash}
        yield {"prompt": problem["prompt"], "completion": one.said, **shared, **_id(problem), **about}


def preference_rows(
    problem: Row, answers: Sequence[ExportedAnswer], choice: ExportChoice, left_out: Counter[str], shared: Row
) -> Iterator[Row]:
    """Yield a row for each pair of answers to ``problem``."""
    for good, bad in pairs(distinct(answers, left_out), choice, left_out):
        about = {
            f"{name}_{key}": getattr(one, key) for name, one in _named(good, bad) for key in ("reward", "rollout_id")
        }
        yield {
            "prompt": problem["prompt"],
            "chosen": good.said,
            "rejected": bad.said,
            **shared,
            **_id(problem),
            **about,
        }


def verl_row(problem: Row, rewards: Sequence[tuple[float, bool]]) -> Row:
    """Make the row of a problem, with how well its answers did."""
    counts = {"answers": len(rewards), "pass_rate": fmean(right for _, right in rewards)}
    return {**problem, "extra_info": {**problem["extra_info"], **counts, "mean_reward": fmean(r for r, _ in rewards)}}


def _named(good: ExportedAnswer, bad: ExportedAnswer) -> tuple[tuple[str, ExportedAnswer], tuple[str, ExportedAnswer]]:
    return ("chosen", good), ("rejected", bad)


def _id(problem: Row) -> Row:
    return {"problem_id": problem["extra_info"]["problem_id"]}


def schema_of(kind: Kind) -> "pa.Schema":
    """Make the Arrow schema of such rows, whose messages have a role and a content alone."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    messages = pa.list_(pa.struct([("role", text), ("content", pa.large_string())]))
    if kind == "sft":
        ids = [(name, text) for name in ("problem_id", "rollout_id", "policy_hash")]
        return pa.schema([("prompt", messages), ("completion", messages), ids[0], ("reward", number), *ids[1:]])
    if kind == "preference":
        sides = [
            (f"{side}_{name}", type_)
            for side in ("chosen", "rejected")
            for name, type_ in (("reward", number), ("rollout_id", text))
        ]
        return pa.schema(
            [*((name, messages) for name in ("prompt", "chosen", "rejected")), ("problem_id", text), *sides]
        )
    judged = [("answers", pa.int64()), ("pass_rate", number), ("mean_reward", number)]
    about = pa.struct([("split", text), ("index", pa.int64()), *((name, text) for name in ABOUT), *judged])
    truth = pa.struct([("style", text), ("ground_truth", pa.large_string())])
    columns = [("data_source", text), ("prompt", messages), ("ability", text), ("reward_model", truth)]
    return pa.schema([*columns, ("extra_info", about)])
