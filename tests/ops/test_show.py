"""What verbs print of the text of strangers."""

import json
import re
from io import StringIO
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ops.cli.rendering  # noqa: F401 - how letters and events look
from ops.bounds import shortened
from ops.cli.show import console, plain, show
from ops.dead_letters import DeadLetter, DeadLetters, Failure
from ops.verbs import Steps
from tests.carride.rides import NOW

HOSTILE: Final = st.text(
    st.sampled_from("a\x00\x07\x08\r\x1b[2J\x7f\x9b\u202e\u2066\ud800</script>{{x}}")
    | st.characters(),
    max_size=40,
)
STEERING: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printed(data: object) -> str:
    stream = StringIO()
    console(stream).print(show(shortened(data)))
    return stream.getvalue()


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
