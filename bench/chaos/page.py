"""The tables of docs/benchmarks/chaos.md, made of docs/benchmarks/data/chaos.jsonl."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bench.chaos.trial import FAULTS
from bench.chaos.world import ROOT

PAGE = ROOT / "docs" / "benchmarks" / "chaos.md"
DATA = ROOT / "docs" / "benchmarks" / "data" / "chaos.jsonl"
_REFUSED = "which was removed (the next round is trained)"
"""Of the line that refuses a training again whose beginning is gone; it comes before anything can be hurt."""
_IN_A_STAGE = ("signal", "power cut", "interrupts", "disk", "clock", "rank", "share")
"""Faults that hurt processes of a stage alone."""
_MADE = re.compile(r"(<!-- made by bench\.chaos -->\n).*?(<!-- end -->\n)", re.DOTALL)


def page(text: str, lines: Sequence[Mapping[str, Any]]) -> str:
    """``text`` with its tables made anew."""
    return _MADE.sub(lambda found: found[1] + "\n" + tables(lines) + "\n" + found[2], text)


def tables(lines: Sequence[Mapping[str, Any]]) -> str:
    """A row for each kind of fault, then each trial in which something came out wrong."""
    by_fault = defaultdict[str, list[Mapping[str, Any]]](list)
    for line in lines:
        by_fault[line["fault"]].append(line)
    rows = ["| fault | trials | hit nothing | held | starts after it, most | median s |", "|---|---|---|---|---|---|"]
    for name, fault in FAULTS.items():
        if mine := by_fault[name]:
            seconds = sorted(line["seconds"] for line in mine)[len(mine) // 2]
            starts = max(line["starts"] for line in mine)
            rows.append(f"| {name}: {fault.text} | {' | '.join(_counts(mine))} | {starts} | {seconds:.0f} |")
    counts = " | ".join(f"**{count}**" for count in _counts(lines))
    rows.append(f"| **all** | {counts} | | |")
    commits = ", ".join(sorted({f"`{line['commit']}`" for line in lines}))
    failed = [line for line in lines if line["wrong"]]
    rows += ["", f"Commits: {commits}.", ""]
    if failed:
        rows += ["| trial | commit | fault | what should not have happened |", "|---|---|---|---|"]
    for line in failed:
        what = _cell(f"{line['fault']} on {line['variant']}: {line['what']}")
        rows.append(f"| {line['trial']} | `{line['commit']}` | {what} | {_cell('; '.join(line['wrong']))} |")
    return "\n".join(rows) + "\n"


def _counts(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Number of trials, of those that hit nothing, and of those that hit something and held."""
    missed = sum(hit_nothing(line) for line in lines)
    held = sum(not line["wrong"] and not hit_nothing(line) for line in lines)
    return [str(len(lines)), str(missed), str(held)]


def hit_nothing(line: Mapping[str, Any]) -> bool:
    """Whether a trial's fault met nothing that it could hurt, so that it shows nothing.

    Lines without the field are of harnesses that did not record it: there, a kill of one among several processes says
    how many there were, and a command that was refused before its stage says why.
    """
    if "hit_nothing" in line:
        return bool(line["hit_nothing"])
    was_refused = any(_REFUSED in refusal for refusal in line.get("refusals", [])) and line["fault"] in _IN_A_STAGE
    return was_refused or (line["fault"] in ("rank", "share") and "; one of " not in line["what"])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")[:300]
