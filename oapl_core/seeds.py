"""One rule for every random choice: a seed is a hash of the run's seed and of words that name the choice.

So a choice never depends on what was drawn before it, and a resumed run draws what an uninterrupted one would.
"""

import hashlib


def derive_seed(seed: int, *words: str | int) -> int:
    """Derive a 31-bit seed for the choice named by ``words`` (for example ``("rollout", round, problem_id, sample)``).

    31 bits, because that is the largest range every consumer (vLLM, NumPy, torch, ``random``) accepts unsigned.
    """
    text = "\x1f".join([str(seed), *map(str, words)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
