"""The registry of verbs, and what their functions use.

A verb is a function of the ``stack`` or of a ``session``, and of its own options. Its docstring is
its help. A reading verb returns data. An acting verb returns a `Plan`: what it would do, and the
function that does it. All of it is of types with fields, which `ops.cli.show` prints.
"""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Annotated, Any, Final, NamedTuple

from cyclopts import Parameter

from ops import plans, regions
from ops.bounds import clipped
from ops.finding import find, kept
from ops.stack import ClientFactory, OperatorError, StackRef, aws_clients

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DIGITS: Final = 9
"""The most digits of a span of time."""
LONGEST_SPAN: Final = timedelta(days=3_650)
YEARS: Final = range(2000, 2101)
"""Those of a time. Times near the ends of the calendar cannot be moved to another zone."""
_MOST: Final = 1_000_000_000


class Steps(NamedTuple):
    """A preview in words."""

    plan: tuple[str, ...]


class Plan[Done, Preview = Steps](NamedTuple):
    """What an acting verb would do."""

    preview: Preview
    """Data to show, from the code that acts."""
    do: Callable[[], Done]
    """Does it, and returns what has been done."""
    stacks: tuple[StackRef, ...]
    exact: Any = None
    """What has to be the same when a plan that was shown is carried out; the preview by default."""
    is_empty: bool = False
    """Whether there is nothing to do."""
    must_be_shown: bool = False
    """Whether it is refused on a terminal unless a plan was shown: an effect may be repeated."""


class Verb(NamedTuple):
    """A command of the command line."""

    name: str
    """Its words, such as ``failover run``."""
    function: Callable[..., Any]
    """Takes the stack or the session, and the verb's own options."""
    examples: tuple[str, ...] = ()
    """Arguments to begin with, for its help."""
    acts: bool = False
    """Whether it changes anything: it returns a `Plan`, which is carried out with ``--yes``."""
    chooses: bool = True
    """Whether ``--stack`` and ``--region`` choose the stack."""
    status: Callable[[Any], int] = lambda _: 0
    """Returns the exit status for what the verb has returned or done."""
    temporary: bool = False
    """Whether it makes, pays for and removes resources: the log of changes names it, too."""


VERBS: Final[dict[str, Verb]] = {}


def reads[F: Callable[..., Any]](name: str, *examples: str, **settings: Any) -> Callable[[F], F]:
    """Register a function as a verb, with further fields of `Verb`.

    What it yields is shown as it comes.
    """

    def register(function: F) -> F:
        VERBS[name] = Verb(name, function, examples, **settings)
        return function

    return register


acts: Final = partial(reads, acts=True)
"""Register a verb that changes something; it returns a `Plan`."""


class Session:
    """What a verb works with: ``say`` shows progress or data, and the options choose the stack."""

    def __init__(
        self, say: Callable[[object], None], clients: ClientFactory | None, **options: str | None
    ) -> None:
        self.say = say
        self._options = options
        self._made = clients

    @cached_property
    def stack(self) -> StackRef:
        """The stack that is meant."""
        return find(**self._options, clients=self._made)

    @cached_property
    def clients(self) -> ClientFactory:
        """Makes clients for the stacks of samconfig.toml, which are never local ones."""
        return self._made or aws_clients()

    @cached_property
    def pair(self) -> tuple[StackRef, StackRef]:
        """The stack in its primary and in its secondary region; the primary may be unreachable."""
        if not self._is_chosen():
            return _in_configured_regions(self.clients)
        return _in_both_regions(self.stack)

    def _is_chosen(self) -> bool:
        """Return whether options or a local stack say which stack is meant."""
        if any(self._options.values()):
            return True
        return self._made is None and kept() is not None


def _in_both_regions(here: StackRef) -> tuple[StackRef, StackRef]:
    """Return primary and secondary of a stack that has both."""
    there = here.peer()
    if there is None:
        raise _needs_two_regions(
            f"the stack {here.name} in {here.region} is a standalone one; "
            "--stack and --region choose another"
        )
    return (here, there) if here.role == "primary" else (there, here)


def _in_configured_regions(clients: ClientFactory) -> tuple[StackRef, StackRef]:
    """Return primary and secondary of the stack that samconfig.toml names."""
    primary, secondary = (each.stack for each in regions.configured(clients))
    if secondary.describe() is None or secondary.role != "secondary":
        raise _needs_two_regions(
            f"{secondary.region}, which samconfig.toml names, has no secondary of the stack "
            f"{secondary.name}"
        )
    return primary, secondary


def _needs_two_regions(problem: str) -> OperatorError:
    return OperatorError(f"{problem}: this needs two regions, as docs/two-regions.md describes")


def span(text: str) -> timedelta:
    """Read a span of time, such as ``90s``, ``10m``, ``6h`` or ``2d``, or raise a ValueError."""
    match = re.fullmatch(r"([0-9]+)([smhd])", text)
    if match is None:
        raise ValueError(f"{text!r} is not a span of time: write 90s, 10m, 6h or 2d")
    number = int(match[1][:_DIGITS])
    value = timedelta(**{_UNITS[match[2]]: number})
    if len(match[1]) > _DIGITS or value > LONGEST_SPAN:
        raise ValueError(f"{clipped(text, 20)!r} is too long: write at most {spelt(LONGEST_SPAN)}")
    return value


def moment(text: str) -> datetime:
    """Read a time: a span before now, or ISO 8601 with a time zone; or raise a ValueError."""
    if re.fullmatch(r"[0-9]+[smhd]", text):
        return plans.now().replace(microsecond=0) - span(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: write 6h, or 2026-11-21T10:00:00Z") from None
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: write {text}Z for UTC")
    if time.year not in YEARS:
        raise ValueError(f"{text!r} is not in the years from {YEARS[0]} to {YEARS[-1]}")
    return time


def before(since: datetime, until: datetime | None) -> datetime:
    """Return the end of a window, by default now; refuse one that does not come after ``since``."""
    until = until or plans.now()
    if not since < until:
        raise OperatorError(
            f"--since has to be before --until, which is {until:%Y-%m-%d %H:%M:%S %Z}"
        )
    return until


def spelt(value: timedelta | None) -> str | None:
    """Return a span in the form that `span` reads."""
    if value is None:
        return None
    for unit, name in reversed(_UNITS.items()):
        length = timedelta(**{name: 1})
        if value and not value % length:
            return f"{value // length}{unit}"
    return f"{value.total_seconds():.0f}s"


def _converted(by: Callable[[str], Any]) -> Callable[[Any, Any], Any]:
    """Return a converter for the command line out of a function of text."""
    return lambda _, tokens: by(tokens[0].value)


def _within(least: float, most: float = _MOST) -> Callable[[Any, Any], None]:
    """Return a validator that refuses numbers below ``least`` or above ``most`` in words.

    It refuses NaN, too, which is neither.
    """

    def check(_type: Any, value: Any) -> None:
        if value is not None and not least <= value <= most:
            raise ValueError(f"{value} is out of range: write a number from {least:,} to {most:,}")

    return check


type Span = Annotated[
    timedelta, Parameter(converter=_converted(span), show_default=spelt, metavar="SPAN")
]
type Moment = Annotated[datetime, Parameter(converter=_converted(moment), metavar="TIME")]
COUNT: Final = Parameter(validator=_within(0))
"""Of a number that is 0 or more."""
POSITIVE: Final = Parameter(validator=_within(1))
"""Of a number that is 1 or more."""
PORT_NUMBER: Final = Parameter(validator=_within(0, 65_535))
"""Of a TCP port; 0 leaves the choice to the system."""
SHARE: Final = Parameter(validator=_within(0, 1))
"""Of a share, from 0 to 1."""
RATE: Final = Parameter(validator=_within(0.001, 10_000))
"""Of a number a second."""
