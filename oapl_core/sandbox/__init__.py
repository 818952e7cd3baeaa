"""Runs one untrusted Python program on one input under limits; returns bytes and facts, never a judgement.

    with Sandbox() as sandbox:                                   # from oapl_core.sandbox.sandbox import Sandbox
        execution, = sandbox.run(Program("print(input())"), [b"hello"], Limits())

Threat model
------------
A program is hostile: it wants a reward it has not earned, or to harm the run, the machine or other programs. Expected
outputs never enter this package, so there is nothing here to steal; what it must not do is reach anything else.

=============================  ===========================================  ====================================
A program must not             full level                                   fallback level (no user namespaces)
=============================  ===========================================  ====================================
read the host's files          read-only root: interpreter, libraries       landlock, the same list
write anywhere                 private tmpfs of 16 MiB, gone with it        landlock: nowhere
see or signal processes        own pid namespace, no /proc, seccomp         seccomp, landlock hides /proc
use a network or sockets       own net namespace without devices, seccomp   seccomp
start processes                seccomp: threads only                        the same
gain privileges                no capabilities, no_new_privs, uid nobody    no capabilities, no_new_privs
exhaust CPU, memory, disk      kernel CPU clock, RLIMIT_AS, RLIMIT_FSIZE    the same
outlive its test               its pid namespace is killed                  it is one process and is killed
reach other programs           own child, own files, own /tmp, own ipc      own child, own files
=============================  ===========================================  ====================================

Landlock is there from Linux 5.13 on; without it the full level stands on the read-only root alone. An unprivileged user
who may map no second id keeps its own inside, without capabilities. `verdicts.maths` confines its workers, which read
untrusted text but run none, by the fallback's means: seccomp, a memory limit, and landlock where the kernel has it.

Tests of one program may share a child: its other inputs are there, and a program may keep state between its own tests.
That helps it only where one test can be passed by knowing the others' inputs; a failure is repeated in a fresh child.

Assert-style tests (`Program.is_checked`) are the one case in which there is something to steal. The checks run in the
program's own process, and a pass is a secret that is written after the last of them (checks.py). Forged output, early
exits, tracing, patched built-ins and always-equal results gain nothing. What remains: while it is called, a program can
read the checks, with the values they expect, and exchange what they use next, through stack frames; patch a library
that they call (`math.isclose`); leave an always-equal object in an argument; read raw memory through numpy's views. So
a program that is written against this very code can pass. Kinds that are compared outside have no such hole.

Not covered: bugs of the kernel and of the CPU (speculation, timing channels: there is no secret to time); many threads
at the fallback level (bounded by memory only); memory of the private directory, the three output files and pipes, which
comes beside `memory_mb` (at most 4 x `output_mb` + 32 MiB), since no cgroup is used; a machine that runs out of memory
all the same (the kernel may then kill any process: a verifier error, not a verdict); the host's load, which can turn a
program near a limit into a time limit; other processes of the same user at the fallback level, which only seccomp and
landlock keep out of reach; weak tests, and answers learnt by heart, which no sandbox can see: `verdicts.audit` and a
person look for those.
"""

from oapl_core.sandbox.execution import Execution, Limits, Program

__all__ = ["Execution", "Limits", "Program", "probe"]


def probe() -> str:
    """Starts a sandbox, lets its canaries try to get out, ends it, and returns the proven level, "full" or "fallback".

    Raises:
        SandboxError: neither level can be proven here; the message has the reasons and what to do.
    """
    from oapl_core.sandbox.sandbox import Sandbox  # fork servers import this package and need nothing of the pool

    with Sandbox(workers=1) as sandbox:
        return sandbox.level
