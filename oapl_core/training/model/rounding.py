"""Change of log-probs by 16-bit arithmetic, measured on a model itself: one more rounding of each block's output.

Sets the scale where engine and trainer are compared (``mismatch.py``), and where kernels are (``kernels.py``). Reads
and writes no files.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from oapl_core.training.scoring import scored

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.examples import Examples

_ROUNDED = 16
"""Rollouts on which rounding is measured."""
_LAST_DIGIT = 2.0**-7
"""Relative noise on a block's output, the last digit of bfloat16. Once a block, it equals all of the block's own
roundings. Check: 0.025 nats for Gemma 3, which in bfloat16 is 0.027 from itself in float32.
"""


def rounding(engine: "TrainingEngine", examples: "Examples", rows: Sequence[int], token_budget: int) -> float | None:
    """Return the mean change of a log-prob when each layer's output is rounded once more, nats per token; None: no
    layers found.

    Every rank calls it. A model enlarges rounding by what its weights and prompts make of it, from 1e-4 to 0.1 nats, so
    it is measured and not assumed.
    """
    rows = rows[:_ROUNDED]
    with rounded_once_more(engine.policy.model) as layers:
        if not layers:
            return None
        again = [part.logprob_ST for part in scored(engine, examples, rows, token_budget)]
    sums = torch.zeros(2, dtype=torch.float64, device=engine.device)
    for part, logprob_ST in zip(scored(engine, examples, rows, token_budget), again, strict=True):
        if part.rows:  # a rank without work scored a stand-in
            change_ST = (part.logprob_ST.double() - logprob_ST.double()).abs() * part.mask_ST
            sums += torch.stack([change_ST.sum(), part.mask_ST.sum().double()])
    change, tokens = engine.total(sums).tolist()
    return float(change / tokens)


@contextmanager
def rounded_once_more(model: Any) -> Iterator[int]:
    """Add noise of a bfloat16's last digit to the output of every block of ``model``; yields the number of blocks."""
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    blocks = [module for module in model.modules() if type(module).__name__ in kinds]
    draw: dict[torch.device, torch.Generator] = {}

    def disturbed(_module: Any, _inputs: Any, output: Any) -> Any:
        state = output[0] if isinstance(output, tuple) else output
        if state.device not in draw:
            draw[state.device] = torch.Generator(state.device).manual_seed(0)
        noise = torch.rand(state.shape, generator=draw[state.device], device=state.device)
        state = (state.float() * (1 + _LAST_DIGIT * (2 * noise - 1))).to(state.dtype)
        return (state, *output[1:]) if isinstance(output, tuple) else state

    hooks = [block.register_forward_hook(disturbed) for block in blocks]
    try:
        yield len(blocks)
    finally:
        for hook in hooks:
            hook.remove()
