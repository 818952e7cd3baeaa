"""Eight rows of each project whose rows we read unchanged, written after its documentation; none is copied."""

import json
from typing import Any

SUMS = [(3, 4), (10, 5), (7, 7), (12, 30), (100, 1), (6, 6), (2, 19), (40, 2)]
CITIES = ["Rome", "Paris", "Oslo", "Lima", "Cairo", "Delhi", "Bern", "Quito"]
COUNTRIES = ["Italy", "France", "Norway", "Peru", "Egypt", "India", "Switzerland", "Ecuador"]


def _asked(a: int, b: int) -> str:
    return f"What is {a} + {b}?"


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def verl() -> list[dict[str, Any]]:
    """`data_source, prompt, ability, reward_model, extra_info`; the first four maths, then programs."""
    maths = [
        {
            "data_source": "sums",
            "prompt": _user(_asked(a, b) + " Put it after ####."),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"split": "train", "index": n},
        }
        for n, (a, b) in enumerate(SUMS[:4])
    ]
    programs = [
        {
            "data_source": "code",
            "prompt": [{"role": "system", "content": "You write programs."}, *_user(f"Read n and print n + {b}.")],
            "ability": "code",
            "reward_model": {
                "style": "rule",
                "ground_truth": json.dumps({"inputs": ["1\n", f"{a}\n"], "outputs": [f"{1 + b}\n", f"{a + b}\n"]}),
            },
            "extra_info": {"split": "train", "index": n},
        }
        for n, (a, b) in enumerate(SUMS[4:])
    ]
    return maths + programs


def trl_text() -> list[dict[str, Any]]:
    """Prompt-only, standard format, with a column for a reward function."""
    return [{"prompt": f"{_asked(a, b)} Think, then answer.", "ground_truth": str(a + b)} for a, b in SUMS]


def trl_messages() -> list[dict[str, Any]]:
    """Prompt-only, conversational format; earlier turns in some."""
    earlier = [*_user("Hello."), {"role": "assistant", "content": "Hello. What is it?"}]
    return [
        {"prompt": [*(earlier if n % 2 else []), *_user(_asked(a, b))], "solution": f"It is \\boxed{{{a + b}}}."}
        for n, (a, b) in enumerate(SUMS)
    ]


def openrlhf() -> list[dict[str, Any]]:
    """`--input_key context_messages --label_key label`."""
    return [{"context_messages": _user(_asked(a, b)), "label": str(a + b)} for a, b in SUMS]


def verifiers() -> list[dict[str, Any]]:
    """`question, answer, info, task` of verifiers, the environments of prime-rl; info as an object or as JSON."""
    return [
        {"question": _asked(a, b), "answer": str(a + b), "task": "sums", "info": json.dumps({"level": n})}
        for n, (a, b) in enumerate(SUMS)
    ]


def prime_rl() -> list[dict[str, Any]]:
    """`problem_id, task_type, prompt, verification_info, metadata`: maths and programs with `test_cases`."""
    maths = [
        {
            "problem_id": f"verifiable-{n}",
            "task_type": "verifiable_math",
            "prompt": _asked(a, b),
            "verification_info": json.dumps({"ground_truth": str(a + b)}),
            "metadata": "{}",
        }
        for n, (a, b) in enumerate(SUMS[:4])
    ]
    cases = [
        [{"type": "stdin_stdout", "input": f"{a}\n", "output": f"{a + b}\n", "fn_name": None}] for a, b in SUMS[4:]
    ]
    programs = [
        {
            "problem_id": f"code-{n}",
            "task_type": "verifiable_code",
            "prompt": f"Read n and print n + {SUMS[4 + n][1]}.",
            "verification_info": json.dumps({"language": "python", "test_cases": some}),
            "metadata": "{}",
        }
        for n, some in enumerate(cases)
    ]
    return maths + programs


def open_instruct() -> list[dict[str, Any]]:
    """`messages, ground_truth, dataset` of RLVR sets; the last four check instructions, which have no gold."""
    maths = [{"messages": _user(_asked(a, b)), "ground_truth": str(a + b), "dataset": "gsm8k"} for a, b in SUMS[:4]]
    checks = [
        {
            "messages": _user(f"Write about {city} without commas."),
            "ground_truth": json.dumps({"func_name": "validate_no_commas", "N": None}),
            "dataset": "ifeval",
        }
        for city in CITIES[:4]
    ]
    return maths + checks


def questions() -> list[dict[str, Any]]:
    """`question` and `answers`: short texts with several golds, choices by letter, and worked answers of GSM8K."""
    towns = [
        {"question": f"Capital of {land}?", "answers": [city, f"the city of {city}"]}
        for city, land in zip(CITIES[:3], COUNTRIES, strict=False)
    ]
    choices = [
        {"question": f"Capital of {land}? A: {city} B: Kyoto", "choices": [city, "Kyoto"], "answer": "A"}
        for city, land in list(zip(CITIES, COUNTRIES, strict=True))[3:6]
    ]
    worked = [{"question": _asked(a, b), "answer": f"Add them.\n#### {a + b}"} for a, b in SUMS[:2]]
    return towns + choices + worked


SCHEMAS = {
    "verl": (verl, {"math": 4, "stdin": 4}),
    "trl_text": (trl_text, {"math": 8}),
    "trl_messages": (trl_messages, {"math": 8}),
    "openrlhf": (openrlhf, {"math": 8}),
    "verifiers": (verifiers, {"math": 8}),
    "prime_rl": (prime_rl, {"math": 4, "stdin": 4}),
    "open_instruct": (open_instruct, {"math": 4, "open": 4}),
    "questions": (questions, {"text": 6, "math": 2}),
}
"""Rows of each project, and the kinds that they become."""
