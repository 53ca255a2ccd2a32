"""Tries one request to a backend several times, while that helps and there is time.

When no try was accepted, the error says what is known of the request.
"""

import enum
import random
import time
from collections.abc import Callable
from typing import Final

from carride_idempotency.clock import Clock, epoch_ms
from carride_idempotency.errors import StoreRefusedError, StoreUnavailableError

_TRIES: Final = 6
_FIRST_PAUSE_S: Final = 0.025
_LONGEST_PAUSE_S: Final = 1.0


class Verdict(enum.Enum):
    """What an error says about the request that raised it."""

    ANSWERED = (
        "the caller handles the error, for example a condition that does not hold: raised as it is"
    )
    UNANSWERED = "no answer, so the request may have taken place: sent again"
    PASSING = "definitely refused, for a reason that may pass: sent again"
    REFUSED = "definitely refused"


class Retries:
    """Sends a request again until another try could change nothing, or could not end in time.

    The clients of the backends do not retry: only the store knows how much time is left, and
    whether an earlier try of the same request may have taken place.
    """

    def __init__(
        self,
        clock: Clock = epoch_ms,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter

    def send[Answer](
        self,
        what: str,
        request: Callable[[], Answer],
        judge: Callable[[Exception], Verdict | None],
        *,
        longest_try_s: float,
        until_ms: int | None,
        remedy: Callable[[Exception], str] = lambda _: "",
    ) -> Answer:
        """Return the answer to ``request``.

        Args:
            what: what errors call the request.
            request: sends it once.
            judge: returns what an error says; None for an error that is not the backend's, which is
                raised.
            longest_try_s: the seconds after which a try without an answer ends.
            until_ms: epoch milliseconds by which every try but the first must be able to end; None:
                no limit.
            remedy: returns the end of the message of an error that no retry can change.

        Raises:
            StoreRefusedError: every try was definitely refused.
            StoreUnavailableError: a try had no answer, and no later one was accepted: the outcome
                is unknown.
        """
        unanswered: Exception | None = None
        pause_s = _FIRST_PAUSE_S
        for tries_left in range(_TRIES - 1, -1, -1):
            try:
                return request()
            except Exception as error:
                verdict = judge(error)
                if verdict is None or verdict is Verdict.ANSWERED:
                    raise
                if verdict is Verdict.UNANSWERED:
                    unanswered = error
                last = error
            if verdict is Verdict.REFUSED or not tries_left:
                break
            wait_s = pause_s * self._jitter()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            next_end_ms = self._clock() + int(1000 * (wait_s + longest_try_s))
            if until_ms is not None and next_end_ms > until_ms:
                break
            self._sleep(wait_s)
        if unanswered is None:
            advice = remedy(last) if verdict is Verdict.REFUSED else ""
            raise StoreRefusedError(
                f"{what} was refused, and did nothing: {last}{advice}"
            ) from last
        also = "" if unanswered is last else f"; the last try was refused: {last}"
        raise StoreUnavailableError(
            f"{what} was not answered in time ({unanswered}{also})"
        ) from last
