"""The sampler of torch alone, the choice of a checkpoint and of rates, and the page's tables."""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from bench.claims.algorithm_1 import Arm
from bench.claims.mixture import encoded, page, studies
from bench.claims.mixture.encoded import Encoded, OnDevice, passes
from bench.claims.mixture.minutes import bases, nearest
from bench.claims.mixture.muon import StackedMuon
from bench.claims.mixture.place import FAILED, Place, of_study
from bench.claims.mixture.pretrained import mixed
from bench.claims.mixture.torch_sampler import TorchSampler, drawn
from bench.claims.mixture.worker import Worker, is_there
from oapl_core.pretraining.model import Example, batch_loss
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.settings.pretrain import PretrainConfig
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", sharpness=5.0)


def requests() -> list[Request]:
    prompts = [list(range(5 + p, 9 + 3 * p)) for p in range(5)]
    return [
        Request(f"{p}/{k}", prompts[p], 10 * p + k, 3 + 9 * k, *((1.0, 1.0) if k else (0.6, 0.9)))
        for p in range(5)
        for k in range(4)
    ]


ENDS = range(0, 320, 8)
"""A random model would nearly never say its one end token."""


def sampler_of(model: Path, rows: int) -> TorchSampler:
    sampler = TorchSampler(model, rows, 64)
    sampler._ends = torch.tensor(list(ENDS))
    return sampler


def answers(sampler: TorchSampler, asked: list[Request]) -> dict[str, SampledAnswer]:
    return {one.request.key: one for one in sampler.sample(iter(asked))}


def test_log_probs_are_the_model_s_and_answers_end_where_they_must(model: Path) -> None:
    found = answers(sampler_of(model, 6), requests())
    assert found.keys() == {one.key for one in requests()}
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for one in found.values():
        ids = torch.tensor([[*one.request.prompt_ids, *one.response_ids]])
        with torch.no_grad():
            logprob_T = torch.log_softmax(network(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
        own = logprob_T[len(one.request.prompt_ids) - 1 :]
        assert torch.tensor(one.logprobs) == pytest.approx(own, abs=1e-4)
        assert not set(ENDS).intersection(one.response_ids[:-1])
        is_cut = one.response_ids[-1] not in ENDS
        assert one.finish_reason == ("length" if is_cut else "stop")
        assert len(one.response_ids) == one.request.max_tokens or not is_cut
    assert {one.finish_reason for one in found.values()} == {"length", "stop"}


def test_an_answer_is_its_request_s_own(model: Path) -> None:
    whole = answers(sampler_of(model, 20), requests())
    few = answers(sampler_of(model, 3), requests()[::-1])
    assert {key: one.response_ids for key, one in whole.items()} == {key: one.response_ids for key, one in few.items()}
    other = answers(sampler_of(model, 20), [Request("a", [5, 6, 7], seed, 20) for seed in (1,)])
    again = answers(sampler_of(model, 20), [Request("a", [5, 6, 7], seed, 20) for seed in (2,)])
    assert other["a"].response_ids != again["a"].response_ids


def test_few_requests_are_sampled_in_few_rows(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {key: one.response_ids for key, one in answers(sampler_of(model, 20), requests()).items()}
    monkeypatch.setattr("bench.claims.mixture.torch_sampler.FEW", 4)
    sampler = sampler_of(model, 20)
    few = answers(sampler, requests()[:4])
    assert len(few) == sampler._batch.rows == 4
    # the next call has all rows again
    for found in (few, answers(sampler, requests())):
        assert all(one.response_ids == known[key] for key, one in found.items())
    assert sampler._batch.rows == 20


def test_what_an_abandoned_call_left_is_forgotten(model: Path) -> None:
    known, sampler = answers(sampler_of(model, 6), requests()), sampler_of(model, 6)
    next(sampler.sample(iter(requests()[::-1])))
    assert answers(sampler, requests()) == known


def test_other_weights_give_other_answers_of_the_same_sampler(model: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", sharpness=5.0, seed=7)
    sampler = sampler_of(model, 20)
    before = answers(sampler, requests())
    sampler.load(other)
    after, known = answers(sampler, requests()), answers(sampler_of(other, 20), requests())
    assert {k: one.response_ids for k, one in after.items()} == {k: one.response_ids for k, one in known.items()}
    assert any(after[key].response_ids != before[key].response_ids for key in before)


def test_tokens_are_drawn_by_their_probabilities() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    uniform = (torch.arange(2000) + 0.5) / 2000

    def shares(temperature: float, top_p: float) -> torch.Tensor:
        rows = len(uniform)
        whole = torch.full((rows,), temperature), torch.full((rows,), top_p)
        token = drawn(p.log().expand(rows, -1), *whole, uniform, top_p < 1)
        return torch.bincount(token, minlength=4) / rows

    assert shares(1.0, 1.0) == pytest.approx(p, abs=1e-3)
    assert shares(0.5, 1.0) == pytest.approx(p.square() / p.square().sum(), abs=1e-3)
    # 0.5 and 0.3 reach 0.75: no more are kept
    assert shares(1.0, 0.75) == pytest.approx(torch.tensor([0.625, 0.375, 0, 0]), abs=1e-3)
    assert shares(0.0, 1.0) == pytest.approx(torch.tensor([1.0, 0, 0, 0]))


def test_a_batch_on_the_device_has_the_stage_s_loss_and_gradient(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.claims.mixture.encoded.BLOCK", 1)
    monkeypatch.setattr("bench.claims.mixture.encoded.PASS", 0)  # so that a batch has parts
    pairs = [(list(range(5, 8 + n)), list(range(9, 12 + 2 * n))) for n in range(6)]
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rows = [4, 1, 5, 2]
    loss = OnDevice(Encoded.of(pairs), torch.device("cpu")).backward(network, rows)
    found = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    known = batch_loss(network, [Example(*pairs[row]) for row in rows])
    known.backward()
    assert float(loss) == pytest.approx(float(known.detach()), rel=1e-5)
    for mine, p in zip(found, network.parameters(), strict=True):
        assert torch.allclose(mine, p.grad, atol=1e-5)


def test_answers_count_alike_where_the_batch_says_so(model: Path) -> None:
    pairs = [(list(range(5, 8 + n)), list(range(9, 12 + 4 * n))) for n in range(6)]
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rows = [4, 1, 5, 2]
    loss = OnDevice(Encoded.of(pairs), torch.device("cpu")).backward(network, rows, is_by_answer=True)
    found = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    known = torch.stack([batch_loss(network, [Example(*pairs[row])]) for row in rows]).mean()
    known.backward()
    assert float(loss) == pytest.approx(float(known.detach()), rel=1e-5)
    for mine, p in zip(found, network.parameters(), strict=True):
        assert torch.allclose(mine, p.grad, atol=1e-5)


@given(lengths=st.lists(st.integers(1, 900), min_size=1, max_size=300))
def test_passes_have_every_row_once_and_room(lengths: list[int]) -> None:
    lengths.sort()
    parts = passes(lengths)
    assert [row for part in parts for row in range(len(lengths))[part]] == list(range(len(lengths)))
    for part in parts:
        rows = lengths[part]
        assert len(rows) * rows[-1] <= encoded.MOST_TOKENS or len(rows) <= encoded.BLOCK


def test_long_rows_have_a_pass_of_their_own_where_padding_costs_more_than_a_pass() -> None:
    few, many = [10] * 32 + [800] * 32, [10] * 32 + [40] * 32
    assert passes(few) == [slice(0, 32), slice(32, 64)]
    assert passes(many) == [slice(0, 64)]
    assert len(passes([600] * 256)) == 3, "153,600 tokens, and 65,536 have room"


def test_mixed_batches_have_every_row_of_enough_room_once_an_epoch() -> None:
    known = Encoded.of([([1] * n, [2] * n) for n in range(1, 40)])
    config = PretrainConfig(solutions=Path("none"), batch_size=4, epochs=3)
    batches = mixed(known, config, seed=3, most=60)
    assert len(batches) == 3 * 8, "30 rows of at most 60 tokens"
    epochs = [[row for batch in batches[first : first + 8] for row in batch] for first in (0, 8, 16)]
    assert all(sorted(epoch) == list(range(30)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_encoded_solutions_are_read_as_they_were_written(tmp_path: Path) -> None:
    pairs = [([1, 2], [3]), ([4], [5, 6, 500])]
    Encoded.of(pairs).write(tmp_path / "examples.npz")
    assert Encoded.read(tmp_path / "examples.npz").examples() == [Example(*pair) for pair in pairs]


def gates(usual: float, is_open: bool = False) -> dict[str, Any]:
    row = {"gate": "pass@1", "tier": "usual", "scope": "mixture", "value": usual}
    return {"is_open": is_open, "gates": [{**row, "scope": "search", "value": 0.325}, row]}


def test_matrices_together_make_the_step_of_torch_s_muon() -> None:
    torch.manual_seed(0)
    shapes = [(24, 24), (48, 24), (24, 48), (24, 24), (48, 24)]
    mine = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    known = [torch.nn.Parameter(matrix.detach().clone()) for matrix in mine]
    stacked = StackedMuon(mine, lr=0.02, weight_decay=0.1)
    alone = torch.optim.Muon(known, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for step in range(4):
        for a, b in zip(mine, known, strict=True):
            a.grad = torch.randn(a.shape)
            b.grad = a.grad.clone()
        stacked.step()
        alone.step()
        if step == 1:  # what a checkpoint keeps is all of it
            kept = stacked.state_dict()
            stacked = StackedMuon(mine, lr=0.5, weight_decay=0.5)
            stacked.load_state_dict(kept)
    for a, b in zip(mine, known, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_the_first_checkpoint_that_meets_the_gates_is_the_base_else_the_nearest() -> None:
    a, b, c = (Path(name) for name in "abc")
    assert nearest({a: gates(0.1), b: gates(0.28, True), c: gates(0.33, True)}) == b
    assert nearest({a: gates(0.1), b: gates(0.45), c: gates(0.2)}) in (b, c)
    assert nearest({a: gates(0.1), b: gates(0.46), c: gates(0.2)}) == c


def test_an_arm_that_failed_keeps_nobody_waiting(tmp_path: Path) -> None:
    place = Place("cores", tmp_path, tmp_path, tmp_path)
    place.base(0).mkdir()
    for number, name in enumerate(studies.tuning("cores")):
        path = place.base(0) / f"{name}.json"
        if number % 6 == 5:  # each method's highest rate failed or diverged
            path.with_suffix(".failed").touch()
        elif number % 6 == 2:
            path.write_text(json.dumps({"evaluations": [{"right_share": 0.9}], "failure": "diverged"}))
        else:
            path.write_text(json.dumps({"evaluations": [{"right_share": number / 100}]}))
    options = argparse.Namespace(seeds=[0], steps=None, rates=True)
    for worker in "01":  # the second finds the rates
        Worker(place, options, time.time() + 20, worker, (None, None)).choose_rates()
    assert json.loads((tmp_path / "rates.json").read_text()) == dict.fromkeys(studies.METHODS, studies.RATES[1])


def test_a_method_of_which_no_rate_could_be_tried_ends_the_worker(tmp_path: Path) -> None:
    place = Place("cores", tmp_path, tmp_path, tmp_path)
    place.base(0).mkdir()
    for name in studies.tuning("cores"):
        path = place.base(0) / f"{name}.json"
        if name.startswith("grpo"):
            path.with_suffix(".failed").touch()
        else:
            path.write_text(json.dumps({"evaluations": [{"right_share": 0.5}]}))
    options = argparse.Namespace(seeds=[0], steps=None, rates=True)
    with pytest.raises(SystemExit, match="no rate of grpo could be tried: see .*logs"):
        Worker(place, options, time.time() + 20, "0", (None, None)).choose_rates()
    assert not (tmp_path / "rates.json").exists()


def test_an_arm_is_there_once_it_was_asked_often_or_has_diverged(tmp_path: Path) -> None:
    (name, arm), *_ = of_study(Place("cores", tmp_path, tmp_path, tmp_path), 0).items()
    assert not is_there(tmp_path, name, arm)
    (tmp_path / f"{name}.json").write_text(json.dumps({"failure": None}))
    assert not is_there(tmp_path, name, arm)
    assert is_there(tmp_path, name, replace(arm, measured_on="validation"))
    (tmp_path / f"{name}.json").write_text(json.dumps({"failure": "diverged"}))
    assert is_there(tmp_path, name, arm)
    (tmp_path / f"{name}.json").write_text(json.dumps({"failure": None}))
    (tmp_path / f"{name}.measured.json").write_text("{}")
    assert is_there(tmp_path, name, arm)


def test_a_base_that_failed_is_waited_for_no_longer(tmp_path: Path) -> None:
    place = Place("cores", tmp_path, tmp_path, tmp_path)
    for seed in (0, 1):
        place.base(seed).mkdir()
        (place.base(seed) / FAILED).touch()
    began = time.time()
    Worker(place, argparse.Namespace(seeds=[0, 1], steps=None), began + 20, "0", (None, None)).study()
    assert time.time() < began + 10


def test_arms_of_bases_that_are_there_are_trained_by_their_urgency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, begun = Place("cores", tmp_path, tmp_path, tmp_path), list[tuple[int, str]]()
    for seed in (0, 1):
        place.base(seed).mkdir()
    (place.base(0) / "rollouts.done").touch()

    class Trained(Worker):
        def train(self, seed: int, name: str, arm: Arm) -> bool:
            if (seed, name) in begun:
                return False
            begun.append((seed, name))
            if len(begun) == 3:  # the second base is made meanwhile
                (place.base(1) / "rollouts.done").touch()
            return True

    options = argparse.Namespace(seeds=[0, 1], steps=None)
    Trained(place, options, time.time() + 20, "0", (None, None)).study()
    assert sorted(begun) == sorted((seed, name) for seed in (0, 1) for name in of_study(place, seed))
    kinds = [(seed, name.rpartition("-seed")[0]) for seed, name in begun]
    first = [(0, "oapl-lag1"), (0, "grpo-lag1")]
    assert sorted(kinds[:2]) == sorted(first)
    assert kinds[2] == (0, "oapl-lag400"), "the second base is not there yet"
    assert {kinds[3], kinds[4]} == {(1, "oapl-lag1"), (1, "grpo-lag1")}
    assert all("lag400" in name for _, name in kinds[5:14])
    assert all("lag50" in name for _, name in kinds[14:24])


def test_a_base_without_a_checkpoint_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.claims.mixture.minutes._begun", lambda *given: None)
    monkeypatch.setattr("bench.claims.mixture.pretrained.checkpoints", lambda *given: iter(()))
    options = argparse.Namespace(checkpoints=[1.0], steps=1, begin_with=None)
    with pytest.raises(SystemExit, match=r"seed 3: no checkpoint was measured in time; give more --minutes"):
        bases(Place("cores", tmp_path, tmp_path, tmp_path), options, time.time(), "3")


def test_arms_begin_with_what_their_base_answered_also_after_those_that_choose_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, used = Place("cores", tmp_path, tmp_path, tmp_path), list[Path]()

    def machine_of(place: Place, seed: int, means: tuple[Any, Any], kept: Path) -> Path:
        kept.mkdir(parents=True, exist_ok=True)
        used.append(kept)
        return kept

    monkeypatch.setattr("bench.claims.mixture.worker.machine_of", machine_of)
    worker = Worker(place, argparse.Namespace(), 0.0, "7", (None, None))
    worker.machine(0)  # an arm that chooses a rate: the base has not answered yet
    (place.base(0) / "kept").mkdir(parents=True)
    (place.base(0) / "kept" / "answers.jsonl").write_text("known\n")
    (place.base(0) / "rollouts.done").touch()
    found: list[Any] = [worker.machine(0), worker.machine(0)]
    assert found == [used[1]] * 2
    assert len(used) == 2
    assert (used[1] / "answers.jsonl").read_text() == "known\n"


def test_the_data_is_what_the_minutes_left(tmp_path: Path) -> None:
    for seed, steps in ((1, 20), (0, 300), (0, 20)):
        (tmp_path / f"mixture-gpu-seed{seed}").mkdir(exist_ok=True)
        (tmp_path / f"mixture-gpu-seed{seed}" / f"trial-{steps:06d}.json").write_text(
            json.dumps({"seed": seed, "steps": steps})
        )
    found = [(row["seed"], row["steps"]) for row in page.collected(tmp_path)]
    assert found == [(0, 20), (0, 300), (1, 20)]


def test_gates_of_the_same_weights_are_replaced_and_others_stay(tmp_path: Path) -> None:
    kept, out = tmp_path / "gates.json", tmp_path / "out" / "mixture-gpu-seed0"
    out.mkdir(parents=True)
    rows = [{"policy_hash": name, "max_tokens": 320, "value": value} for name, value in (("a", 1), ("b", 2), ("b", 3))]
    kept.write_text(json.dumps(rows[:2]))
    (out / "gates-gpu-b.json").write_text(json.dumps(rows[2]))
    page.keep(kept, "gates", tmp_path / "out")
    assert json.loads(kept.read_text()) == [rows[0], rows[2]]


def test_the_page_has_the_tables_of_its_data() -> None:
    text = page.PAGE.read_text()
    assert "<!-- table checkpoints -->" in text
    assert page.page(text) == text, "run python -m bench.claims.mixture.page"


def test_a_question_that_a_base_without_its_gates_answers_is_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"scale": "gpu", "model": f"seed{seed}", "is_open": seed != 1} for seed in range(3)]
    monkeypatch.setattr(page, "GATED", tmp_path / "gates.json")
    page.GATED.write_text(json.dumps(rows))

    def question(*seeds: int) -> str:
        found = page._asked("1", "so?", lambda: {(f"mixture-gpu-seed{seed}", 0): [0.1, 0.2] for seed in seeds})
        assert found
        return found.question

    assert [question(0, 2), question(0, 1), question(0, 3)] == ["so?", "trial: so?", "trial: so?"]


def test_an_arm_that_diverged_is_told_in_its_row_and_leaves_its_questions_open(monkeypatch: pytest.MonkeyPatch) -> None:
    known = page.evaluated()
    (base,) = known["grpo-lag50"]
    cut = {step: row for step, row in known["grpo-lag50"][base].items() if step <= 200}
    monkeypatch.setattr(page, "evaluated", lambda: {**known, "grpo-lag50": {base: cut}})
    page.unfinished.cache_clear()
    try:
        name = "| GRPO (diverged on 1 of 1 bases) | 50 |"
        (row,) = (line for line in page.arms().splitlines() if line.startswith(name))
        assert row.split(" | ")[7:10] == ["diverged", "", "1 of 1"], row
        often = {arm: own for arm, own in page.asked_often().items() if arm != "grpo-lag50"}
        monkeypatch.setattr(page, "asked_often", lambda: often)
        for table in (page.families(), page.wide()):
            (row,) = (line for line in table.splitlines() if line.startswith(name))
            assert row.split(" | ")[2] == "diverged"
            assert row.count("|") == table.splitlines()[0].count("|")
        asked = page._asked("4", "OAPL less GRPO", lambda: page._pair("oapl-lag50", "grpo-lag50"))
        assert asked
        assert (asked.verdict, asked.found) == (f"no answers on {base}", None)
    finally:
        page.unfinished.cache_clear()
