"""The way of a request through virtual time, and what may happen to it on the way.

The application's world and the shop say which requests meet which faults. What each kind of fault
does to a request stands here.
"""

from collections import Counter
from collections.abc import Callable, Container, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Final
from unittest.mock import patch

from carride_idempotency import dead_letters
from carride_idempotency.stores import signing
from carride_idempotency.stores.retries import Retries
from carride_idempotency.testing import START_MS, FakeDynamoDB, World
from virtual_time.scheduler import Killed, Simulation, here
from virtual_time.threads import Lock, Thread

KILLED_BEFORE: Final = "killed before"
KILLED_AFTER: Final = "killed after"
REQUEST_LOST: Final = "request lost"
ANSWER_LOST: Final = "answer lost"
LATE: Final = "late"
"""The request takes place after its sender has given up."""
SLOW: Final = "slow"
FAILED_AFTER: Final = "failed after"
"""The request takes place, and is answered with an error."""
LONGEST_TRY_S: Final = FakeDynamoDB.longest_try_s
_LATEST_S: Final = 60.0

type Names = Mapping[str, tuple[str, ...]]

NO_REFUSALS: Final[Mapping[str, Exception]] = {}


class Network(World):
    """Time, chance and requests of one world.

    Attributes:
        simulation: its time and its order.
        began_ms: when the story began, in epoch milliseconds.
        counts: how often each thing happened.
        used: the names of the freedoms that were used and of the faults that were met. A name is
            the same in every run of a story.

    Args:
        seed: what everything is drawn from.
        tables: the key attributes of each table; None if a subclass has its own tables.
        kept: the names of the only freedoms and faults that may happen. Default: all.
        simulation: another world's, whose time and chance are shared. Default: its own.
    """

    def __init__(
        self,
        seed: int,
        tables: Names | None,
        kept: Container[str] | None = None,
        simulation: Simulation | None = None,
    ) -> None:
        self.simulation = simulation or Simulation(seed)
        super().__init__(tables, clock=self.simulation)
        self.began_ms = START_MS
        self.concurrency = self.simulation
        self.jitter = partial(self.roll, "jitter")
        self.counts: Counter[str] = Counter()
        self.used: list[str] = []
        self._kept = kept

    @contextmanager
    def threads(self) -> Generator[None]:
        """Have the layer's threads, locks and pauses inside take virtual time."""
        defaults = (self.simulation, self.simulation.sleep, self.jitter)
        with ExitStack() as stack:
            for module in (dead_letters, signing):
                thread = partial(Thread, self.simulation)
                stack.enter_context(patch.object(module, "Thread", thread))
            stack.enter_context(patch.object(signing, "Lock", partial(Lock, self.simulation)))
            stack.enter_context(patch.object(Retries.__init__, "__defaults__", defaults))
            yield

    # ── Time, chance and what is seen ─────────────────────────────────────────────────────────────

    @property
    def now_s(self) -> float:
        """Seconds since the story began."""
        return (self.simulation.now_ms - self.began_ms) / 1000

    def roll(self, label: str) -> float:
        """Draw from 0 to 1.

        A label names what is decided, so that one decision more or less changes no other.
        """
        return self.simulation.roll(label)

    def happens(self, what: str, share: float, label: str) -> bool:
        """Decide whether AWS uses one of its freedoms, and count that."""
        drawn = self.roll(f"{what} {label}")
        if drawn >= share or not self.may_happen(f"{what}: {label} ({drawn:.9f})"):
            return False
        self.use(what)
        return True

    def use(self, freedom: str) -> None:
        """Count that a freedom was used."""
        self.counts[freedom] += 1

    def may_happen(self, name: str) -> bool:
        """Return whether a freedom or a fault is among those that are kept, and note it."""
        if self._kept is not None and name not in self._kept:
            return False
        self.used.append(name)
        return True

    # ── Requests ──────────────────────────────────────────────────────────────────────────────────

    def carry[T](
        self,
        kind: str,
        what: str,
        perform: Callable[[], T],
        lost: Callable[[str], Exception],
        refusals: Mapping[str, Exception] = NO_REFUSALS,
    ) -> T:
        """Have a request take place as far as the fault that it meets allows.

        Args:
            kind: the fault: a constant of this module, or one of the ``refusals``. Any other text
                is no fault.
            what: names the request.
            perform: has it take place, and returns the answer.
            lost: makes the error of a sender who gets no answer.
            refusals: what refuses the request before it takes place, by the fault's kind;
                `FAILED_AFTER` is raised afterwards.
        """
        if not kind:
            return perform()
        if kind in refusals and kind != FAILED_AFTER:
            raise refusals[kind]
        if kind == LATE:
            late_s = LONGEST_TRY_S + _LATEST_S * self.roll(f"late {what}") ** 3
            self.simulation.after(late_s, partial(_unheard, perform))
        if kind in {LATE, REQUEST_LOST}:
            self.give_up(lost(kind))
        if kind == KILLED_BEFORE:
            self.kill_here()
        answer = perform()
        if kind == KILLED_AFTER:
            self.kill_here()
        if kind == FAILED_AFTER:
            raise refusals[kind]
        if kind == ANSWER_LOST:
            self.give_up(lost(kind))
        if kind == SLOW:
            self.simulation.sleep(LONGEST_TRY_S * 0.9)
        return answer

    def give_up(self, error: Exception) -> None:
        """Wait for an answer as long as a sender does, and raise an error."""
        self.simulation.sleep(LONGEST_TRY_S)
        raise error

    def kill_here(self, why: str = "killed") -> None:
        """Kill the process whose task is running."""
        self.simulation.kill(here(), why)
        raise Killed


def _unheard(perform: Callable[[], object]) -> None:
    """Have a request take place whose sender has given up."""
    with suppress(Exception):
        perform()
