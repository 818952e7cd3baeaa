"""What a program may learn of other programs: nothing of what they are, read, print, return or raise.

A spy reads all memory of its process that it can find: a child is a copy of its fork server, so whatever the server had
held of an earlier program, even freed, would be there. Each test runs a victim with a secret, then a spy on the same
server. The spy gets the secret in two halves and looks for them joined.
"""

from collections.abc import Iterator

import pytest

from oapl_core.sandbox import Execution, Limits, Program
from oapl_core.sandbox.sandbox import Level, Sandbox
from tests import sandboxes

LIMITS = Limits(cpu_s=30, wall_s=90, memory_mb=1024, output_mb=4)
HALVES = ("xyzzy-plugh", "-colossal-cave-4711")
SECRET = "".join(HALVES)
MANY = f"{SECRET} " * 200

SPY = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
first, second = (half.encode() for half in input().split())
OWN
r, w = os.pipe()

def page(address):  # the kernel answers EFAULT where a pointer of Python's own would crash
    return os.read(r, 4096) if libc.write(w, address, 4096) == 4096 else b""

def points():  # objects of every size, C's heap, large blocks, buffers, modules: around them lies what was freed
    things = [object(), [], {}, first, sys, os.environ, page, bytes(600), bytes(40000), bytearray(1 << 20)]
    blocks = [libc.malloc(1 << n) for n in range(4, 22)]
    return [*map(id, things), *map(id, list(sys.modules.values())), *blocks, libc.sbrk(0),
            ctypes.addressof(ctypes.create_string_buffer(1 << 16))]

seen, found, pages = set(), 0, 0
for point in points():
    for address in range((point & ~0xFFF) - (4 << 20), (point & ~0xFFF) + (4 << 20), 4096):
        if address not in seen:
            seen.add(address)
            data = page(address)
            pages += bool(data)
            at = data.find(first)
            while at >= 0:
                found += data.startswith(second, at + len(first))
                at = data.find(first, at + 1)
print("found" if found else "nothing", pages)
"""
OWN_SECRET = "kept = [first + second for _ in range(50)]\ndel kept"


def spy(sandbox: Sandbox, own: str = "") -> str:
    """What the spy says; it has looked at a lot."""
    (execution,) = sandbox.run(Program(SPY.replace("OWN", own)), [" ".join(HALVES).encode()], LIMITS)
    word, pages = execution.stdout.split()
    assert int(pages) > 1000
    return word.decode()


@pytest.fixture(params=sandboxes.LEVELS)
def one_server(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    level: Level = request.param
    sandboxes.require(level)
    with Sandbox(workers=1, level=level, serves=("checks",)) as sandbox:
        yield sandbox


def test_the_spy_sees_what_its_own_process_has_freed(one_server: Sandbox) -> None:
    assert spy(one_server, OWN_SECRET) == "found"


def _checked(source: str, checks: str) -> tuple[Program, bytes]:
    return Program(source, "f", is_checked=True, starter=f"# {MANY}\nclass Declared: pass"), checks.encode()


VICTIMS: dict[str, tuple[Program, bytes]] = {
    "its source": (Program(f"answer = '{MANY}'\nprint(1)"), b""),
    "a source that does not compile": (Program(f"answer = '{MANY}"), b""),
    "a comment": (Program(f"# {MANY}\nprint(1)"), b""),
    "its input": (Program("print(len(input()))"), MANY.encode()),
    "its output": (Program("print(input().replace('+', '-') * 99)"), SECRET.replace("-", "+").encode()),
    "its complaints": (
        Program("import sys\nprint(input().replace('+', '-') * 99, file=sys.stderr)"),
        SECRET.replace("-", "+").encode(),
    ),
    "arguments and result": (Program("def f(a): return [a + '-4711'] * 99", "f"), f'["{MANY}"]'.encode()),
    "the name of an exception": (
        Program("raise type(input().replace('+', '-'), (Exception,), {})"),
        SECRET.replace("-", "+").encode(),
    ),
    "the text of an exception": (Program(f"raise ValueError('{MANY}')"), b""),
    "the name of the function": (Program("def f(): return 1", f"f_{SECRET}".replace("-", "_")), b"[]"),
    "checks and what they expect": _checked("def f(): return 1", f"assert f() == '{MANY}'"),
    "what was told to the checks": _checked(f"def f(): return '{MANY}'", "assert len(f()) > 5"),
    "what it writes wherever it can": (
        Program(
            "import os\nword = input().replace('+', '-').encode() * 9\nfor fd in range(3, 300):\n"
            "    try: os.write(fd, word)\n    except OSError: pass\n"
        ),
        SECRET.replace("-", "+").encode(),
    ),
    "many tests": (Program(f"print(input(), '{MANY}')"), SECRET.encode()),
}


@pytest.mark.slow_if(case=sandboxes.at_further_level)
@pytest.mark.parametrize("name", VICTIMS)
def test_nothing_of_an_earlier_program_is_left_in_a_later_one(name: str, sandbox_of_one: Sandbox) -> None:
    run_victim(sandbox_of_one, name)
    assert spy(sandbox_of_one) == "nothing"


def test_nothing_of_many_earlier_programs_is_left_in_a_later_one(one_server: Sandbox) -> None:
    for name in VICTIMS:
        run_victim(one_server, name)
    assert spy(one_server) == "nothing"


def run_victim(sandbox: Sandbox, name: str) -> None:
    program, data = VICTIMS[name]
    for _ in range(3):
        list(sandbox.executions(program, [data] * (3 if name == "many tests" else 1), LIMITS))


@pytest.fixture(scope="module", params=sandboxes.LEVELS)
def sandbox_of_one(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    level: Level = request.param
    sandboxes.require(level)
    with Sandbox(workers=1, level=level, serves=("checks",)) as sandbox:
        yield sandbox


THIEF = (
    SPY.split("seen, found")[0].replace("OWN", "")
    + """
for point in points():
    for address in range((point & ~0xFFF) - (4 << 20), (point & ~0xFFF) + (4 << 20), 4096):
        data = page(address)
        at = data.find(first)
        if at >= 0 and data.startswith(second, at + len(first)):
            try:
                exec(data[at - 4:data.find(b"# end", at)].decode())
                print(solve_it(20))
            except Exception:  # half of it: look on
                continue
            raise SystemExit
print("nothing")
"""
)


@pytest.mark.slow_if(case=sandboxes.at_further_level)
def test_a_program_without_a_solution_cannot_run_a_neighbours(one_server: Sandbox) -> None:
    neighbour = Program("def solve_it(n):\n    return n * n + 22\nprint(solve_it(int(input())))\n" + "# end\n" * 50)
    assert one_server.run(neighbour, [b"20\n"], LIMITS)[0].stdout == b"422\n"
    assert one_server.run(Program(THIEF), [b"solve _it(n):"], LIMITS)[0].stdout == b"nothing\n"


def test_a_program_may_learn_which_libraries_others_named_and_nothing_more(one_server: Sandbox) -> None:
    look = Program("import sys\nprint(sorted(m for m in sys.modules if m in ('oapl_core', 'numpy')))")
    assert one_server.run(look, [b""], LIMITS)[0].stdout == b"['numpy']\n"  # it names the package itself
    blind = Program("import sys\nprint('num' 'py' in sys.modules)")
    assert one_server.run(blind, [b""], LIMITS)[0].stdout == b"True\n"


def _told(execution: Execution) -> list[str]:
    return execution.stdout.decode().split()


def test_a_program_may_read_all_inputs_that_share_its_child_and_knows_which_test_it_runs(one_server: Sandbox) -> None:
    source = (
        "import builtins, os\nbuiltins.n = getattr(builtins, 'n', 0) + 1\nfound = set()\nfor fd in range(3, 99):\n"
        "    try: found.add(os.pread(fd, 9, 0))\n    except OSError: pass\n"
        "print(builtins.n, *sorted(w.decode() for w in found if w.startswith(b'in')))"
    )
    shared = list(one_server.executions(Program(source), [b"in-1", b"in-2"], LIMITS))
    assert [_told(execution) for execution in shared] == [["1", "in-1", "in-2"], ["2", "in-1", "in-2"]]
    alone = one_server.run(Program(source), [b"in-1", b"in-2"], LIMITS)
    assert [_told(execution) for execution in alone] == [["1", "in-1"], ["1", "in-2"]]
