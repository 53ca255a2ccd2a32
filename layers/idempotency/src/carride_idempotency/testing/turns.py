"""The threads of an invocation take turns, so that no verdict depends on how fast one is.

A thread that makes a call waits until every other thread waits: for a result, a lock's condition,
another thread, or work. Then the first one in the order of their starts goes on. So a thread whose
call comes while the handler runs is not overtaken by the end of the invocation, and one for which
nobody waits meets that end before its call::

    the handler             a thread                      verdict
    waits for the thread    makes its call                its call is the invocation's
    runs, and returns       waits for its turn            its call comes after the invocation
    has returned            waits for something else      goes on after the invocation

How long that takes is of no account: the limits below only end what would wait for ever.
"""

import selectors
import sys
import threading
from asyncio import base_events
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import thread as pools
from contextlib import contextmanager
from time import sleep  # the real one: an invocation has another time.sleep
from types import CodeType, FrameType
from typing import Any, Final

_LOOK_S: Final = 0.001
"""How long a thread sleeps between two looks at the others."""
_LOOKS: Final = 2
"""How many looks in succession must find the others waiting: a thread that is taking a job off its
queue still seems to wait for it."""
_MOST_ALIKE: Final = 50
"""After how many equal looks a thread counts as waiting, in a way that is not known here."""
_MOST_LOOKS: Final = 5_000
"""After how many looks nobody waits any longer for threads that run."""
_MOST_LOOKS_OF_THE_HANDLER: Final = 50
"""The same for calls of the handler's own thread, which no verdict depends on."""
_NOW: Final = 0.0
_MAY_STAY: Final = ("ThreadPoolExecutor", "asyncio", "idempotency-")
"""Names of threads that wait for their next work between invocations."""


class InvocationThreads:
    """The threads of one invocation, which must have been joined when it ends."""

    def __init__(self) -> None:
        self._main = threading.current_thread()
        self._before = set(threading.enumerate())
        self._busy_elsewhere = {
            thread
            for thread in self._before
            if thread is not self._main and not (_may_stay(thread) and _waits(thread))
        }
        self._in_line: dict[threading.Thread, float] = {}
        """Threads that wait for their turn, and from when on: `_NOW`, or epoch milliseconds."""
        self._paused = False
        self._ended = False

    def outlives(self) -> bool:
        """Wait for the turn of the calling thread; return whether the invocation ends before."""
        thread = threading.current_thread()
        if thread in self._before and thread is not self._main and not _may_stay(thread):
            return True
        self._busy_elsewhere.discard(thread)
        looks = _Looks(_LOOKS)
        if thread is self._main:
            looks = _Looks(1, most=_MOST_LOOKS_OF_THE_HANDLER)
        with self._standing_in_line(thread, _NOW):
            while not self._ended:
                if self._is_next(thread) and looks.find_waiting(self._others()):
                    return False
                sleep(_LOOK_S)
        return True

    def works_in(self, thread: threading.Thread) -> bool:
        """Return whether a thread works for this invocation, which has not ended."""
        is_new = thread not in self._before or thread is self._main
        is_lent = _may_stay(thread) and thread not in self._busy_elsewhere
        return not self._ended and (is_new or is_lent)

    def pass_time[T](
        self, when_ms: float, timeout_s: float, ready: Callable[[float], Sequence[T]]
    ) -> Sequence[T]:
        """Wait until something is ready; return nothing if that cannot be before ``when_ms``.

        While another thread works, or waits in an unknown way, real time passes: ``timeout_s`` at
        most. ``ready`` returns what is ready, and waits for it for so many seconds.
        """
        thread = threading.current_thread()
        looks = _Looks(_LOOKS, most=sys.maxsize, believes_stillness=False)
        waited_s = 0.0
        with self._standing_in_line(thread, when_ms):
            while not self._ended and waited_s < timeout_s:
                if self._is_next(thread) and looks.find_waiting(self._others()):
                    break
                found = ready(_LOOK_S)
                if found:
                    return found
                if not self._paused:
                    waited_s += _LOOK_S
        return ready(0)

    @contextmanager
    def _standing_in_line(self, thread: threading.Thread, when_ms: float) -> Generator[None]:
        self._in_line[thread] = when_ms
        try:
            yield
        finally:
            del self._in_line[thread]

    @contextmanager
    def paused(self) -> Generator[None]:
        """Give no thread its turn inside the context, where another invocation takes place."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def end(self) -> list[str]:
        """End the invocation; return the names of its threads that go on."""
        self._ended = True
        self._let_the_others_act()
        return [
            thread.name
            for thread in threading.enumerate()
            if thread not in self._before and not _may_stay(thread)
        ]

    def _let_the_others_act(self) -> None:
        """Wait until each other thread of the invocation waits or has ended."""
        looks = _Looks(_LOOKS)
        while not looks.find_waiting(self._others()):
            sleep(_LOOK_S)

    def _is_next(self, thread: threading.Thread) -> bool:
        """Return whether it is a thread's turn as soon as no other one runs.

        Calls come first, then the earliest timer.
        """
        in_line = [each for each in threading.enumerate() if each in self._in_line]
        return not self._paused and min(in_line, key=self._in_line.__getitem__) is thread

    def _others(self) -> list[threading.Thread]:
        """Return the other threads of the invocation, without those that wait for their turn."""
        this = threading.current_thread()
        return [
            thread
            for thread in threading.enumerate()
            if thread is not this
            and thread not in self._busy_elsewhere
            and (self._ended or thread not in self._in_line)
        ]


class _Looks:
    """Looks at threads, ``most`` times, and takes them for waiting then."""

    def __init__(
        self, needed: int, *, most: int = _MOST_LOOKS, believes_stillness: bool = True
    ) -> None:
        self._needed = needed
        self._left = most
        self._believes_stillness = believes_stillness
        self._waiting = 0
        self._alike = 0
        self._places: object = None

    def find_waiting(self, threads: Sequence[threading.Thread]) -> bool:
        """Look at threads; return whether they wait, as the last looks have found, too."""
        self._left -= 1
        if not threads or self._left <= 0:
            return True
        running = [thread for thread in threads if not _waits(thread)]
        if not running:
            self._waiting += 1
            return self._waiting >= self._needed
        self._waiting = 0
        places = [_place(thread) for thread in running]
        self._alike = self._alike + 1 if places == self._places else 0
        self._places = places
        return self._believes_stillness and self._alike >= _MOST_ALIKE


def _may_stay(thread: threading.Thread) -> bool:
    return thread.name.startswith(_MAY_STAY)


# ── What a thread does ────────────────────────────────────────────────────────────────────────────


def _frame_of(thread: threading.Thread) -> FrameType | None:
    """Return the innermost frame of a thread; None if it is starting or ending."""
    if thread.ident is None:
        return None
    return sys._current_frames().get(thread.ident)  # noqa: SLF001 - it is documented


def _place(thread: threading.Thread) -> tuple[int | None, int, int]:
    """Return where a thread is."""
    frame = _frame_of(thread)
    if frame is None:
        return thread.ident, 0, 0
    return thread.ident, id(frame), frame.f_lasti


def _waits(thread: threading.Thread) -> bool:
    """Return whether a thread waits for another one, and has not been woken yet."""
    frame = _frame_of(thread)
    if frame is None:
        return False
    sleeps = _SLEEPS.get(frame.f_code)
    return sleeps is not None and sleeps(frame)


def _awaits_notice(frame: FrameType) -> bool:
    """Return whether nobody has notified the condition for which a thread waits."""
    names = frame.f_locals
    waiter = names.get("waiter")
    return waiter is not None and waiter.locked() and waiter in names["self"]._waiters  # noqa: SLF001


def _awaits_end(frame: FrameType) -> bool:
    """Return whether the thread that is joined has not ended."""
    return frame.f_locals["self"] in threading.enumerate()


def _awaits_job(frame: FrameType) -> bool:
    """Return whether a pool's thread has nothing to do."""
    empty: bool = frame.f_locals["work_queue"].empty()
    return empty


_RUN_ONCE: Final[CodeType] = vars(base_events.BaseEventLoop)["_run_once"].__code__


def _awaits_callback(frame: FrameType) -> bool:
    """Return whether an event loop has nothing to do."""
    caller = frame.f_back
    while caller is not None and caller.f_code is not _RUN_ONCE:
        caller = caller.f_back
    return caller is not None and not caller.f_locals["self"]._ready  # noqa: SLF001


def _code_of(function: Any) -> CodeType:
    code: CodeType = function.__code__
    return code


def _sleeping_places() -> dict[CodeType, Callable[[FrameType], bool]]:
    places: dict[CodeType, Callable[[FrameType], bool]] = {
        _code_of(threading.Condition.wait): _awaits_notice,
        _code_of(threading.Thread.join): _awaits_end,
        _code_of(pools._worker): _awaits_job,  # noqa: SLF001
    }
    join = getattr(threading.Thread, "_wait_for_tstate_lock", None)  # until Python 3.12
    if join is not None:
        places[_code_of(join)] = _awaits_end
    for kind in ("Select", "Poll", "Epoll", "Devpoll", "Kqueue"):
        selector = getattr(selectors, f"{kind}Selector", None)
        if selector is not None:
            places[_code_of(selector.select)] = _awaits_callback
    return places


_SLEEPS: Final[Mapping[CodeType, Callable[[FrameType], bool]]] = _sleeping_places()
"""The functions in which a thread waits, and whether it has not been woken."""
