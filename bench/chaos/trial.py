"""One trial: a fault drawn from a seed, then the same command to the end, then everything compared.

Each function ``_hurt_*`` is a kind of fault. It hurts the run, which was put back whole, and returns how its commands
ended; its docstring is the row's text in docs/benchmarks/chaos.md.
"""

import errno
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.chaos.compare import differences
from bench.chaos.family import facts, line_of
from bench.chaos.world import ROOT, VARIANTS, Control, Ended, Started, World, signal_to
from oapl_core.planning.plan import Step, steps
from oapl_core.run_folder.checking import findings
from oapl_core.run_folder.run import Run

_OTHER_SERVER = 0.6
"""Share of the trials whose runs use a Prefect server that was there before; the others start one of their own."""
_MOST_STARTS = 4
"""Times that the same command is given after the fault."""
_APPEARS_S = 60.0
"""Seconds that are waited, after the moment of the fault, for a process that is to be killed."""
_FORK_SERVER, _WORKER = "oapl_core.sandbox.fork_server", "oapl_core.verdicts.workers."
"""What command lines of the verifier's processes have."""
_ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EROFS": errno.EROFS}


@dataclass
class Outcome:
    """One line of the results."""

    trial: int
    variant: str
    fault: str
    server: str = ""
    """Prefect's server: its own or another."""
    what: str = ""
    """Details of the fault."""
    starts: int = 0
    """Times that the command was given after the fault until it ended well."""
    refusals: list[str] = field(default_factory=list)
    """Lines with which commands refused or failed."""
    wrong: list[str] = field(default_factory=list)
    """Everything that should not have happened; empty, and something was hit: the trial held."""
    hit_nothing: bool = False
    """Whether there was nothing to hurt: the command had ended, or no such process or file was there."""
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


class Trial:
    """A fault and its random choices."""

    def __init__(self, number: int, worlds: Callable[[str], World], only: Sequence[str] = ()) -> None:
        """``worlds`` gives the place of a variant; ``only`` these kinds of fault and variants are drawn."""
        self.number, self.draw = number, random.Random(f"chaos {number}")
        variants = [name for name in VARIANTS if not set(only) & VARIANTS.keys() or name in only]
        faults = [name for name in FAULTS if not set(only) & FAULTS.keys() or name in only]
        possible = {name: [v for v in variants if v in (FAULTS[name].variants or VARIANTS)] for name in faults}
        faults = [name for name in faults if possible[name]]
        self.fault = self.draw.choices(faults, [FAULTS[name].weight for name in faults])[0]
        self.world = worlds(self.draw.choice(possible[self.fault]))
        self.world.uses_server = self.draw.random() < _OTHER_SERVER
        server = "another" if self.world.uses_server else "its own"
        self.outcome = Outcome(number, self.world.variant, self.fault, server)

    def carry_out(self) -> Outcome:
        """Hurt, start again until the end, compare."""
        began = time.monotonic()
        whole, run = self.world.undisturbed, self.world.restore()
        for ended in FAULTS[self.fault].hurt(self, run):
            self.note(ended)
        left = self.world.leftovers()
        self.outcome.wrong += [f"process left: {line}" for line in left]
        if self.to_the_end():
            self.compare(whole)
        self.outcome.seconds = round(time.monotonic() - began, 1)
        return self.outcome

    def note(self, ended: Ended) -> None:
        """Keep what a command said, and what is wrong with it."""
        if ended.error:
            self.outcome.refusals.append(self.placeless(ended.error))
        if ended.wrong:
            self.outcome.wrong.append(self.placeless(ended.wrong))

    def placeless(self, line: str) -> str:
        """A line without the folder that the trial worked in, which differs on each machine."""
        for place, name in ((self.world.run_dir, "RUN"), (self.world.folder, "DIR"), (ROOT, "CHECKOUT")):
            line = line.replace(str(place), name)
        return line[:400]

    def to_the_end(self) -> bool:
        """Give the same command until it ends well; whether it did."""
        for number in range(1, _MOST_STARTS + 1):
            ended = self.world.oapl(self.world.command)
            self.outcome.starts = number
            if ended.code == 0:
                return True
            self.note(ended)
            self.follow_the_advice(ended.error)
        self.outcome.wrong.append(f"stuck: {_MOST_STARTS} starts did not end well")
        return False

    def follow_the_advice(self, line: str) -> None:
        """Do what a line of a refusal says, as a person would."""
        if found := re.search(r"ledger\.jsonl: line (\d+) .*delete the line", line):
            ledger = self.world.run_dir / "ledger.jsonl"
            lines = ledger.read_bytes().split(b"\n")
            del lines[int(found[1]) - 1]
            ledger.write_bytes(b"\n".join(lines))
            self.outcome.what += "; that line deleted, as was said"
        elif "with another history" in line:
            shutil.rmtree(self.world.run_dir)
            self.outcome.what += "; the folder deleted, as was said, to fetch the run"
        elif "run.json" in line:
            shutil.copyfile(self.world.undisturbed.root / "run.json", self.world.run_dir / "run.json")
            self.outcome.what += "; run.json put back, as was said"
        elif (model := re.search(r"(/\S+/cache/models/[0-9a-f]+)", line)) and Path(model[1]).exists():
            shutil.rmtree(model[1])
            self.outcome.what += "; the base model deleted"

    def compare(self, whole: Run) -> None:
        """Note whatever is not as in the undisturbed run."""
        hurt = Run.open(self.world.run_dir)
        found = differences(whole, hurt)
        found += [f"oapl check: {looked.name} {looked.wrong}" for looked in findings(hurt) if looked.wrong]
        left = sorted(self.world.left_in_temporary())
        found += [f"left in TMPDIR: {name}" for name in left]
        self.outcome.wrong += found[:12] + [f"and {len(found) - 12} more"] * (len(found) > 12)

    # What faults choose from

    def step(self, *verbs: str) -> Step:
        """A step of the plan, one of these verbs if any are given."""
        planned = [step for step in steps(self.world.undisturbed.config) if step.verb != "pretraining.pretrain"]
        return self.draw.choice([step for step in planned if not verbs or step.verb in verbs])

    def redo(self, step: Step) -> list[str]:
        """Arguments that make ``step`` again, or all from it on."""
        how = "--from-stage" if self.draw.random() < 0.15 else "--redo"
        number = [] if step.round is None else ["--round", str(step.round)]
        return ["run", str(self.world.run_dir), how, step.word, *number]

    def moment(self, started: Started, step: Step) -> None:
        """Wait for a random moment of ``step``: from its start to a little past its usual end.

        Notes that nothing is hit if the command is over by then: it was refused, or ended sooner than usual.
        """
        started.wait_until(lambda: f"{step.title}: starting" in started.output, 120)
        seconds = self.draw.uniform(0, 1.1 * self.world.seconds.get(step.label, 5.0))
        self.outcome.what += f"{step.title} + {seconds:.1f} s"
        started.sleep(seconds)
        self.outcome.hit_nothing = started.is_over

    def file(self, below: Path, accepted: Callable[[Path], bool] = lambda _: True) -> Path | None:
        """A random file, each kind of file as likely as any other; None if there is none."""
        kinds: dict[str, list[Path]] = {}
        for path in sorted(path for path in below.rglob("*") if path.is_file() and path.stat().st_size):
            if accepted(path):
                kinds.setdefault(re.sub(r"\d+", "N", path.relative_to(below).as_posix()), []).append(path)
        return self.draw.choice(kinds[self.draw.choice(sorted(kinds))]) if kinds else None

    def damage(self, path: Path) -> None:
        """Flip a bit (sometimes without another modification time, as a disk does), cut, empty or delete a file."""
        how = self.draw.choice(["flip", "flip", "rot", "cut", "cut", "empty", "delete"])
        before, content = path.stat(), bytearray(path.read_bytes())
        place = self.draw.randrange(max(1, len(content)))
        if how in ("flip", "rot") and content:
            content[place] ^= 1 << self.draw.randrange(8)
        elif how == "cut":
            del content[place:]
        elif how == "empty":
            content.clear()
        path.write_bytes(content)
        if how == "rot":
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        if how == "delete":
            path.unlink()
        name = path.relative_to(self.world.folder).as_posix().removeprefix("runs/chaos-seed0/")
        self.outcome.what += f"; {how} {name} at {place:,} of {before.st_size:,}"


def _targets(trial: Trial, started: Started) -> dict[str, list[int]]:
    """Processes of a running command, by what they are."""
    found: dict[str, list[int]] = {"oapl": [started.process.pid]}
    for process, line in trial.world.family.living().items():
        if process == started.process.pid:
            continue
        kind = "other descendant"
        if "oapl_core.guard" in line:
            kind = "guard"
        elif "prefect" in line or "uvicorn" in line:
            kind = "Prefect server"
        elif _FORK_SERVER in line and _is_below_fork_server(process):
            continue  # it may be a program that is judged, and a signal to that is the program's own
        elif _FORK_SERVER in line or _WORKER in line:
            kind = "verifier"
        elif "-m oapl_core." in line:
            kind = "stage"
        found.setdefault(kind, []).append(process)
    return found


def _is_below_fork_server(process: int) -> bool:
    """Whether a fork server forked it: such a child, of which judged programs are some, keeps the command line."""
    found = facts(process)
    return found is None or _FORK_SERVER in line_of(found[0])


def _workers(trial: Trial, started: Started) -> list[int]:
    """Processes of the verifier that are ready to judge.

    A sandbox proves its level on its first fork server, then starts one after the other. So only the youngest may still
    be proven, or be starting.
    """
    processes = _targets(trial, started).get("verifier", [])
    servers = [process for process in processes if _FORK_SERVER in line_of(process)]
    youngest = max(servers, key=lambda process: (facts(process) or (0, 0))[1], default=0)
    return [process for process in processes if process != youngest]


def _hurt_signal(trial: Trial, _run: Run) -> Iterator[Ended]:
    """A signal (KILL, TERM, INT, or STOP and later CONT) to one process of a stage that is made again."""
    step = trial.step()
    with trial.world.start(trial.redo(step)) as started:
        trial.moment(started, step)
        targets = _targets(trial, started)
        kind = trial.draw.choice(sorted(targets))
        process = trial.draw.choice(targets[kind])
        name = trial.draw.choice(["SIGKILL", "SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP"])
        trial.outcome.what += f"; {name} to {kind}"
        trial.outcome.hit_nothing = not signal_to(process, signal.Signals[name])
        if name == "SIGSTOP":
            started.sleep(trial.draw.uniform(2, 15))
            signal_to(process, signal.SIGCONT)
        yield started.wait(420)


def _hurt_power_cut(trial: Trial, _run: Run) -> Iterator[Ended]:
    """SIGKILL to every process at once, as a power cut would, while a stage is made again."""
    step = trial.step()
    with trial.world.start(trial.redo(step)) as started:
        trial.moment(started, step)
        for process in trial.world.family.living():
            signal_to(process, signal.SIGKILL)
        yield started.wait(60)


def _hurt_interrupts(trial: Trial, _run: Run) -> Iterator[Ended]:
    """Ctrl-C at two to four random moments, each time followed by the same command."""
    step = trial.step("rollouts.generate", "training.train", "evaluation.evaluate")
    arguments, hit = trial.redo(step), list[bool]()
    for _ in range(trial.draw.randint(2, 4)):
        with trial.world.start(arguments) as started:
            trial.moment(started, step)
            hit.append(signal_to(started.process.pid, signal.SIGINT))
            yield started.wait(120)
        trial.outcome.what += ", "
        arguments = trial.world.command
    trial.outcome.hit_nothing = not any(hit)


def _hurt_disk(trial: Trial, _run: Run) -> Iterator[Ended]:
    """Writes below the run folder fail with ENOSPC, EIO or EROFS, all or 3 % of them, from a random moment on."""
    step = trial.step()
    name, percent = trial.draw.choice(sorted(_ERRORS)), trial.draw.choice([100, 3])
    control = Control(trial.world.folder / "control")
    with trial.world.start(trial.redo(step), below=trial.world.run_dir) as started:
        trial.moment(started, step)
        trial.outcome.what += f"; {name} for {percent} %"
        control.set(_ERRORS[name], percent)
        ended = started.wait(300)
        control.set()
        yield ended


def _hurt_clock(trial: Trial, _run: Run) -> Iterator[Ended]:
    """The clock jumps by up to a day, forwards or back, at a random moment."""
    step = trial.step()
    ahead = trial.draw.choice([-86_400, -3_600, -5, 5, 3_600, 86_400])
    with trial.world.start(trial.redo(step), below=trial.world.run_dir) as started:
        trial.moment(started, step)
        trial.outcome.what += f"; by {ahead} s"
        Control(trial.world.folder / "control").set(ahead_s=ahead)
        yield started.wait(420)


def _hurt_limits(trial: Trial, _run: Run) -> Iterator[Ended]:
    """A limit of address space (1 to 8 GiB) or of descriptors (48 to 256) for the whole command."""
    step = trial.step()
    memory = trial.draw.choice([1, 2, 4, 8]) * 2**30
    limit = trial.draw.choice([f"--as={memory}", f"--nofile={trial.draw.choice([48, 96, 256])}"])
    trial.outcome.what = f"{step.title}; {limit}"
    with trial.world.start(trial.redo(step), limits=["prlimit", limit]) as started:
        yield started.wait(300)


def _hurt_file(trial: Trial, run: Run) -> Iterator[Ended]:
    """A file of the finished run is flipped, cut, emptied or deleted; `oapl check` looks, then the run continues."""
    path = trial.file(run.root, lambda p: not {"logs", "superseded"} & set(p.relative_to(run.root).parts))
    assert path is not None
    trial.damage(path)
    ended = _looked_at(trial, run)
    if "rot " in trial.outcome.what and ended.code == 0 and "damaged" not in ended.output:
        is_recorded = path.name not in ("run.json", "ledger.jsonl", "run.lock")
        trial.outcome.wrong += ["oapl check does not see the damage"] * is_recorded
    yield ended


def _hurt_file_while_running(trial: Trial, run: Run) -> Iterator[Ended]:
    """A file is flipped, cut, emptied or deleted at a random moment of a stage."""
    step = trial.step()
    with trial.world.start(trial.redo(step)) as started:
        trial.moment(started, step)
        path = trial.file(run.root, lambda p: not {"logs", "superseded"} & set(p.relative_to(run.root).parts))
        if path:
            trial.damage(path)
        trial.outcome.hit_nothing = path is None
        yield started.wait(420)
    if "rot " in trial.outcome.what:
        trial.world.leftovers()
        yield _looked_at(trial, run)


def _looked_at(trial: Trial, run: Run) -> Ended:
    """`oapl check` on the run; that it says what is damaged, with an exit code and no error line, is its job."""
    ended = trial.world.oapl(["check", str(run.root)])
    found = ended.code == 2 and "damaged" in ended.output
    return Ended(0 if found else ended.code, ended.output, ended.seconds)


def _hurt_base_model(trial: Trial, run: Run) -> Iterator[Ended]:
    """A file of the base model, which lies in the cache, is damaged; then a stage that reads it is made again."""
    path = trial.file(run.base_model())
    assert path is not None
    trial.damage(path)
    yield trial.world.oapl(["run", str(run.root), "--redo", "sampling", "--round", "0"])


def _hurt_ledger(trial: Trial, run: Run) -> Iterator[Ended]:
    """A line of the ledger is deleted, doubled, torn, garbled or one bit of it flipped."""
    lines = run.ledger.path.read_bytes().splitlines(keepends=True)
    number = trial.draw.randrange(len(lines))
    how = trial.draw.choice(["delete", "delete", "double", "tear the last", "garble", "flip"])
    trial.outcome.what = f"{how} line {number + 1} of {len(lines)}: {lines[number][:90].decode()}"
    if how == "delete":
        del lines[number]
    elif how == "double":
        lines.insert(number, lines[number])
    elif how == "tear the last":
        lines[-1] = lines[-1][: trial.draw.randrange(1, len(lines[-1]))]
    elif how == "garble":
        lines[number] = bytes(trial.draw.randrange(256) for _ in range(40)).replace(b"\n", b"") + b"\n"
    else:
        line = bytearray(lines[number])
        line[trial.draw.randrange(len(line) - 1)] ^= 1 << trial.draw.randrange(8)
        lines[number] = bytes(line)
    run.ledger.path.write_bytes(b"".join(lines))
    yield from ()


def _hurt_state(trial: Trial, run: Run) -> Iterator[Ended]:
    """Training is stopped inside an epoch, and a file of its saved state is damaged."""
    step = trial.step("training.train")
    with trial.world.start(trial.redo(step)) as started:
        states = run.states(step.round or 0)
        started.wait_until(lambda: any(states.glob("epoch_*")), 120)
        started.sleep(trial.draw.uniform(0, 1.0))
        signal_to(started.process.pid, trial.draw.choice([signal.SIGTERM, signal.SIGINT, signal.SIGKILL]))
        yield started.wait(120)
    trial.world.leftovers()
    path = trial.file(states) if states.exists() else None
    trial.outcome.what, trial.outcome.hit_nothing = step.title, path is None
    if path:
        trial.damage(path)


def _hurt_two_starts(trial: Trial, _run: Run) -> Iterator[Ended]:
    """The same run is started a second time while it works; sometimes the first is killed then."""
    step = trial.step()
    with trial.world.start(trial.redo(step)) as started:
        trial.moment(started, step)
        with trial.world.start(["run", str(trial.world.run_dir)], output="second") as other:
            second = other.wait(420)
        if second.code == 0 and started.process.poll() is None:
            trial.outcome.wrong.append("two commands worked on one run")
        yield second
        if trial.draw.random() < 0.5:
            signal_to(started.process.pid, signal.SIGKILL)
            trial.outcome.what += "; then the first is killed"
        yield started.wait(420)


def _hurt_settings(trial: Trial, run: Run) -> Iterator[Ended]:
    """Other settings under the same name, on the command line or in run.json, by hand."""
    if trial.draw.random() < 0.4:
        change = trial.draw.choice(["training.learning_rate=1e-3", "sampling.max_tokens=16", "objective.name=grpo"])
        trial.outcome.what = change
        ended = trial.world.oapl([*trial.world.command, change])
        if ended.code == 0:
            trial.outcome.wrong.append("other settings were taken")
        yield ended
        return
    path = run.root / "run.json"
    text = path.read_text()
    numbers = list(re.finditer(r'": (\d[\d.e-]*)', text))
    found = trial.draw.choice(numbers)
    trial.outcome.what = f"run.json: {text[max(0, found.start() - 25) : found.end()].split(chr(34))[-2]} made another"
    path.write_text(f"{text[: found.start(1)]}{int(float(found[1])) + 3}{text[found.end(1) :]}")
    ended = trial.world.oapl(["run", str(run.root)])
    if ended.code == 0:
        trial.outcome.wrong.append("settings that somebody changed in run.json were believed")
        shutil.copyfile(trial.world.undisturbed.root / "run.json", path)
    yield ended


def _hurt_rank(trial: Trial, _run: Run) -> Iterator[Ended]:
    """One rank of two is killed while it trains, or one of two engines while it samples."""
    step = trial.step("training.train", "rollouts.generate")
    with trial.world.start(trial.redo(step)) as started:
        trial.moment(started, step)
        _kill_one(trial, started, lambda: [p for p, line in trial.world.family.living().items() if _is_rank(p, line)])
        yield started.wait(420)


def _is_rank(process: int, line: str) -> bool:
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return "--replica" in line or any(name.startswith(b"RANK=") for name in variables)


def _hurt_share(trial: Trial, _run: Run) -> Iterator[Ended]:
    """A worker of the verifier is killed while it judges."""
    step = trial.step("verdicts.verify", "evaluation.evaluate")
    with trial.world.start(trial.redo(step)) as started:
        trial.moment(started, step)
        _kill_one(trial, started, lambda: _workers(trial, started))
        yield started.wait(420)


def _kill_one(trial: Trial, started: Started, found: Callable[[], list[int]]) -> None:
    """Kill one of these processes as soon as there are any; notes how many there were, or that nothing was hit."""
    started.wait_until(lambda: bool(found()), _APPEARS_S)
    there = found()
    trial.outcome.hit_nothing = not (there and signal_to(trial.draw.choice(there), signal.SIGKILL))
    trial.outcome.what += f"; one of {len(there)}" if there else "; none was there"


def _hurt_store(trial: Trial, _run: Run) -> Iterator[Ended]:
    """The mirror fails, is damaged or loses a folder while a stage is made again."""
    step, mirror = trial.step(), trial.world.folder / "mirror"
    how = trial.draw.choice(["errors", "a damaged file", "a deleted folder"])
    control = Control(trial.world.folder / "control")
    with trial.world.start(trial.redo(step), below=mirror) as started:
        trial.moment(started, step)
        trial.outcome.what += f"; {how}"
        if how == "errors":
            control.set(errno.EIO, trial.draw.choice([100, 20]))
        elif how == "a deleted folder":
            shutil.rmtree(trial.draw.choice(sorted(p for p in mirror.rglob("*") if p.is_dir())), ignore_errors=True)
            trial.outcome.hit_nothing = False
        elif path := trial.file(mirror):
            trial.damage(path)
            trial.outcome.hit_nothing = False
        started.sleep(trial.draw.uniform(1, 8))
        control.set()
        yield started.wait(420)


@dataclass(frozen=True)
class Fault:
    """A kind of fault."""

    hurt: Callable[[Trial, Run], Iterator[Ended]]
    weight: float = 1.0
    variants: tuple[str, ...] = ()
    """Variants that it can be tried on; empty: all."""

    @property
    def text(self) -> str:
        """The sentence that says what it does."""
        return (self.hurt.__doc__ or "").strip()


FAULTS: dict[str, Fault] = {
    "signal": Fault(_hurt_signal, 4),
    "power cut": Fault(_hurt_power_cut, 2),
    "interrupts": Fault(_hurt_interrupts),
    "disk": Fault(_hurt_disk, 3),
    "clock": Fault(_hurt_clock),
    "limits": Fault(_hurt_limits),
    "file": Fault(_hurt_file, 3),
    "file while running": Fault(_hurt_file_while_running, 2),
    "base model": Fault(_hurt_base_model, 0.5),
    "ledger": Fault(_hurt_ledger, 3),
    "state": Fault(_hurt_state, 2),
    "two starts": Fault(_hurt_two_starts),
    "settings": Fault(_hurt_settings),
    "rank": Fault(_hurt_rank, 1, ("ranks",)),
    "share": Fault(_hurt_share),
    "store": Fault(_hurt_store, 1, ("mirror",)),
}
