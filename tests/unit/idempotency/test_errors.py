import pytest

from idempotency.errors import describe


class SilentError(Exception):
    """An exception that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "start"),
    [
        (ValueError("no\ud83d"), "ValueError: no\\ud83d"),
        (KeyError("order"), "KeyError: 'order'"),
        (ValueError("\ud83d" * 1000), "ValueError: \\ud83d"),
        (SilentError(), "SilentError"),
    ],
)
def test_description_of_an_error_can_always_be_stored(error: Exception, start: str) -> None:
    """Whatever an exception says, its description begins with its type, is short, and is UTF-8."""
    text = describe(error)
    assert text.startswith(start)
    assert len(text.encode()) <= 500
