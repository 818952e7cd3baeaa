"""Every error that this project raises on purpose.

    OaplError
    +-- ConfigError    the experiment file or an override is wrong: nothing was started
    +-- DataError      a file that was read is missing, broken, or does not belong to this run
    +-- StageFailed    a stage's process ended without its artifact
    |   +-- Diverged   the loss or its gradient became infinite or not a number: the same again would again
    +-- SandboxError   the sandbox cannot be trusted here: nothing untrusted was run
    +-- LedgerError    the run folder's record contradicts itself
    |   +-- Held       another process works on the run folder
    +-- Interrupted    a person or a scheduler stopped it; the same command continues
    +-- Stopped        a rule of [stop] ended the run; a higher limit continues it

A message says what is wrong, where, and what to do. ``ValueError`` is raised for a wrong argument of a public
function, ``assert`` guards our own invariants.
"""


class OaplError(Exception):
    """Root of the hierarchy; its text is shown to a person as it is, in one line."""

    exit_code = 1


class ConfigError(OaplError):
    """An experiment file, override or option that cannot be used."""

    exit_code = 2


class DataError(OaplError):
    """A problem set, model folder or artifact that is missing, broken or foreign."""

    exit_code = 2


class StageFailed(OaplError):
    """A stage ended without its artifact; what was finished before stays recorded in the ledger."""

    exit_code = 1


class Diverged(StageFailed):
    """Training ended in numbers that are not finite: a result of its settings, which no retry changes."""

    exit_code = 5


class SandboxError(OaplError):
    """No isolation level could be proven; untrusted programs are refused rather than run unprotected."""

    exit_code = 3


class LedgerError(OaplError):
    """The ledger contradicts itself."""

    exit_code = 4


class Held(LedgerError):
    """Another live process works on the same run folder."""


class Interrupted(OaplError):
    """A person pressed Ctrl-C, or a scheduler sent a signal."""

    exit_code = 130


class Stopped(OaplError):
    """A rule of ``[stop]`` ended the run, which is no failure; the text follows "stopped"."""

    exit_code = 0
