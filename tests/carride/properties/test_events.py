import base64
import copy
import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carride.events import SOURCE, ContractError, RideEvent, idempotency_id, parse_event, read_json
from carride.facts import FACTS, Fact
from carride_idempotency.fingerprint import fingerprint
from ops.audit.queues import dead_letter
from simulated_rides import older_envelope
from tests.carride.contract.test_events import assert_conforms
from tests.kit.rides import event, every_fact, nested

pytestmark = pytest.mark.proof

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)
TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - a bound
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([10**400, inf, "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | st.just("\ud800"), inner, max_size=3)
        | st.tuples(inner, st.integers(1, 200)).map(lambda of: nested(*of))
    ),
    max_leaves=8,
)


@st.composite
def facts(draw: st.DrawFn) -> Fact:
    """Draw any fact that the contract allows."""
    fact = draw(st.sampled_from(every_fact()))
    raw = msgspec.to_builtins(fact) | {
        "orderID": draw(NAMES),
        "customerID": draw(NAMES),
        "passengers": draw(st.integers(1, 8)),
        "price": draw(st.integers(0, 10_000_000)),
        "version": draw(st.integers(1, 99_999_999)),
    }
    if "reason" in raw:
        raw["reason"] = draw(st.text(min_size=1, max_size=200))
    return msgspec.convert(raw, type(fact))


EXTENSIONS = st.sampled_from([None, {"simulatedfault": "slow"}])


@given(facts(), TIMES, st.none() | TIMES, st.none() | facts().map(event), EXTENSIONS)
def test_every_event_survives_the_road(
    fact: Fact,
    time: datetime,
    expirytime: datetime | None,
    cause: RideEvent | None,
    extensions: Any,
) -> None:
    """Whatever the contract allows fits its schema, and JSON keeps it and its fingerprint."""
    emitted = RideEvent.of(
        fact, source=SOURCE, time=time, expirytime=expirytime, cause=cause, extensions=extensions
    )
    assert_conforms(emitted.to_detail())
    read = parse_event({"detail": json.loads(json.dumps(emitted.to_detail()))})
    assert read == emitted
    older = parse_event({"detail": json.loads(json.dumps(older_envelope(emitted)))})
    assert (older.idempotencyid, older.sequence, older.data) == (
        read.idempotencyid,
        read.sequence,
        fact,
    )
    assert fingerprint(older.payload) == fingerprint(read.payload) == fingerprint(emitted.payload)


FOREIGN = event().to_detail() | {"type": "acme.acr.CarRiderCreatedEvent"}


@given(
    st.sampled_from([event().to_detail(), older_envelope(event()), FOREIGN]),
    st.just([])
    | st.lists(
        st.sampled_from(["data", "attributes", *event().to_detail(), *event().to_detail()["data"]]),
        max_size=3,
    ),
    JSON,
)
def test_any_json_is_read_or_breaks_the_contract(
    detail: dict[str, Any], names: list[str], value: Any
) -> None:
    """Any detail, and an event with any value in any place, raise nothing but a contract error."""
    _read(value)
    spoilt = json.loads(json.dumps(detail))
    for name in ["note", *names]:
        part = spoilt.get("data") if name in [*detail["data"], "note"] else spoilt
        if isinstance(part, dict):
            # JSON holds nothing twice, and nothing that contains itself.
            part[name] = copy.deepcopy(value)
    _read(spoilt)


PIECES = st.sampled_from(
    [b"[", b'{"a":', b"]", b"}", b"9", b"1e400", b"-", b'"\\ud800"', b"NaN", b"\xff", b"\x00", b","]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Draw the data of an event as bytes, with random bytes in some places, once or many times."""
    content = json.dumps(event().to_detail()["data"]).encode()
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(st.integers(0, len(content)))
        end = draw(st.integers(0, len(content)))
        piece = draw(PIECES | st.binary(max_size=8)) * draw(st.sampled_from([1, 64, 5_000]))
        content = content[:begin] + piece + content[end:]
    return content


@given(mutated())
def test_any_bytes_are_read_or_break_the_contract(content: bytes) -> None:
    """An event with any bytes as its data is read or refused, and so are the bytes as text."""
    detail = {name: value for name, value in event().to_detail().items() if name != "data"}
    _read(detail | {"data_base64": base64.b64encode(content).decode()})
    for text in (content, content.decode(errors="replace")):
        with suppress(ContractError):
            assert json.dumps(read_json(text, "text"))


DEAD_LETTERS = (
    "{}",
    '{{"detail":{}}}',
    '{{"reason":"A","consumer":"b","event":{}}}',
    '{{"reason":"A","consumer":"b","event":null,"eventGzip":{}}}',
    '{{"requestContext":{{"condition":"A"}},"requestPayload":{}}}',
    '{{"messageId":"1","body":{}}}',
    '{{"detailGzip":{}}}',
)


@given(mutated(), st.sampled_from(DEAD_LETTERS), st.sampled_from([None, zlib.compress]))
def test_any_dead_letter_is_a_row(
    content: bytes, form: str, pack: Callable[..., bytes] | None
) -> None:
    """The audit counts any message of a dead-letter queue, with a reason."""
    text = content.decode(errors="replace")
    packed = content if pack is None else pack(content, wbits=31)
    for inner in (text, json.dumps(text), json.dumps(base64.b64encode(packed).decode())):
        row = dead_letter("DispatchDlq", "dispatch", {"Body": form.format(inner)})
        assert row.reason
        assert hash(row)


def _read(detail: Any) -> None:
    """Read a detail, then hash and write the event as its consumers do."""
    try:
        read = parse_event({"detail": detail})
    except ContractError as error:
        assert error.field  # noqa: PT017 - either outcome is fine, and this is what one of them has to say
    else:
        assert type(read.data) in FACTS.values()
        if detail.get("type") != FOREIGN["type"]:
            assert read.idempotencyid == idempotency_id(read.subject, read.type, read.data.version)
        assert fingerprint(read.payload)
        assert json.dumps(read.to_detail(), ensure_ascii=False).encode()
