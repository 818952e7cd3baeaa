"""Log-probs at a large vocabulary, forward and backward, against torch: ``python -m tests.bench.logprobs``.

    --tokens N --vocabulary N --hidden N    sizes (2,048; 152,064; 256), float32
    --repeats N                             processes for each way, taken in turns; the fastest counts (3)

Each way runs in a process of its own; its peak is what the process grew by. Coefficients of the tokens differ, as in a
regression. ``checkpointed``: torch's own recomputation around chunks of 256 rows.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from oapl_core.training.logprobs import token_logprobs


def log_softmax(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return (hidden @ weight.T).log_softmax(1).gather(1, ids[:, None])[:, 0]


def cross_entropy(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return -torch.nn.functional.cross_entropy(hidden @ weight.T, ids, reduction="none")


def checkpointed(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    parts = zip(hidden.split(256), ids.split(256), strict=True)
    return torch.cat([checkpoint(log_softmax, part, weight, own, use_reentrant=False) for part, own in parts])


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "log_softmax": log_softmax, "cross_entropy": cross_entropy, "checkpointed": checkpointed, "ours": token_logprobs,
}  # fmt: skip


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(way: str, tokens: int, vocabulary: int, width: int) -> None:
    """Print seconds and MB of one forward and backward pass."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = torch.randn(vocabulary, width).mul_(0.05).requires_grad_()
    ids, upstream = torch.randint(0, vocabulary, (tokens,)), torch.randn(tokens)
    before, start = peak_mb(), time.monotonic()
    WAYS[way](hidden, weight, ids).backward(upstream)
    print(time.monotonic() - start, peak_mb() - before)


def compare(sizes: list[str], repeats: int) -> dict[str, tuple[float, float]]:
    """Fastest seconds and largest peak of each way."""
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            command = [sys.executable, "-m", "tests.bench.logprobs", "--way", way, *sizes]
            seconds, peak = subprocess.check_output(command, text=True).split()
            found[way].append((float(seconds), float(peak)))
    return {way: (min(s for s, _ in runs), max(p for _, p in runs)) for way, runs in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=152_064)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--way", choices=WAYS)
    args = parser.parse_args()
    if args.way:
        measure(args.way, args.tokens, args.vocabulary, args.hidden)
        return
    sizes = ["--tokens", str(args.tokens), "--vocabulary", str(args.vocabulary), "--hidden", str(args.hidden)]
    found = compare(sizes, args.repeats)
    seconds, peak = found["log_softmax"]
    print(f"{args.tokens:,} tokens, vocabulary {args.vocabulary:,}, hidden {args.hidden}, best of {args.repeats}")
    for way, (s, mb) in found.items():
        print(f"{way:14} {s:6.2f} s ({s / seconds:4.2f} of log_softmax)  {mb:6.0f} MB (1/{peak / mb:.1f})")


if __name__ == "__main__":
    main()
