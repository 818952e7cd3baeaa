"""A round's own settings: where its rows come from, its loss, how it trains; what does not go together is refused."""

from typing import Any

import pytest

from oapl_core import plugins
from oapl_core.errors import ConfigError
from oapl_core.planning.plan import round_steps
from oapl_core.settings.experiment import Experiment
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.settings.rows import RowSource

SHOWN = {"rows": {"demonstrations": "shown.jsonl"}}


def experiment(*rounds: dict[str, Any], **more: Any) -> Experiment:
    values = {"name": "r", "model": "m", "problems": {"train": "t", "heldout": "h"}, "rounds": rounds}
    return parse_experiment(values | more, "test")


def test_a_round_has_its_own_loss_and_training_and_the_rest_of_the_experiments() -> None:
    own = {"objective": {"name": "rft"}, "training": {"learning_rate": 1e-4}, "repeat": 2}
    found = experiment(own, {}, training={"batch_size": 7, "learning_rate": 1e-5})
    assert [one.name for one in found.objectives] == ["rft", "rft", "oapl"]
    assert [found.training_of(number).learning_rate for number in range(3)] == [1e-4, 1e-4, 1e-5]
    assert {found.training_of(number).batch_size for number in range(3)} == {7}
    assert found.training_of(2) == found.training


def test_demonstrations_are_imitated_as_rft_does_unless_the_round_says_otherwise() -> None:
    found = experiment(SHOWN | {"training": {"batch_size": 16}}, {}, training={"reference": "reference"})
    training = found.training_of(0)
    assert (found.objective_of(0).name, found.objective_of(1).name) == ("sft", "oapl")
    assert (training.batch_size, training.learning_rate, training.warmup_share, training.floor_share) == (
        *(16, 2e-5),
        *(0.03, 0.0),
    )
    assert (training.reference, found.training_of(1).reference) == ("behavior", "reference")


def test_what_was_resolved_is_read_back_as_it_was() -> None:
    found = experiment(SHOWN, {"training": {"adam_betas": [0.9, 0.99]}, "objective": {"name": "grpo"}})
    assert parse_experiment(found.model_dump(mode="json"), "run.json") == found


@pytest.mark.parametrize(
    ("one", "why"),
    [
        ({"rows": "demonstrations:shown.jsonl"}, r"`rounds.0.rows`: write \"sampled\", or a table"),
        ({"rows": SHOWN["rows"] | {"limti": 3}}, r"unknown key `rounds.0.rows.limti`; did you mean `limit`\?"),
        (SHOWN | {"keep": "all"}, "keep chooses among rollouts, and the rows are demonstrations: leave it out"),
        (SHOWN | {"problems": 3}, "problems chooses among rollouts"),
        (SHOWN | {"objective": {"name": "grpo"}}, "'grpo' compares with the policy that sampled"),
        (SHOWN | {"training": {"reference": "reference"}}, "nobody sampled demonstrations"),
        ({"training": {"lerning_rate": 1}}, "unknown key `rounds.0.training.lerning_rate`"),
        ({"training": {"learning_rate": -1}}, "`rounds.0.training.learning_rate`: Input should be greater than 0"),
        ({"training": {"processes": 2}}, "processes is the same in all rounds: give it in \\[training\\]"),
    ],
)
def test_what_a_round_cannot_be_is_one_line(one: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        experiment(one)


def test_each_rounds_loss_is_held_against_its_own_training() -> None:
    started = {"objective": {"name": "grpo_frozen"}}
    experiment(started)
    with pytest.raises(ConfigError, match="'grpo_frozen' .* needs training.reference = 'behavior'"):
        experiment(started | {"training": {"reference": "reference"}})
    with pytest.raises(ConfigError, match="optimizer_state = 'continued' needs a constant learning rate"):
        constant = {"optimizer_state": "continued", "warmup_share": 0, "floor_share": 1}
        experiment({"training": {"warmup_share": 0.1}}, training=constant)


def test_a_file_of_the_form_before_is_told_the_new_one() -> None:
    with pytest.raises(ConfigError) as found:
        experiment({}, warm_start={"data": "shown.jsonl"})
    assert "`warm_start` is no setting: it is a round now, the first [[rounds]] with rows =" in str(found.value)
    assert "\n" not in str(found.value)


class ListedAnswers(RowSource):
    """A source of one's own."""

    rows_are = "listed answers"
    verb = "listed.read"
    objective = "rft"
    listed: str


def test_a_source_of_ones_own_is_asked_by_plan_and_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins.BUILT_IN["rows"], "listed", f"{__name__}:ListedAnswers")
    found = experiment({"rows": {"listed": "a"}}, {})
    assert [step.verb for step in round_steps(0, found.rounds[0])] == ["listed.read", "training.train"]
    assert [one.name for one in found.objectives] == ["rft", "oapl"]
    assert parse_experiment(found.model_dump(mode="json"), "run.json") == found
    with pytest.raises(ConfigError, match="keep chooses among rollouts, and the rows are listed answers"):
        experiment({"rows": {"listed": "a"}, "keep": "all"})
    with pytest.raises(ConfigError, match="or a table {demonstrations = FILE} or {listed = FILE}"):
        experiment({"rows": {"nothing": "a"}})
