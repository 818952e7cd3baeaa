"""Faster kernels for a model's layers and attention, taken where they agree with what runs without them.

Each is tried on the first micro-batch, after DeepSpeed has the model. Log-probs are compared, and where possible the
gradient at the embeddings, which has passed backwards through every layer. One more rounding of each layer sets the
scale: kernels that differ by more than a few times of it are taken back. Every rank does the same, and what is used is
recorded with the checkpoints. Reads and writes no files.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from oapl_core.errors import ConfigError
from oapl_core.progress import say
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.layouts.placing import VARIABLE_LENGTH, sent
from oapl_core.training.model.rounding import rounded_once_more
from oapl_core.training.ranks import own_rank
from oapl_core.training.scoring import rank_share
from oapl_core.training.ways import Way

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.examples import Examples

_TRIED = 64
"""Rollouts of which the first micro-batch is made."""
_ROUNDINGS = 3.0
_LEAST = 1e-4
"""Nats and share of a gradient that may differ where nothing is rounded to 16 bits."""
_FAILS = (ImportError, RuntimeError, AttributeError, TypeError, ValueError, KeyError, AssertionError)
"""Errors of kernels of other versions, or for other GPUs; CUDA's and Triton's errors are RuntimeErrors."""
_NO_GPU = "there is no GPU"


class ChosenKernels(Way):
    """Faster kernels: `training.kernels`, `training.attention` and `training.compile`."""

    def begin(self, engine: "TrainingEngine", examples: "Examples") -> Mapping[str, str]:
        """Choose kernels by the first micro-batch; returns their names."""
        return choose_kernels(engine, examples, self.training)


class Kernels(Protocol):
    """A faster way to compute what a model computes."""

    name: str
    """Name of the kernels for a person."""

    def obstacle(self, model: Any) -> str:
        """Return why the kernels cannot be used here; empty: they may be tried."""

    def apply(self, model: Any) -> None:
        """Let ``model`` compute with them."""

    def undo(self, model: Any) -> None:
        """Let it compute as before, also after an ``apply`` that failed."""


class Liger:
    """Liger's norms, rotary embedding and gated feed-forward, by transformers' own integration, on one model only.

    Liger also puts its classes and functions into the family's module, for every model of the process. Those are taken
    back, and a function keeps serving tensors of other devices as before: the export check computes on the CPU.
    """

    name = "Liger"

    def __init__(self, device: torch.device, patch: Callable[[Any, Mapping[str, bool]], object] | None = None) -> None:
        """Prepare kernels for a model on ``device``; ``patch`` takes the place of transformers' ``apply_liger_kernel``,
        for tests.
        """
        self._device, self._patch = device, patch
        self._changes: list[tuple[dict[str, Any], str, Any]] = []
        """Namespace, name, and what it held before."""

    def obstacle(self, model: Any) -> str:
        """Return why Liger's kernels cannot be used; empty if they can."""
        if self._device.type != "cuda":
            return _NO_GPU
        return "" if find_spec("liger_kernel") else "liger-kernel is not installed"

    def apply(self, model: Any) -> None:
        """Patch the modules of the model's family, and remember the changes.

        Raises:
            ValueError: Liger has no kernels for this family.
        """
        family = vars(sys.modules[type(model).__module__])
        spaces = [vars(module) for module in model.modules()]
        before = [dict(space) for space in spaces]
        names = dict(family)
        try:
            (self._patch or _liger())(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})
        finally:
            for space, old in zip(spaces, before, strict=True):
                changed = [name for name, value in space.items() if old.get(name, _MISSING) is not value]
                self._changes += [(space, name, old.get(name, _MISSING)) for name in changed]
            replaced = {name: value for name, value in family.items() if names.get(name) is not value}
            for name, value in replaced.items():
                self._changes.append((family, name, names.get(name, _MISSING)))
                family[name] = names.get(name, value)
                if not isinstance(value, type) and callable(names.get(name)):
                    family[name] = _by_device(value, names[name], self._device.type)
        if not self._changes:
            raise ValueError(f"it has nothing for {type(model).__name__}")

    def undo(self, model: Any) -> None:
        """Restore what ``apply`` changed, the last change first."""
        for space, name, value in reversed(self._changes):
            if value is _MISSING:
                space.pop(name, None)
            else:
                space[name] = value
        self._changes.clear()


_MISSING = object()


def _liger() -> Callable[[Any, Mapping[str, bool]], object]:
    from transformers.integrations.liger import apply_liger_kernel

    patch: Callable[[Any, Mapping[str, bool]], object] = apply_liger_kernel
    return patch


def _by_device(fast: Callable[..., Any], plain: Callable[..., Any], device: str) -> Callable[..., Any]:
    def chosen(first: Any, *inputs: Any, **options: Any) -> Any:
        return (fast if first.device.type == device else plain)(first, *inputs, **options)

    return chosen


class Flash:
    """A FlashAttention that torch puts in the place of its own, for packed, padded and shared rows alike."""

    def __init__(self, generation: int, device: torch.device) -> None:
        """Prepare for a model on ``device``; ``generation``: 3 for Hopper, 4 for Hopper and Blackwell."""
        self._device = device
        self.name = f"FlashAttention {generation}"
        self._kind = f"FA{generation}"
        self._package = {3: "flash_attn_interface", 4: "flash_attn.cute"}[generation]
        self._majors = {3: (9,), 4: (9, 10)}[generation]

    def obstacle(self, model: Any) -> str:
        """Return why this FlashAttention cannot be used; empty if it can."""
        from torch.nn import attention

        if self._device.type != "cuda":
            return _NO_GPU
        if self._kind not in getattr(attention, "list_flash_attention_impls", list)():
            return f"torch {torch.__version__} does not know it"
        major, minor = torch.cuda.get_device_capability(self._device)
        if major not in self._majors:
            return f"it is not for GPUs of compute capability {major}.{minor}"
        used = model.config._attn_implementation
        if used not in ("sdpa", VARIABLE_LENGTH):
            return f"the model's attention is {used!r}, not torch's"
        return "" if _is_there(self._package) else f"{self._package} is not installed"

    def apply(self, model: Any) -> None:
        """Activate the FlashAttention for the whole process."""
        from torch.nn.attention import activate_flash_attention_impl

        activate_flash_attention_impl(self._kind)

    def undo(self, model: Any) -> None:
        """Restore the attention that was active before."""
        from torch.nn.attention import current_flash_attention_impl, restore_flash_attention_impl

        if current_flash_attention_impl() == self._kind:
            restore_flash_attention_impl()


class Compiled:
    """Each layer by torch.compile, for rows of any length, but recomputed ones: torch computes those eagerly."""

    name = "torch.compile"

    def obstacle(self, model: Any) -> str:
        """Return why the layers cannot be compiled; empty if they can."""
        if _layers(model):
            return ""
        return "every layer is recomputed (set training.recompute to 'none' or a number), or its layers are not known"

    def apply(self, model: Any) -> None:
        """Compile each layer that is not recomputed."""
        for layer in _layers(model):
            layer.compile(dynamic=True)

    def undo(self, model: Any) -> None:
        """Return each layer to its code that is not compiled."""
        for layer in _layers(model):
            layer._compiled_call_impl = None


def _layers(model: Any) -> list[Any]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = (module for module in model.modules() if isinstance(module, GradientCheckpointingLayer))
    return [layer for layer in layers if not layer.gradient_checkpointing]


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:  # the parent of a nested package is missing
        return False


def choose_kernels(engine: "TrainingEngine", examples: "Examples", training: TrainingConfig) -> dict[str, str]:
    """Choose the kernels of layers and attention that the settings ask for; every rank calls it. Returns their names.

    Raises:
        ConfigError: a setting names kernels that cannot be used, or do not agree.
    """
    layers: list[Kernels] = [] if training.kernels == "off" else [Liger(engine.device)]
    generations = {"auto": (4, 3), "flash-4": (4,), "flash-3": (3,), "torch": ()}[training.attention]
    attention: list[Kernels] = [Flash(generation, engine.device) for generation in generations]
    must_layers = "kernels = 'liger'" if training.kernels == "liger" else ""
    must_attention = f"attention = {training.attention!r}" if training.attention.startswith("flash") else ""
    chosen = {
        "kernels": choose(engine, examples, training, layers, "transformers", must_layers),
        "attention": choose(engine, examples, training, attention, "torch", must_attention),
    }
    if training.compile:  # last, so that it compiles what was chosen
        chosen["compile"] = choose(engine, examples, training, [Compiled()], "no compiler", "compile = true")
    return chosen


def choose(
    engine: "TrainingEngine",
    examples: "Examples",
    training: TrainingConfig,
    candidates: Sequence[Kernels],
    usual: str,
    demanded: str,
) -> str:
    """Apply the first of ``candidates`` that can be used and agrees; returns its name, or why ``usual`` stays.

    Args:
        engine: whose model computes.
        examples: of which the first micro-batch is made.
        training: its budget and type.
        candidates: in the order in which they are wanted.
        usual: who computes where none of them does.
        demanded: the setting that allows nothing else; empty: there is none.

    Raises:
        ConfigError: ``demanded`` cannot be had.
    """
    model, reasons = engine.policy.model, []
    for kernels in candidates:
        why = kernels.obstacle(model) or _difference(engine, examples, training, kernels)
        if not why:
            if not own_rank():
                say(f"{kernels.name} computes, as {usual} did on the first micro-batch within rounding")
            return kernels.name
        reasons.append(f"{kernels.name}: {why}")
    if demanded:
        raise ConfigError(f"training.{demanded}: {'; '.join(reasons)}; leave the setting out")
    if not own_rank() and reasons and engine.device.type == "cuda":
        say(f"{usual} computes; {'; '.join(reasons)}")
    return f"{usual} ({'; '.join(reasons)})" if reasons else usual


def _difference(engine: "TrainingEngine", examples: "Examples", training: TrainingConfig, kernels: Kernels) -> str:
    """Apply ``kernels``; say how far they are off, and take them back; empty: they agree and stay."""
    rows = list(range(min(_TRIED, len(examples.lengths))))
    share = rank_share(engine, examples, rows, training.tokens_per_micro_batch)[0]
    model, batch = engine.policy.model, examples.batch(share)
    inputs, mask_ST = batch.given(), sent(batch.mask_ST, engine.device)
    plain = _computed(engine, inputs, mask_ST)
    rounding = [0.0, 0.0]
    if training.dtype != "float32":
        with rounded_once_more(model):
            rounding = _apart(engine, plain, _computed(engine, inputs, mask_ST))
    failed = ""
    try:
        kernels.apply(model)
        changed = _computed(engine, inputs, mask_ST)
    except _FAILS as error:
        failed, changed = f"fails ({' '.join(str(error).split()) or type(error).__name__:.200})", None
    apart = _apart(engine, plain, changed)
    allowed = [max(_LEAST, _ROUNDINGS * one) for one in rounding]
    if all(one <= most for one, most in zip(apart, allowed, strict=True)):  # not where one is not a number
        return ""
    kernels.undo(model)
    return failed or (
        f"log-probs differ by {apart[0]:.2g} nats (allowed: {allowed[0]:.2g}) and the gradient by {apart[1]:.2g} of "
        f"itself (allowed: {allowed[1]:.2g})"
    )


def _computed(engine: "TrainingEngine", inputs: Any, mask_ST: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the log-probs of the sampled tokens, and the gradient at the embeddings of a sum in which no two tokens
    count alike.

    With ZeRO 3 there is none: weights come and go by what a step does.
    """
    if getattr(engine, "_zero_stage", 0) == 3:
        with torch.no_grad():
            return engine(*inputs, last=True)[mask_ST], None
    embedded: list[Tensor] = []

    def noted(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
        embedded.append(output if output.requires_grad else output.requires_grad_())
        return output

    hook = engine.policy.model.get_input_embeddings().register_forward_hook(noted)
    try:
        # not through the engine: it would take the backward pass for a step's
        logprob_T = engine.policy(*inputs)[mask_ST]
    finally:
        hook.remove()
    weight_T = torch.linspace(0.5, 1.5, len(logprob_T), device=logprob_T.device)
    (gradient,) = torch.autograd.grad((logprob_T * weight_T).sum(), embedded[:1])
    return logprob_T.detach(), gradient


def _apart(
    engine: "TrainingEngine", plain: tuple[Tensor, Tensor | None], other: tuple[Tensor, Tensor | None] | None
) -> list[float]:
    """Return mean difference of a log-prob, nats, and of the gradient, as a share of it: the largest of all ranks."""
    difference = torch.full((2,), torch.inf, dtype=torch.float64, device=engine.device)
    if other is not None:
        difference[0] = (plain[0].double() - other[0].double()).abs().sum() / max(1, len(plain[0]))
        difference[1] = 0.0
        if plain[1] is not None and other[1] is not None:
            gradient, changed = plain[1].double(), other[1].double()
            difference[1] = (gradient - changed).norm() / gradient.norm().clamp_min(torch.finfo(torch.float64).tiny)
    # a maximum would hide what is not a number
    apart: list[float] = engine.largest(difference.nan_to_num(torch.inf)).tolist()
    return apart
