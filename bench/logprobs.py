"""Log-probs at a large vocabulary, forward and backward, against torch: ``python -m bench.logprobs``.

    --tokens N --vocabulary N --hidden N    sizes (2,048; 152,064; 256), float32
    --repeats N                             processes for each way, taken in turns; the fastest counts (3)
    --entropy kernel|step                   instead, in one process: what the entropies add to the kernel or to a whole
                                            step of the trainer (bench/trainer.py), in CPU seconds of one thread

Each way runs in a process of its own; its peak is what the process grew by. Coefficients of the tokens differ, as in a
regression. ``checkpointed``: torch's own recomputation around chunks of 256 rows.
"""

import argparse
import functools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bench import trainer
from oapl_core.training.model.logprobs import TokenLogprobs, token_logprobs


def log_softmax(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return (hidden @ weight.T).log_softmax(1).gather(1, ids[:, None])[:, 0]


def cross_entropy(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return -torch.nn.functional.cross_entropy(hidden @ weight.T, ids, reduction="none")


def checkpointed(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    parts = zip(hidden.split(256), ids.split(256), strict=True)
    return torch.cat([checkpoint(log_softmax, part, weight, own, use_reentrant=False) for part, own in parts])


def with_entropy(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return token_logprobs(hidden, weight, ids, entropy_T=torch.empty(len(ids)))


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "log_softmax": log_softmax,
    "cross_entropy": cross_entropy,
    "checkpointed": checkpointed,
    "ours": token_logprobs,
    "with_entropy": with_entropy,
}
SIZES = ((512, 152_064, 256), (2048, 4096, 256), (8192, 512, 128))
"""Tokens, vocabulary, hidden size of the kernels that are timed with and without entropies."""


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def scene(tokens: int, vocabulary: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, weights, ids, and the coefficients of the tokens."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = torch.randn(vocabulary, width).mul_(0.05).requires_grad_()
    return hidden, weight, torch.randint(0, vocabulary, (tokens,)), torch.randn(tokens)


def measure(way: str, tokens: int, vocabulary: int, width: int) -> None:
    """Print seconds and MB of one forward and backward pass."""
    hidden, weight, ids, upstream = scene(tokens, vocabulary, width)
    before, start = peak_mb(), time.monotonic()
    WAYS[way](hidden, weight, ids).backward(upstream)
    print(time.monotonic() - start, peak_mb() - before)


def compare(sizes: list[str], repeats: int) -> dict[str, tuple[float, float]]:
    """Fastest seconds and largest peak of each way."""
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            command = [sys.executable, "-m", "bench.logprobs", "--way", way, *sizes]
            seconds, peak = subprocess.check_output(command, text=True).split()
            found[way].append((float(seconds), float(peak)))
    return {way: (min(s for s, _ in runs), max(p for _, p in runs)) for way, runs in found.items()}


def paired(name: str, without: Callable[[], object], with_it: Callable[[], object], pairs: int) -> None:
    """Print what ``with_it`` takes, of ``without``: the median of ratios of neighbours, the order turned each time."""
    without()
    with_it()
    ratios, seconds = [], []
    for number in range(pairs):
        took = [0.0, 0.0]
        for which in (number % 2, 1 - number % 2):
            began = time.process_time()
            (without, with_it)[which]()
            took[which] = time.process_time() - began
        ratios.append(took[1] / took[0])
        seconds.append(took[0])
    low, middle, high = statistics.quantiles(ratios, n=4)
    found = {"name": name, "pairs": pairs, "without_s": round(min(seconds), 4)}
    print(json.dumps(found | {"ratio": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}), flush=True)


def kernel_cost(pairs: int) -> None:
    """Kernels of some sizes, with and without entropies."""

    def run(way: str, given: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        hidden, weight, ids, upstream = given
        hidden.grad = weight.grad = None
        WAYS[way](hidden, weight, ids).backward(upstream)

    for sizes in SIZES:
        without, with_it = (functools.partial(run, way, scene(*sizes)) for way in ("ours", "with_entropy"))
        paired("kernel {:,} tokens, vocabulary {:,}, hidden {}".format(*sizes), without, with_it, pairs)


def step_cost(pairs: int) -> None:
    """A whole step of the trainer, with and without entropies."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model_dir = trainer.write_model(folder / "model", **trainer.SHAPE)
        step, made = trainer.ours(folder, trainer.make_rollouts(model_dir, sequences=8))
        head: TokenLogprobs = made.engine.policy.model.get_output_embeddings()
        measuring, none_T = head.forward, torch.empty(0)

        def unmeasured(hidden_TD: Tensor, id_T: Tensor) -> Tensor:
            head.entropy_T = none_T
            return token_logprobs(hidden_TD, head.weight, id_T, head.temperature, head.chunk)

        def with_head(forward: Callable[[Tensor, Tensor], Tensor]) -> None:
            head.forward = forward  # type: ignore[assignment]
            step()

        without, with_it = (functools.partial(with_head, forward) for forward in (unmeasured, measuring))
        paired(f"step of the trainer, {sum(made.examples.lengths):,} tokens", without, with_it, pairs)
        made.engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=152_064)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--entropy", choices=("kernel", "step"))
    parser.add_argument("--way", choices=WAYS)
    args = parser.parse_args()
    if args.entropy:
        torch.set_num_threads(1)
        {"kernel": kernel_cost, "step": step_cost}[args.entropy](max(2, args.repeats))
        return
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
