"""Whose turn it is in the threads that take steps for event loops, in any order of theirs."""

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest
from greenlet import getcurrent

from carride_idempotency.aio import steps
from tests.interleaving import Turns, giving_way

if TYPE_CHECKING:
    from concurrent.futures import Future

pytestmark = pytest.mark.proof

SEEDS: Final = 300
JOBS: Final = 40
CLAIMS: Final = 3
THREADS: Final = 5
LONG_S: Final = 5.0

type Weave = Callable[[Turns], None]


class Pool:
    """A pool of virtual threads. As the interpreter ends, it takes no more jobs.

    If the process may have no more threads, it keeps the job, as a ThreadPoolExecutor does.
    """

    def __init__(self, turns: Turns) -> None:
        self.has_ended = False
        self.lends = THREADS
        self.threads: set[Any] = set()
        """Those that it has begun."""
        self._turns = turns
        self._waiting: deque[Callable[[], object]] = deque()
        self._working = 0

    def submit(self, work: Callable[..., object], *arguments: object) -> None:
        if self.has_ended:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self._waiting.append(partial(work, *arguments))
        if self._working == THREADS:
            return
        if self._working == self.lends:
            raise RuntimeError("can't start new thread")
        self._working += 1
        self._turns.start(self._work)

    def _work(self) -> None:
        self.threads.add(getcurrent())
        while self._waiting:
            self._waiting.popleft()()
        self._working -= 1


class Job:
    """A job, and when it came, began and ended."""

    def __init__(self, turns: Turns, *, claims: bool) -> None:
        self.claims = claims
        self.came_ms = 0
        self.began_ms: list[int] = []
        self.ended_ms = 0
        self.future: Future[Any] | None = None
        self.is_cancelled = False
        self.thread: Any = None
        self._turns = turns
        chance = turns.chance
        self._lasts_s = chance.choice((0.0, chance.random(), LONG_S if claims else 0.3))
        self._fails = chance.random() < 0.2

    def __call__(self) -> None:
        self.began_ms.append(self._turns.now_ms)
        self.thread = getcurrent()
        self._turns.sleep(self._lasts_s)
        self.ended_ms = self._turns.now_ms
        if self._fails:
            raise KeyError

    def runs_at(self, ms: float) -> bool:
        return bool(self.began_ms) and self.began_ms[0] <= ms < self.ended_ms


class Burst:
    """Jobs that come close together, from one seed."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.turns = Turns(seed)
        pools: list[Pool] = []

        def pool(*_: object, **__: object) -> Pool:
            pools.append(Pool(self.turns))
            return pools[-1]

        patch.setattr(steps, "MOST_CLAIMS", CLAIMS)
        patch.setattr(steps, "ThreadPoolExecutor", pool)
        patch.setattr(steps, "Lock", self.turns.lock)
        patch.setattr(steps, "_threads", steps.StepThreads())
        self.pool = pools[0]
        self.jobs: list[Job] = []

    def end_within(self, seconds: float) -> None:
        """Have the interpreter end."""

        def end() -> None:
            self.pool.has_ended = True

        self.turns.start(end, after_s=self.turns.chance.uniform(0, seconds))

    def play(self) -> None:
        for _ in range(JOBS):
            self.turns.start(self._come, after_s=self.turns.chance.uniform(0, 2))
        self.turns.run()

    def _come(self) -> None:
        """Submit a job, perhaps after another one, and perhaps cancel it."""
        chance = self.turns.chance
        job = Job(self.turns, claims=chance.random() < 0.6)
        before = chance.choice(self.jobs).future if self.jobs and not job.claims else None
        after = before if chance.random() < 0.3 else None
        job.came_ms = self.turns.now_ms
        if after is not None:
            after.add_done_callback(lambda _: setattr(job, "came_ms", self.turns.now_ms))
        job.future = steps.submit(job, claims=job.claims, after=after)
        self.jobs.append(job)
        if chance.random() < 0.2:
            self.turns.sleep(chance.uniform(0, 1))
            job.is_cancelled = job.future.cancel()

    def is_in_pool(self, job: Job) -> bool:
        """Return whether a thread of the pool took a job."""
        return job.thread in self.pool.threads

    def is_working(self) -> bool:
        """Return whether a thread is still counted as one that takes jobs."""
        return steps._threads._working != 0  # noqa: SLF001 - no job shows it

    def at_once(self, ms: float, *, claims: bool) -> int:
        """Return how many claims, or other steps, ran at a moment."""
        return sum(job.runs_at(ms) for job in self.jobs if job.claims == claims)


@pytest.fixture
def weave() -> Generator[Weave]:
    with giving_way(steps) as setter:
        yield setter


def wrong_jobs(burst: Burst) -> list[str]:
    """Return which jobs were not taken exactly once, or although they were cancelled."""
    return [
        f"a job that was {'' if job.is_cancelled else 'not '}cancelled ran {len(job.began_ms)} x"
        for job in burst.jobs
        if len(job.began_ms) != (not job.is_cancelled)
    ]


def wrong_turns(burst: Burst) -> list[str]:
    """Return what is wrong with the order in which jobs were taken."""
    broken = []
    moments = sorted({ms for job in burst.jobs for ms in (*job.began_ms, job.ended_ms)})
    between = [(earlier + later) / 2 for earlier, later in pairwise(moments)]
    if any(burst.at_once(ms, claims=True) > CLAIMS for ms in between):
        broken.append("more claims run than may")
    claims = [job for job in burst.jobs if job.claims and job.began_ms]
    for step in burst.jobs:
        if step.claims or not step.began_ms:
            continue
        began_ms = step.began_ms[0]
        waited = [ms for ms in between if step.came_ms < ms < began_ms]
        if any(burst.at_once(ms, claims=False) < THREADS - CLAIMS for ms in waited):
            broken.append("a step waits although fewer run than there are threads for steps")
        if any(step.came_ms < claim.began_ms[0] < began_ms for claim in claims):
            broken.append("a claim begins before a step that waits")
    return broken


def test_no_step_waits_for_a_claim(weave: Weave) -> None:
    """Claims have no more threads than are theirs, and a thread that is free takes steps first."""
    broken = {}
    for seed in range(SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            burst = Burst(seed, patch)
            weave(burst.turns)
            burst.play()
        if wrong := wrong_jobs(burst) + wrong_turns(burst):
            broken[seed] = wrong
    assert broken == {}


def test_a_loop_takes_no_step_while_the_process_has_a_thread(weave: Weave) -> None:
    """It would stand still, with its heartbeats, until all jobs of a burst are done."""
    broken = {}
    for seed in range(SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            burst = Burst(seed, patch)
            burst.pool.lends = burst.turns.chance.choice((1, 2, 3))
            weave(burst.turns)
            burst.play()
        wrong = wrong_jobs(burst)
        wrong += [
            "a loop took a job" for job in burst.jobs if job.began_ms and not burst.is_in_pool(job)
        ]
        if wrong or burst.is_working():
            broken[seed] = wrong
    assert broken == {}


def test_every_job_is_taken_as_the_interpreter_ends(weave: Weave) -> None:
    """No further thread is to be had, so whoever submits a job takes it."""
    broken = {}
    for seed in range(SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            burst = Burst(seed, patch)
            burst.end_within(3)
            weave(burst.turns)
            burst.play()
        if wrong := wrong_jobs(burst):
            broken[seed] = wrong
    assert broken == {}
