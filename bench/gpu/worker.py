"""Measures what it is asked on standard input, a line of JSON each, and answers on the descriptor of its argument.

The runner ends it when it takes too long. It ends its whole process group where the runner is gone, as engines have
processes of their own. An exception ends it, said in one line: after one nobody knows what lies in a GPU's memory.
"""

import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

FUNCTIONS = {
    "host": "bench.gpu.machine:host",
    "peaks": "bench.gpu.machine:peaks",
    "step": "bench.gpu.step:step",
    "profile": "bench.gpu.profiling:profile",
    "zero3": "bench.gpu.step:step",
    "output": "bench.gpu.output:output",
    "stage": "bench.gpu.engines:stage",
    "starts": "bench.gpu.engines:start",
    "kv": "bench.gpu.engines:key_values",
    "peer": "bench.gpu.peer:peer",
}
"""What computes each part: a function of options and a folder, whose result is merged into the line."""


def function(part: str) -> Callable[[dict[str, Any], Path], dict[str, Any]]:
    module, name = FUNCTIONS[part].split(":")
    found: Callable[[dict[str, Any], Path], dict[str, Any]] = getattr(importlib.import_module(module), name)
    return found


def _listen(asked: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        asked.put(line)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    answers = os.fdopen(int(sys.argv[1]), "w")
    os.set_inheritable(answers.fileno(), False)

    def say_why(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = " ".join(str(error).split())[:300]
        print(json.dumps({"error": f"{kind.__name__}: {text}"}), file=answers, flush=True)
        sys.__excepthook__(kind, error, trace)

    sys.excepthook = say_why
    asked: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    while True:
        wanted = json.loads(asked.get())
        began = time.monotonic()
        compute = function(wanted["part"])
        import_s = time.monotonic() - began
        found = compute(wanted["options"], Path(wanted["folder"]))
        took = {"import_s": round(import_s, 2), "wall_s": round(time.monotonic() - began, 2)}
        from bench.gpu.shapes import machine

        print(json.dumps({**found, **took, **machine()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
