"""Runs commands of `./carride` for the desk.

First the dry run, and with --yes once somebody has confirmed it.
"""

import os
import secrets
import shlex
import signal
import sys
import threading
from collections import deque
from collections.abc import Mapping
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import Final

from ops.regions import ROOT
from ops.stack import OperatorError, StackRef

_ACTS: Final = frozenset({"redrive", "release", "replay run", "replay cancel"})
_OFFERED: Final = _ACTS | {"replay plan"}
"""The verbs that the desk runs."""
_OPTIONS: Final = frozenset(
    {"", "group", "key", "letter", "limit", "release", "since", "until", "only"}
)
"""The options that it passes on; the empty name is the argument without a name."""
_MOST_JOBS: Final = 50
_MOST_LINES: Final = 1_000
_ENDS_SECONDS: Final = 5.0


class Job:
    """A command that runs or has run.

    A verb, and the words of its command line, which begin with the verb.
    """

    def __init__(
        self, verb: str, words: list[str], stack: StackRef, *, plan: str, confirmed: bool
    ) -> None:
        self.verb = verb
        self.words = words
        self.plan = plan
        """Id of the plan that it shows or carries out."""
        self.asks = verb in _ACTS and not confirmed
        """Whether it changes nothing until it is confirmed."""
        self.lines: deque[str] = deque(maxlen=_MOST_LINES)
        """What it has printed."""
        self.status: int | None = None
        """Its exit status; None while it runs."""
        typed = [*words]
        if verb in _ACTS:
            typed.append(f"--plan={plan}")
        if confirmed:
            typed.append("--yes")
        self.command = shlex.join(["./carride", *typed])
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        if stack.local is not None:
            # The engine's own.
            test = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
            environment |= {"AWS_ENDPOINT_URL": stack.local.endpoint, **test}
        command = [
            sys.executable,
            "-m",
            "ops",
            *typed,
            f"--stack={stack.name}",
            f"--region={stack.region}",
        ]
        self._process = Popen(
            command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, cwd=ROOT, env=environment
        )
        self.reader = threading.Thread(target=self._read, name=f"desk-{verb}", daemon=True)
        """Reads what it prints, and ends with it."""
        self.reader.start()

    def interrupt(self) -> None:
        """End it as Ctrl-C does: it says what goes on and how to continue."""
        if self.status is None:
            self._process.send_signal(signal.SIGINT)

    def _read(self) -> None:
        with self._process as process:
            for line in process.stdout or ():
                self.lines.append(line.rstrip())
        self.status = self._process.returncode


class Jobs:
    """The newest jobs by their ids."""

    def __init__(self, stack: StackRef) -> None:
        self._stack = stack
        self._jobs: dict[str, Job] = {}
        self.get = self._jobs.get

    def newest(self) -> list[tuple[str, Job]]:
        """Return the jobs with their ids, the newest first."""
        return [*reversed(self._jobs.items())]

    def running(self) -> int:
        """Return how many jobs run."""
        return sum(job.status is None for job in self._jobs.values())

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
        return self._add(verb, words, plan=secrets.token_hex(4), confirmed=False)

    def confirm(self, name: str) -> str:
        """Do exactly what a dry run has shown, or nothing, and return the new job's id.

        Raises:
            OperatorError: there is no such dry run, or it has not ended well.
        """
        job = self.get(name)
        if job is None or not job.asks or job.status != 0:
            raise OperatorError("there is no such preview: start it again")
        return self._add(job.verb, job.words, plan=job.plan, confirmed=True)

    def stop(self) -> None:
        """Interrupt all jobs, and wait for the ends of what they clean up."""
        for job in self._jobs.values():
            job.interrupt()
        for job in self._jobs.values():
            job.reader.join(_ENDS_SECONDS)

    def _add(self, verb: str, words: list[str], *, plan: str, confirmed: bool) -> str:
        name = secrets.token_hex(4)
        self._jobs[name] = Job(verb, words, self._stack, plan=plan, confirmed=confirmed)
        if len(self._jobs) > _MOST_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return name


def _argument(name: str, value: str) -> str:
    """Return an option as it is written on a command line."""
    if not name:
        return value
    if value == "on":
        return f"--{name}"
    return f"--{name}={value}"
