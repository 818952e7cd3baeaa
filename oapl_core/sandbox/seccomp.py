"""The system calls a program may make: an allowlist, as a raw BPF filter (seccomp(2), linux/filter.h).

Everything not named here fails with EPERM: fork, vfork, execve, sockets, kill, ptrace, mount, unshare, memfd_create,
io_uring, bpf, keyctl, shared memory, setting clocks. `clone` makes threads only; `ioctl`, `fcntl`, `prlimit64`,
`socketpair` and `open` are allowed for harmless arguments. The filter kills a process of another architecture (or x32),
whose numbers mean other calls. Numbers are x86-64's (arch/x86/entry/syscalls/syscall_64.tbl).
"""

import ctypes
import errno
import os
import struct
from collections.abc import Mapping

_CALLS = """
files-already-open   read=0 write=1 lseek=8 pread64=17 pwrite64=18 readv=19 writev=20 preadv=295 pwritev=296
    preadv2=327 pwritev2=328 copy_file_range=326 close=3 close_range=436 dup=32 dup2=33 dup3=292 fsync=74 fdatasync=75
    ftruncate=77 fadvise64=221
paths   open=2 openat=257 creat=85 access=21 faccessat=269 faccessat2=439 stat=4 fstat=5 lstat=6 newfstatat=262
    statx=332 statfs=137 fstatfs=138 readlink=89 readlinkat=267 getdents64=217 getcwd=79 chdir=80 fchdir=81 mkdir=83
    mkdirat=258 rmdir=84 rename=82 renameat=264 renameat2=316 unlink=87 unlinkat=263 umask=95
memory   mmap=9 mprotect=10 munmap=11 brk=12 mremap=25 madvise=28
waiting   poll=7 ppoll=271 select=23 pselect6=270 epoll_wait=232 epoll_ctl=233 epoll_pwait=281 epoll_create1=291
    pause=34 nanosleep=35 clock_nanosleep=230 restart_syscall=219 pipe=22 pipe2=293 sendto=44 recvfrom=45 shutdown=48
    getsockopt=55
own-signals   rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 rt_sigpending=127 rt_sigtimedwait=128
    rt_sigsuspend=130 sigaltstack=131 getitimer=36 alarm=37 setitimer=38
threads   futex=202 set_tid_address=218 set_robust_list=273 get_robust_list=274 rseq=334 membarrier=324 gettid=186
    sched_yield=24 sched_getaffinity=204 getcpu=309 exit=60 exit_group=231
questions   getpid=39 getppid=110 getuid=102 getgid=104 geteuid=107 getegid=108 getgroups=115 getresuid=118
    getresgid=120 uname=63 sysinfo=99 getrlimit=97 getrusage=98 times=100 time=201 gettimeofday=96 clock_gettime=228
    clock_getres=229 getrandom=318
"""
ALLOWED = {name: int(number) for word in _CALLS.split() if "=" in word for name, number in [word.split("=")]}
"""Calls by name. Which paths they reach is decided elsewhere: by the root of the full level and by landlock."""

PROCESS_CALLS = {"execve": 59, "arch_prctl": 158}
"""Further calls of a program that is no Python: it begins with execve, and its C library with arch_prctl."""
COMPILER_CALLS = {**PROCESS_CALLS, "fork": 57, "vfork": 58, "wait4": 61, "waitid": 247}
"""Further calls of a compiler, which is several processes; `clone` may then make them."""

PRETENDED = {"flock": 73, "chmod": 90, "fchmod": 91, "fchmodat": 268, "utimensat": 280}
"""Calls that are answered with success without doing anything. Libraries use them, and landlock does not govern them. A
program could change files of the host with them, or leave marks there for others.
"""

_IOCTL, _SOCKETPAIR, _CLONE, _FCNTL, _SETRLIMIT, _PRLIMIT64, _CLONE3 = 16, 53, 56, 72, 160, 302, 435
_ARGUMENT_VALUES = {
    (_IOCTL, 1): (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451),  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, F(N)CLEX
    (_FCNTL, 1): (0, 1, 2, 3, 4, 1030),  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC
}
_OPENS = {2: 1, 257: 2}
"""open and openat, and which of their arguments holds the flags."""
_ACCESS_OR_TRUNCATE, _ONLY_TRUNCATE = 0x203, 0x200
"""O_TRUNC on a file that is opened for reading: landlock before Linux 6.2 lets it empty the file."""
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF
_RLIMIT_CPU = 0
_CLONE_THREAD, _CLONE_NAMESPACES = 0x00010000, 0x7E020000

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
_ARCH_X86_64, _X32_BIT = 0xC000003E, 0x40000000
_KILL, _ERRNO, _ALLOWED = 0x80000000, 0x00050000, 0x7FFF0000
_SYS_SECCOMP, _SET_MODE_FILTER = 317, 1


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


_ALLOW, _REFUSE = _instruction(_RETURN, _ALLOWED), _instruction(_RETURN, _ERRNO | errno.EPERM)
_PRETEND = _instruction(_RETURN, _ERRNO)
"""With errno 0 the call succeeds, and the kernel does nothing."""
_HEAD = [
    _instruction(_LOAD, 4),
    _instruction(_JUMP_EQUAL, _ARCH_X86_64, 1, 0),
    _instruction(_RETURN, _KILL),
    _instruction(_LOAD, 0),
    _instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
    _instruction(_RETURN, _KILL),
]


def _argument(index: int, is_high: bool = False) -> bytes:
    """Loads the low half of a system call's argument (or its high half); most are 32 bits wide in the kernel."""
    return _instruction(_LOAD, 16 + 8 * index + 4 * is_high)


def _checked_call(number: int, body: list[bytes]) -> list[bytes]:
    """Run `body` for this call, in which it must return; any other call jumps over it."""
    return [_instruction(_JUMP_EQUAL, number, 0, len(body)), *body]


def _search(ranges: list[tuple[int, int, int]]) -> list[bytes]:
    """Search the sorted ranges (both ends included, then the answer) for a number by bisection; the instructions of it.

    The kernel tries every system call when a filter is installed, in every child: one after the other costs 0.1 ms.
    """
    if len(ranges) == 1:
        first, last, answer = ranges[0]
        return [
            _instruction(_JUMP_AT_LEAST, first, 0, 2),
            _instruction(_JUMP_ABOVE, last, 1, 0),
            _instruction(_RETURN, answer),
            _REFUSE,
        ]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    return [_instruction(_JUMP_AT_LEAST, ranges[middle][0], len(below), 0), *below, *above]


def _ranges(answers: dict[int, int]) -> list[tuple[int, int, int]]:
    """Runs of consecutive numbers with the same answer."""
    runs: list[tuple[int, int, int]] = []
    for number, answer in sorted(answers.items()):
        if runs and runs[-1][1:] == (number - 1, answer):
            runs[-1] = runs[-1][0], number, answer
        else:
            runs.append((number, number, answer))
    return runs


def allowlist(further: Mapping[str, int] | None = None) -> bytes:
    """Make the filter for untrusted programs; with `further` calls for those that are no Python, or for compilers."""
    further = further or {}
    program = [*_HEAD]
    for (number, index), values in _ARGUMENT_VALUES.items():
        tests = [_instruction(_JUMP_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values)]
        program += _checked_call(number, [_argument(index), *tests, _REFUSE, _ALLOW])
    threads_only = [
        _argument(0),
        *([] if "fork" in further else [_instruction(_JUMP_ANY_BIT, _CLONE_THREAD, 0, 1)]),
        _instruction(_JUMP_ANY_BIT, _CLONE_NAMESPACES, 0, 1),
    ]
    program += _checked_call(_CLONE, [*threads_only, _REFUSE, _ALLOW])
    # The arguments of clone3 lie in memory, where a filter cannot look; on ENOSYS glibc falls back to clone.
    program += _checked_call(_CLONE3, [_instruction(_RETURN, _ERRNO | errno.ENOSYS)])
    # A program that lowered its own limit of CPU time would be killed by SIGKILL, as if the machine had done it.
    program += _checked_call(_SETRLIMIT, [_argument(0), _instruction(_JUMP_EQUAL, _RLIMIT_CPU, 0, 1), _PRETEND, _ALLOW])
    program += _checked_call(_PRLIMIT64, _own_limits())
    # asyncio needs a pair of connected stream sockets, which reach nothing else; datagrams could be sent to an address.
    connected_pair = [
        _argument(0),
        _instruction(_JUMP_EQUAL, _AF_UNIX, 0, 3),
        _argument(1),
        _instruction(_AND, _SOCK_TYPE),
        _instruction(_JUMP_EQUAL, _SOCK_STREAM, 1, 0),
    ]
    program += _checked_call(_SOCKETPAIR, [*connected_pair, _REFUSE, _ALLOW])
    for number, index in _OPENS.items():
        masked = [_argument(index), _instruction(_AND, _ACCESS_OR_TRUNCATE)]
        program += _checked_call(number, [*masked, _instruction(_JUMP_EQUAL, _ONLY_TRUNCATE, 0, 1), _REFUSE, _ALLOW])
    answers = dict.fromkeys((*ALLOWED.values(), *further.values()), _ALLOWED) | dict.fromkeys(
        PRETENDED.values(), _ERRNO
    )
    return b"".join([*program, *_search(_ranges(answers))])


def _own_limits() -> list[bytes]:
    """Allow prlimit64 of this process only; the kernel itself lets nobody here raise a hard limit. A null pointer for
    the new limit only asks for the old one, so that is allowed for CPU time, too.
    """
    return [
        _argument(0),
        _instruction(_JUMP_EQUAL, 0, 1, 0),
        _REFUSE,
        _argument(1),
        _instruction(_JUMP_EQUAL, _RLIMIT_CPU, 1, 0),
        _ALLOW,
        _argument(2),
        _instruction(_JUMP_EQUAL, 0, 0, 2),
        _argument(2, is_high=True),
        _instruction(_JUMP_EQUAL, 0, 1, 0),
        _PRETEND,
        _ALLOW,
    ]


def denylist(numbers: tuple[int, ...]) -> bytes:
    """Make a filter that refuses only `numbers` with EPERM: stands for a hardened host, in tests of the refusal."""
    return b"".join([*_HEAD, *(step for number in numbers for step in _checked_call(number, [_REFUSE])), _ALLOW])


class SystemCallFilter:
    """A BPF program in the kernel's layout, built once and applied in every child."""

    def __init__(self, program: bytes) -> None:
        """Prepare the filter `program`, as made by `allowlist`."""
        self._code = ctypes.create_string_buffer(program, len(program))
        self._header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(self._code))
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall

    def apply(self) -> None:
        """Binds this thread and its children to the filter; needs no_new_privs. Raises OSError."""
        if self._syscall(_SYS_SECCOMP, _SET_MODE_FILTER, 0, self._header) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"seccomp: {os.strerror(number)}")
