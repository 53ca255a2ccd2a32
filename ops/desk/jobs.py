"""Runs commands of `./carride` for the desk.

First the dry run, which makes a plan; and with --yes once somebody has confirmed that plan. A
command prints its result as JSON, and its progress in words.
"""

import json
import os
import secrets
import shlex
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from enum import StrEnum
from subprocess import DEVNULL, PIPE, Popen
from typing import Any, Final, NamedTuple

from ops import plans
from ops.cli.line import STAGES
from ops.desk.changes import carried_out
from ops.regions import ROOT
from ops.stack import OperatorError, StackRef
from ops.verbs import Stage

_ACTS: Final = frozenset({"redrive", "release", "replay run", "replay cancel"})
_OFFERED: Final = _ACTS | {"replay plan"}
"""The verbs that the desk runs."""
_OPTIONS: Final = frozenset(
    {"", "group", "key", "letter", "limit", "release", "since", "until", "only"}
)
"""The options that it passes on; the empty name is the argument without a name."""
_MOST_JOBS: Final = 50
_MOST_LINES: Final = 50
_LONGEST_RESULT: Final = 5_000_000
_ENDS_SECONDS: Final = 5.0
_WRONG: Final = 1
_INTERRUPTED: Final = 130


class State(StrEnum):
    """Where a job is."""

    PLANNING = "planning"
    WAITS = "waits for you"
    RUNNING = "running"
    DONE = "done"
    WRONG = "done, not all well"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    EXPIRED = "expired"
    """Its plan is too old to be carried out: what it has shown may have changed."""
    NOTHING = "nothing to do"
    """Its plan would change nothing."""
    DISCARDED = "discarded"
    CARRIED_OUT = "carried out"
    """Its plan is: another job has done it."""
    RUNS_ELSEWHERE = "running on the command line"
    """Its plan is being carried out by a command that is not in the log of changes yet."""
    CUT_OFF = "cut off"
    """A command has begun to carry its plan out, and was killed before it could log anything."""
    ELSEWHERE = "carried out on the command line"
    """Its plan is, and not by a job of this desk."""


_UNDECIDED: Final = frozenset({State.WAITS, State.EXPIRED, State.RUNS_ELSEWHERE, State.CUT_OFF})
"""Where a plan is that a command may carry out, or may have carried out."""


class Share(NamedTuple):
    """How far a job is."""

    done: int
    total: int


def _stage_in(line: str) -> Stage | None:
    """Return the stage that a line of a command tells; None if it is another line."""
    if not line.startswith('{"stage"'):
        return None
    try:
        return Stage(**json.loads(line)["stage"])
    except (ValueError, TypeError):
        return None


class Job:
    """A command that runs or has run.

    A verb, and the words of its command line, which begin with the verb.
    """

    def __init__(
        self, verb: str, words: list[str], stack: StackRef, *, plan: str, previewed: Any = None
    ) -> None:
        """``previewed`` is what the plan has shown that it carries out; None if it makes one."""
        self.id = secrets.token_hex(4)
        self.verb = verb
        self.words = words
        self.plan = plan
        """Id of the plan that it makes or carries out."""
        self.previewed = previewed
        self.confirmed = previewed is not None
        self.asks = verb in _ACTS and not self.confirmed
        """Whether it changes nothing until it is confirmed."""
        self.began = time.time()
        self.ended: float | None = None
        self.lines: deque[str] = deque(maxlen=_MOST_LINES)
        """What it has said, besides its stages."""
        self.stage: Stage | None = None
        """The newest one that it has told."""
        self.result: Any = None
        """What it has returned, in JSON; None if nothing."""
        self.status: int | None = None
        """Its exit status; None while it runs."""
        self.left: State | None = None
        """What became of its plan, if that does not wait any more."""
        typed = [*words]
        if verb in _ACTS:
            typed.append(f"--plan={plan}")
        if self.confirmed:
            typed.append("--yes")
        self.command = shlex.join(["./carride", *typed])
        self._process = _process([*typed, "--json"], stack)
        said = threading.Thread(target=self._listen, name=f"desk-{verb}-said", daemon=True)
        said.start()
        self.reader = threading.Thread(target=self._read, args=[said], name=f"desk-{verb}")
        """Reads what it prints, and ends with it."""
        self.reader.daemon = True
        self.reader.start()

    @property
    def state(self) -> State:
        """Where it is."""
        if self.status is None:
            return State.PLANNING if self.asks else State.RUNNING
        if self.status == _INTERRUPTED:
            return State.INTERRUPTED
        if self.status == _WRONG:
            return State.WRONG
        if self.status:
            return State.REFUSED
        if not self.asks:
            return State.DONE
        if self.left is not None:
            return self.left
        return State.EXPIRED if time.time() > self.expires else State.WAITS

    @property
    def expires(self) -> float:
        """Until when its plan can be carried out, in seconds of the epoch."""
        return self.began + plans.LIVES.total_seconds()

    @property
    def says(self) -> str:
        """The newest line that it has said; empty if it has said nothing."""
        return self.lines[-1] if self.lines else ""

    @property
    def share(self) -> Share | None:
        """How far it is, if it says so in numbers."""
        stage = self.stage
        if stage is None or not stage.total or stage.done is None or self.status is not None:
            return None
        return Share(stage.done, stage.total)

    def interrupt(self) -> None:
        """End it as Ctrl-C does: it says what goes on and how to continue."""
        if self.status is None:
            self._process.send_signal(signal.SIGINT)

    def _listen(self) -> None:
        for line in self._process.stderr or ():
            stage = _stage_in(line)
            if stage is not None:
                self.stage = stage
            elif line.strip():
                self.lines.append(line.rstrip())

    def _read(self, said: threading.Thread) -> None:
        with self._process as process:
            text = process.stdout.read(_LONGEST_RESULT) if process.stdout else ""
            said.join()
        try:
            self.result = json.loads(text)
        except ValueError:
            self.result = None
        self.ended = time.time()
        status = self._process.returncode
        if self.asks and not status and plans.is_empty(self.plan):
            self.left = State.NOTHING
        self.status = status


def _process(typed: list[str], stack: StackRef) -> Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", STAGES: "1"}
    if stack.local is not None:
        # The engine's own.
        test = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        environment |= {"AWS_ENDPOINT_URL": stack.local.endpoint, **test}
    where = [f"--stack={stack.name}", f"--region={stack.region}"]
    return Popen(
        [sys.executable, "-m", "ops", *typed, *where],
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        errors="replace",
        cwd=ROOT,
        env=environment,
    )


class Jobs:
    """The newest jobs by their ids."""

    def __init__(self, stack: StackRef) -> None:
        self._stack = stack
        self._jobs: dict[str, Job] = {}
        self.get = self._jobs.get

    def newest(self) -> list[Job]:
        """Return the jobs, the newest first."""
        return [*reversed(self._jobs.values())]

    def look(self) -> None:
        """Find out which of the plans that wait were carried out by a command, or are by now."""
        waiting = [job for job in self._jobs.values() if job.state in _UNDECIDED]
        taken = {job.plan for job in waiting if not plans.is_kept(job.plan)}
        runs = {plan: plans.run_of(plan) for plan in taken}
        # The log is read last: a command writes its line before it says that it has ended.
        done = carried_out(taken) if taken else set()
        for job in waiting:
            run = runs.get(job.plan)
            if job.plan in done:
                job.left = State.ELSEWHERE
            elif run is None:
                job.left = None
            else:
                job.left = State.RUNS_ELSEWHERE if run.is_running else State.CUT_OFF

    @property
    def names(self) -> list[str]:
        """Their ids."""
        return [*self._jobs]

    def running(self) -> int:
        """Return how many jobs run."""
        return sum(job.status is None for job in self._jobs.values())

    def waiting(self) -> int:
        """Return how many plans wait for somebody."""
        return sum(job.state is State.WAITS for job in self._jobs.values())

    def start(self, verb: str, arguments: Mapping[str, str]) -> str:
        """Start the dry run of a verb and return the job's id.

        Options are given by name, and the argument without a name under the empty one; ``on`` is a
        flag.

        Raises:
            OperatorError: the desk does not offer the verb or an option.
        """
        if verb not in _OFFERED:
            raise OperatorError(f"the desk does not run {verb}")
        words = verb.split()
        for name, value in arguments.items():
            if name not in _OPTIONS or (not name and value.startswith("-")):
                raise OperatorError(f"the desk does not run {verb} with {name} {value}")
            if value:
                words.append(_argument(name, value))
        return self._add(verb, words, plan=secrets.token_hex(4))

    def again(self, name: str) -> str:
        """Start the dry run of a job again, for a new plan, and return the new job's id.

        Raises:
            OperatorError: there is no such job.
        """
        job = self._known(name)
        return self._add(job.verb, job.words, plan=secrets.token_hex(4))

    def confirm(self, name: str) -> str:
        """Do exactly what a dry run has shown, or nothing, and return the new job's id.

        Raises:
            OperatorError: there is no such dry run, or it has not ended well.
        """
        job = self._known(name)
        self.look()
        if job.state is not State.WAITS:
            raise OperatorError(f"this plan is {job.state}: plan it again")
        job.left = State.CARRIED_OUT
        shown = {} if job.result is None else job.result
        return self._add(job.verb, job.words, plan=job.plan, previewed=shown)

    def discard(self, name: str) -> None:
        """Make sure that a plan is not carried out.

        Raises:
            OperatorError: there is no such job, or a command has carried its plan out.
        """
        job = self._known(name)
        self.look()
        if job.state in (State.ELSEWHERE, State.RUNS_ELSEWHERE, State.CUT_OFF):
            raise OperatorError(f"this plan is {job.state}")
        if job.state is State.WAITS:
            plans.discard(job.plan)
            job.left = State.DISCARDED

    def stop(self) -> None:
        """Interrupt all jobs, and wait for the ends of what they clean up."""
        for job in self._jobs.values():
            job.interrupt()
        for job in self._jobs.values():
            job.reader.join(_ENDS_SECONDS)

    def _known(self, name: str) -> Job:
        job = self.get(name)
        if job is None:
            raise OperatorError("there is no such job here any more: start it again")
        return job

    def _add(self, verb: str, words: list[str], *, plan: str, previewed: Any = None) -> str:
        job = Job(verb, words, self._stack, plan=plan, previewed=previewed)
        self._jobs[job.id] = job
        too_many = len(self._jobs) - _MOST_JOBS
        for name in _oldest_ended(self._jobs.values(), too_many):
            del self._jobs[name]
        return job.id


def _oldest_ended(jobs: Iterable[Job], count: int) -> list[str]:
    """Return the ids of so many jobs that have ended, the oldest first."""
    ended = [job.id for job in jobs if job.status is not None]
    return ended[: max(0, count)]


def _argument(name: str, value: str) -> str:
    """Return an option as it is written on a command line."""
    if not name:
        return value
    if value == "on":
        return f"--{name}"
    return f"--{name}={value}"
