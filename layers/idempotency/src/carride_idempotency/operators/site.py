"""What a redrive needs of the place where it works: its letters, their records, their target."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import batched
from typing import Any, Final, NamedTuple, Protocol, Self

from carride_idempotency.operators.queues import HIDDEN_SECONDS
from carride_idempotency.operators.records import Records
from carride_idempotency.record import Record

READ_AT_ONCE: Final = 50
"""Letters whose records are read together, while the letters are hidden."""


class Trial(StrEnum):
    """How a letter went that was tried before the others of its group."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class TargetAnswer(NamedTuple):
    """What a target made of a letter."""

    trial: Trial
    """``UNKNOWN`` if it shows later how it went: by the record, or because the letter is back."""
    says: str
    is_taken: bool
    """Whether the letter is no longer needed in the queue."""


class Why(StrEnum):
    """What its target does with a letter that goes, or why a letter stays."""

    RUNS = "runs"
    RECOGNISED = "recognised"
    EXPIRES = "expires"
    PUBLISHED = "published"
    BREAKS_CONTRACT = "breaks_contract"
    OTHER_PAYLOAD = "other_payload"
    TOO_OLD = "too_old"
    UNUSABLE = "unusable"
    HELD = "held"
    UNKNOWN_CALL = "unknown_call"
    QUARANTINED = "quarantined"
    USED_UP = "used_up"
    NO_TARGET = "no_target"
    REFUSED = "refused"


_MAY_FAIL: Final = frozenset({Why.RUNS, Why.PUBLISHED})
_GOES: Final = _MAY_FAIL | {Why.RECOGNISED, Why.EXPIRES}
_ONCE_FIXED: Final = "add --release when the cause is fixed"
_SAYS: Final[Mapping[Why, str]] = {
    Why.RUNS: "its consumer processes it",
    Why.RECOGNISED: "its consumer recognises it: it has taken effect",
    Why.EXPIRES: "its consumer drops it: its expirytime has passed",
    Why.PUBLISHED: "the bus publishes it to every consumer",
    Why.BREAKS_CONTRACT: "it breaks the contract and would come back",
    Why.OTHER_PAYLOAD: "another event has its idempotency key: it would come back",
    Why.TOO_OLD: "it is older than records are kept, and would come back",
    Why.UNUSABLE: "{about}",
    Why.HELD: "an attempt may be running: wait until its lease has been over for a minute",
    Why.UNKNOWN_CALL: "nobody knows whether {about} was called: settle it first",
    Why.QUARANTINED: f"its key is quarantined: {_ONCE_FIXED}",
    Why.USED_UP: f"its attempts are used up: {_ONCE_FIXED}",
    Why.NO_TARGET: "redrive knows no target of its queue: the queue's runbook says what to do",
    Why.REFUSED: "the bus would refuse it",
}
"""The sentences for operators."""


class Verdict(NamedTuple):
    """What a redrive does with a letter."""

    why: Why
    releases: bool = False
    """Whether it releases the key first."""
    about: str = ""
    """The call of unknown outcome, or in what a letter is unusable."""

    @property
    def goes(self) -> bool:
        """Whether it is sent."""
        return self.why in _GOES

    @property
    def may_fail(self) -> bool:
        """Whether it is sent, and may fail again: one that is only recognised shows nothing."""
        return self.why in _MAY_FAIL

    @property
    def says(self) -> str:
        """The verdict in a sentence, for operators."""
        sentence = _SAYS[self.why].format(about=self.about)
        return f"its key is released, and {sentence}" if self.releases else sentence

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON-ready values."""
        return {"goes": self.goes, **self._asdict()}


class AnyLetter(Protocol):
    """What a redrive needs to know of a letter."""

    @property
    def id(self) -> str:
        """SQS's id of the message."""

    @property
    def group(self) -> str:
        """The id of its failure."""

    @property
    def reason(self) -> str:
        """The code of whoever sent it."""

    @property
    def error(self) -> str:
        """Type and message of the error, if the sender names one."""

    @property
    def consumer(self) -> str | None:
        """The consumer that did not process its event, if it is known."""

    @property
    def key(self) -> str | None:
        """Of the consumer's record, if it is known."""

    @property
    def sent(self) -> datetime:
        """When it was sent to the queue."""

    @property
    def event(self) -> Any:
        """What is delivered."""

    @property
    def labels(self) -> Mapping[str, Any]:
        """What else a plan and its outcome say of it."""

    def without_event(self) -> Self:
        """Return it without its event, which may be a megabyte."""


class Received[L: AnyLetter](NamedTuple):
    """A letter that was received, with the record of its key."""

    letter: L
    record: Record | None
    receipt: str


def received[L: AnyLetter](
    messages: Iterable[Any],
    letters_in: Callable[[Sequence[Any]], Sequence[L]],
    records: Records,
    at_once: int = READ_AT_ONCE,
) -> Iterator[Received[L]]:
    """Yield the letters in messages with the records of their keys, which are read together."""
    for some in batched(messages, at_once):
        letters = letters_in(some)
        keys = [letter.key for letter in letters if letter.key is not None]
        found = records.by_key(keys)
        for letter, message in zip(letters, some, strict=True):
            record = found.get(letter.key or "")
            yield Received(letter, record, message["ReceiptHandle"])


class Site[L: AnyLetter](ABC):
    """Some dead-letter queues, the records of their letters, and the target of all of them."""

    name: str
    """Of the queues, for operators."""
    queues: tuple[str, ...]
    target: str
    """The address to which letters go."""
    records: Records
    """Has those of the letters' keys."""
    hidden_s: int = HIDDEN_SECONDS
    """For how long letters are hidden while they are sent."""

    @abstractmethod
    def letters(
        self, ids: Collection[str] | None = None, hidden_s: int | None = None
    ) -> Generator[Received[L]]:
        """Receive letters, all or those with these ids. Those that are not deleted show again.

        They are hidden for ``hidden_s`` seconds, and each has its record as it is when its turn
        comes; or they are hidden while they are read, and their records may be read together.
        """

    @abstractmethod
    def count(self, *, hidden: bool) -> int:
        """Return about how many letters are hidden by other readers, or can be received.

        The latter are counted wherever letters return.
        """

    @abstractmethod
    def sent_since(self, start_ms: int) -> Iterator[L]:
        """Yield the letters that were sent since a time to a queue where letters return."""

    @abstractmethod
    def verdict(self, found: Received[L], now_ms: int, *, releases: bool) -> Verdict:
        """Return what becomes of a letter now, if its key may or may not be released."""

    @abstractmethod
    def send(self, letter: L) -> TargetAnswer:
        """Send the event of a letter to the target."""

    @abstractmethod
    def delete(self, found: Received[L]) -> None:
        """Delete a letter that the target has taken."""

    def is_back(self, sent: L, letter: L) -> bool:
        """Return whether a letter that came later has the event of one that was sent."""
        return sent.key is not None and sent.key == letter.key
