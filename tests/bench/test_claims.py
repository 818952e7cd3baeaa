"""The study's harness: its policy is the trainer's, its arms have the lags and rollouts that they say."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.claims import carried, train
from bench.claims.algorithm_1 import Arm, Lagged
from bench.claims.bases import heldout_problems
from bench.claims.grouped import GroupedPolicy
from bench.claims.machine import Machine
from data.demo import generate
from oapl_core.errors import Diverged, StageFailed
from oapl_core.model_files.model_folder import check_same_architecture, policy_hash
from oapl_core.objectives import Oapl
from oapl_core.objectives.clipped.grpo import GrpoTokenIs
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.training.model.checkpoint import load_model
from oapl_core.training.model.logprobs import Policy
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verdict
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", sharpness=5.0)


@dataclass
class MadeUp:
    """Answers by seed alone, and remembers what it was asked and with which weights."""

    loaded: str = ""
    asked: list[tuple[str, str]] | None = None

    def load(self, folder: Path) -> None:
        self.loaded = policy_hash(folder)

    def sample(self, requests: Iterable[Request | None], with_logprobs: bool) -> Iterator[SampledAnswer]:
        for request in reversed(list(filter(None, requests))):
            if self.asked is not None and request.key.startswith("train"):
                self.asked.append((self.loaded, request.key))
            draw = random.Random(request.seed)
            ids = [draw.randrange(5, 300) for _ in range(draw.randint(1, 6))]
            yield SampledAnswer(request, ids, [-5.0] * len(ids), "stop", text=str(request.seed % 3))


class Judge:
    """An answer is right if it is "0"; counts what it was asked."""

    asked = 0

    def verify(self, problems: Sequence[Any], texts: Sequence[str], reasons: Sequence[str | None]) -> list[Verdict]:
        self.asked += len(texts)
        outcomes = [Outcome.PASSED if text == "0" else Outcome.WRONG_ANSWER for text in texts]
        return [Verdict(p["problem_id"], outcome, "", "full") for p, outcome in zip(problems, outcomes, strict=True)]


def machine(model: Path, kept: Path) -> Machine:
    prompts = {
        split: {f"{split}{i}": [10 + i, 11, 12 + i] for i in range(n)}
        for split, n in (("train", 12), ("heldout", 3), ("validation", 2))
    }
    problems = {name: {"problem_id": name} for own in prompts.values() for name in own}
    sampler, judge = MadeUp(asked=[]), Judge()
    return Machine(sampler, judge, prompts, problems, model, policy_hash(model), 8, kept)  # type: ignore[arg-type]


def trained(arm: Arm, model: Path, tmp_path: Path) -> tuple[Lagged, Machine]:
    made = machine(model, tmp_path / "kept")
    lagged = Lagged(arm, made, tmp_path)
    lagged.run(lambda line: None)
    return lagged, made


def short(objective: Any, interval: int, **settings: Any) -> Arm:
    return Arm(objective, interval, groups_per_step=2, group_size=4, answers=1, answers_last=2, **settings)


def test_the_grouped_policy_is_the_policy(model: Path) -> None:
    draw = random.Random(0)
    # a prompt, the beginning of it, and one that looks like padding; answers to one stand apart
    whole = [draw.randrange(5, 300) for _ in range(7)]
    prompts = [whole, whole[:3], [0]]
    answers = [(p, p + [draw.randrange(5, 300) for _ in range(draw.randint(1, 9))]) for p in prompts for _ in range(3)]
    answers[3] = (prompts[1], [*whole, 0])  # an answer that is the rest of another prompt
    draw.shuffle(answers)
    rows = [row for _, row in answers]
    prompt_S = torch.tensor([len(prompt) for prompt, _ in answers])
    length_S = torch.tensor([len(row) for row in rows])
    id_ST = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    weight_ST, found = torch.rand(len(rows), id_ST.shape[1] - 1), []
    for kind in (Policy, GroupedPolicy):
        policy = kind(load_model(model).model)
        logprob_ST = policy(id_ST, prompt_S, length_S)
        (logprob_ST * weight_ST).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
        found.append((logprob_ST.detach(), gradient, policy.entropy_T))
    (theirs, ours) = found
    for expected, actual in zip(theirs, ours, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_lags_and_synchronisations_are_those_of_the_arm(model: Path, tmp_path: Path) -> None:
    arm = short(Oapl(regression_temperature=0.1), 3, steps=5, evaluate_every=10)
    lagged, made = trained(arm, model, tmp_path)
    assert [row["policy_lag"] for row in lagged.metrics] == [0, 1, 2, 0, 1]
    assert [row["step"] for row in lagged.evaluations] == [0, 5]
    assert [row["n"] for row in lagged.evaluations] == [1, 2]
    asked = made.sampler.asked  # type: ignore[attr-defined]
    assert [len({policy for policy, _ in asked[:24]}), len({policy for policy, _ in asked})] == [1, 2]
    assert lagged.evaluations[-1]["rollouts"] == len(asked) == 5 * 8


def test_a_trained_model_has_the_architecture_of_its_base(model: Path, tmp_path: Path) -> None:
    lagged, _ = trained(short(GrpoTokenIs(), 1, steps=1), model, tmp_path)
    lagged.keep(tmp_path / "kept model")
    # the engine of the next arm goes back from this one to the base
    check_same_architecture(tmp_path / "kept model", model)


def test_off_by_one_samples_with_the_iteration_before(model: Path, tmp_path: Path) -> None:
    arm = short(GrpoTokenIs(), 2, offset=2, steps=6, evaluate_every=2)
    lagged, made = trained(arm, model, tmp_path)
    assert [row["policy_lag"] for row in lagged.metrics] == [0, 1, 2, 3, 2, 3]
    asked = made.sampler.asked  # type: ignore[attr-defined]
    policies = list(dict.fromkeys(policy for policy, _ in asked))
    # the base answers for two iterations; of these the second is not asked of the engine's weights after training
    assert policies[0] == policy_hash(model)
    assert [sum(policy == one for policy, _ in asked) for one in policies] == [32, 16]


def test_first_steps_do_not_depend_on_the_interval_and_passes_see_the_same_rollouts(
    model: Path, tmp_path: Path
) -> None:
    oapl = Oapl(regression_temperature=0.1)
    runs = {}
    for name, interval, epochs in (("short", 2, 1), ("long", 4, 1), ("passes", 2, 2)):
        (tmp_path / name).mkdir()
        arm = short(oapl, interval, epochs=epochs, steps=4, evaluate_every=2)
        runs[name] = trained(arm, model, tmp_path / name)[0]
    losses = {name: [row["loss"] for row in lagged.metrics] for name, lagged in runs.items()}
    assert losses["short"][:2] == losses["long"][:2] == losses["passes"][:2]
    assert losses["passes"][2:] != losses["long"][2:]
    assert runs["passes"].evaluations[-1]["rollouts"] == 16
    assert [row["policy_lag"] for row in runs["passes"].metrics] == [0, 1, 2, 3]


def test_groups_are_kept_as_the_arm_says(model: Path, tmp_path: Path) -> None:
    counts = {}
    for keep in ("all", "any_correct", "mixed"):
        (tmp_path / keep).mkdir()
        arm = short(Oapl(regression_temperature=0.1), 3, steps=3, keep=keep, evaluate_every=10)
        lagged, _ = trained(arm, model, tmp_path / keep)
        counts[keep] = [row["sequences"] for row in lagged.metrics]
    # a group of the first step has no right answer, one of the third no wrong one
    assert counts == {"all": [8, 8, 8], "any_correct": [4, 8, 8], "mixed": [4, 8, 4]}


def test_what_is_known_is_not_asked_again(model: Path, tmp_path: Path) -> None:
    arm = short(Oapl(regression_temperature=0.1), 2, steps=2, evaluate_every=10)
    first, made = trained(arm, model, tmp_path)
    again, later = trained(arm, model, tmp_path)
    assert [row["loss"] for row in first.metrics] == [row["loss"] for row in again.metrics]
    assert made.verifier.asked > later.verifier.asked == 0  # type: ignore[attr-defined]
    assert later.sampler.asked == []  # type: ignore[attr-defined]
    # a line cut by a kill is no verdict
    (file,) = (tmp_path / "kept").glob("verdicts-*")
    file.write_text(file.read_text()[:-4])
    trained(arm, model, tmp_path)  # appends to what is left
    last, judging = trained(arm, model, tmp_path)
    assert last.evaluations[-1]["right"] == again.evaluations[-1]["right"]
    assert judging.verifier.asked == 0  # type: ignore[attr-defined]


def test_arms_on_one_file_of_rollouts_have_one_hash(model: Path, tmp_path: Path) -> None:
    oapl, found = Oapl(regression_temperature=0.1), {}
    settings: dict[str, dict[str, Any]] = {"plain": {}, "mixed": {"keep": "mixed"}, "passes": {"epochs": 2, "steps": 4}}
    settings["other"] = {"seed": 1}
    for name, own in settings.items():
        (tmp_path / name).mkdir()
        arm = short(oapl, 2, **{"steps": 2, "evaluate_every": 2, **own})
        found[name] = [row["rollouts_sha256"] for row in trained(arm, model, tmp_path / name)[0].evaluations]
    first, last = found["plain"]
    assert first != last
    assert found["mixed"][-1] == last == found["passes"][1] == found["passes"][2]
    assert found["other"][-1] != last


def test_settings_of_an_arm_can_be_stored() -> None:
    arm = short(GrpoTokenIs(), 2, offset=2)
    stored = json.loads(json.dumps(arm.settings()))
    assert (stored["objective"]["name"], stored["offset"], stored["engine_copy"]) == ("grpo_token_is", 2, None)


@pytest.mark.slow
def test_the_500_problems_are_new_and_held_out() -> None:
    rows = heldout_problems()
    demo = Path(generate.__file__).parent
    lines = {split: (demo / f"{split}.jsonl").read_text().splitlines() for split in ("train", "heldout")}
    known = {split: [json.loads(line) for line in own] for split, own in lines.items()}
    assert len({row["statement"] for row in rows}) == 500
    for split in known.values():
        assert not {row["statement"] for row in rows} & {row["statement"] for row in split}
    trained_pairs = set().union(*(generate.neighbours(row["structure"]) for row in known["train"]))
    assert all(generate.neighbours(row["structure"]) - trained_pairs for row in rows)


def test_an_evaluation_leaves_the_sampler_its_weights(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.claims.algorithm_1.CHUNK", 2)
    arm = short(Oapl(regression_temperature=0.1), 4, steps=8, evaluate_every=2)
    _, made = trained(arm, model, tmp_path)
    asked = made.sampler.asked  # type: ignore[attr-defined]
    # the base samples steps 0 to 3, one other policy 4 to 7, though each was measured in between
    assert [len({policy for policy, _ in own}) for own in (asked[:32], asked[32:])] == [1, 1]


def test_shares_of_rollouts_by_hand() -> None:
    groups = [[True, False], [True, True], [False, False], [True, False]]
    rows = [{"group": g, "correct": correct} for g, own in enumerate(groups) for correct in own]
    found = carried.about({"base": "b", "rollouts_sha256": "abc", "rollouts": rows})
    shares = {"correct": 0.5, "mixed_groups": 0.5, "wrong_groups": 0.25, "correct_in_groups_all_correct": 0.5}
    assert found == {"base": "b", "rollouts_sha256": "abc", "rollouts": 8, **shares}


def test_an_arm_that_diverges_is_a_result_without_weights_and_another_failure_is_none(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm, made = short(Oapl(regression_temperature=0.1), 1, steps=2), machine(model, tmp_path / "kept")
    whole = train.result(arm, made, tmp_path, "tiny", tmp_path / "whole")
    assert whole["failure"] is None and [row["step"] for row in whole["evaluations"]] == [0, 2]
    assert (tmp_path / "whole" / "model.safetensors").exists()
    for error, failure in ((Diverged("not finite"), "not finite"), (StageFailed("memory ran out"), None)):

        def _interval(self: Lagged, steps: int, error: StageFailed = error) -> None:
            raise error

        monkeypatch.setattr(Lagged, "_interval", _interval)
        if failure:
            found = train.result(arm, made, tmp_path, "tiny", tmp_path / "none")
            assert found["failure"] == failure and [row["step"] for row in found["evaluations"]] == [0]
        else:
            with pytest.raises(StageFailed, match="memory ran out"):
                train.result(arm, made, tmp_path, "tiny", tmp_path / "none")
    assert not (tmp_path / "none").exists()
