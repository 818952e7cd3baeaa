"""The evaluation card for people: card.json's content as Markdown, and its headline. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Card = Mapping[str, Any]


def headline(card: Card) -> Iterator[str]:
    """Yield a line for each model, and for each pair of them."""
    n = card["asked"]["sampling"]["samples"]
    for label, result in card["results"].items():
        shown = f"avg@{n} {_share(result['mean_reward'])}"
        if "reward" in result:
            shown = f"mean reward {_reward(result['reward'])}, pass@1"
            shown += f" {_share(result['pass_at_k']['1'][0])}" if "1" in result["pass_at_k"] else " not measured"
        if "1" in result["pass_at_k"]:
            _, low, high = result["pass_at_k"]["1"]
            shown += f" (95 % interval {_share(low)} to {_share(high)})"
        cut = _share(result["truncated"] / result["answers"])
        yield f"{label}: {shown}, {result['problems']:,} problems, {cut} cut at max_tokens"
    for pair in card["comparisons"]:
        if pair["k"] == 1:
            yield f"{pair['second']} against {pair['first']}: {_change(pair)}"


def markdown(card: Card) -> str:
    """Return the text of card.md."""
    parts = [
        "# Evaluation card",
        _summary(card),
        "## Results",
        _results(card),
        _notes(card),
        "## pass@k",
        _curves(card),
        *_tables(card),
        *_pairs(card),
        *_harnesses(card),
        "## What was asked",
        _asked(card),
        "## What it ran on",
        _ran(card),
        "## What another evaluation with this card reproduces",
        f"Exactly: {card['reproduces']['exactly']}",
        f"Within an interval: {card['reproduces']['within']}",
        "`oapl evaluate --card card.json` repeats it and compares.",
        "## Rules",
        card["statistics"]["rules"],
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _summary(card: Card) -> str:
    asked, problems = card["asked"], card["origin"]["problems"]
    sampling, wanted = asked["sampling"], card["settings"]["problems"]
    chosen = ", ".join(f"{key} {wanted[key]}" for key in ("release", "window", "limit") if wanted.get(key)) + (
        f", faulty: {wanted['faulty']}" if wanted["faulty"] != "keep" else ""
    )
    return (
        f"{asked['problems']['count']:,} problems of {problems['set']}{f' ({chosen})' if chosen else ''}, "
        f"{sampling['samples']} answers to each, temperature {sampling['temperature']}, top-p {sampling['top_p']}, "
        f"at most {sampling['max_tokens']:,} tokens, prompt style {asked['prompts']['style']}. Made {card['made']}."
    )


def _results(card: Card) -> str:
    n = card["asked"]["sampling"]["samples"]
    earned = any("reward" in result for result in card["results"].values())
    averages = "pass@1|mean reward" if earned else f"avg@{n}"
    head = f"model|{averages}|repeat|tokens: mean|p50|p90|p99|truncated|time limit|verifier errors".split("|")
    rows = []
    for label, result in card["results"].items():
        tokens, size = (f"{result['tokens'][name]:,.0f}" for name in ("mean", "p50", "p90", "p99")), result["answers"]
        ended = (result["truncated"], result["outcomes"].get("time_limit", 0))
        shares = (_share(count / size) for count in ended)
        errors = f"{result['verifier_errors']:,}"
        average = [_interval(result["pass_at_k"].get("1")), _reward(result["reward"])] if earned else [_average(result)]
        repeat = f"±{result['repeat']:.4f}" if earned else f"±{result['repeat']:.2%}"
        rows.append([label, *average, repeat, *tokens, *shares, errors])
    return _table(head, rows)


def _notes(card: Card) -> str:
    """List the origin of each model; above all if it was chosen by what is reported."""
    return "\n".join(f"- {label}: {origin}" for label, origin in card["origin"]["models"].items())


def _average(result: Mapping[str, Any]) -> str:
    # without k = 1 there is no interval: the card was asked for other k
    at_1 = result["pass_at_k"].get("1")
    return _interval(at_1) if at_1 else _share(result["mean_reward"])


def _curves(card: Card) -> str:
    curves = {label: result["pass_at_k"] for label, result in card["results"].items()}
    ks = dict.fromkeys(k for curve in curves.values() for k in curve)
    return _table(["", *curves], [[f"pass@{k}", *(_interval(curve.get(k)) for curve in curves.values())] for k in ks])


def _tables(card: Card) -> Iterator[str]:
    tables = {label: result["tables"] for label, result in card["results"].items()}
    for column in dict.fromkeys(column for each in tables.values() for column in each):
        yield f"## By {column}"
        lines = {label: {line["label"]: line for line in each.get(column, [])} for label, each in tables.items()}
        sizes = {name: line["problems"] for each in lines.values() for name, line in each.items()}
        rows = [
            [name, f"{size:,}", *(_interval(each.get(name, {}).get("average")) for each in lines.values())]
            for name, size in sizes.items()
        ]
        yield _table([column, "problems", *lines], rows)


def _pairs(card: Card) -> Iterator[str]:
    if card["comparisons"]:
        yield "## Differences, paired by problem"
        rows = []
        for pair in card["comparisons"]:
            name, interval = f"{pair['second']} against {pair['first']}", map(_points, (pair["low"], pair["high"]))
            numbers = [f"pass@{pair['k']}", _points(pair["difference"]), " to ".join(interval)]
            rows.append([name, *numbers, _share(pair["better"]), _share(pair["worse"])])
        yield _table(["", "", "difference, points", "95 % interval", "problems better", "problems worse"], rows)


def _harnesses(card: Card) -> Iterator[str]:
    """Yield the results of other projects' harnesses, where they were asked (harness.py)."""
    for name, models in card.get("harnesses", {}).items():
        yield f"## {name}"
        version = ", ".join(sorted({str(one["version"]) for one in models.values()}))
        yield (
            f"{name} {version} asked the same checkpoints the same prompts through vLLM's server, with draws of its "
            "own, and scored them by its own filter and metric. `agrees`: the difference is within `repeat`."
        )
        head = ["model", name, "ours", "difference, points", "repeat", "problems", "answers", "agrees"]
        rows = [
            [
                *(label, _interval(one["average"]), _share(one["ours"]), _points(one["difference"])),
                *(f"±{one['repeat']:.2%}", f"{one['problems']:,}", f"{one['answers']:,}"),
                "yes" if one["agrees"] else "no",
            ]
            for label, one in models.items()
        ]
        yield _table(head, rows)
        own = [
            [label, task, metric, f"{value:.4f}"]
            for label, one in models.items()
            for task, results in one["tasks"].items()
            for metric, value in results.items()
            if isinstance(value, float)
        ]
        if own:
            yield _table(["model", "its own task", "metric", "value"], own)


def _asked(card: Card) -> str:
    asked, origin = card["asked"], card["origin"]
    lines = [
        f"problems: content sha256 `{asked['problems']['content_sha256']}`",
        *(f"file {name}: sha256 `{digest}`" for name, digest in origin["files"].items()),
        *(f"{key}: {origin['problems'][key]}" for key in ("hub", "revision") if origin["problems"].get(key)),
        f"prompts: {_pairs_of(asked['prompts'])}",
        f"sampling: {_pairs_of(asked['sampling'])}",
        f"verifier: {_pairs_of({k: v for k, v in asked['verifier'].items() if k != 'extraction'})}",
        *([f"reward, correct from {asked['right_from']:g}: {_pairs_of(asked['reward'])}"] if "reward" in asked else []),
        *(f"what is judged, {kind}: {rule}" for kind, rule in asked["verifier"]["extraction"].items()),
    ]
    for label, model in asked["models"].items():
        lines.append(f"model {label}: {_pairs_of(model)}")
    return "\n".join(f"- {line}" for line in lines)


def _ran(card: Card) -> str:
    ran = card["ran"]
    lines = [f"{key}: {', '.join(ran[key])}" for key in ("engine", "dtype", "hardware", "sandbox_level")]
    lines += [f"engine settings: {_pairs_of(card['settings']['engine'])}", f"packages: {_pairs_of(ran['packages'])}"]
    return "\n".join(f"- {line}" for line in lines)


def _pairs_of(values: Mapping[str, Any]) -> str:
    # a template or a stop text has lines of its own, which would end the list's
    shown = {k: json.dumps(v) if isinstance(v, str) and "\n" in v else v for k, v in values.items()}
    return ", ".join(f"{key} {value}" for key, value in shown.items())


def _change(pair: Mapping[str, Any]) -> str:
    difference, low, high = (_points(pair[name]) for name in ("difference", "low", "high"))
    return (
        f"{difference} points (95 % interval {low} to {high}), better on "
        f"{_share(pair['better'])} and worse on {_share(pair['worse'])} of {pair['problems']:,} problems"
    )


def _interval(estimate: Sequence[float] | None) -> str:
    if not estimate:
        return "–"
    mean, low, high = estimate
    return f"{mean:.1%} ({low:.1%}–{high:.1%})"


def _reward(estimate: Sequence[float]) -> str:
    mean, low, high = estimate
    return f"{mean:.3f} ({low:.3f}–{high:.3f})"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)  # a label may have a bar in it
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
