"""A prompt computed once for all answers to it: log-probs, gradients and steps of whole sequences, or a refusal."""

import copy
import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM

from oapl_core.errors import ConfigError
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.run_folder.run import Run
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.examples import Examples, read_examples
from oapl_core.training.layouts import shared_prompts
from oapl_core.training.layouts.batching import micro_batches
from oapl_core.training.layouts.placing import VARIABLE_LENGTH
from oapl_core.training.layouts.shared_prompts import (
    SharedPromptPolicy,
    SharedRow,
    computed_tokens,
    dealt,
    refuse_sharing,
    shares_prompts,
)
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.steps import Trainer
from tests.core.training.made_round import made_groups, make_run, train_in_a_process, write_groups
from tests.core.training.plain_engine import PlainEngine
from tests.core.training.test_resume import metrics, prepare, start, wait_for_step
from tests.family_models import write_family

Inputs = tuple[Tensor, Tensor, Tensor]
GROUPS = ((5, (7, 1, 12)), (1, (4, 9)), (9, (6,)), (3, (20, 2, 2, 11)))
"""Tokens of a prompt, also of one, and of each answer to it; a group has one answer."""


def answers_to_prompts(groups: Sequence[tuple[int, Sequence[int]]] = GROUPS, vocabulary: int = 300) -> Inputs:
    """Right-padded rows, so shuffled that answers to a prompt are no neighbours."""
    draw = torch.Generator().manual_seed(0)
    rows = []
    for size, lengths in groups:
        prompt = torch.randint(3, vocabulary, (size,), generator=draw)
        rows += [(size, torch.cat([prompt, torch.randint(3, vocabulary, (n,), generator=draw)])) for n in lengths]
    rows = [rows[i] for i in torch.randperm(len(rows), generator=draw)]
    ids = torch.nn.utils.rnn.pad_sequence([row for _, row in rows], batch_first=True, padding_value=9)
    return ids, torch.tensor([size for size, _ in rows]), torch.tensor([len(row) for _, row in rows])


def logprobs_and_gradients(policy: Policy, inputs: Inputs, weight_ST: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Of a loss that gives every token another coefficient."""
    logprob_ST = policy(*inputs)
    (logprob_ST * weight_ST).sum().backward()
    found = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    return logprob_ST.detach(), found


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "gemma3", "qwen3-moe", "deepseek-v3"])
def test_log_probs_and_gradients_are_those_of_padded_rows(tmp_path: Path, family: str, recomputed: bool) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(write_family(tmp_path, family), dtype=torch.float32)
    if recomputed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    long = ((40, (7, 30)),)  # past the sliding windows
    inputs = answers_to_prompts(GROUPS + long, model.config.vocab_size)
    weight_ST = torch.randn(inputs[0].shape[0], inputs[0].shape[1] - 1, generator=torch.Generator().manual_seed(1))
    padded, expected = logprobs_and_gradients(Policy(copy.deepcopy(model)), inputs, weight_ST)
    shared, found = logprobs_and_gradients(SharedPromptPolicy(model), inputs, weight_ST)
    assert padded.abs().max() > 5, "no near-uniform distribution that would hide an error"
    torch.testing.assert_close(shared, padded, rtol=0, atol=2e-5)
    assert found.keys() == expected.keys()
    # a router's sigmoids: 1.3e-5 are measured, of the other families 3.3e-6 at most
    bound = 2e-5 if family == "deepseek-v3" else 1e-5
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=bound * gradient.abs().max().item(), msg=name)


def test_in_bfloat16_the_gradient_is_as_near_to_float32s_as_that_of_padded_rows(tmp_path: Path) -> None:
    """A prompt's keys and values get the sum of eight answers' gradients, in bfloat16."""
    model: Any = AutoModelForCausalLM.from_pretrained(write_family(tmp_path, "qwen3"), dtype=torch.bfloat16)
    inputs = answers_to_prompts(((64, (16,) * 8), (40, (24,) * 8)), model.config.vocab_size)
    weight_ST = torch.randn(inputs[0].shape[0], inputs[0].shape[1] - 1, generator=torch.Generator().manual_seed(1))
    policies = Policy(copy.deepcopy(model).float()), Policy(copy.deepcopy(model)), SharedPromptPolicy(model)
    exact, padded, shared = (
        torch.cat([g.float().flatten() for g in logprobs_and_gradients(policy, inputs, weight_ST)[1].values()])
        for policy in policies
    )
    allowed = 1.2 * (padded - exact).norm()
    assert 0 < (shared - exact).norm() < allowed < 0.05 * exact.norm()


def test_a_prompt_is_computed_once_and_single_answers_as_ever() -> None:
    inputs = answers_to_prompts()
    row = SharedRow.of(*inputs)
    assert int(row.computed_ST.sum()) == sum(size + sum(lengths) for size, lengths in GROUPS)
    assert len(row.attention["key_place_K"]) == int(inputs[2].sum()), "and every sequence has all of its keys"
    kept_T = inputs[0][row.computed_ST]
    for s, length in enumerate(inputs[2].tolist()):
        assert torch.equal(kept_T[row.place_ST[s, :length]], inputs[0][s, :length])


def test_what_begins_alike_is_no_shared_prompt(sharp_model: Path) -> None:
    """One prompt is the beginning of another, and of the other's answer."""
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [5, 6, 7, 11, 12, 9], [5, 6, 7, 8, 13, 9]])
    inputs = (ids, torch.tensor([3, 2, 4]), torch.tensor([6, 5, 5]))
    assert int(SharedRow.of(*inputs).computed_ST.sum()) == 16
    model = AutoModelForCausalLM.from_pretrained(sharp_model)
    expected = Policy(copy.deepcopy(model))(*inputs)
    torch.testing.assert_close(SharedPromptPolicy(model)(*inputs), expected, rtol=0, atol=1e-5)


# Batches -------------------------------------------------------------------------------------------------------------

PROMPTS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), min_size=1, max_size=60)


@given(PROMPTS, st.integers(1, 400), st.integers(1, 5), st.randoms(use_true_random=False))
def test_shared_micro_batches_keep_the_budget_and_lose_nothing(
    rows: list[tuple[int, int]], budget: int, ranks: int, rng: Any
) -> None:
    prompts = [(label, 10 * label + 1) for label, _ in rows]
    lengths = [size + answer for (_, size), (_, answer) in zip(prompts, rows, strict=True)]
    order = list(range(len(rows)))
    shares = micro_batches(order, lengths, budget, ranks, partial(dealt, prompts=prompts))
    assert len({len(share) for share in shares}) == 1 and len(shares) == ranks
    assert sorted(i for share in shares for held in share for i in held) == order
    for share in shares:
        for held in share:
            assert computed_tokens(held, lengths, prompts) <= budget or len(held) == 1
    rng.shuffle(order)
    assert micro_batches(order, lengths, budget, ranks, partial(dealt, prompts=prompts)) == shares


def test_answers_to_a_prompt_stay_together_unless_ranks_would_wait() -> None:
    prompts, lengths = [(i // 4, 100) for i in range(16)], [150] * 16
    for ranks in (1, 2, 4):
        shares = micro_batches(range(16), lengths, 300, ranks, partial(dealt, prompts=prompts))
        assert sorted(held for share in shares for held in share) == [list(range(i, i + 4)) for i in (0, 4, 8, 12)]
    two = micro_batches(range(4), lengths, 10_000, 2, partial(dealt, prompts=prompts))
    assert sorted(len(held) for share in two for held in share) == [2, 2]


# What is chosen, and what is refused ---------------------------------------------------------------------------------


def examples_of(folder: Path, model: Path, rows: list[dict[str, Any]], **training: Any) -> tuple[Run, Examples]:
    run = make_run(folder, model, **training)
    write_groups(run, rows)
    return run, read_examples(run.groups(0), policy_hash(model), model)


@pytest.fixture(scope="module")
def rows(sharp_model: Path) -> list[dict[str, Any]]:
    return made_groups(sharp_model)


def test_auto_shares_where_it_pays(
    tmp_path: Path,
    sharp_model: Path,
    rows: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(sharp_model)
    examples = examples_of(tmp_path, sharp_model, rows)[1]

    def chosen(examples: Examples = examples, **settings: Any) -> bool:
        return shares_prompts(model, TrainingConfig(**settings), examples)

    prompt = {row["group"]: len(row["prompt_ids"]) for row in rows}
    saved = 3 * sum(prompt.values()) / sum(examples.lengths)
    assert not chosen()
    assert capsys.readouterr().out == "", "who does not ask is told nothing"
    assert chosen(share_prompts="auto")
    assert f"prompts are computed once: it saves {saved:.0%} of the tokens" in capsys.readouterr().out
    assert not chosen(share_prompts="auto", packing="off")
    assert not chosen(share_prompts="auto", sequence_parallel=2, processes=2)
    alone = replace(examples, group_S=torch.arange(len(rows)).numpy())
    assert not chosen(alone, share_prompts="auto")
    assert "prompts are not computed once: it would save 0% of the tokens" in capsys.readouterr().out
    assert chosen(alone, share_prompts="on")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not chosen(share_prompts="auto", dtype="float32"), "no kernel for it"
    assert chosen(share_prompts="auto", dtype="bfloat16")
    model.config.attn_logit_softcapping = 50.0
    assert not chosen(share_prompts="auto")
    with pytest.raises(ConfigError, match="share_prompts = 'on': Qwen3ForCausalLM has an attention of its own"):
        chosen(share_prompts="on")


@pytest.mark.parametrize("change", [{"packing": "off"}, {"sequence_parallel": 2, "processes": 2}])
def test_settings_that_cannot_share_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="share_prompts = 'on' needs packed rows and sequence_parallel = 1"):
        TrainingConfig(share_prompts="on", **change)


def test_a_model_that_shares_well_is_accepted(tmp_path: Path, sharp_model: Path, rows: list[dict[str, Any]]) -> None:
    examples = examples_of(tmp_path, sharp_model, rows)[1]
    model: Any = AutoModelForCausalLM.from_pretrained(sharp_model)
    engine, scored = PlainEngine(SharedPromptPolicy(model), TrainingConfig()), list[tuple[str, int]]()

    def note(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        scored.append((model.config._attn_implementation, kwargs["input_ids"].shape[1]))

    model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    for asked in (examples, replace(examples, group_S=torch.arange(len(rows)).numpy())):
        scored.clear()
        refuse_sharing(engine, asked)
        (kernel, together), *apart = scored
        assert kernel == VARIABLE_LENGTH and [name for name, _ in apart] == ["sdpa"] * 3 + ["eager"] * 3
        assert together < sum(size for _, size in apart[:3]), "the prompt of two of the three was computed once"
        assert model.config._attn_implementation == VARIABLE_LENGTH, "training goes on as it was checked"


def sibling_seen(row: SharedRow) -> SharedRow:
    """The last answer sees, beside its prompt and itself, the last token of the first: another answer to the prompt."""
    keys, bound = row.attention["key_place_K"], row.attention["cu_seq_lens_k"].clone()
    if len(bound) == 2:  # a sequence by itself has no sibling
        return row
    end, last = int(bound[1]), int(bound[-2])
    bound[-1] += 1
    keys = torch.cat([keys[:last], keys[end - 1 : end], keys[last:]])
    seen = {"key_place_K": keys, "cu_seq_lens_k": bound, "max_length_k": row.attention["max_length_k"] + 1}
    return replace(row, attention=row.attention | seen)


def no_prompt(row: SharedRow) -> SharedRow:
    """Answers that lie without their prompt see none."""
    whole = torch.arange(int(row.computed_ST.sum()))
    queries = {f"{name}_k": row.attention[f"{name}_q"] for name in ("cu_seq_lens", "max_length")}
    return replace(row, attention=row.attention | queries | {"key_place_K": whole})


def other_prompt(row: SharedRow) -> SharedRow:
    """All answers continue the first prompt's last token."""
    place_ST = row.place_ST.clone()
    place_ST[:, 0] = place_ST[0, 0]
    return replace(row, place_ST=place_ST, attention=row.attention | {"key_place_K": row.attention["key_place_K"] * 0})


@pytest.mark.parametrize("mistake", [sibling_seen, no_prompt, other_prompt])
def test_a_mistake_in_what_answers_see_is_refused(
    tmp_path: Path, sharp_model: Path, rows: list[dict[str, Any]], mistake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = examples_of(tmp_path, sharp_model, rows)[1]
    engine = PlainEngine(SharedPromptPolicy(AutoModelForCausalLM.from_pretrained(sharp_model)), TrainingConfig())
    right = SharedRow.of
    monkeypatch.setattr(shared_prompts.SharedRow, "of", lambda *inputs: mistake(right(*inputs)))
    with pytest.raises(ConfigError, match=r"share_prompts: answers .* change each other's log-probs by .* nats"):
        refuse_sharing(engine, examples)


# Steps ---------------------------------------------------------------------------------------------------------------


def trainer_of(folder: Path, model_dir: Path, rows: list[dict[str, Any]], share: bool, **training: Any) -> Trainer:
    run, examples = examples_of(folder, model_dir, rows, share_prompts="on" if share else "off", **training)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    policy = SharedPromptPolicy(model) if share else Policy(model)
    engine = PlainEngine(policy, run.config.training)
    return Trainer(
        engine, run.config.objective.loaded("behavior"), examples, run.config.training, seed=0, round_number=0, epochs=3
    )


@pytest.mark.parametrize("budget", [1, 60, 10**6])
def test_a_step_has_the_loss_gradient_and_measurements_of_padded_rows(
    tmp_path: Path, sharp_model: Path, rows: list[dict[str, Any]], budget: int
) -> None:
    batch = list(range(20))
    found = []
    for share in (False, True):
        size = budget if share else 10**6
        trainer = trainer_of(tmp_path / str(share), sharp_model, rows, share, tokens_per_micro_batch=size)
        metrics = trainer.step(batch[::-1] if share else batch, trainer.examples.lengths, 1e-3)
        assert isinstance(trainer.engine, PlainEngine)
        found.append((metrics, trainer.engine.gradients[0]))
    (expected, gradient), (shared, same) = found
    apart = {"seconds", "peak_memory_mb", "padding_share"}
    assert shared.keys() - expected.keys() == {"shared_tokens", "shared_squared_tokens"}
    for key in expected.keys() - apart:
        assert (shared[key] is None) == (expected[key] is None), key
        assert shared[key] is None or shared[key] == pytest.approx(expected[key], rel=1e-5, abs=1e-6), key
    for name, wanted in gradient.items():
        torch.testing.assert_close(same[name], wanted, rtol=0, atol=1e-5 * wanted.abs().max().item())
    prompts = [len(row["prompt_ids"]) for row in rows[:20:4]]
    if budget == 1:
        assert shared["shared_tokens"] == 0
    if budget == 10**6:
        assert shared["shared_tokens"] == 3 * sum(prompts)
        assert shared["shared_squared_tokens"] == 3 * sum(size**2 for size in prompts)


def test_steps_have_whole_groups(tmp_path: Path, sharp_model: Path, rows: list[dict[str, Any]]) -> None:
    off, on = (trainer_of(tmp_path / str(share), sharp_model, rows, share) for share in (False, True))
    whole = [[row // 4 for row in batch] for batch in on.batches(1)]
    assert all(held.count(group) == 4 for held in whole for group in held)
    assert sorted(row for batch in on.batches(1) for row in batch) == list(range(24))
    assert any([row // 4 for row in batch].count(batch[0] // 4) < 4 for batch in off.batches(1))


# With DeepSpeed ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_round_killed_within_an_epoch_comes_to_the_same_bits(
    tmp_path: Path, sharp_model: Path, many_rows: list[dict[str, Any]]
) -> None:
    whole, killed = (
        prepare(tmp_path / name, sharp_model, many_rows, share_prompts="auto") for name in ("whole", "killed")
    )
    for sent, step in ((signal.SIGKILL, 3), (signal.SIGTERM, 9)):
        with start(killed) as process:
            wait_for_step(killed, process, step)
            process.send_signal(sent)
            process.communicate()
        assert process.returncode != 0, "it was not over"
    said = [train_in_a_process(run) for run in (whole, killed)]
    assert all("prompts are computed once: it saves" in output for output in said)
    assert "epochs done: 0 of 3, and" in said[1], "within an epoch"
    for epoch in (1, 2, 3):
        files = [run.checkpoint(0, epoch) / "model.safetensors" for run in (whole, killed)]
        assert files[0].read_bytes() == files[1].read_bytes()
        assert metrics(whole, epoch) == metrics(killed, epoch)
    assert all(0 < step["shared_tokens"] < step["tokens"] for step in metrics(whole, 1)[:-1])
