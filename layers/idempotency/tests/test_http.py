"""HTTP requests: in every payload format, whatever becomes of them."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from http import HTTPMethod
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode
from uuid import UUID

import pytest
from pydantic import create_model

from carride_idempotency import (
    ANY_CALLER,
    TRANSPORT_ID,
    ConfigurationError,
    Operation,
    RetryableError,
)
from carride_idempotency.errors import (
    PayloadMismatchError,
    UnfinishedWorkError,
    UnknownOutcomeError,
)
from carride_idempotency.http import HttpProblemError, idempotency_key
from carride_idempotency.record import COMPLETED, FAILED, QUARANTINED, Status
from carride_idempotency.testing import Crash
from tests.samples import EFFECT, TABLE, World, crash

NAME: Final = "hidden-name"
FORMATS: Final = ("2.0", "1.0", "alb", "alb with many values")
PLAIN: Final = {"body": '{"seats": 1}', "isBase64Encoded": False}
type Pairs = Sequence[tuple[str, str]]
type Make = Callable[..., Api]


def grouped(pairs: Pairs) -> dict[str, list[str]]:
    names = sorted({name for name, _ in pairs}, reverse=True)
    return {name: [value for other, value in pairs if other == name] for name in names}


def binary(content: bytes) -> dict[str, Any]:
    return {"body": base64.b64encode(content).decode(), "isBase64Encoded": True}


def ask(
    method: str = "POST",
    *,
    key: str | Sequence[str] | None = "k1",
    path: str = "/rides",
    query: Pairs = (),
    body: Mapping[str, Any] = PLAIN,
    form: str = "2.0",
) -> dict[str, Any]:
    """A request as AWS hands it over in a format."""
    keys = [] if key is None else [key] if isinstance(key, str) else key
    headers = [("Accept", "*/*"), *(("Idempotency-Key", each) for each in keys)]
    encoded = [(quote(name), quote(value)) for name, value in query]
    event: dict[str, Any] = {"httpMethod": method, "path": path, **body}
    if form == "2.0":
        joined = {name.lower(): ",".join(values) for name, values in grouped(headers).items()}
        context = {"http": {"method": method, "path": path}, "requestId": "request-1"}
        event = {
            "version": "2.0",
            "rawPath": path,
            "rawQueryString": urlencode(list(query), quote_via=quote),
            **body,
        }
        return event | {"headers": joined, "requestContext": context}
    if form == "1.0":
        parameters = {
            "queryStringParameters": dict(query),
            "multiValueQueryStringParameters": grouped(query),
        }
        event |= {
            "resource": "/{proxy+}",
            "requestContext": {"stage": "v1"},
            "headers": dict(headers),
        }
        return (
            event
            | {"multiValueHeaders": grouped(headers)}
            | (parameters if query else dict.fromkeys(parameters))
        )
    event["requestContext"] = {"elb": {"targetGroupArn": "arn"}}
    if form == "alb":
        return event | {"headers": dict(headers), "queryStringParameters": dict(encoded)}
    return event | {
        "multiValueHeaders": grouped(headers),
        "multiValueQueryStringParameters": grouped(encoded),
    }


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: str | None

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "Answer":
        """Read what a handler returned, and check that a problem contains no internal names."""
        headers = {
            name: ", ".join(values) for name, values in raw.get("multiValueHeaders", {}).items()
        }
        answer = cls(raw["statusCode"], headers | raw.get("headers", {}), raw.get("body"))
        if answer.headers.get("Content-Type") == "application/problem+json":
            assert answer.json()["status"] == answer.status
            assert all(answer.json().values())
            assert not {word for word in (NAME, "#", "Error", "k1") if word in str(answer.body)}
        return answer

    def json(self) -> Any:
        return json.loads(str(self.body))

    def replayed(self) -> "Answer":
        """The same answer as whoever asks again gets it."""
        return self._replace(headers=dict(self.headers) | {"Idempotency-Replayed": "true"})

    def is_problem(self, status: int, kind: str) -> bool:
        """Whether it is this problem, with Retry-After if the status is 409 or 503."""
        waits = int(self.headers.get("Retry-After", 0)) >= 1
        return (self.status, self.json()["type"], waits) == (
            status,
            f"urn:problem-type:{kind}",
            status in (409, 503),
        )


class Api:
    """A consumer of requests, each of which has an effect, and a client of it."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self.consumer = world.consumer(NAME, **({"key": None} | settings))
        self.runs: list[Operation | None] = []

    def serve(self, work: Callable[[Any], object], **options: Any) -> Callable[..., Answer]:
        """Decorate the work, and return what sends requests to it."""

        @self.consumer.http_handler(**({"caller": ANY_CALLER} | options))
        def handler(request: Any, operation: Operation | None) -> object:
            self.runs.append(operation)
            if operation is not None:
                operation.write(EFFECT)
            return work(request)

        return lambda event, timeout_s=30.0: Answer.of(
            handler(event, self.world.invocation(timeout_s=timeout_s))
        )

    def state(self, key: object = "k1") -> tuple[Status | None, int]:
        record = self.consumer.record(key)
        return record and record.status, self.world.effects


@pytest.fixture
def api(world: World) -> Make:
    return partial(Api, world)


# ── Formats ───────────────────────────────────────────────────────────────────────────────────────

COOKIES: Final = ["a=1; Secure", "b=2"]
VARY: Final = {
    "headers": {"Location": "/rides/1", "Vary": ["Accept", "Origin"], "set-cookie": "b=2"},
    "multiValueHeaders": {"vary": ["Accept"]},
}
RESPONSE: Final = {"statusCode": "201", "body": "made", "cookies": COOKIES[:1], **VARY}


def rendered(form: str, **more: str) -> dict[str, Any]:
    joined = {"Location": "/rides/1", "vary": "Accept, Origin", **more}
    many = {name: value.split(", ") for name, value in joined.items()} | {"Set-Cookie": COOKIES}
    own: dict[str, dict[str, Any]] = {
        "2.0": {"headers": joined, "cookies": COOKIES},
        "1.0": {"multiValueHeaders": many},
        "alb": {"headers": joined | {"Set-Cookie": "b=2"}, "statusDescription": "201 Created"},
        "alb with many values": {"multiValueHeaders": many, "statusDescription": "201 Created"},
    }
    return {"statusCode": 201, "isBase64Encoded": False, "body": "made"} | own[form]


@pytest.mark.parametrize("again", FORMATS)
@pytest.mark.parametrize("first", FORMATS)
def test_an_answer_has_the_format_of_its_request(world: World, first: str, again: str) -> None:
    """A copy is answered in its own format, whichever the first one had, and without cookies."""
    handler = world.consumer(key=None).http_handler(caller=ANY_CALLER)(
        lambda request, operation: RESPONSE
    )
    assert handler(ask(form=first), world.invocation()) == rendered(first)
    replayed = rendered(again, **{"Idempotency-Replayed": "true"})
    replayed.pop("cookies", None)
    for headers in (replayed.get("headers", {}), replayed.get("multiValueHeaders", {})):
        headers.pop("Set-Cookie", None)
    assert handler(ask(form=again), world.invocation()) == replayed


def test_a_request_is_the_same_in_every_spelling(api: Make) -> None:
    """A request's format, parameter order, JSON spelling and base64 do not matter.

    Its content does.
    """
    made = api()
    send = made.serve(lambda request: "done")
    query = [("a", "1 &"), ("ä", "")]
    spellings = ('{"seats":1,"note":"\\u00e4"}', '{ "note": "ä", "seats": 1.0 }')
    same: list[dict[str, Any]] = [{"query": query, "body": {"body": text}} for text in spellings]
    same += [{"query": query[::-1], "body": binary(spellings[0].encode()), "key": '"k1"'}]
    first, *again = [send(ask(form=form, **each)) for form in FORMATS for each in same]
    assert again == [first.replayed()] * len(again)
    others: list[dict[str, Any]] = [
        {"path": "/rides/1"},
        {"method": "PUT"},
        {"body": PLAIN},
        {"query": query[:1]},
    ]
    for form, other in product(FORMATS, others):
        assert send(ask(form=form, **same[0] | other)).is_problem(422, "idempotency-key-reused")
    assert len(made.runs) == 1


NO_JSON: Final = (b"text", b"Text", b"", b"\xff", b"NaN", b"Infinity", b"1e999", b"[" * 9999)


@pytest.mark.parametrize("content", NO_JSON)
def test_a_body_that_is_no_json_is_told_apart_by_its_bytes(api: Make, content: bytes) -> None:
    """Text, bytes, and what only looks like JSON are compared as they are."""
    send = api().serve(lambda request: "done")
    bodies = [content, content, *(set(NO_JSON) - {content})]
    assert [send(ask(body=binary(body))).status for body in bodies] == [200, 200] + [422] * (
        len(NO_JSON) - 1
    )


@pytest.mark.parametrize(
    "event", [{}, {"version": "2.0"}, {"httpMethod": "GET", "path": "/"}, {"detail": {}}]
)
def test_another_trigger_is_no_request(api: Make, event: dict[str, Any]) -> None:
    """An event in no known format raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="not a request"):
        api().serve(lambda request: "done")(event)


# ── Keys and methods ──────────────────────────────────────────────────────────────────────────────

KEYS: Final = {
    "k1": "k1",
    " k1": "k1",
    '"a b,c"': "a b,c",
    r'"a\"b\\c"': r'a"b\c',
    '"k1";a=1': "k1",
    '"k;1" ; a;b=x': "k;1",
    "x" * 255: "x" * 255,
}
MALFORMED: Final = (
    "",
    " ",
    "a b",
    "a,b",
    '"',
    '""',
    '"k1',
    'k"1',
    '"k1"a=1',
    '"k1";"',
    "ä",
    "a\nb",
    "k1\n",
    "x" * 256,
)


@pytest.mark.parametrize("form", FORMATS)
def test_the_key_is_the_content_of_the_header(api: Make, form: str) -> None:
    """The key may be quoted.

    One that is missing, malformed, sent twice or incomplete is answered with 400.
    """
    assert {header: idempotency_key(ask(key=header, form=form)) for header in KEYS} == KEYS
    served = api()
    scoped = api(key=lambda request: (None, idempotency_key(request)))
    # Of two values, "alb" sends the last.
    bad = [None, *MALFORMED] + ([["k1", "k2"]] if form != "alb" else [])
    answers = [served.serve(lambda request: "done")(ask(key=key, form=form)) for key in bad]
    answers.append(scoped.serve(lambda request: "done")(ask(form=form)))
    assert all(answer.is_problem(400, "invalid-request") for answer in answers)
    assert {answer.json()["field"] for answer in answers} == {"Idempotency-Key"}
    assert served.runs == scoped.runs == []


def test_a_key_of_the_request_takes_the_place_of_the_header(api: Make) -> None:
    """``key=`` and ``payload=`` get the parsed request, or are expressions.

    The request's id cannot be the key.
    """
    made = api(
        parse=lambda event: event["body"],
        payload=lambda body: body[0],
        key=lambda body: ("tenant", body[-1]),
    )
    send = made.serve(lambda request: "done")
    assert [send(ask(key=None, body={"body": body})).status for body in ("1 1", "1-1", "2 1")] == [
        200,
        200,
        422,
    ]
    api(key="requestContext.requestId").serve(lambda request: "done")(ask(key=None))
    assert [made.state(key)[0] for key in (("tenant", "1"), "request-1")] == [COMPLETED, COMPLETED]
    with pytest.raises(ConfigurationError, match="Idempotency-Key"):
        api(key=TRANSPORT_ID).serve(lambda request: "done")


@pytest.mark.parametrize("options", [{}, {"methods": ["post"]}])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"])
def test_requests_that_change_nothing_run_each_time(
    api: Make, method: str, options: dict[str, Any]
) -> None:
    """Methods that are not protected need no key and leave no record.

    ``methods=`` chooses the protected ones.
    """
    served = api()
    send = served.serve(
        lambda request: {"statusCode": 500 if served.runs[-1] is None else 200}, **options
    )
    protected = method == "POST" if options else method in ("POST", "PUT", "PATCH", "DELETE")
    assert {send(ask(method)).status for _ in range(2)} == {200 if protected else 500}
    assert served.runs.count(None) == (0 if protected else 2)
    assert served.state() == ((COMPLETED, 1) if protected else (None, 0))


# ── Outcomes ──────────────────────────────────────────────────────────────────────────────────────


def fail(error: Exception) -> Any:
    raise error


ONCE: Final[dict[str, tuple[Callable[[], object], int, int]]] = {
    "an answer": (lambda: {"statusCode": 204}, 204, 1),
    "a refusal": (lambda: {"statusCode": 404, "body": b"no"}, 404, 1),
    "a refusal that is raised": (
        lambda: fail(HttpProblemError(409, "Stale", type="stale", stored=True, version=2)),
        409,
        0,
    ),
}
FAILURES: Final[dict[str, tuple[Callable[[], object], int | type[Exception], str]]] = {
    "an answer of 5xx": (lambda: {"statusCode": 500, "body": {"sorry": True}}, 500, FAILED),
    "a problem of 5xx": (lambda: fail(HttpProblemError(502)), 502, FAILED),
    "not now": (lambda: fail(RetryableError("later")), 503, FAILED),
    "a bug": (lambda: fail(KeyError("pickup")), KeyError, FAILED),
    "unfinished work": (lambda: (each for each in "ab"), UnfinishedWorkError, FAILED),
    "an error of another operation": (
        lambda: fail(PayloadMismatchError("k")),
        PayloadMismatchError,
        QUARANTINED,
    ),
}


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("case", ONCE)
def test_what_is_answered_below_500_is_answered_for_good(
    api: Make, case: str, atomic: bool
) -> None:
    """The answer is stored with the effects (none if the handler raised) for every copy."""
    respond, status, charges = ONCE[case]
    served = api(policy={"atomic": atomic}, labels=lambda request: {"path": request["rawPath"]})
    send = served.serve(lambda request: respond())
    first = send(ask())
    assert (first.status, served.state()) == (status, (COMPLETED, charges))
    assert [send(ask()) for _ in range(2)] == [first.replayed()] * 2
    assert served.state() == (COMPLETED, charges)
    assert atomic or len(served.runs) == 1
    seen = [(each.outcome, each.labels["path"]) for each in served.world.seen]
    assert seen == [("New", "/rides"), *2 * [("Duplicate", "/rides")]]


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("case", FAILURES)
def test_what_fails_is_recorded_and_not_stored(api: Make, case: str, atomic: bool) -> None:
    """A 5xx answer is returned, an exception raised.

    The next copy may succeed, unless the error is permanent.

    Only a request that is given up is dead-lettered. Letter and record (with ``keep_event``) have
    it without its headers, which may hold credentials.
    """
    respond, told, status = FAILURES[case]
    served = api(policy={"atomic": atomic, "keep_event": True})
    send = served.serve(lambda request: respond() if len(served.runs) == 1 else "done")
    if isinstance(told, int):
        first = send(ask())
        assert first.is_problem(503, "unavailable") if told == 503 else first.status == told
    else:
        with pytest.raises(told):
            send(ask())
    assert served.state() == (status, 0)
    kept = str(served.consumer.record("k1"))
    assert ("seats" in kept, "accept" in kept.lower()) == (True, False)
    again = send(ask())
    if status == QUARANTINED:
        assert again.is_problem(500, "request-given-up")
    else:
        assert (again.json(), served.state()) == ("done", (COMPLETED, 1))
    assert served.world.reasons == ([QUARANTINED] if status == QUARANTINED else [])
    assert "accept" not in str(served.world.box.letters).lower()


def test_a_clients_mistake_is_not_dead_lettered(api: Make) -> None:
    """The client is told of it; otherwise anybody could fill the queue."""
    served = api()
    send = served.serve(lambda request: "done")
    answers = [send(ask(path=path)).status for path in ("/rides", "/cars", "/cars")]
    answers.append(send(ask(key=None)).status)
    assert (answers, served.world.reasons) == ([200, 422, 422, 400], [])


def test_a_key_that_was_given_up_is_free_after_its_window(api: Make) -> None:
    """Exceptions of the code do not burn a client's key, and the last one is a quarantine."""
    served = api(policy={"window": 3600})
    send = served.serve(
        lambda request: fail(KeyError("pickup")) if len(served.runs) < 4 else "done"
    )
    for _ in range(3):
        with pytest.raises(KeyError):
            send(ask())
    assert send(ask()).is_problem(500, "request-given-up")
    outcomes = [each.outcome for each in served.world.seen]
    assert outcomes == ["Failed", "Failed", "DeadLettered", "Quarantined"]
    record = served.consumer.record("k1")
    assert record is not None
    assert record.expiry == served.world.clock() // 1000 + 3600
    served.world.clock.advance(3602)
    assert (send(ask()).json(), served.state()) == ("done", (COMPLETED, 1))
    assert served.world.reasons == [QUARANTINED]


def test_a_request_with_an_open_call_stays_given_up(world: World) -> None:
    """After the window nobody knows more about the call, so it is not made again."""
    calls: list[str] = []

    def charge(key: str) -> None:
        calls.append(key)
        raise TimeoutError

    @world.consumer(key=None, policy={"window": 3600}).http_handler(caller=ANY_CALLER)
    def handler(request: object, operation: Operation | None) -> object:
        assert operation is not None
        operation.external("charge", charge)
        return "done"

    with pytest.raises(TimeoutError):
        handler(ask(), world.invocation())
    for _ in range(3):
        world.clock.advance(7200)
        with suppress(UnknownOutcomeError):
            assert Answer.of(handler(ask(), world.invocation())).status == 500
        assert world.record().expiry is None
    assert len(calls) == 1


def test_a_crashed_request_that_must_not_run_again_stays_given_up(api: Make) -> None:
    """With ``on_crash="quarantine"`` the quarantine of a request does not end with its window."""
    served = api(policy={"window": 3600, "on_crash": "quarantine"})
    send = served.serve(crash)
    with pytest.raises(Crash):
        send(ask())
    for _ in range(3):
        served.world.clock.advance(7200)
        assert send(ask()).is_problem(500, "request-given-up")
    assert len(served.runs) == 1


def test_a_client_is_told_when_to_come_back(api: Make) -> None:
    """Retry-After is a few seconds while a copy runs, and the rest of the back-off after a failure.

    An outage uses up no attempt: a client that asks on through answers of 5xx is served in the end.
    """
    served = api(policy={"backoff": lambda attempt: 60.0, "max_attempts": 2})
    copies: list[Answer] = []

    def work(request: object) -> object:
        served.world.clock.advance(10)
        copies.append(send(ask()))
        return {"statusCode": 500}

    send = served.serve(work)
    send(ask())
    copies.append(send(ask()))
    assert copies[0].is_problem(409, "request-in-progress")
    assert copies[1].is_problem(503, "unavailable")
    # The lease has 23 s left, but most copies end long before it.
    assert [int(copy.headers["Retry-After"]) for copy in copies] == [5, 60]
    for runs in range(2, 6):
        served.world.clock.advance(60)
        assert (send(ask()).status, len(served.runs)) == (500, runs)


def test_what_is_unknown_is_called_unknown(api: Make, world: World) -> None:
    """Without the store or time the answer is 503, and a retry gets the stored answer."""
    served = api()
    inner = served.consumer.function(key="key", name="inner")(lambda key: key)
    assert served.serve(lambda request: inner("k2"))(ask("GET"), timeout_s=0.5).is_problem(
        503, "unavailable"
    )
    send = served.serve(lambda request: "done")
    assert send(ask(), timeout_s=0.5).is_problem(503, "unavailable")
    world.transport.pass_on()
    for _ in range(6):  # every try of the commit
        world.transport.lose_answer()
    assert send(ask()).is_problem(503, "unavailable")
    found = send(ask())
    assert (found.json(), found) == ("done", found.replayed())


# ── Responses, and requests that cannot be read ───────────────────────────────────────────────────

JSON: Final = "application/json"


@pytest.mark.parametrize(
    ("response", "content_type", "body"),
    [
        ({"id": 1}, JSON, b'{"id":1}'),
        ("text", JSON, b'"text"'),
        (None, JSON, b"null"),
        ({"statusCode": 200, "body": {"name": "Zoë"}}, JSON, '{"name":"Zoë"}'.encode()),
        ({"statusCode": 200, "headers": {"content-type": "a/b"}, "body": []}, "a/b", b"[]"),
        (
            {"statusCode": 200, "headers": {"Content-Type": None}, "body": "as it is"},
            None,
            b"as it is",
        ),
        ({"statusCode": 200, "body": b"\x00\xff"}, None, b"\x00\xff"),
        ({"statusCode": 200, "body": "AP8=", "isBase64Encoded": True}, None, b"\x00\xff"),
        ({"statusCode": 200, "body": b"AP8=", "isBase64Encoded": True}, None, b"\x00\xff"),
        ({"statusCode": 200, "multiValueHeaders": None, "headers": None}, None, b""),
    ],
)
def test_a_response_may_have_any_usual_form(
    world: World, response: object, content_type: str | None, body: bytes
) -> None:
    """A response without a status code becomes JSON, and bytes become base64."""
    handler = world.consumer(key=None).http_handler(caller=ANY_CALLER)(
        lambda request, operation: response
    )
    for form in FORMATS:
        raw = json.loads(json.dumps(handler(ask(form=form), world.invocation())))
        answer = Answer.of(raw)
        types = {value for name, value in answer.headers.items() if name.lower() == "content-type"}
        assert (answer.status, types) == (200, {content_type} - {None})
        text = answer.body or ""
        assert (base64.b64decode(text) if raw["isBase64Encoded"] else text.encode()) == body


@pytest.mark.parametrize(
    ("response", "error"),
    [
        ({"statusCode": 200, "body": {"at": {1, 2}}}, TypeError),
        ({"price": float("nan")}, ValueError),
        ({"statusCode": 99}, ValueError),
        ({"statusCode": 200, "body": "\ud800"}, ValueError),
        (object(), TypeError),
        ({"statusCode": 200, "body": "x" * 200}, None),
    ],
)
def test_an_answer_that_cannot_be_repeated(
    api: Make, response: object, error: type[Exception] | None
) -> None:
    """One that cannot be encoded fails before the commit; one that is too large is not repeated."""
    served = api(policy={"max_result_bytes": 200})
    send = served.serve(lambda request: response)
    if error is None:
        assert send(ask()).body == "x" * 200
        assert all(send(ask()).is_problem(500, "answer-not-stored") for _ in range(2))
        assert (len(served.runs), served.state()) == (1, (COMPLETED, 1))
        return
    with pytest.raises(error):
        send(ask())
    assert served.state() == (FAILED, 0)


def test_an_answer_that_cannot_be_encoded_keeps_an_external_effect(world: World) -> None:
    """After an external call the request is completed without its answer.

    The call is not repeated.
    """
    calls: list[str] = []

    @world.consumer(key=None).http_handler(caller=ANY_CALLER)
    def handler(request: object, operation: Operation | None) -> object:
        assert operation is not None
        operation.external("charge", calls.append)
        return object()

    with pytest.raises(TypeError):
        handler(ask(), world.invocation())
    for _ in range(2):
        assert Answer.of(handler(ask(), world.invocation())).is_problem(500, "answer-not-stored")
    assert len(calls) == 1


@dataclass
class Fare:
    """A body, or a part of one."""

    amount: Decimal
    at: datetime


BODIES: Final = {
    "a whole Decimal": (Decimal("7.00"), 7),
    "a Decimal": (Decimal("7.5"), 7.5),
    "a time": (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
    "a UUID": (UUID(int=1), str(UUID(int=1))),
    "an enum member": (HTTPMethod.GET, "GET"),
    "a dataclass": (
        Fare(Decimal("7.5"), datetime(2026, 1, 1, tzinfo=UTC)),
        {"amount": 7.5, "at": "2026-01-01T00:00:00+00:00"},
    ),
    "a model": (create_model("Ride", seats=(int, ...))(seats=1), {"seats": 1}),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_body_may_hold_what_python_programs_hold(api: Make, case: str) -> None:
    """The first answer and its copies hold the value as JSON, alone or inside of another."""
    value, expected = BODIES[case]
    served = api()
    send = served.serve(lambda request: {"statusCode": 200, "body": {"value": [value]}})
    assert [send(ask()).json() for _ in range(2)] == [{"value": [expected]}] * 2
    assert (len(served.runs), served.state()) == (1, (COMPLETED, 1))


MAY_CHANGE: Final = (401, 403, 408, 409, 423, 425, 429)


@pytest.mark.parametrize("said", [None, True, False])
@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize("status", [*MAY_CHANGE, 400, 404, 422])
def test_a_refusal_that_may_change_is_not_stored(
    api: Make, status: int, raised: bool, said: bool | None
) -> None:
    """What the same request may get later runs again, unless the handler says otherwise."""
    stored = said if said is not None else status not in MAY_CHANGE
    served = api()
    refusal = HttpProblemError(status, stored=said)

    def work(request: object) -> object:
        if len(served.runs) > 1:
            return {"statusCode": 200}
        if raised:
            raise refusal
        return {"statusCode": status, "stored": said}

    send = served.serve(work)
    assert [send(ask()).status for _ in range(2)] == [status, status if stored else 200]
    effects = 1 if not stored or not raised else 0
    assert served.state() == (COMPLETED, effects)


@pytest.mark.parametrize("caller", ["who", lambda request: request["who"]])
def test_a_caller_is_a_part_of_the_key(world: World, caller: Any) -> None:
    """Two callers never share an answer; without a caller nothing runs.

    Cookies are never stored.
    """
    runs: list[str] = []

    @world.consumer(key=None).http_handler(caller=caller)
    def handler(request: Any, operation: Operation | None) -> object:
        runs.append(request["who"])
        return {"statusCode": 200, "body": request["who"], "cookies": [f"as={request['who']}"]}

    def send(who: str | None) -> Any:
        return handler(ask() | {"who": who}, world.invocation())

    first = send("a")
    again = send("a")
    other = send("b")
    assert (first["body"], first["cookies"]) == ("a", ["as=a"])
    assert (again["body"], again.get("cookies")) == ("a", None)
    assert (other["body"], other["cookies"]) == ("b", ["as=b"])
    assert Answer.of(send(None)).json()["type"] == "urn:problem-type:unknown-caller"
    assert runs == ["a", "b"]


def test_an_api_says_who_may_share_its_keys(world: World) -> None:
    """Without ``key=`` and ``caller=`` a handler of requests is refused where it is decorated."""
    with pytest.raises(ConfigurationError, match="ANY_CALLER"):
        world.consumer(key=None).http_handler(lambda request, operation: None)


def test_a_request_without_a_key_can_run_unprotected(api: Make) -> None:
    """With ``missing_key="run"`` each such request runs; a malformed key is still refused."""
    served = api(policy={"missing_key": "run"})
    send = served.serve(lambda request: "done")
    assert [send(ask(key=None)).status for _ in range(2)] == [200, 200]
    assert len(served.runs) == 2
    assert send(ask(key="a b")).is_problem(400, "invalid-request")


NOT_PARTS: Final[tuple[Any, ...]] = (
    *(b"c", bytearray(b"c"), 1.5, True, Decimal("1.5"), object(), Path("c"), 10**5000),
    *(["c"], ("c",), ("tenant", "c"), [], {"sub": "c"}, {"c"}, [["c"]], [None]),
)
"""What cannot be a part of a key, and is neither None nor empty text."""
KEYS_OF_PARTS: Final[tuple[Any, ...]] = (["c"], ("c",), ("tenant", "c"), [])
"""Those of them that are a composite key, or none."""


@pytest.mark.parametrize("missing_key", ["reject", "run"])
@pytest.mark.parametrize("key", ["k1", None])
@pytest.mark.parametrize("who", NOT_PARTS, ids=lambda who: type(who).__name__)
def test_a_caller_that_cannot_be_a_part_of_a_key_is_the_apis_fault(
    api: Make, who: object, missing_key: str, key: str | None
) -> None:
    """``caller=`` is refused by name, and no request with a key runs unprotected because of it."""
    keys: dict[str, Any] = {"key": lambda request: ("tenant", idempotency_key(request))}
    for settings in ({}, keys):
        served = api(policy={"missing_key": missing_key}, **settings)
        send = served.serve(lambda request: "done", caller=lambda request: who)
        if key is None:
            assert send(ask(key=None)).status == (200 if missing_key == "run" else 400)
            continue
        with pytest.raises(ConfigurationError, match="caller= found a"):
            send(ask())
        assert (served.runs, served.world.dynamodb.all(TABLE)) == ([], [])


@pytest.mark.parametrize("missing_key", ["reject", "run"])
@pytest.mark.parametrize(
    "found", [part for part in NOT_PARTS if part not in KEYS_OF_PARTS], ids=type
)
def test_what_is_not_a_key_is_not_taken_for_a_missing_one(
    api: Make, found: object, missing_key: str
) -> None:
    """A ``key=`` that finds something else than a key is answered with 400, whatever the policy."""
    served = api(policy={"missing_key": missing_key}, key=lambda request: found)
    for caller in (ANY_CALLER, lambda request: "c"):
        send = served.serve(lambda request: "done", caller=caller)
        assert send(ask()).is_problem(400, "invalid-request")
    assert served.runs == []


@pytest.mark.parametrize("found", [None, "", [], ()], ids=repr)
def test_a_key_that_finds_nothing_is_missing(api: Make, found: object) -> None:
    """Otherwise all requests of a caller would share one key."""
    for policy, statuses in (({}, [400, 400]), ({"missing_key": "run"}, [200, 200])):
        served = api(policy=policy, key=lambda request: found)
        send = served.serve(lambda request: "done", caller=lambda request: "c")
        assert [send(ask()).status for _ in range(2)] == statuses
        assert len(served.runs) == statuses.count(200)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            HttpProblemError(422, "No", "seats", type="urn:a:b", field="seats"),
            (422, "urn:a:b", "seats"),
        ),
        (HttpProblemError(404), (404, "about:blank", None)),
        (HttpProblemError(415, type="media"), (415, "urn:mine:media", None)),
        (ValueError(NAME), (400, "urn:mine:invalid-request", None)),
        (KeyError("a typo"), KeyError),
    ],
)
def test_nothing_is_remembered_of_what_cannot_be_read(
    api: Make, error: Exception, told: Any
) -> None:
    """A problem or ValueError of ``parse`` is answered without a record.

    Any other error of it is raised.
    """
    served = api(parse=lambda event: fail(error), payload=str)
    send = served.serve(lambda request: "done", problem_types="urn:mine:")
    for method in ("GET", "POST"):
        if isinstance(told, tuple):
            problem = send(ask(method)).json()
            assert (problem["status"], problem["type"], problem.get("field")) == told
        else:
            with pytest.raises(told):
                send(ask(method))
    assert (served.runs, served.state()) == ([], (None, 0))
