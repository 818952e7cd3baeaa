r"""The door to math-verify: a persistent worker process that says whether two maths answers are equal.

Reads one JSON line {"gold", "answer"} from standard input, writes one JSON line {"equal", "parsed"}. Started by exec
with a list of import paths; confines itself after its imports (read-only file system, no network, no new process, a
memory limit), because answers are untrusted text. math-verify's own timeouts are off (they need signals);
maths_pool.py bounds the CPU time from outside.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

MEMORY_MB = 3072


def _judge() -> Callable[[str, str], tuple[bool, bool]]:
    """Imports math-verify; returns (gold, answer) -> (equal, both could be parsed)."""
    from math_verify import LatexExtractionConfig, parse, verify

    boxed_only = [LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0)]

    def expressions(text: str) -> Any:
        return parse(f"\\boxed{{{text}}}", boxed_only, fallback_mode="no_fallback", parsing_timeout=None)

    gold_expressions = lru_cache(maxsize=4096)(expressions)

    def judge(gold: str, answer: str) -> tuple[bool, bool]:
        theirs, ours = gold_expressions(gold), expressions(answer)
        if not theirs or not ours:
            return False, False
        return bool(verify(theirs, ours, timeout_seconds=None)), True

    return judge


def main() -> None:
    """Serves requests until standard input ends."""
    from oapl_core.sandbox.jail import confine_reader

    logging.disable(logging.CRITICAL)
    judge = _judge()
    judge("\\frac{1}{2}", "0.5")  # its lazy imports and parser tables, while files are still readable at full speed
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing a library prints may enter the channel
    confine_reader([p for p in sys.path if p], MEMORY_MB)
    channel.write('{"ready": true}\n')
    channel.flush()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            equal, parsed = judge(request["gold"], request["answer"])
        except (RecursionError, MemoryError):
            equal, parsed = False, False
        channel.write(json.dumps({"equal": equal, "parsed": parsed}) + "\n")
        channel.flush()
