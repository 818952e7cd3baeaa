"""Errors of the output layer's arithmetic on tensor cores, emulated on a CPU: ``python -m bench.output_rounding``.

    --tokens N --vocabulary N --hidden N    sizes (64; 32,768; 2,560); hidden states and weights in bfloat16

One JSON line for each temperature and sharpness (the standard deviation of the logits): errors against float64 of
log-probs and entropies (the largest, nats) and of gradients by hidden states and weights (norms, before they are stored
in bfloat16). Operands are rounded as each way rounds them, products are exact, sums are float32, as tensor cores make
them but for their order. ``float32``: as on CPUs. ``tf32-inside``: operands with 10 bits behind the leading one, the
temperature in the weights. ``tf32``, ``bfloat16``: the temperature after the product; the latter's operands have 7
bits, so softmax and coefficients, which the backward pass multiplies, are rounded to them. ``whole``: torch's
log_softmax of logits that are stored in bfloat16.
"""

import argparse
import json
from collections.abc import Callable

import torch
from torch import Tensor

Rounding = Callable[[Tensor], Tensor]


def tf32(x: Tensor) -> Tensor:
    """Rounded to 10 bits behind the leading one, ties to even, float32."""
    bits = x.float().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def bfloat16(x: Tensor) -> Tensor:
    """Rounded to 7 bits behind the leading one, float32."""
    return x.bfloat16().float()


def exact(x: Tensor) -> Tensor:
    return x.float()


WAYS: dict[str, tuple[Rounding, bool]] = {
    "float32": (exact, False),
    "tf32-inside": (tf32, True),
    "tf32": (tf32, False),
    "bfloat16": (bfloat16, False),
}
"""Rounding of operands, and whether the temperature goes into the weights."""

Found = tuple[Tensor, Tensor, Tensor, Tensor]
"""Log-probs, entropies, gradients by hidden states and by weights."""


def true_values(hidden: Tensor, weight: Tensor, ids: Tensor, up: Tensor, temperature: float) -> Found:
    hidden, weight, up = hidden.double(), weight.double() / temperature, up.double()
    logprob = (hidden @ weight.T).log_softmax(1)
    softmax = logprob.exp()
    slope = -softmax.scatter_add(1, ids[:, None], torch.full((len(ids), 1), -1.0, dtype=torch.float64)) * up[:, None]
    entropy = -(softmax * logprob).sum(1)
    return logprob.gather(1, ids[:, None])[:, 0], entropy, slope @ weight, slope.T @ hidden / temperature


def tiled(hidden: Tensor, weight: Tensor, ids: Tensor, up: Tensor, temperature: float, way: str) -> Found:
    """As ``oapl_core.training.model.logprobs`` computes, as one tile, its operands rounded."""
    rounded, is_inside = WAYS[way]
    scale = 1.0 if is_inside else 1.0 / temperature
    columns = rounded(weight.float() / temperature if is_inside else weight)
    logits = (rounded(hidden) @ columns.T) * scale
    lse, own = logits.logsumexp(1), logits.gather(1, ids[:, None])[:, 0]
    softmax = (logits - lse[:, None]).exp().scatter_add(1, ids[:, None], torch.full((len(ids), 1), -1.0))
    excess = softmax.sum(1)
    pull = (rounded(softmax) @ columns) * scale
    above = torch.linalg.vecdot(hidden.float(), pull) - excess * own
    entropy = lse - own - above / (1 + excess)
    coefficients = rounded(hidden.float() * (-up[:, None] / temperature))
    return own - lse, entropy, pull * -up[:, None], rounded(softmax).T @ coefficients


def whole(hidden: Tensor, weight: Tensor, ids: Tensor, up: Tensor, temperature: float) -> Found:
    logprob = (bfloat16(hidden.float() @ weight.float().T) / temperature).log_softmax(1)
    softmax = logprob.exp()
    slope = bfloat16(-softmax.scatter_add(1, ids[:, None], torch.full((len(ids), 1), -1.0)) * up[:, None] / temperature)
    entropy = -(softmax * logprob).sum(1)
    return logprob.gather(1, ids[:, None])[:, 0], entropy, slope @ weight.float(), slope.T @ hidden.float()


def errors(found: Found, true: Found) -> dict[str, float]:
    differences = [one.double() - other for one, other in zip(found, true, strict=True)]
    shares = [float(one.norm() / other.norm()) for one, other in zip(differences[2:], true[2:], strict=True)]
    return {
        "logprob_nats": float(differences[0].abs().max()),
        "entropy_nats": float(differences[1].abs().max()),
        "hidden_gradient": shares[0],
        "weight_gradient": shares[1],
    }


def compare(
    tokens: int, vocabulary: int, width: int, temperature: float, sharpness: float
) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width).bfloat16()
    weight = (torch.randn(vocabulary, width) * sharpness * width**-0.5).bfloat16()
    up = torch.randn(tokens)
    # half of the ids are likely ones, as sampled ids are
    logits = hidden.float() @ weight.float().T
    drawn = torch.multinomial((logits / temperature).softmax(1), 1)[:, 0]
    ids = torch.where(torch.arange(tokens) % 2 == 0, drawn, torch.randint(vocabulary, (tokens,)))
    true = true_values(hidden, weight, ids, up, temperature)
    found = {way: errors(tiled(hidden, weight, ids, up, temperature, way), true) for way in WAYS}
    return found | {"whole": errors(whole(hidden, weight, ids, up, temperature), true)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--hidden", type=int, default=2560)
    options = parser.parse_args()
    for temperature in (1.0, 0.7):
        for sharpness in (1.0, 5.0):
            found = compare(options.tokens, options.vocabulary, options.hidden, temperature, sharpness)
            rounded = {way: {name: float(f"{error:.2g}") for name, error in one.items()} for way, one in found.items()}
            print(json.dumps({"temperature": temperature, "sharpness": sharpness, **rounded}), flush=True)


if __name__ == "__main__":
    main()
