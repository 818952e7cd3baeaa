"""The filter's program, interpreted here for every system call: what the kernel will allow, without asking it."""

import errno
import struct

from oapl_core.sandbox.seccomp import ALLOWED, COMPILER_CALLS, PRETENDED, PROCESS_CALLS, allowlist

X86_64, I386 = 0xC000003E, 0x40000003
ALLOW, REFUSE, ABSENT, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000
PRETEND = 0x00050000  # errno 0: the call succeeds and does nothing
IOCTL, SOCKETPAIR, CLONE, FCNTL, SETRLIMIT, PRLIMIT64, CLONE3 = 16, 53, 56, 72, 160, 302, 435
RLIMIT_CPU, RLIMIT_STACK = 0, 3
INSTRUCTIONS = list(struct.iter_unpack("HBBI", allowlist()))
OF_PROCESSES = list(struct.iter_unpack("HBBI", allowlist(PROCESS_CALLS)))
OF_COMPILERS = list(struct.iter_unpack("HBBI", allowlist(COMPILER_CALLS)))
Instructions = list[tuple[int, ...]]


def ruling(number: int, *arguments: int, architecture: int = X86_64, instructions: Instructions = INSTRUCTIONS) -> int:
    """What the filter returns."""
    position, value = 0, 0
    while True:
        code, if_true, if_false, operand = instructions[position]
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            halves = {16 + 8 * i: argument & 0xFFFFFFFF for i, argument in enumerate(arguments)}
            halves |= {20 + 8 * i: argument >> 32 for i, argument in enumerate(arguments)}
            value = {0: number, 4: architecture, **halves}.get(operand, 0)
        elif code == 0x54:
            value &= operand
        else:
            holds = {0x15: value == operand, 0x25: value > operand, 0x35: value >= operand, 0x45: value & operand}
            position += if_true if holds[code] else if_false
        position += 1


def test_exactly_the_named_calls_are_allowed() -> None:
    allowed = {number for number in range(1024) if ruling(number) == ALLOW}
    assert allowed - {FCNTL, PRLIMIT64} == set(ALLOWED.values())  # those two with checked arguments of 0
    others = set(range(1024)) - allowed - {CLONE3, SETRLIMIT, PRLIMIT64} - {*PRETENDED.values()}
    assert {ruling(number) for number in PRETENDED.values()} == {PRETEND}
    assert {ruling(number) for number in others} == {REFUSE}


def test_checked_calls_are_allowed_for_harmless_arguments_only() -> None:
    assert ruling(CLONE, 0x003D0F00) == ALLOW  # a thread, as glibc makes it
    assert ruling(CLONE, 0x01200011) == REFUSE  # a process
    assert ruling(CLONE, 0x00010000 | 0x10000000) == REFUSE  # a thread in a new user namespace
    assert ruling(CLONE3) == ABSENT
    assert ruling(FCNTL, 0, 1030) == ALLOW
    assert ruling(FCNTL, 0, 1033) == REFUSE  # F_ADD_SEALS
    assert ruling(IOCTL, 0, 0x5401) == ALLOW
    assert ruling(IOCTL, 0, 0x5412) == REFUSE  # TIOCSTI
    assert ruling(PRLIMIT64, 1) == REFUSE  # another process


def test_a_program_may_change_every_limit_of_its_own_but_that_of_cpu_time() -> None:
    pointer, high = 0x7F00_1000, 0x7F00_0000_0000
    for new in (pointer, high, pointer | high):
        assert ruling(PRLIMIT64, 0, RLIMIT_CPU, new) == PRETEND
        assert ruling(PRLIMIT64, 0, RLIMIT_STACK, new) == ALLOW
    assert ruling(PRLIMIT64, 0, RLIMIT_CPU, 0, pointer) == ALLOW  # looks only
    assert ruling(SETRLIMIT, RLIMIT_CPU, pointer) == PRETEND
    assert ruling(SETRLIMIT, RLIMIT_STACK, pointer) == ALLOW


def test_the_only_sockets_are_connected_pairs() -> None:
    assert ruling(SOCKETPAIR, 1, 1) == ALLOW
    assert ruling(SOCKETPAIR, 1, 1 | 0o2000000 | 0o4000) == ALLOW  # SOCK_CLOEXEC, SOCK_NONBLOCK
    assert ruling(SOCKETPAIR, 1, 2) == REFUSE  # datagrams have addresses
    assert ruling(SOCKETPAIR, 16, 1) == REFUSE
    assert {ruling(number) for number in (41, 42, 43, 46, 47, 49, 50, 288)} == {REFUSE}  # socket, connect, ..., sendmsg


def test_a_file_that_is_opened_to_be_read_cannot_be_emptied() -> None:
    for number, *before in ((2, 0), (257, 0, 0)):
        assert ruling(number, *before, 0o1000) == REFUSE  # O_RDONLY | O_TRUNC
        assert ruling(number, *before, 0o1000 | 0o2000000) == REFUSE
        for flags in (0, 0o1101, 0o1102, 0o2000000):  # O_WRONLY and O_RDWR with O_CREAT | O_TRUNC are landlock's
            assert ruling(number, *before, flags) == ALLOW


def test_another_architecture_is_killed() -> None:
    assert ruling(0, architecture=I386) == KILL
    assert ruling(0x40000000) == KILL  # x32


def test_other_languages_may_begin_and_their_compilers_may_start_processes() -> None:
    def allowed(instructions: Instructions) -> set[int]:
        return {number for number in range(1024) if ruling(number, instructions=instructions) == ALLOW}

    python, process, compiler = allowed(INSTRUCTIONS), allowed(OF_PROCESSES), allowed(OF_COMPILERS)
    assert process - python == {59, 158}  # execve, arch_prctl
    assert compiler - process == {CLONE, 57, 58, 61, 247}  # fork, vfork, wait4, waitid
    assert python <= process <= compiler
    assert ruling(CLONE, 0x01200011, instructions=OF_PROCESSES) == REFUSE  # a process
    assert ruling(CLONE, 0x01200011, instructions=OF_COMPILERS) == ALLOW
    assert ruling(CLONE, 0x11 | 0x10000000, instructions=OF_COMPILERS) == REFUSE  # in a new user namespace
    for number in (41, 62, 101, 165, 200, 234, 272, 310, 321, 322, 425):  # socket, kill, ptrace, ..., io_uring
        assert ruling(number, instructions=OF_COMPILERS) == REFUSE
