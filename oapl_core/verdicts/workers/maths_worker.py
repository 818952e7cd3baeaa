r"""A persistent worker process that says whether two maths answers are equal.

Reads one JSON line {"gold", "answer", "statement"} from standard input, writes one JSON line {"equal", "parsed", ...}
(see `oapl_core/maths`). Or reads {"pattern", "text"}, and writes {"found", ...}. Started by exec with a list of import
paths. After its imports it confines itself, because answers are untrusted text: read-only file system, no network, no
new process, a memory limit.

A worker lives for many answers, and its memory holds what it read before: other golds and answers, in caches and in
freed memory. No answer can read them: answers are parsed as LaTeX and compared, never executed. sympy's own reader of
strings compiles what it is given; no text gets there (`maths/parse.py: _exact`). From the first request on
`_refuse_code` forbids this process to compile any. Only true-or-false words about each pair leave the process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from oapl_core.maths import MathsJudge
from oapl_core.verdicts.answers.answer_rules import matched

MEMORY_MB = 1024
_MAKES_CODE = str(Path("sympy", "polys", "monomials.py"))


def _refuse_code(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse code as an audit hook: no text is compiled in this process any more, whichever library asks for it.

    Modules may still be imported, and sympy may make its products of monomials, from the number of variables alone.
    """
    is_text = event == "compile" and not str(arguments[1]).endswith(".py")
    if is_text and not sys._getframe(1).f_code.co_filename.endswith(_MAKES_CODE):
        raise PermissionError("a maths answer is never compiled")


def main() -> None:
    """Serve requests until standard input ends."""
    from oapl_core.sandbox.jail import confine_reader

    logging.disable(logging.CRITICAL)
    judge = MathsJudge()
    for gold, answer in _WARMING:  # lazy imports and parser tables, while files are still readable at full speed
        judge.judge(gold, answer)
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing a library prints may enter the channel
    confine_reader([p for p in sys.path if p], MEMORY_MB)
    sys.addaudithook(_refuse_code)  # last: it cannot be taken off, and the imports above compile
    channel.write('{"ready": true}\n')
    channel.flush()
    for line in sys.stdin:
        request = json.loads(line)
        if "pattern" in request:  # here, because a regular expression of a person's can take for ever
            reply: dict[str, Any] = {
                "found": matched(request["pattern"], request["text"]),
                "error": False,
                "echo": False,
            }
        else:
            reply = judge.judge(request["gold"], request["answer"], request.get("statement", ""))
        channel.write(json.dumps(reply) + "\n")
        channel.flush()


_WARMING = (
    ("\\frac{1}{2}", "0.5"),
    ("x^2 + 2x + 1", "(x+1)^2"),
    ("y = 2x", "2x - y = 0"),
    ("(-\\infty, 3)", "x < 3"),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "(1, \\sqrt{4})"),
    ("1, 2", "\\{2, \\sin 30^\\circ\\}"),
)
