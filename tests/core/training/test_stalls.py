"""A step asks a GPU for nothing before its end: what would wait for one is counted, on a CPU, operator by operator."""

import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from oapl_core.training.layouts import attention, placing
from oapl_core.training.layouts.shared_prompts import SharedPromptPolicy
from oapl_core.training.metrics import StepMeter
from oapl_core.training.model import logprobs
from tests.core.training.made_round import made_groups
from tests.core.training.test_steps import make_trainer
from tests.tiny_model import write_tiny_model

_WAIT = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique_dim", "_unique2"}


class Waits(TorchDispatchMode):
    """Counts operators whose result a host needs before it continues, on tensors that would lie on a GPU.

    Such are parameters, what ``placing.sent`` sends, and all that is computed from them.
    """

    def __init__(self, device_tensors: Iterator[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = Counter[str]()
        self._held: dict[int, Any] = {}
        self._pauses = 0
        for tensor in device_tensors:
            self.hold(tensor)

    def hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._held[storage._cdata] = storage  # kept: its place in memory must not become another's

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._held

    @property
    def is_paused(self) -> bool:
        return self._pauses > 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._pauses += 1
        yield
        self._pauses -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(map(self.holds, tensors)):
            name = func.overloadpacket.__name__
            is_masked = name in ("index", "index_put", "index_put_") and any(t.dtype == torch.bool for t in tensors)
            if not self._pauses and (name in _WAIT or is_masked):
                self.found[f"{name} of {_caller()}"] += 1
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self.hold(leaf)
        return result


def _caller() -> str:
    """The place outside of torch that asked."""
    outside = [frame for frame in traceback.extract_stack()[:-2] if "/torch/" not in frame.filename]
    return f"{Path(outside[-1].filename).name}:{outside[-1].lineno}"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


@pytest.mark.parametrize("layout", ["padded", "packed", "shared"])
@pytest.mark.parametrize("objective", ["oapl", "grpo"])
def test_micro_batches_wait_for_nothing_and_a_step_for_its_numbers(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch, layout: str, objective: str
) -> None:
    rows = made_groups(model_dir)
    trainer = make_trainer(tmp_path, model_dir, rows, tokens_per_micro_batch=64)
    policy = trainer.engine.policy
    if layout == "packed":
        attention.give(policy.model)
        policy.packed = True
    if layout == "shared":
        trainer.engine.policy = policy = SharedPromptPolicy(AutoModelForCausalLM.from_pretrained(model_dir))
    waits = Waits(policy.parameters())

    def sent(tensor: torch.Tensor, device: Any) -> torch.Tensor:
        copied = tensor.clone()
        waits.hold(copied)
        return copied

    for module in (placing, logprobs, *_modules_that_send()):
        monkeypatch.setattr(module, "sent", sent)
    one_by_one = attention._one_by_one

    def kernel(*args: Any) -> Any:  # in the place of FlashAttention's, which waits for nothing
        with waits.paused():
            return one_by_one(*args)

    monkeypatch.setattr(attention, "_one_by_one", kernel)
    losses = StepMeter.losses

    def end(meter: StepMeter) -> list[float]:
        assert not waits.found, "of all micro-batches together"
        return losses(meter)

    monkeypatch.setattr(StepMeter, "losses", end)
    step = trainer.engine.step

    def plain_step(rate: float) -> float:
        assert not waits.found, "before the optimiser's step"
        with waits.paused():  # torch's own; DeepSpeed reads its norm once
            return step(rate)

    monkeypatch.setattr(trainer.engine, "step", plain_step)
    batch = list(range(len(rows)))
    lengths = trainer.examples.lengths
    plain_list = torch.Tensor.tolist

    def tolist(tensor: torch.Tensor) -> Any:
        if waits.holds(tensor) and not waits.is_paused:
            waits.found["tolist"] += 1
        return plain_list(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", tolist)
    share = trainer.training.tokens_per_micro_batch
    assert sum(lengths) > 3 * share, "several micro-batches"
    with waits:
        metrics = trainer.step(batch, lengths, 1e-3)
    assert metrics["sequences"] == len(rows)
    assert waits.found.total() == 4, f"losses, the largest ratio, sums and entropies: {waits.found}"


def _modules_that_send() -> list[Any]:
    from oapl_core.training import scoring, steps
    from oapl_core.training.layouts import sequence_parallel, shared_prompts

    return [scoring, sequence_parallel, shared_prompts, steps]


def test_a_place_is_the_same_as_a_mask() -> None:
    mask = torch.tensor([[True, False, True], [False, False, True]])
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    found = placing.spread(values, placing.places(mask), mask.shape)
    assert torch.equal(found, torch.zeros(2, 3).masked_scatter(mask, values))
    (found * torch.arange(6.0).view(2, 3)).sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, torch.arange(6.0).view(2, 3)[mask])
