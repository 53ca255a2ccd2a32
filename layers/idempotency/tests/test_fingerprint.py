"""Fingerprints depend on a payload's content and nothing else."""

import enum
import uuid
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
import pydantic
import pytest

from carride_idempotency.fingerprint import differ, exact_fingerprint, fingerprint


class Status(enum.Enum):
    ACCEPTED = "accepted"


class Seats(int, enum.Enum):
    TWO = 2


@dataclass
class AsDataclass:
    """A ride as a dataclass, with a class variable and an argument that do not belong to it."""

    known: ClassVar[int] = 1
    passengers: int
    status: Status
    hint: InitVar[int] = 0


class AsStruct(msgspec.Struct):
    """The same as a Struct."""

    status: str
    passengers: float


class AsModel(pydantic.BaseModel):
    """The same as a model, which takes more than it names."""

    model_config = pydantic.ConfigDict(extra="allow")

    passengers: Decimal
    status: Status


@dataclass
class WithFactories:
    """A dataclass with a constant default and a default factory."""

    stops: list[str] = field(default_factory=list)
    number: int = field(default_factory=lambda: 5)


CONTENTS: dict[str, list[list[Any]]] = {
    "whole numbers": [
        [{"n": 7}, {"n": 7.0}, {"n": Decimal("7.00")}, {"n": Decimal("0.7E+1")}],
        [{"n": "7"}],
        [7],
        ["7"],
    ],
    "large whole numbers": [[10**22, 1e22, Decimal("1E+22")], [2**53], [2**53 + 1]],
    "fractions": [[0.1, Decimal("0.1"), Decimal("0.10")], [0.1 + 2**-55]],
    "nothing": [[0, -0.0, Decimal("-0")], [None], [False], [""], [[]], [{}]],
    "one": [[1, 1.0], [True], ["true"], ["1.0"]],
    "mappings": [
        [{"a": 1, "ä": [None, {}]}, MappingProxyType({"ä": (None, {}), "a": 1})],
        [{"a": 1}],
    ],
    "lists": [[[1, 2], (1, 2)], [[2, 1]]],
    "sets": [[{"b", "a"}, frozenset({"a", "b"})], [{7, 8}, {8.0, 7.0}]],
    "times": [
        [datetime(2026, 11, 21, tzinfo=UTC), "2026-11-21T00:00:00+00:00"],
        [date(2026, 11, 21), "2026-11-21"],
    ],
    "times of day": [[time(8, 30), "08:30:00"]],
    "ids": [[uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"]],
    "bytes": [[b"\x01", bytearray(b"\x01")]],
    "letters": [["a"], ["A"], ["a "], ["ä"], ["a\u0308"]],
    "classes": [
        [
            AsDataclass(2, Status.ACCEPTED),
            AsStruct("accepted", 2.0),
            AsModel(passengers=Decimal(2), status=Status.ACCEPTED),
            {"passengers": 2, "status": "accepted"},
        ],
        [AsModel.model_validate({"passengers": 2, "status": "accepted", "note": None})],
        [AsModel.model_validate({"passengers": 2, "status": "accepted", "note": "a"})],
    ],
    "enums": [
        [Status.ACCEPTED, "accepted"],
        [{"a": [Status.ACCEPTED, {Seats.TWO}]}, {"a": ["accepted", [2]]}],
    ],
    "enums as keys": [
        [{Status.ACCEPTED: {Seats.TWO: 2.0}, "a": 1}, {"accepted": {"2": 2}, "a": 1}]
    ],
    "factories": [
        [WithFactories(number=5), WithFactories(number=5, stops=[]), {"number": 5}],
        [WithFactories(number=6)],
        [WithFactories(["a"], 5)],
    ],
    "text with a point": [[{"n": 1.0, "t": "1.0"}, {"n": 1, "t": "1.0"}]],
}


@pytest.mark.parametrize("contents", CONTENTS.values(), ids=CONTENTS)
def test_content_alone_makes_the_fingerprint(contents: list[list[Any]]) -> None:
    """Different forms of the same content have one fingerprint.

    Different content has different ones.
    """
    prints = [{fingerprint(payload) for payload in payloads} for payloads in contents]
    assert [len(each) for each in prints] == [1] * len(contents)
    assert len(set[str]().union(*prints)) == len(contents)


def test_fingerprint_has_a_version() -> None:
    """The fingerprint names its version, and the current form does not change."""
    assert fingerprint({"orderID": "order_01"}) == "2:725ce63f72473e5e4ebb02c43ddcb000"


NO_JSON: list[Any] = [
    object(),
    {"a": object()},
    len,
    {1: "int", "a": "mixed"},
    {Status.ACCEPTED: 1, "accepted": 2},
]
NO_NUMBERS: list[Any] = [
    {"price": each}
    for each in (float("nan"), float("inf"), Decimal("NaN"), Decimal("Infinity"), 10**5000)
]


@pytest.mark.parametrize(
    ("payload", "error"),
    [(each, TypeError) for each in NO_JSON] + [(each, ValueError) for each in NO_NUMBERS],
)
def test_payload_without_a_stable_form_is_refused(payload: object, error: type[Exception]) -> None:
    """What has no stable content is the code's fault.

    A number that JSON cannot hold breaks the contract.
    """
    with pytest.raises(error):
        fingerprint(payload)


@pytest.mark.parametrize("stored", ["1:a", "2:b", None])
@pytest.mark.parametrize("ours", ["1:a", "1:b", None])
def test_payloads_differ_if_their_fingerprints_do(stored: str | None, ours: str | None) -> None:
    """Fingerprints of two versions cannot be compared, and a missing one differs from none."""
    assert differ(stored, ours) is ((stored, ours) == ("1:a", "1:b"))


@dataclass(frozen=True)
class Eur:
    amount: object


@dataclass(frozen=True)
class Usd(Eur):
    """Another currency."""


ALIKE: list[tuple[object, object]] = [
    (Decimal("0.1"), Decimal("0.1000000000000000000001")),
    (b"\xab", "ab"),
    (Eur(5), Usd(5)),
    (Eur(5), {"amount": 5}),
    ([{"of": [Eur(5)]}], [{"of": [Usd(5)]}]),
    (Eur("05"), Eur(b"\x05")),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_arguments_of_calls_are_told_apart_by_what_they_are(one: object, other: object) -> None:
    """The records of earlier versions stay comparable: these have the contents alone."""
    assert fingerprint({"a": one}) == fingerprint({"a": other})
    ours = exact_fingerprint({"a": one})
    assert differ(exact_fingerprint({"a": other}), ours)
    assert not differ(exact_fingerprint({"a": one}), ours)
    for earlier in (fingerprint({"a": one}), "1:a", None):
        assert not differ(earlier, ours)
        assert not differ(ours, earlier)
    assert differ(fingerprint({"a": "something else"}), ours)


@pytest.mark.parametrize("contents", CONTENTS.values(), ids=CONTENTS)
def test_arguments_of_one_class_are_the_same_in_every_form(contents: list[list[Any]]) -> None:
    """A call that is repeated has the same fingerprint."""
    for payloads in contents:
        for payload in payloads:
            assert exact_fingerprint([payload]) == exact_fingerprint((payload,))
