"""The system calls a program may make: an allowlist, as a raw BPF filter (seccomp(2), linux/filter.h).

Everything not named here fails with EPERM: fork, vfork, execve, sockets, kill, ptrace, mount, unshare, memfd_create,
io_uring, bpf, keyctl, shared memory, setting clocks ... `clone` may make threads only; `clone3` answers ENOSYS, at
which glibc falls back to `clone`; `ioctl`, `fcntl`, `prlimit64` and `socketpair` are allowed for a few harmless
arguments (an event loop of asyncio has a pair of connected sockets, which reach nothing else). Setting the limit of CPU
time answers success and does nothing: a program that lowered its own would be killed as if the machine had done it. A
process of another architecture (or x32) is killed. Numbers are x86-64's (arch/x86/entry/syscalls/syscall_64.tbl).
"""

import ctypes
import errno
import os
import struct

ALLOWED = {
    "read": 0,
    "write": 1,
    "open": 2,
    "close": 3,
    "stat": 4,
    "fstat": 5,
    "lstat": 6,
    "poll": 7,
    "lseek": 8,
    "mmap": 9,
    "mprotect": 10,
    "munmap": 11,
    "brk": 12,
    "rt_sigaction": 13,
    "rt_sigprocmask": 14,
    "rt_sigreturn": 15,
    "pread64": 17,
    "pwrite64": 18,
    "readv": 19,
    "writev": 20,
    "access": 21,
    "pipe": 22,
    "select": 23,
    "sched_yield": 24,
    "mremap": 25,
    "madvise": 28,
    "dup": 32,
    "dup2": 33,
    "pause": 34,
    "nanosleep": 35,
    "getitimer": 36,
    "alarm": 37,
    "setitimer": 38,
    "getpid": 39,
    "exit": 60,
    "uname": 63,
    "fsync": 74,
    "fdatasync": 75,
    "ftruncate": 77,
    "getcwd": 79,
    "chdir": 80,
    "fchdir": 81,
    "rename": 82,
    "mkdir": 83,
    "rmdir": 84,
    "creat": 85,
    "unlink": 87,
    "readlink": 89,
    "umask": 95,
    "gettimeofday": 96,
    "getrlimit": 97,
    "getrusage": 98,
    "sysinfo": 99,
    "times": 100,
    "getuid": 102,
    "getgid": 104,
    "geteuid": 107,
    "getegid": 108,
    "getppid": 110,
    "getgroups": 115,
    "getresuid": 118,
    "getresgid": 120,
    "rt_sigpending": 127,
    "rt_sigtimedwait": 128,
    "rt_sigsuspend": 130,
    "sigaltstack": 131,
    "statfs": 137,
    "fstatfs": 138,
    "gettid": 186,
    "time": 201,
    "futex": 202,
    "sched_getaffinity": 204,
    "getdents64": 217,
    "set_tid_address": 218,
    "fadvise64": 221,
    "clock_gettime": 228,
    "clock_getres": 229,
    "clock_nanosleep": 230,
    "exit_group": 231,
    "openat": 257,
    "mkdirat": 258,
    "newfstatat": 262,
    "unlinkat": 263,
    "renameat": 264,
    "readlinkat": 267,
    "faccessat": 269,
    "pselect6": 270,
    "ppoll": 271,
    "set_robust_list": 273,
    "get_robust_list": 274,
    "dup3": 292,
    "pipe2": 293,
    "preadv": 295,
    "pwritev": 296,
    "getcpu": 309,
    "renameat2": 316,
    "getrandom": 318,
    "membarrier": 324,
    "copy_file_range": 326,
    "preadv2": 327,
    "pwritev2": 328,
    "statx": 332,
    "rseq": 334,
    "close_range": 436,
    "faccessat2": 439,
    "epoll_wait": 232,
    "epoll_ctl": 233,
    "epoll_pwait": 281,
    "epoll_create1": 291,
    "sendto": 44,
    "recvfrom": 45,
    "shutdown": 48,
    "getsockopt": 55,
}

PRETENDED = {"flock": 73, "chmod": 90, "fchmod": 91, "fchmodat": 268, "utimensat": 280}
"""Answered with success, and nothing is done: libraries use them, landlock does not govern them, and with them a
program could change files of the host, or leave marks on them for others."""

_IOCTL, _SOCKETPAIR, _CLONE, _FCNTL, _SETRLIMIT, _PRLIMIT64, _CLONE3 = 16, 53, 56, 72, 160, 302, 435
_ARGUMENT_VALUES = {
    (_IOCTL, 1): (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451),  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, F(N)CLEX
    (_FCNTL, 1): (0, 1, 2, 3, 4, 1030),  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC
}
_OPENS = {2: 1, 257: 2}
"""open and openat, and which of their arguments holds the flags."""
_ACCESS_OR_TRUNCATE, _ONLY_TRUNCATE = 0x203, 0x200
"""O_TRUNC on a file that is opened to be read: the landlock of Linux before 6.2 lets it pass."""
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF
_RLIMIT_CPU = 0
_CLONE_THREAD, _CLONE_NAMESPACES = 0x00010000, 0x7E020000

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
_ARCH_X86_64, _X32_BIT = 0xC000003E, 0x40000000
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_SYS_SECCOMP, _SET_MODE_FILTER = 317, 1


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _argument(index: int, is_high: bool = False) -> bytes:
    """Loads the low half of a system call's argument (or its high half); most are 32 bits wide in the kernel."""
    return _instruction(_LOAD, 16 + 8 * index + 4 * is_high)


def _checked_call(number: int, body: list[bytes]) -> list[bytes]:
    """`body` runs (and must return) for this call; any other call jumps over it."""
    return [_instruction(_JUMP_EQUAL, number, 0, len(body)), *body]


def _search(ranges: list[tuple[int, int, int]]) -> list[bytes]:
    """The answer to a number within one of the sorted ranges (both ends included, then the answer), by bisection.

    The kernel tries every system call when a filter is installed, in every child: one after the other costs 0.1 ms.
    """
    if len(ranges) == 1:
        first, last, answer = ranges[0]
        return [
            _instruction(_JUMP_AT_LEAST, first, 0, 2),
            _instruction(_JUMP_ABOVE, last, 1, 0),
            _instruction(_RETURN, answer),
            _instruction(_RETURN, _ERRNO | errno.EPERM),
        ]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    return [_instruction(_JUMP_AT_LEAST, ranges[middle][0], len(below), 0), *below, *above]


def _ranges(answers: dict[int, int]) -> list[tuple[int, int, int]]:
    """Runs of consecutive numbers with the same answer."""
    found: list[tuple[int, int, int]] = []
    for number, answer in sorted(answers.items()):
        if found and found[-1][1:] == (number - 1, answer):
            found[-1] = found[-1][0], number, answer
        else:
            found.append((number, number, answer))
    return found


def _head() -> list[bytes]:
    return [
        _instruction(_LOAD, 4),
        _instruction(_JUMP_EQUAL, _ARCH_X86_64, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, 0),
        _instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        _instruction(_RETURN, _KILL),
    ]


def allowlist() -> bytes:
    """The filter for untrusted programs."""
    allow, refuse = _instruction(_RETURN, _ALLOW), _instruction(_RETURN, _ERRNO | errno.EPERM)
    program = _head()
    for (number, index), values in _ARGUMENT_VALUES.items():
        tests = [_instruction(_JUMP_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values)]
        program += _checked_call(number, [_argument(index), *tests, refuse, allow])
    threads_only = [
        _argument(0),
        _instruction(_JUMP_ANY_BIT, _CLONE_THREAD, 0, 1),
        _instruction(_JUMP_ANY_BIT, _CLONE_NAMESPACES, 0, 1),
        refuse,
        allow,
    ]
    program += _checked_call(_CLONE, threads_only)
    succeed = _instruction(_RETURN, _ERRNO)  # errno 0: success, and nothing is done
    program += _checked_call(_SETRLIMIT, [_argument(0), _instruction(_JUMP_EQUAL, _RLIMIT_CPU, 0, 1), succeed, allow])
    own_limits = [  # of this process only; raising a hard limit needs a capability nobody has here
        _argument(0),
        _instruction(_JUMP_EQUAL, 0, 1, 0),
        refuse,
        _argument(1),
        _instruction(_JUMP_EQUAL, _RLIMIT_CPU, 1, 0),
        allow,
        _argument(2),
        _instruction(_JUMP_EQUAL, 0, 0, 2),
        _argument(2, is_high=True),
        _instruction(_JUMP_EQUAL, 0, 1, 0),
        succeed,
        allow,
    ]
    program += _checked_call(_PRLIMIT64, own_limits)
    connected_pair = [
        _argument(0),
        _instruction(_JUMP_EQUAL, _AF_UNIX, 0, 3),
        _argument(1),
        _instruction(_AND, _SOCK_TYPE),
        _instruction(_JUMP_EQUAL, _SOCK_STREAM, 1, 0),
        refuse,
        allow,
    ]
    program += _checked_call(_SOCKETPAIR, connected_pair)
    for number, index in _OPENS.items():
        masked = [_argument(index), _instruction(_AND, _ACCESS_OR_TRUNCATE)]
        program += _checked_call(number, [*masked, _instruction(_JUMP_EQUAL, _ONLY_TRUNCATE, 0, 1), refuse, allow])
    program += _checked_call(_CLONE3, [_instruction(_RETURN, _ERRNO | errno.ENOSYS)])
    answers = dict.fromkeys(ALLOWED.values(), _ALLOW) | dict.fromkeys(PRETENDED.values(), _ERRNO)
    return b"".join([*program, *_search(_ranges(answers))])


def denylist(numbers: tuple[int, ...]) -> bytes:
    """A filter that refuses only `numbers` with EPERM: stands for a hardened host, in tests of the refusal."""
    checks = [call for n in numbers for call in _checked_call(n, [_instruction(_RETURN, _ERRNO | errno.EPERM)])]
    return b"".join([*_head(), *checks, _instruction(_RETURN, _ALLOW)])


class Filter:
    """A BPF program in the kernel's layout, built once and applied in every child."""

    def __init__(self, program: bytes) -> None:
        """`program` as made by `allowlist`."""
        self._code = ctypes.create_string_buffer(program, len(program))
        self._header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(self._code))
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall

    def apply(self) -> None:
        """Binds this thread and its children to the filter; needs no_new_privs. Raises OSError."""
        if self._syscall(_SYS_SECCOMP, _SET_MODE_FILTER, 0, self._header) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"seccomp: {os.strerror(number)}")
