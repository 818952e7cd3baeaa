"""Faster kernels: taken where they agree with the model's own, taken back where not, on one model alone."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.qwen3 import modeling_qwen3

from oapl_core.errors import ConfigError
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.settings.training import TrainingConfig
from oapl_core.training import engine as training_engine
from oapl_core.training.examples import Examples, read_examples
from oapl_core.training.model.kernels import Compiled, Flash, Kernels, Liger, choose, choose_kernels
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.model.recomputation import recompute
from tests.core.training.made_round import made_groups, make_run, train_in_a_process, write_groups
from tests.core.training.plain_engine import PlainEngine
from tests.tiny_model import write_tiny_model

CPU = torch.device("cpu")
FLOAT32 = TrainingConfig(dtype="float32")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), sharpness=5.0)


@pytest.fixture(scope="module")
def examples(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Examples:
    run = make_run(tmp_path_factory.mktemp("run"), model_dir)
    write_groups(run, made_groups(model_dir, groups=2))
    return read_examples(run.groups(0), policy_hash(model_dir), model_dir)


def engine_of(model_dir: Path, dtype: torch.dtype = torch.float32, packed: bool = False) -> PlainEngine:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype)
    return PlainEngine(Policy(model, packed=packed), TrainingConfig())


def patch(error: float = 0.0, backward: float = 0.0) -> Callable[[Any, Mapping[str, bool]], None]:
    """What Liger does to a Qwen3: new methods on its norms, a class and a function in the family's module."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, hidden: Tensor) -> Tensor:
            return hidden * (1 + error)

        @staticmethod
        def backward(_: Any, *upstream: Tensor) -> Tensor:
            return upstream[0] * (1 + backward)

    scaled: Any = Scaled.apply

    def apply(model: Any, options: Mapping[str, bool]) -> None:
        assert options == {"cross_entropy": False, "fused_linear_cross_entropy": False}
        rotary = modeling_qwen3.apply_rotary_pos_emb
        modeling_qwen3.apply_rotary_pos_emb = partial(rotary)
        modeling_qwen3.Qwen3RMSNorm = torch.nn.RMSNorm
        for module in model.modules():
            if type(module).__name__ == "Qwen3RMSNorm":
                plain = module.forward
                module.__dict__["forward"] = lambda hidden, plain=plain: scaled(plain(hidden))
                module.in_place = True

    return apply


class Standin(Liger):
    """Liger for a CPU."""

    def obstacle(self, model: Any) -> str:
        return ""


def test_kernels_that_agree_stay_and_reach_no_other_model(model_dir: Path, examples: Examples) -> None:
    engine, norm = engine_of(model_dir), modeling_qwen3.Qwen3RMSNorm
    rotary = modeling_qwen3.apply_rotary_pos_emb
    standin = Standin(CPU, patch(error=1e-7))
    assert choose(engine, examples, FLOAT32, [standin], "transformers", "") == "Liger"
    model = engine.policy.model
    assert "forward" in vars(model.model.norm)
    assert modeling_qwen3.Qwen3RMSNorm is norm, "the next model is loaded without"
    assert all(p.grad is None for p in model.parameters())
    with torch.device("meta"):
        meta = torch.empty(1, 1, 2, 4), torch.empty(1, 1, 2, 4), torch.empty(1, 2, 4), torch.empty(1, 2, 4)
    assert modeling_qwen3.apply_rotary_pos_emb(*meta)[0].device.type == "meta", "other devices keep the family's"
    standin.undo(model)
    assert modeling_qwen3.apply_rotary_pos_emb is rotary
    assert not {"forward", "in_place"} & vars(model.model.norm).keys()


@pytest.mark.parametrize(
    ("standin", "why"),
    [
        (patch(error=1e-2), r"Liger: log-probs differ by \S+ nats \(allowed: 0.0001\) and the gradient by"),
        (patch(backward=1e-2), r"log-probs differ by 0 nats .* and the gradient by \S+ of itself \(allowed: 0.0001\)"),
        (patch(error=float("nan")), "log-probs differ by inf nats"),
        (lambda *_: None, "Liger: fails .it has nothing for Qwen3ForCausalLM."),
        (lambda *_: torch.empty(2) @ torch.empty(3), "Liger: fails .inconsistent tensor size"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_kernels_that_disagree_or_fail_are_taken_back(
    model_dir: Path, examples: Examples, standin: Callable[[Any, Mapping[str, bool]], None], why: str, packed: bool
) -> None:
    engine, rotary = engine_of(model_dir, packed=packed), modeling_qwen3.apply_rotary_pos_emb
    before = [dict(vars(module)) for module in engine.policy.modules()]
    kernels = Standin(CPU, standin)
    found = choose(engine, examples, FLOAT32, [kernels], "transformers", "")
    assert found.startswith("transformers (Liger: ")
    with pytest.raises(ConfigError, match=rf"training.kernels = 'liger': .*{why}.*; leave the setting out"):
        choose(engine, examples, FLOAT32, [kernels], "transformers", "kernels = 'liger'")
    assert modeling_qwen3.apply_rotary_pos_emb is rotary
    for module, old in zip(engine.policy.modules(), before, strict=True):
        assert vars(module).keys() == old.keys()
        assert "forward" not in vars(module)


def test_in_16_bits_their_own_rounding_is_allowed_and_no_more(model_dir: Path, examples: Examples) -> None:
    bfloat16 = TrainingConfig()
    for error, stays in ((2**-9, True), (0.25, False)):
        engine = engine_of(model_dir, torch.bfloat16)
        kernels = Standin(CPU, patch(error))
        assert (choose(engine, examples, bfloat16, [kernels], "transformers", "") == "Liger") == stays
        kernels.undo(engine.policy.model)


def test_the_second_is_tried_where_the_first_cannot_be_used(model_dir: Path, examples: Examples) -> None:
    second = Standin(CPU, patch())
    second.name = "second"
    engine = engine_of(model_dir)
    candidates: list[Kernels] = [Flash(4, CPU), second]
    assert choose(engine, examples, FLOAT32, candidates, "torch", "") == "second"
    second.undo(engine.policy.model)


def test_without_a_gpu_nothing_is_changed_and_what_is_demanded_is_refused(model_dir: Path, examples: Examples) -> None:
    engine = engine_of(model_dir)
    assert choose_kernels(engine, examples, FLOAT32) == {
        "kernels": "transformers (Liger: there is no GPU)",
        "attention": "torch (FlashAttention 4: there is no GPU; FlashAttention 3: there is no GPU)",
    }
    off = TrainingConfig(kernels="off", attention="torch")
    assert choose_kernels(engine, examples, off) == {"kernels": "transformers", "attention": "torch"}
    for given, setting in (
        ({"kernels": "liger"}, "kernels = 'liger'"),
        ({"attention": "flash-3"}, "attention = 'flash-3'"),
    ):
        with pytest.raises(ConfigError, match=rf"training.{setting}: .*there is no GPU; leave the setting out"):
            choose_kernels(engine, examples, TrainingConfig.model_validate(given))


def test_what_is_not_there_is_named(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, cuda = AutoModelForCausalLM.from_pretrained(model_dir), torch.device("cuda")
    assert Liger(cuda).obstacle(model) == "liger-kernel is not installed"
    for capability, four, three in (
        ((9, 0), "flash_attn.cute is not installed", "flash_attn_interface is not installed"),
        ((10, 0), "flash_attn.cute is not installed", "it is not for GPUs of compute capability 10.0"),
        ((8, 6), *["it is not for GPUs of compute capability 8.6"] * 2),
    ):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda _, found=capability: found)
        assert [Flash(generation, cuda).obstacle(model) for generation in (4, 3)] == [four, three]
    model.set_attn_implementation("eager")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))
    assert Flash(4, cuda).obstacle(model) == "the model's attention is 'eager', not torch's"


def test_an_attention_whose_package_is_missing_is_taken_back(model_dir: Path, examples: Examples) -> None:
    class Present(Flash):
        def obstacle(self, model: Any) -> str:
            return ""

    found = choose(engine_of(model_dir), examples, FLOAT32, [Present(4, CPU)], "torch", "")
    assert found == "torch (FlashAttention 4: fails (No module named 'flash_attn'))"
    assert torch.nn.attention.current_flash_attention_impl() is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, while it imports its compiler and looks at what is compiled
@pytest.mark.parametrize("recomputed", ["none", 2])
def test_compiled_layers_agree_with_rows_of_any_length(
    model_dir: Path, examples: Examples, recomputed: Literal["none"] | int
) -> None:
    engine = engine_of(model_dir)
    model = engine.policy.model
    recompute(model, recomputed)
    batch = examples.batch([0, 1])
    plain = engine(*batch.given(), last=True)
    torch._dynamo.reset()
    chosen = TrainingConfig(dtype="float32", compile=True, tokens_per_micro_batch=64)
    found = choose_kernels(engine, examples, chosen)
    assert found["compile"] == "torch.compile"
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    torch.testing.assert_close(engine(*batch.given(), last=True), plain, rtol=0, atol=1e-5)
    Compiled().undo(model)
    assert torch.equal(engine(*batch.given(), last=True), plain)


def test_recomputed_layers_are_not_compiled(model_dir: Path, examples: Examples) -> None:
    engine = engine_of(model_dir)
    recompute(engine.policy.model, "all")
    with pytest.raises(
        ConfigError, match=r"training.compile = true: .*every layer is recomputed \(set training.recompute"
    ):
        choose_kernels(engine, examples, TrainingConfig(dtype="float32", compile=True))


def test_compiled_layers_are_asked_for_and_need_whole_weights(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="compile needs zero_stage 2 or lower"):
        TrainingConfig(compile=True, zero_stage=3)
    for compiles, found in ((True, None), (False, "1")):
        monkeypatch.setattr(os, "environ", {"LOCAL_RANK": "0", "RANK": "0"})
        training_engine._prepare_environment(compiles)
        assert os.environ.get("TORCHDYNAMO_DISABLE") == found


PROGRAM = """
import hashlib, os, sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.engine import TrainingEngine
from oapl_core.training.examples import read_examples
from oapl_core.training.model.kernels import choose
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.model.recomputation import recompute
from tests.core.training.test_kernels import CPU, Standin, patch

model_dir, groups = map(Path, sys.argv[1:])
torch.set_num_threads(1)

def train(stage, tried):
    examples = read_examples(groups, policy_hash(model_dir), model_dir)
    training = TrainingConfig(zero_stage=stage)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    recompute(model, "attention")
    engine = TrainingEngine(Policy(model), training)
    if tried:
        found = choose(engine, examples, training, [Standin(CPU, patch())], "transformers", "")
        assert found == "Liger", found
    batch = examples.batch([0, 1, 2])
    for step in range(2):
        engine.backward(engine(*batch.given(), last=True).sum())
        engine.step(1e-3)
    weights = sorted(engine.weights().items())
    digest = hashlib.sha256(b"".join(weight.float().numpy().tobytes() for _, weight in weights))
    print("FOUND", stage, digest.hexdigest(), flush=True)

for stage in (1, 2, 3):
    for tried in (False, True):  # an engine needs a process of its own
        child = os.fork()
        if child == 0:
            train(stage, tried)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, (stage, tried)
"""


@pytest.mark.slow
def test_trying_them_leaves_a_training_as_it_was_with_every_zero_stage(tmp_path: Path, model_dir: Path) -> None:
    run = make_run(tmp_path, model_dir)
    write_groups(run, made_groups(model_dir, groups=2))
    command = [sys.executable, "-c", PROGRAM, str(model_dir), str(run.groups(0))]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = [line.split()[1:] for line in result.stdout.splitlines() if line.startswith("FOUND")]
    assert len(found) == 6
    assert found[0::2] == found[1::2]


@pytest.mark.slow
def test_a_round_is_trained_with_compiled_layers(tmp_path: Path, model_dir: Path) -> None:
    rows, weights = made_groups(model_dir, groups=2), []
    for compiles in (False, True):
        settings: dict[str, Any] = {
            "epochs": 1,
            "dtype": "float32",
            "recompute": "none",
            "compile": compiles,
            "batch_size": 4,
        }
        run = make_run(tmp_path / str(compiles), model_dir, **settings)
        write_groups(run, rows)
        train_in_a_process(run)
        details = run.ledger.artifacts()[run.name(run.checkpoint(0, 1))].details
        assert details["computed_with"].get("compile") == ("torch.compile" if compiles else None)
        weights.append(AutoModelForCausalLM.from_pretrained(run.checkpoint(0, 1)).state_dict())
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], rtol=0, atol=2e-5)
