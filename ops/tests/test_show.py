"""What verbs print of the text of strangers."""

import json
import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ops.cli.app  # noqa: F401 - the verbs, and how what they return looks
from ops.audit import judge
from ops.audit.evidence import CONSUMERS, Evidence, Published
from ops.audit.problems import Broken, Need, Overdue, Problem
from ops.bounds import shortened
from ops.cli.show import console, plain, show
from ops.dead_letters import DeadLetter, DeadLetters, Failure
from ops.holds import Hold, Kind
from ops.lookup import Event, Ride, Settlement
from ops.sentences import says
from ops.verbs import Steps
from tests.kit.rides import NOW

HOSTILE: Final = st.text(
    st.sampled_from("a\x00\x07\x08\r\x1b[2J\x7f\x9b\u202e\u2066\ud800</script>{{x}}")
    | st.characters(),
    max_size=40,
)
STEERING: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Terminal(StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def printed(data: object, width: int | None = None) -> str:
    """Return what is printed: to a file, or to a terminal without colours of this width."""
    stream = StringIO() if width is None else Terminal()
    writer = console(stream)
    if width is not None:
        writer.width = width
        writer.no_color = True
    writer.print(show(shortened(data)))
    return re.sub(r"\x1b\[[0-9;]*m| +$", "", stream.getvalue(), flags=re.MULTILINE)


def letters(text: str) -> DeadLetters:
    """Return dead letters with a text wherever a sender can put one."""
    letter = DeadLetter(
        id=text,
        queue="PaymentDlq",
        group="4f2a81",
        reason=text,
        error=text,
        consumer="payment",
        key=text,
        fact=text,
        ride=text,
        type=text,
        sent=NOW,
        event={"detail": {text: text}},
    )
    return DeadLetters(
        (Failure("4f2a81", "PaymentDlq", "payment", text, text, NOW, 1, 0, (letter,)),), {}
    )


@given(
    HOSTILE,
    st.sampled_from(
        [
            str,
            lambda text: {text: text},
            lambda text: [{"a": text}],
            lambda text: Steps((text,)),
            letters,
        ]
    ),
)
def test_no_text_of_an_event_steers_the_terminal(text: str, form: Any) -> None:
    """Control characters, and those that turn the direction of text, are printed as escapes."""
    assert not STEERING.search(printed(form(text)))


@pytest.mark.parametrize(
    "form", [str, lambda text: {text: text}, lambda text: [{"a": text}], letters]
)
def test_no_text_of_an_event_fills_the_terminal(form: Any) -> None:
    """Its beginning is printed, and how long it is."""
    shown = printed(form("x" * 1_000_000))
    assert "1,000,000 characters" in shown
    assert len(shown) < 30_000


@given(HOSTILE)
def test_json_keeps_every_character(text: str) -> None:
    """As an escape, which no terminal acts on."""
    encoded = json.dumps(plain({"text": text}))
    assert encoded.isascii()
    assert json.loads(encoded) == {"text": text}


def letters_of(name: str) -> list[dict[str, str]]:
    key = f"payment#{name}-8c22-525e-93f3-3e3838254b1c"
    return [{"key": key, "ride": "order_01", "why": "it breaks the contract"}] * 2


AUDITED: Final[dict[Kind, Problem | Overdue]] = {
    Kind.BROKEN: Problem(Broken.CHARGED_AGAIN, times=2),
    Kind.OVERDUE: Overdue((Need(NOW, "dispatch", "assigned"),)),
}


@pytest.mark.parametrize("letters", [0, 4])
@pytest.mark.parametrize("kind", [*Kind])
def test_a_ride_begins_with_what_holds_it(kind: Kind, letters: int) -> None:
    """Each in a line, with the command that goes on, before the tables and the events.

    A queue is named if there are letters in it.
    """
    hold = Hold(
        kind, "payment", "id", "CarRideAccepted", 1.0, "the error", attempts=2, letters=letters
    )
    hold = hold._replace(queue="PaymentDlq", command="./carride redrive payment --letter=x")
    if kind in AUDITED:
        hold = hold._replace(error="", audited=AUDITED[kind])
    tables = {"PaymentTable": {"state": "captured"}}
    ride = Ride("order_01", "paid", (), tables, (), holds=(hold,))
    shown = printed(ride).splitlines()
    assert kind in shown[1]
    assert ("payment" in shown[1]) is (kind not in (Kind.BROKEN, Kind.OVERDUE))
    assert ("PaymentDlq" in shown[1]) is (kind == Kind.GIVEN_UP and letters > 0)
    assert (hold.error or says(hold.audited)) in shown[1]
    assert shown[2].strip() == hold.command
    assert "PaymentTable" in shown[3]


def test_the_first_line_of_a_ride_has_its_settlement() -> None:
    """Beside its state, which may say the opposite."""
    settled = Settlement("cancelled", NOW, NOW + timedelta(hours=1))
    first = printed(Ride("order_01", "paid", (), {}, (), settled=settled)).splitlines()[0]
    assert "settled it as cancelled" in first
    assert "was completed" in first


def test_an_event_is_shown_with_the_times_by_which_replays_choose_it() -> None:
    """Each once, although the event was published twice at one of them."""
    later = NOW + timedelta(hours=1)
    copies = [Published("id", None, None, sent=time) for time in (later, NOW, NOW)]
    event = Event(
        "id", "CarRideAccepted", "order_01", 2, None, None, tuple(copies), False, (), (), NOW
    )
    shown = [line for line in printed(event).splitlines() if "a replay chooses it" in line]
    assert [f"{NOW:%H:%M:%S}" in shown[0], f"{later:%H:%M:%S}" in shown[1]] == [True, True]
    assert len(shown) == 2


def test_a_time_is_shown_to_the_second() -> None:
    """With its zone, in a table and beside a name."""
    time = datetime(2026, 11, 24, 15, 33, 18, 412_000, UTC)
    assert "2026-11-24 15:33:18 UTC" in printed([{"made": time}])
    assert "2026-11-24 15:33:18 UTC" in printed({"made": time})


@pytest.mark.parametrize("width", [20, 40, 70])
def test_a_table_that_does_not_fit_is_shown_as_records(width: int) -> None:
    """Below 80 columns each field has a line of its own, and nothing is cut."""
    shown = printed(letters_of("37134231"), width)
    assert "key:payment#37134231" in "".join(shown.split())
    assert "why: it breaks" in " ".join(shown.split())
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert "".join(shown.split()).count("3e3838254b1c") == 2


@pytest.mark.parametrize("width", [40, 120])
def test_a_table_that_fits_is_a_table(width: int) -> None:
    """However narrow the terminal is."""
    assert printed([{"a": "1", "b": "2"}], width).split() == ["a", "b", "1", "2"]


def test_a_word_that_is_wider_than_its_column_is_never_cut() -> None:
    """A wide terminal may be too narrow for a key: then there are records, too."""
    assert "3e3838254b1c" in printed(letters_of("x" * 80), 100)
    assert "…" not in printed(letters_of("x" * 80), 100)


@pytest.mark.parametrize("width", [40, 60, 79])
def test_an_audit_fits_into_a_narrow_terminal(width: int) -> None:
    """Each number stands beside its label or its consumer."""
    consumers = ("ride-history", "dispatch", "payment")
    report = judge(Evidence(CONSUMERS, [Published("event-1", "CarRideAccepted", "a")]))
    shown = printed(report, width)
    assert max(map(len, shown.splitlines())) <= width
    assert "published events: 1\n" in shown
    effects = shown.partition("effects\n")[2].splitlines()
    assert effects[:3] == [f"  {name}: 0" for name in consumers]
    assert re.search("published events +1", printed(report, 80))
