"""Requests to ASGI applications: FastAPI's and Starlette's run once, whatever becomes of them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import httpx2
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import FileResponse
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route

from carride_idempotency import (
    ANY_CALLER,
    TRANSPORT_ID,
    AsyncOperation,
    ConfigurationError,
    Consumer,
    DynamoDBStore,
    Effect,
    EffectConflictError,
    HttpProblemError,
    IdempotencyError,
    MemoryStore,
    Observation,
    Operation,
    PayloadMismatchError,
    Policy,
    Put,
    RetryableError,
    StoreUnavailableError,
    request_operation,
    request_operation_in_thread,
)
from carride_idempotency.record import Record
from carride_idempotency.testing import FakeDynamoDB

PATIENCE_S: Final = 10
RIDE: Final = {"seats": 1}
FAKE: Final = "fake DynamoDB"
MEMORY: Final = "memory"

type Messages = list[dict[str, Any]]


class Ride(BaseModel):
    seats: int


class Api:
    """A FastAPI application, the store of its requests, and what they leave.

    ``before`` is called with each step that the store is asked for, in its thread.
    """

    def __init__(self, kind: str = MEMORY, **settings: Any) -> None:
        self.app = FastAPI()
        self.effects: list[Effect] = []
        self.seen: list[Observation] = []
        self.runs = 0
        self.before: Callable[[str], None] = lambda _: None
        self.threads: set[int] = set()
        self.fake = FakeDynamoDB({"Records": ("idempotencyKey",), "Rides": ("id",)})
        self.backend: Any = MemoryStore(apply=self.effects.extend)
        if kind == FAKE:
            self.backend = DynamoDBStore("Records", transport=self.fake)
        self.transactional = True
        store: Any = self
        policy = settings.pop("policy", {})
        self.consumer: Consumer[Any] = Consumer(
            "rides", store, policy=Policy(**policy), observe=self.seen.append, **settings
        )
        self.protected = {"caller": who_calls}

    def __getattr__(self, step: str) -> Callable[..., Any]:
        take = getattr(self.backend, step)

        def taken(*args: Any, **options: Any) -> Any:
            records = [each for each in args if isinstance(each, Record)]
            status = records[-1].status if records else ""
            self.threads.add(threading.get_ident())
            self.before(f"{step} {status}".strip())
            return take(*args, **options)

        return taken

    def post(self, endpoint: Callable[..., Any], path: str = "/rides", **options: Any) -> None:
        self.app.post(path, **options)(endpoint)

    def served(self, **options: Any) -> Any:
        """Return the application behind the middleware."""
        return self.consumer.asgi(self.app, **(self.protected | options))

    def record(self, key: str = "k1", caller: str = "ada") -> Record | None:
        return self.consumer.record((caller, key))

    def outcomes(self) -> list[str]:
        return [seen.outcome for seen in self.seen]


def who_calls(scope: Any) -> object:
    names = [value for name, value in scope["headers"] if name == b"x-user"]
    return names[0].decode() if names else None


async def ask(
    app: Any,
    method: str = "POST",
    path: str = "/rides",
    *,
    key: str | None = "k1",
    user: str | None = "ada",
    raises: bool = True,
    **options: Any,
) -> httpx2.Response:
    headers = dict(options.pop("headers", {}))
    if key is not None:
        headers["Idempotency-Key"] = key
    if user is not None:
        headers["X-User"] = user
    if method == "POST" and "content" not in options:
        options.setdefault("json", RIDE)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=raises)
    async with httpx2.AsyncClient(transport=transport, base_url="http://rides") as client:
        return await client.request(method, path, headers=headers, **options)


def asked(app: Any, *args: Any, times: int = 1, **options: Any) -> list[httpx2.Response]:
    async def service() -> list[httpx2.Response]:
        async with asyncio.timeout(PATIENCE_S):
            return [await ask(app, *args, **options) for _ in range(times)]

    return asyncio.run(service())


def scope_of(
    path: str = "/rides", extensions: Mapping[str, Any] | None = None, version: str = "2.3"
) -> dict[str, Any]:
    headers = [(b"idempotency-key", b"k1"), (b"x-user", b"ada"), (b"content-length", b"11")]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": version},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*headers, (b"content-type", b"application/json")],
        "extensions": dict(extensions or {}),
    }


class Connection:
    """One request over bare ASGI: what the client has got, and when it hangs up."""

    def __init__(self, **scope: Any) -> None:
        self.scope = scope_of(**scope)
        self.got: Messages = []
        self.gone = asyncio.Event()
        self._bodies = [{"type": "http.request", "body": b'{"seats":1}', "more_body": False}]

    async def receive(self) -> dict[str, Any]:
        if self._bodies:
            return self._bodies.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.got.append(dict(message))

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)

    @property
    def is_ended(self) -> bool:
        return bool(self.got) and self.got[-1].get("more_body") is False


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.001)


def booking(api: Api) -> None:
    """Add an endpoint that books a ride, with an effect of its own for each run."""

    async def book(
        ride: Ride, operation: Annotated[AsyncOperation, Depends(request_operation)]
    ) -> JSONResponse:
        api.runs += 1
        operation.write(Put("Rides", {"id": f"{operation.key} {api.runs}", "seats": ride.seats}))
        await asyncio.sleep(0)
        return JSONResponse({"run": api.runs}, 201, {"Location": "/rides/1"})

    api.post(book)


# ── Once ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [MEMORY, FAKE])
def test_a_repeated_request_gets_the_first_answer(kind: str) -> None:
    """Status, headers and body are replayed and marked; effect and answer are one commit."""
    api = Api(kind)
    booking(api)
    first, second = asked(api.served(), times=2)
    assert (
        (first.status_code, first.json())
        == (second.status_code, second.json())
        == (201, {"run": 1})
    )
    assert second.headers["Location"] == first.headers["Location"] == "/rides/1"
    assert second.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert second.headers["Content-Length"] == first.headers["Content-Length"]
    assert api.outcomes() == ["New", "Duplicate"]
    assert len(api.effects) + len(api.fake.all("Rides")) == 1


def test_a_plain_endpoint_runs_once_in_its_thread() -> None:
    """Starlette runs a ``def`` in a thread; its operation asks the store there."""
    api = Api()
    calls: list[str] = []

    def charge(key: str) -> str:
        calls.append(key)
        return "paid"

    def book(
        ride: Ride, operation: Annotated[Operation, Depends(request_operation_in_thread)]
    ) -> dict[str, Any]:
        assert operation.heartbeat()
        paid = operation.external("charge", charge)
        operation.write(Put("Rides", {"id": operation.downstream_key}))
        return {"paid": paid}

    api.post(book)
    first, second = asked(api.served(), times=2)
    assert first.json() == second.json() == {"paid": "paid"}
    assert (len(calls), len(api.effects)) == (1, 1)


def test_the_operation_of_a_thread_refuses_an_event_loop() -> None:
    """It would stall the loop: an async endpoint that asks for it is told what to write."""
    api = Api()

    async def beat(operation: Annotated[Operation, Depends(request_operation_in_thread)]) -> None:
        operation.heartbeat()

    async def call(operation: Annotated[Operation, Depends(request_operation_in_thread)]) -> None:
        operation.external("charge", lambda key: key)

    api.post(beat, "/beat")
    api.post(call, "/call")
    for path in ("/beat", "/call"):
        with pytest.raises(ConfigurationError, match="request_operation"):
            asked(api.served(), path=path, key=path)


def test_no_request_to_the_store_is_sent_from_the_thread_of_the_loop() -> None:
    """Claim, commit, failure, copy and refusal: none blocks the loop."""
    api = Api()
    booking(api)

    async def service() -> int:
        await ask(api.served())
        await ask(api.served())
        await ask(api.served(), json={"seats": 2})
        await ask(api.served(), key="k2", path="/nothing")
        return threading.get_ident()

    loop_thread = asyncio.run(service())
    assert api.threads
    assert loop_thread not in api.threads


def test_a_starlette_route_is_protected_alone() -> None:
    """A route's own middleware covers it, and no other one."""
    api = Api()

    async def book(request: StarletteRequest) -> StarletteResponse:
        api.runs += 1
        request_operation().write(Put("Rides", {"id": await request.json()}))
        return StarletteResponse(b"\xff\xfe", 201, media_type="application/octet-stream")

    async def search(request: StarletteRequest) -> StarletteResponse:
        api.runs += 1
        return StarletteResponse("found")

    middleware = [Middleware(api.consumer.asgi, caller=who_calls)]
    app = Starlette(
        routes=[
            Route("/rides", book, methods=["POST"], middleware=middleware),
            Route("/search", search, methods=["POST"]),
        ]
    )
    first, second = asked(app, times=2)
    assert first.content == second.content == b"\xff\xfe"
    assert second.headers["Content-Type"] == "application/octet-stream"
    assert api.runs == 1
    asked(app, path="/search", key=None, times=2)
    assert api.runs == 3


def test_add_middleware_takes_it() -> None:
    """FastAPI and Starlette build it as any other middleware."""
    api = Api()
    booking(api)
    api.app.add_middleware(api.consumer.asgi, caller=who_calls)
    asked(api.app, times=2)
    assert api.runs == 1


def test_a_get_reaches_the_application_as_it_is() -> None:
    """It needs no key, leaves no record, and has no operation."""
    api = Api()

    async def show() -> str:
        with pytest.raises(ConfigurationError, match=r"consumer\.asgi"):
            request_operation()
        return "shown"

    api.app.get("/rides")(show)
    (answer,) = asked(api.served(), "GET", key=None, user=None)
    assert answer.json() == "shown"
    assert api.seen == []


def test_other_connections_reach_the_application_as_they_are() -> None:
    """WebSockets and the life of the process have no method."""
    api = Api()
    types: list[str] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        types.append(scope["type"])

    app = api.consumer.asgi(inner, caller=ANY_CALLER)

    async def service() -> None:
        for kind in ("lifespan", "websocket"):
            connection = Connection()
            await app({"type": kind}, connection.receive, connection.send)

    asyncio.run(service())
    assert types == ["lifespan", "websocket"]


def test_protects_chooses_the_requests() -> None:
    """By their scope: the others run each time."""
    api = Api()
    booking(api)
    api.app.post("/search")(lambda: "found")
    served = api.served(protects=lambda scope: scope["path"] == "/rides")
    answers = asked(served, path="/search", key=None, times=2)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert asked(served, key=None)[0].status_code == 400


# ── Keys and callers ──────────────────────────────────────────────────────────────────────────────


def test_requests_without_a_key_and_with_another_payload_are_refused() -> None:
    """As problems of RFC 9457: 400 and 422. Nothing runs."""
    api = Api()
    booking(api)
    asked(api.served())
    (missing,) = asked(api.served(), key=None)
    (malformed,) = asked(api.served(), key="a,b")
    (other,) = asked(api.served(), json={"seats": 2})
    (path,) = asked(api.served(), path="/rides?now")
    statuses = [answer.status_code for answer in (missing, malformed, other, path)]
    assert statuses == [400, 400, 422, 422]
    assert missing.headers["Content-Type"] == "application/problem+json"
    assert missing.json()["title"] == "The Idempotency-Key is missing"
    assert other.json()["type"] == "urn:problem-type:idempotency-key-reused"
    assert api.runs == 1


def test_a_key_is_its_callers() -> None:
    """The same key of another caller is another key; an unknown caller gets 401."""
    api = Api()
    booking(api)
    answers = [asked(api.served(), user=user)[0] for user in ("ada", "bob", "ada", None)]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 401]
    assert [answer.json().get("run") for answer in answers] == [1, 2, 1, None]


def test_the_caller_may_be_found_by_an_async_def() -> None:
    """Such as a request to the issuer of a token; its refusal is an answer."""
    api = Api()
    booking(api)

    async def caller(scope: Any) -> str:
        await asyncio.sleep(0)
        name = who_calls(scope)
        if name == "eve":
            raise HTTPException(403, "not you", {"X-Why": "eve"})
        if name == "bob":
            raise HttpProblemError(401, "Expired")
        if name is None:
            raise KeyError("x-user")
        return str(name)

    served = api.served(caller=caller)
    ada, eve, bob = [asked(served, user=user)[0] for user in ("ada", "eve", "bob")]
    assert (ada.status_code, eve.status_code, bob.status_code) == (201, 403, 401)
    assert eve.headers["X-Why"] == "eve"
    with pytest.raises(KeyError):
        asked(served, user=None)
    assert api.runs == 1


def test_an_application_says_who_calls() -> None:
    """Otherwise one client could get another one's answer; only a function finds callers."""
    api = Api()
    with pytest.raises(ConfigurationError, match="say who calls"):
        api.consumer.asgi(api.app)
    wrong: Any = "headers.user"
    with pytest.raises(ConfigurationError, match="a function of the request's scope"):
        api.consumer.asgi(api.app, caller=wrong)
    events: Consumer[Any] = Consumer("events", MemoryStore(), key=TRANSPORT_ID)
    with pytest.raises(ConfigurationError, match="leave key= out"):
        events.asgi(api.app, caller=ANY_CALLER)


def test_the_key_may_be_in_the_body() -> None:
    """A webhook's event has its own: ``key=`` gets the request as a function URL's event."""
    api = Api(key="body")
    api.app.post("/hooks")(lambda: "taken")
    served = api.consumer.asgi(api.app)
    _, second = asked(served, path="/hooks", key=None, content=b"evt_1", times=2)
    assert "Idempotency-Replayed" in second.headers
    (other,) = asked(served, path="/hooks", key=None, content=b"evt_2")
    assert "Idempotency-Replayed" not in other.headers


def test_a_request_without_a_key_runs_if_the_policy_says_so() -> None:
    """It is observed as unprotected, and has an operation."""
    api = Api(policy={"missing_key": "run"})
    booking(api)
    asked(api.served(), key=None, times=2)
    assert api.runs == 2
    assert api.outcomes() == ["Unprotected", "Unprotected"]


def test_a_request_that_is_too_large_is_refused() -> None:
    """Its body would have to be kept to be compared."""
    api = Api()
    booking(api)
    served = api.served(most_body_bytes=11)
    answers = [asked(served, content=body)[0] for body in (b'{"seats":1}', b'{"seats":12}')]
    assert [answer.status_code for answer in answers] == [422, 413]
    assert api.threads == set() or api.runs == 0


# ── Copies ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("policy", "expected"), [({}, 409), ({"busy": "wait", "wait_limit": 5}, 201)]
)
def test_a_copy_of_a_running_request_is_refused_or_waits(
    policy: dict[str, Any], expected: int
) -> None:
    """By policy: 409 with Retry-After, or the first one's answer."""
    api = Api(policy=policy)
    runs = 0

    async def service() -> tuple[httpx2.Response, httpx2.Response]:
        go_on = asyncio.Event()

        async def book() -> JSONResponse:
            nonlocal runs
            runs += 1
            await go_on.wait()
            return JSONResponse({"run": runs}, 201)

        api.post(book)
        first = asyncio.create_task(ask(api.served()))
        await until(lambda: runs == 1)
        copy = asyncio.create_task(ask(api.served()))
        if expected == 409:
            await until(copy.done)
        else:
            await until(lambda: len(api.threads) > 0)
            await asyncio.sleep(0.02)
        go_on.set()
        return await first, await copy

    first, copy = asyncio.run(service())
    assert (first.status_code, copy.status_code, runs) == (201, expected, 1)
    if expected == 409:
        assert 1 <= int(copy.headers["Retry-After"]) <= 5
    else:
        assert copy.headers["Idempotency-Replayed"] == "true"


# ── Answers ───────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_of_5xx_is_a_failure() -> None:
    """It is sent and not stored, so the next copy runs; its effects do not take place."""
    api = Api()
    answers = [503, 200]

    async def book(
        response: Response, operation: Annotated[AsyncOperation, Depends(request_operation)]
    ) -> str:
        operation.write(Put("Rides", {"id": operation.key}))
        response.status_code = answers[api.runs]
        api.runs += 1
        return "answered"

    api.post(book)
    first, second, third = asked(api.served(), times=3)
    assert [each.status_code for each in (first, second, third)] == [503, 200, 200]
    assert api.runs == 2
    assert len(api.effects) == 1


def test_an_exception_is_a_failure_and_reaches_the_server() -> None:
    """The client gets the framework's 500, the log has the exception, and the next copy runs."""
    api = Api()

    async def book(
        operation: Annotated[AsyncOperation, Depends(request_operation)],
    ) -> int:
        operation.write(Put("Rides", {"id": operation.key}))
        api.runs += 1
        if api.runs == 1:
            raise KeyError("pickup")
        return operation.attempt

    api.post(book)
    api.app.add_middleware(api.consumer.asgi, caller=who_calls)
    with pytest.raises(KeyError):
        asked(api.app)
    record = api.record()
    assert record is not None
    assert (record.status, record.error) == ("FAILED", "KeyError: 'pickup'")
    assert asked(api.app)[0].json() == 2
    (other,) = asked(api.app, key="k2", raises=False)
    assert other.status_code == 200


@pytest.mark.parametrize(("status", "runs"), [(401, 2), (404, 1), (409, 2), (422, 1)])
def test_a_refusal_has_no_effects_and_is_stored_if_it_stands(status: int, runs: int) -> None:
    """A refusal that may change is not stored, as in a Lambda handler."""
    api = Api()

    async def book(
        operation: Annotated[AsyncOperation, Depends(request_operation)],
    ) -> None:
        operation.write(Put("Rides", {"id": operation.key}))
        api.runs += 1
        raise HTTPException(status)

    api.post(book)
    answers = asked(api.served(), times=2)
    assert [answer.status_code for answer in answers] == [status, status]
    assert (api.runs, api.effects) == (runs, [])


@pytest.mark.parametrize(("stored", "runs"), [(None, 2), (True, 1)])
def test_an_endpoint_may_raise_a_problem(stored: bool | None, runs: int) -> None:
    """It is answered, has no effects, and decides whether it is stored."""
    api = Api()

    async def book(
        operation: Annotated[AsyncOperation, Depends(request_operation)],
    ) -> None:
        operation.write(Put("Rides", {"id": operation.key}))
        api.runs += 1
        raise HttpProblemError(409, "Full", type="full", stored=stored)

    api.post(book)
    answers = asked(api.served(problem_types="https://rides/"), times=2)
    assert [answer.json()["type"] for answer in answers] == ["https://rides/full"] * 2
    assert (api.runs, api.effects) == (runs, [])


def test_an_outage_is_answered_503() -> None:
    """A RetryableError of the endpoint, and a store that gives no answer: try it again."""
    api = Api()

    async def book() -> None:
        raise RetryableError("the gateway is down")

    api.post(book)
    (down,) = asked(api.served())
    assert (down.status_code, down.headers["Retry-After"]) == (503, "1")

    def fail(step: str) -> None:
        raise StoreUnavailableError("no answer")

    api.before = fail
    (unavailable,) = asked(api.served(), key="k2")
    assert unavailable.status_code == 503


def test_no_answer_is_sent_before_the_commit() -> None:
    """If the commit fails, the client gets 503 and nothing of the application's answer."""
    api = Api()
    booking(api)

    def fail(step: str) -> None:
        if step.endswith("COMPLETED"):
            raise StoreUnavailableError("no answer")

    api.before = fail
    (answer,) = asked(api.served())
    assert answer.status_code == 503
    assert "Location" not in answer.headers
    assert api.effects == []


def test_cookies_are_not_replayed() -> None:
    """They may be a session; headers with several values are all replayed."""
    api = Api()

    async def book() -> StarletteResponse:
        response = StarletteResponse("booked")
        response.set_cookie("session", "secret")
        response.headers.append("Link", "</a>")
        response.headers.append("Link", "</b>")
        return response

    api.post(book)
    first, second = asked(api.served(), times=2)
    assert "session" in first.cookies
    assert "set-cookie" not in second.headers
    assert "secret" not in str(api.record())
    assert second.headers.get_list("link") == first.headers.get_list("link") == ["</a>", "</b>"]


def test_an_empty_answer_is_replayed() -> None:
    """204 has no body and no length."""
    api = Api()
    api.app.delete("/rides", status_code=204)(lambda: None)
    first, second = asked(api.served(), "DELETE", times=2)
    assert (second.status_code, second.content) == (first.status_code, first.content) == (204, b"")
    assert "Content-Length" not in second.headers


def test_a_streamed_answer_is_stored_and_sent_after_the_commit() -> None:
    """All of it, as one that is not streamed; the client gets nothing earlier."""
    api = Api()
    connections: list[Connection] = []
    early: list[int] = []

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"one,", b"two"):
            yield chunk
            await asyncio.sleep(0)
            early.append(len(connections[0].got))

    async def book() -> StreamingResponse:
        return StreamingResponse(chunks())

    api.post(book)

    async def service() -> bytes:
        connections.append(Connection())
        await api.served()(connections[0].scope, connections[0].receive, connections[0].send)
        return (await ask(api.served())).content

    assert asyncio.run(service()) == connections[0].content == b"one,two"
    assert early == [0, 0]


def test_an_answer_that_is_too_large_is_sent_as_it_comes_but_for_its_end() -> None:
    """Its end follows the commit. It is not stored, so a copy is told that it took effect."""
    api = Api(policy={"max_result_bytes": 5})
    ends: list[bool] = []

    async def service() -> tuple[Connection, httpx2.Response]:
        connection = Connection()

        async def chunks() -> AsyncIterator[bytes]:
            for chunk in (b"123", b"456", b"789"):
                yield chunk
            await until(lambda: connection.content == b"123456789")

        async def book() -> StreamingResponse:
            request_operation().write(Put("Rides", {"id": "1"}))
            return StreamingResponse(chunks())

        api.post(book)
        api.before = lambda step: ends.append(connection.is_ended)
        await api.served()(connection.scope, connection.receive, connection.send)
        return connection, await ask(api.served(), content=b'{"seats":1}')

    connection, copy = asyncio.run(service())
    assert connection.is_ended
    assert ends[:2] == [False, False]
    assert (copy.status_code, len(api.effects)) == (500, 1)
    assert copy.json()["type"] == "urn:problem-type:answer-not-stored"


def test_a_large_answer_whose_commit_fails_has_no_end() -> None:
    """The server cuts the connection, so the client knows that the answer is not whole."""
    api = Api(policy={"max_result_bytes": 5})

    async def book() -> StreamingResponse:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"1234567"
            yield b"89"

        return StreamingResponse(chunks())

    def fail(step: str) -> None:
        if step.endswith("COMPLETED"):
            raise StoreUnavailableError("no answer")

    api.post(book)
    api.before = fail

    async def service() -> Connection:
        connection = Connection()
        with pytest.raises(StoreUnavailableError):
            await api.served()(connection.scope, connection.receive, connection.send)
        return connection

    connection = asyncio.run(service())
    assert connection.content == b"123456789"
    assert not connection.is_ended


def test_an_answer_of_one_piece_that_is_too_large_is_sent_whole() -> None:
    """To whoever asked first, after the commit."""
    api = Api(policy={"max_result_bytes": 5})
    api.post(lambda: "a long answer")
    first, copy = asked(api.served(), times=2)
    assert first.json() == "a long answer"
    assert copy.status_code == 500


def test_a_file_is_stored() -> None:
    """A server that offers to send it by its path would send it before the commit."""
    api = Api()
    api.post(lambda: FileResponse(Path(__file__)))
    connection = Connection(extensions={"http.response.pathsend": {}})

    async def service() -> httpx2.Response:
        await api.served()(connection.scope, connection.receive, connection.send)
        return await ask(api.served(), content=b'{"seats":1}')

    copy = asyncio.run(service())
    assert {message["type"] for message in connection.got} == {
        "http.response.start",
        "http.response.body",
    }
    assert copy.content == connection.content == Path(__file__).read_bytes()


def test_an_application_without_a_complete_answer_has_failed() -> None:
    """The next copy runs."""
    api = Api()

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    with pytest.raises(RuntimeError, match="without a complete answer"):
        asked(api.consumer.asgi(silent, caller=who_calls))
    record = api.record()
    assert record is not None
    assert (record.status, record.attempt) == ("FAILED", 1)


def test_a_conflict_runs_the_application_again() -> None:
    """It gets the body again, and only its last answer is sent."""
    api = Api(policy={"conflict_reruns": 1})
    booking(api)

    def conflict(step: str) -> None:
        if step.endswith("COMPLETED") and api.runs == 1:
            raise EffectConflictError(0)

    api.before = conflict
    (answer,) = asked(api.served())
    assert (answer.status_code, answer.json()) == (201, {"run": 2})


def test_a_client_that_has_a_part_of_an_answer_gets_no_other_one() -> None:
    """After a conflict, a second answer would continue the first: the connection ends instead."""
    api = Api(policy={"conflict_reruns": 1, "max_result_bytes": 5})
    connection = Connection()

    async def book() -> StreamingResponse:
        api.runs += 1
        return StreamingResponse(iter([b"123456", b"789"]))

    def conflict(step: str) -> None:
        if step.endswith("COMPLETED") and api.runs == 1:
            raise EffectConflictError(0)

    api.post(book)
    api.before = conflict
    with pytest.raises(RetryableError, match="beginning of this answer"):
        asyncio.run(api.served()(connection.scope, connection.receive, connection.send))
    assert (connection.is_ended, api.runs) == (False, 1)


def test_an_error_of_another_operation_is_the_applications_own() -> None:
    """One inside the endpoint, such as of a function it calls: the server logs and counts it."""
    api = Api()

    async def book() -> None:
        raise PayloadMismatchError("mails#1")

    api.post(book)
    with pytest.raises(PayloadMismatchError):
        asked(api.served())


# ── Background tasks, clients that go, cancellation ───────────────────────────────────────────────


def test_background_tasks_are_a_part_of_the_operation() -> None:
    """They run before the commit; if one fails, the next copy runs all again."""
    api = Api()
    mails: list[str] = []

    def mail(address: str) -> None:
        assert api.record().status == "IN_PROGRESS"  # type: ignore[union-attr] # it is claimed
        mails.append(address)
        if len(mails) == 1:
            raise ConnectionError("no mail server")

    async def book(tasks: BackgroundTasks) -> str:
        tasks.add_task(mail, "ada@example.com")
        return "booked"

    api.post(book)
    with pytest.raises(ConnectionError):
        asked(api.served())
    answers = asked(api.served(), times=2)
    assert [answer.json() for answer in answers] == ["booked", "booked"]
    assert len(mails) == 2


def test_a_client_that_leaves_before_its_body_has_come_asks_for_nothing() -> None:
    """No key is claimed."""
    api = Api()
    booking(api)

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    connection = Connection()
    asyncio.run(api.served()(connection.scope, gone, connection.send))
    assert (connection.got, api.threads) == ([], set())


@pytest.mark.parametrize("version", ["2.3", "2.4"])
def test_a_client_that_leaves_ends_no_operation(version: str) -> None:
    """A copy gets the answer, also of a stream that would end with its client."""
    api = Api()

    async def service() -> httpx2.Response:
        connection = Connection(version=version)

        async def chunks() -> AsyncIterator[bytes]:
            yield b"begun, "
            connection.gone.set()
            await asyncio.sleep(0.01)
            yield b"done"

        async def book(request: Request) -> StreamingResponse:
            api.runs += 1
            assert not await request.is_disconnected()
            return StreamingResponse(chunks())

        api.post(book)
        await api.served()(connection.scope, connection.receive, connection.send)
        return await ask(api.served(), content=b'{"seats":1}')

    copy = asyncio.run(service())
    assert (copy.content, api.runs) == (b"begun, done", 1)


def test_a_client_that_leaves_a_large_answer_uses_up_no_attempt() -> None:
    """Its operation has failed as by an outage, so the next copy runs."""
    api = Api(policy={"max_result_bytes": 5})

    async def service() -> None:
        connection = Connection()

        async def chunks() -> AsyncIterator[bytes]:
            yield b"1234567"
            connection.gone.set()
            await asyncio.Event().wait()

        async def book() -> StreamingResponse:
            return StreamingResponse(chunks())

        api.post(book)
        with pytest.raises(RetryableError, match="client left"):
            async with asyncio.timeout(PATIENCE_S):
                await api.served()(connection.scope, connection.receive, connection.send)

    asyncio.run(service())
    record = api.record()
    assert record is not None
    assert (record.status, record.attempt) == ("FAILED", 0)


def test_a_cancelled_request_is_not_completed() -> None:
    """Such as by a server that stops: the attempt has failed, and the next copy runs."""
    api = Api()
    entered = threading.Event()

    async def book() -> str:
        api.runs += 1
        entered.set()
        if api.runs == 1:
            await asyncio.Event().wait()
        return "booked"

    api.post(book)

    async def service() -> httpx2.Response:
        task = asyncio.create_task(ask(api.served()))
        await until(entered.is_set)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        record = api.record()
        assert record is not None
        assert (record.status, record.attempt) == ("FAILED", 0)
        return await ask(api.served())

    assert asyncio.run(service()).json() == "booked"
    assert api.runs == 2


def test_a_plain_endpoint_of_a_cancelled_request_has_no_effect() -> None:
    """Its thread cannot be interrupted: it runs on, but calls nothing and commits nothing."""
    api = Api()
    entered = threading.Event()
    may_go_on = threading.Event()
    charges: list[str] = []
    refusals: list[Exception] = []

    def charge(key: str) -> str:
        charges.append(key)
        return "paid"

    def book(operation: Annotated[Operation, Depends(request_operation_in_thread)]) -> str:
        api.runs += 1
        entered.set()
        assert may_go_on.wait(PATIENCE_S)
        try:
            operation.external("charge", charge)
        except IdempotencyError as error:
            refusals.append(error)
            raise
        operation.write(Put("Rides", {"id": operation.downstream_key}))
        return "booked"

    api.post(book)

    async def service() -> httpx2.Response:
        task = asyncio.create_task(ask(api.served()))
        await until(entered.is_set)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        may_go_on.set()
        await until(lambda: len(refusals) == 1)
        return await ask(api.served())

    assert asyncio.run(service()).json() == "booked"
    assert (api.runs, len(charges), len(api.effects)) == (2, 1, 1)


# ── Other layers ──────────────────────────────────────────────────────────────────────────────────


def test_middleware_inside_and_outside_see_what_they_need() -> None:
    """One inside reads the body and finds the operation; one outside sees the matched route."""
    api = Api()
    booking(api)
    seen: list[Any] = []

    async def inside(
        request: StarletteRequest, go_on: Callable[[StarletteRequest], Awaitable[StarletteResponse]]
    ) -> StarletteResponse:
        seen.append((await request.body(), request_operation().key))
        return await go_on(request)

    api.app.add_middleware(BaseHTTPMiddleware, dispatch=inside)
    served = api.served()

    async def outside(scope: Any, receive: Any, send: Any) -> None:
        await served(scope, receive, send)
        seen.append(scope["endpoint"].__name__)

    first, second = asked(outside, times=1)[0], asked(served)[0]
    assert first.json() == second.json() == {"run": 1}
    assert seen == [(b'{"seats":1}', "rides#ada#k1"), "book"]


def test_two_layers_of_one_consumer_are_a_mistake() -> None:
    """The inner one would find its own key busy."""
    api = Api()
    booking(api)
    twice = api.consumer.asgi(api.served(), caller=who_calls)
    with pytest.raises(ConfigurationError, match="twice"):
        asked(twice)
    assert api.runs == 0
