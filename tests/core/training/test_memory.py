"""The estimate against what torch really holds, and running out of memory with a process limit."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from oapl_core.errors import StageFailed
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.logprobs import Policy
from oapl_core.training.memory import estimate_memory, explaining_exhaustion, with_recomputation_decided
from tests.core.training.made_round import made_groups, make_run, write_groups
from tests.core.training.plain_engine import PlainEngine
from tests.tiny_model import write_tiny_model

TOKENS = 512
FLOAT32 = TrainingConfig(dtype="float32", zero_stage=0, tokens_per_micro_batch=TOKENS)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), hidden_size=128, layers=4)


def saved_bytes(policy: Policy) -> int:
    """What one forward pass over TOKENS tokens keeps for its backward pass, weights left out."""
    found: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        length = TOKENS // 2
        kept = policy(torch.ones(2, length, dtype=torch.long), torch.tensor([1, 1]), torch.tensor([length, length]))
    assert kept.requires_grad
    for weight in policy.parameters():
        found.pop(weight.untyped_storage().data_ptr(), None)
    return sum(found.values())


def test_activations_are_estimated_within_a_third(model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    estimate = estimate_memory(model, FLOAT32, ranks=1, longest=TOKENS // 2)
    assert estimate.activations / saved_bytes(Policy(model)) == pytest.approx(1.0, rel=1 / 3)


def test_checkpointing_is_estimated_to_keep_less_than_without_it_and_more_than_between_layers(model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    estimate = estimate_memory(model, FLOAT32.model_copy(update={"gradient_checkpointing": True}), 1, TOKENS // 2)
    whole = estimate_memory(model, FLOAT32, 1, TOKENS // 2)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    between = saved_bytes(Policy(model.train()))
    assert between < estimate.activations < whole.activations / 2


def test_activations_are_recomputed_from_a_billion_weights_unless_something_is_said() -> None:
    unset, on, off = (TrainingConfig(gradient_checkpointing=value) for value in (None, True, False))
    assert [unset.recomputes(size) for size in (0.99e9, 1e9)] == [False, True]
    assert [on.recomputes(1), off.recomputes(1e12)] == [True, False]
    # what finished checkpoints depend on: unset is what older runs recorded
    assert unset.slice == off.slice != on.slice
    assert off.slice["gradient_checkpointing"] is False


def test_a_gpu_that_the_estimate_exceeds_recomputes_a_small_model_too(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    needed = estimate_memory(model, FLOAT32, 1, TOKENS).total
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for memory, recomputes in ((0.9 * needed, True), (1e12, False)):
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda _, m=memory: SimpleNamespace(total_memory=m))
        assert with_recomputation_decided(model, FLOAT32, 1, TOKENS).gradient_checkpointing is recomputes
        given = FLOAT32.model_copy(update={"gradient_checkpointing": False})
        assert with_recomputation_decided(model, given, 1, TOKENS) == given


def test_weights_gradients_and_optimizer_are_what_torch_holds(model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    estimate = estimate_memory(model, FLOAT32, ranks=1, longest=64)
    policy = Policy(model)
    engine = PlainEngine(policy, FLOAT32)
    policy(torch.ones(1, 64, dtype=torch.long), torch.tensor([1]), torch.tensor([64])).sum().backward()
    gradients = sum(p.grad.nbytes for p in policy.parameters() if p.grad is not None)
    engine.step(1e-3)
    states = sum(t.nbytes for s in engine.optimizer.state.values() for t in s.values() if t.dim())
    weights = sum(p.nbytes for p in policy.parameters())
    assert (estimate.weights, estimate.gradients, estimate.optimizer) == (weights, gradients, states)


def test_ranks_share_what_their_stage_shares(model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir)

    def parts(stage: int, **more: str) -> tuple[float, ...]:
        training = TrainingConfig.model_validate(
            {"zero_stage": stage, "dtype": "bfloat16" if stage else "float32", **more}
        )
        one, four = (estimate_memory(model, training, ranks, 64) for ranks in (1, 4))
        names = ("weights", "gradients", "optimizer", "host")
        return tuple(getattr(four, name) and getattr(one, name) / getattr(four, name) for name in names)

    assert [parts(stage) for stage in range(4)] == [(1, 1, 1, 0), (1, 1, 4, 0), (1, 4, 4, 0), (4, 4, 4, 0)]
    assert parts(2, offload_optimizer="cpu") == (1, 4, 0, 4)
    assert "GiB (weights" in estimate_memory(model, FLOAT32, 1, 64).line()


PROGRAM = """
import resource, sys
from pathlib import Path
from oapl_core.stage import run_verb
from tests.core.training.made_round import made_groups
from tests.core.training.test_steps import make_trainer

model, budget = Path(sys.argv.pop()), int(sys.argv.pop())

def verb(run, number):
    rows = made_groups(model, groups=1, size=4)
    for row in rows:
        row["response_ids"], row["behavior_logprobs"] = [5] * 2000, [-1.0] * 2000
    trainer = make_trainer(run.root / "made", model, rows, tokens_per_micro_batch=budget)
    status = Path("/proc/self/status").read_text().splitlines()
    virtual = next(int(line.split()[1]) for line in status if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (virtual * 1024 + 30 * 2**20,) * 2)
    trainer.step([0, 1, 2, 3], trainer.examples.lengths, 1e-3)

raise SystemExit(run_verb(verb, has_round=True))
"""


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (10**6, "micro-batch of 4 sequences, .* tokens, longest 20.*: lower training.tokens_per_micro_batch"),
        pytest.param(
            1,
            "micro-batch of 1 sequences, .* try training.gradient_checkpointing = true, a lower training.logprob_chunk",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_running_out_of_memory_names_the_micro_batch_and_the_setting(
    tmp_path: Path, model_dir: Path, budget: int, expected: str
) -> None:
    run = make_run(tmp_path, model_dir)
    write_groups(run, made_groups(model_dir, groups=1))
    command = [sys.executable, "-c", PROGRAM, str(run.root), "--round", "0", str(budget), str(model_dir)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == StageFailed.exit_code, result.stderr
    assert re.search(expected, result.stderr.splitlines()[-1])


def test_other_errors_are_not_taken_for_exhaustion() -> None:
    with pytest.raises(RuntimeError, match="shapes"), explaining_exhaustion([3], 3, FLOAT32):
        raise RuntimeError("shapes do not fit")
    with pytest.raises(StageFailed, match="out of memory"), explaining_exhaustion([3, 2], 6, FLOAT32):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def test_running_out_in_the_optimisers_step_names_what_holds_its_state() -> None:
    with (
        pytest.raises(StageFailed, match=r"optimiser's step: try training.offload_optimizer = 'cpu', .*adapter"),
        explaining_exhaustion(None, 0, FLOAT32),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 15 GiB")
