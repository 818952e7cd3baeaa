"""A dozen problems with their solutions in C++, in the shape of PrimeIntellect's verifiable-coding-problems.

What the tests expect is computed here, in Python, and not by the solutions.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import gcd
from typing import Any

_ALL = "#include <bits/stdc++.h>\nusing namespace std;\n"
_SHORT = "#include <iostream>\nusing namespace std;\n"


@dataclass(frozen=True)
class CppProblem:
    """A statement, a solution, and what it should print."""

    statement: str
    solution: str
    inputs: tuple[str, ...]
    expected: Callable[[list[int]], object]

    @property
    def tests(self) -> list[dict[str, str]]:
        """Inputs with what has to be printed."""
        numbers = [[int(word) for word in given.split()] for given in self.inputs]
        return [
            {"input": given, "output": f"{self.expected(one)}\n"}
            for given, one in zip(self.inputs, numbers, strict=True)
        ]


def _main(body: str, begin: str = _ALL) -> str:
    return f"{begin}int main() {{\n    {body}\n}}\n"


def _shortest(numbers: list[int]) -> int:
    nodes, edges, *rest = numbers
    near, queue = {1: 0}, [(0, 1)]
    while queue:
        far, node = heappop(queue)
        for a, b, length in zip(*(rest[i : 3 * edges : 3] for i in range(3)), strict=True):
            if a == node and far + length < near.get(b, 1 << 60):
                near[b] = far + length
                heappush(queue, (near[b], b))
    return near.get(nodes, -1)


def _primes(numbers: list[int]) -> int:
    return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, numbers[0] + 1))


def _rising(numbers: list[int]) -> int:
    lengths = list[int]()
    for i, value in enumerate(numbers[1:]):
        lengths.append(1 + max((lengths[j] for j in range(i) if numbers[1 + j] < value), default=0))
    return max(lengths)


def _inversions(numbers: list[int]) -> int:
    values = numbers[1:]
    return sum(values[i] > values[j] for i in range(len(values)) for j in range(i + 1, len(values)))


_LISTS = ("5\n3 1 4 1 5\n", "1\n-7\n", "6\n-2 9 -2 9 0 -5\n")

CPP_PROBLEMS = (
    CppProblem(
        "Read two integers and print their sum.",
        _main("long long a, b; cin >> a >> b; cout << a + b << endl;", _SHORT),
        ("1 2\n", "-5 3\n", "4000000000 4000000000\n"),
        sum,
    ),
    CppProblem(
        "Read n and then n integers. Print the largest.",
        _main("int n, most, x; cin >> n >> most; while (cin >> x) most = x > most ? x : most; cout << most;", _SHORT),
        _LISTS,
        lambda numbers: max(numbers[1:]),
    ),
    CppProblem(
        "Read n and then n integers. Print them in rising order on one line.",
        _main(
            'int n; cin >> n; multiset<int> s; for (int x; cin >> x;) s.insert(x); for (int x : s) cout << x << " ";'
        ),
        _LISTS,
        lambda numbers: " ".join(map(str, sorted(numbers[1:]))),
    ),
    CppProblem(
        "Read n and then n integers. Print how many different values there are.",
        _main("int n; cin >> n; set<int> s; for (int x; cin >> x;) s.insert(x); cout << s.size();"),
        _LISTS,
        lambda numbers: len(set(numbers[1:])),
    ),
    CppProblem(
        "Read a and b. Print their greatest common divisor.",
        _main("long long a, b; cin >> a >> b; cout << __gcd(a, b);"),
        ("12 18\n", "17 5\n", "1000000007 1000000007\n"),
        lambda numbers: gcd(*numbers),
    ),
    CppProblem(
        "Read n. Print how many primes are at most n.",
        _main(
            "int n, c = 0; cin >> n; vector<bool> no(n + 1); for (int i = 2; i <= n; i++) if (!no[i]) { c++;"
            " for (long long j = (long long)i * i; j <= n; j += i) no[j] = true; } cout << c;"
        ),
        ("10\n", "1\n", "5000\n"),
        _primes,
    ),
    CppProblem(
        "Read n. Print the n-th Fibonacci number modulo 1000000007 (the first two are 1).",
        _main("long long n, a = 0, b = 1; cin >> n; while (n--) { b = (a + b) % 1000000007; swap(a, b); } cout << a;"),
        ("1\n", "10\n", "90000\n"),
        lambda numbers: _fibonacci(numbers[0]),
    ),
    CppProblem(
        "Read n and m, then m roads a b w that lead from a to b. Print how far n is from 1, or -1.",
        _main(
            "int n, m; cin >> n >> m; vector<long long> d(n + 1, 1e18); d[1] = 0; vector<array<int, 3>> e(m);"
            " for (auto& [a, b, w] : e) cin >> a >> b >> w;"
            " for (int i = 0; i < n; i++) for (auto& [a, b, w] : e) d[b] = min(d[b], d[a] + w);"
            " cout << (d[n] < 1e17 ? d[n] : -1);"
        ),
        ("3 3\n1 2 4\n2 3 1\n1 3 9\n", "3 1\n2 3 1\n", "2 2\n1 2 7\n1 2 3\n"),
        _shortest,
    ),
    CppProblem(
        "Read n and then n integers. Print the length of the longest strictly rising subsequence.",
        _main(
            "int n; cin >> n; vector<int> t; for (int x; cin >> x;) { auto i = lower_bound(t.begin(), t.end(), x);"
            " if (i == t.end()) t.push_back(x); else *i = x; } cout << t.size();"
        ),
        _LISTS,
        _rising,
    ),
    CppProblem(
        "Read n and then n integers. Print how many pairs stand in falling order.",
        _main(
            "int n; cin >> n; vector<int> v(n); long long c = 0; for (int i = 0; i < n; i++) { cin >> v[i];"
            " for (int j = 0; j < i; j++) c += v[j] > v[i]; } cout << c;"
        ),
        _LISTS,
        _inversions,
    ),
    CppProblem(
        "Read n and then n integers. Print the value that is there most often; of several the smallest.",
        _main(
            "int n; cin >> n; map<int, int> c; for (int x; cin >> x;) c[x]++; int best = c.begin()->first;"
            " for (auto [x, k] : c) if (k > c[best]) best = x; cout << best;"
        ),
        _LISTS,
        lambda numbers: min(Counter(numbers[1:]).items(), key=lambda pair: (-pair[1], pair[0]))[0],
    ),
    CppProblem(
        "Read n and then n integers. Print the largest sum of neighbours (at least one).",
        _main(
            "int n; cin >> n; long long best = LLONG_MIN, now = 0; for (long long x; cin >> x;)"
            " { now = max(now + x, x); best = max(best, now); } cout << best;"
        ),
        _LISTS,
        lambda numbers: max(sum(numbers[i:j]) for i in range(1, len(numbers)) for j in range(i + 1, len(numbers) + 1)),
    ),
)


def _fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, (a + b) % 1_000_000_007
    return a


def foreign_rows() -> list[dict[str, Any]]:
    """The problems as rows of PrimeIntellect's set."""
    return [
        {
            "problem_id": f"cpp_{number}",
            "prompt": problem.statement,
            "source": "made up",
            "gold_standard_solution": f"```cpp\n{problem.solution}```",
            "verification_info": json.dumps(
                {"language": "cpp", "test_cases": [{**test, "type": "stdin_stdout"} for test in problem.tests]}
            ),
        }
        for number, problem in enumerate(CPP_PROBLEMS)
    ]
