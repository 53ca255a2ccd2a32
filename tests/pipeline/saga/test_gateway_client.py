"""The HTTP adapter against the simulated gateway, over a real connection.

One charge, whatever becomes of a request.
"""

import os
import resource
import socketserver
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from aws_lambda_powertools.utilities.parameters import SecretsProvider

from carride_idempotency.clock import epoch_ms
from gateway import (
    Call,
    Charge,
    GatewayAnswerError,
    GatewayError,
    GatewayRefusedError,
    GatewayUnavailableError,
    Known,
    Status,
)
from gateway_access import Bearer
from gateway_client import HttpGateway
from local.simulated_gateway import Books, GatewayRequest, GatewayServer, Reply, Trouble, Troubles
from persistent_gateway import Reservation

pytestmark = pytest.mark.integration

READ_TIMEOUT_S = 0.25


class Scripted(Books):
    """A gateway whose next requests meet the troubles that they are told to."""

    def __init__(
        self, troubles: Sequence[Trouble | None], *, forgotten: float = 0.0, declined: float = 0.0
    ) -> None:
        super().__init__(Troubles(forgotten=forgotten, declined=declined))
        self.keys: list[str] = []
        self._next = deque(troubles)
        self._turn = threading.Lock()

    def trouble(self, key: str) -> Trouble | None:
        """Return what the next request meets; none, when all have been met."""
        with self._turn:
            self.keys.append(key)
            return self._next.popleft() if self._next else None


@contextmanager
def gateway(
    *troubles: Trouble | None, **shares: float
) -> Iterator[tuple[HttpGateway, GatewayServer, Scripted]]:
    """Run a gateway, and yield its client, its server and its books."""
    books = Scripted(troubles, **shares)
    with (
        GatewayServer(books, late_s=2 * READ_TIMEOUT_S, hanging_s=4 * READ_TIMEOUT_S) as server,
        closing(HttpGateway(server.url, read_timeout_s=READ_TIMEOUT_S)) as client,
    ):
        yield client, server, books


def call(*, seconds: float | None = None, lost: Callable[[], bool] = lambda: False) -> Call:
    """Return on whose behalf the gateway is asked."""
    return Call(None if seconds is None else epoch_ms() + int(1000 * seconds), lost)


def authorize(client: HttpGateway, on_behalf: Call | None = None) -> Any:
    """Reserve the money for a ride."""
    reservation = Reservation("order_01", "customer_a", 1250, "EUR")
    return client.authorize(on_behalf or call(), reservation)


def known(charge: Any) -> Known:
    """Return what identifies a payment."""
    return Known("order_01", charge.payment_id, charge.currency)


def test_a_refused_secret_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an answer of 401 the next try begins with a new secret."""

    class Rotated(GatewayServer):
        def exchange(self, method: str, target: str, key: str | None, body: object) -> Reply | None:
            return super().exchange(method, target, key, body) if secrets == [] else Reply(401, {})

    secrets = ["new", "old"]
    monkeypatch.setattr(SecretsProvider, "_get", lambda *_: secrets.pop())
    with (
        Rotated(Books()) as server,
        closing(HttpGateway(server.url, Bearer("secret"))) as client,
    ):
        assert client.find(call(), "order_01", "customer_a") is None


def test_a_gateway_may_be_below_a_path() -> None:
    """The path of its URL begins the path of every request."""
    targets = []

    class Below(GatewayServer):
        def exchange(self, method: str, target: str, key: str | None, body: object) -> Reply | None:
            targets.append(target)
            return super().exchange(method, target.removeprefix("/v1"), key, body)

    with Below(Books()) as server, closing(HttpGateway(f"{server.url}/v1/")) as client:
        assert authorize(client).status is Status.AUTHORIZED
    assert targets == ["/v1/payments?reference=order_01", "/v1/payments"]


@pytest.mark.parametrize("forgotten", [0.0, 1.0], ids=["keys are kept", "keys are forgotten"])
@pytest.mark.parametrize("trouble", Trouble)
def test_no_trouble_charges_twice(trouble: Trouble, forgotten: float) -> None:
    """What meets the trouble takes effect once, also where the gateway forgets keys."""
    with gateway(trouble, forgotten=forgotten) as (client, server, _):
        charge = authorize(client)
        assert charge.status is Status.AUTHORIZED
        assert len(server.ledger()) == 1
    with gateway(None, trouble, None, trouble, forgotten=forgotten) as (client, server, _):
        charge = authorize(client)
        assert client.capture(call(), known(charge), 1250).status is Status.CAPTURED
        assert client.refund(call(), known(charge)).status is Status.REFUNDED
        (payment,) = server.ledger()
        assert (payment["captures"], payment["refunds"]) == ([1250], [1250])


def test_every_try_has_the_same_key_and_every_operation_its_own() -> None:
    """The gateway recognises a request by it; a capture is none of the reservation's tries."""
    with gateway(Trouble.BUSY, Trouble.BUSY, None) as (client, _, books):
        charge = authorize(client)
        client.capture(call(), known(charge), 1250)
        assert books.keys == ["order_01-authorize"] * 3 + [f"{charge.payment_id}-capture"]


def test_a_payment_is_looked_for_before_it_is_asked_for() -> None:
    """An earlier attempt's payment is found by the ride's name, though its key is forgotten."""
    with gateway(forgotten=1.0) as (client, server, books):
        first = authorize(client)
        assert authorize(client, call()) == first
        assert (len(books.keys), len(server.ledger())) == (1, 1)


def test_a_gateway_that_never_answers_is_given_up_before_the_deadline() -> None:
    """Time is left for whoever has to record the failure."""
    with gateway(*[Trouble.HANGING] * 20) as (client, server, _):
        deadline = call(seconds=5.5)
        with pytest.raises(GatewayUnavailableError, match="no answer in time"):
            authorize(client, deadline)
        assert deadline.deadline_ms is not None
        assert deadline.deadline_ms - epoch_ms() > 1_500
        assert server.ledger() == []


@pytest.mark.parametrize(
    ("lost", "seconds", "reason", "asked"), [([], 2, "in time", 0), ([0, 1], None, "taken over", 1)]
)
def test_nothing_is_begun_in_vain(
    lost: list[int], seconds: float | None, reason: str, asked: int
) -> None:
    """With too little time, or when another attempt has the key, the gateway is not asked."""
    taken = iter(lost)
    with gateway(*[Trouble.BUSY] * 5) as (client, _, books):
        with pytest.raises(GatewayUnavailableError, match=reason):
            authorize(client, call(seconds=seconds, lost=lambda: bool(next(taken))))
        assert len(books.keys) == asked


def test_a_gateway_that_is_not_there_can_be_asked_again() -> None:
    """Nobody listens: an error that a retry may mend."""
    with gateway() as (client, _, _):
        pass
    with pytest.raises(GatewayUnavailableError):
        client.find(call(seconds=4), "order_01", "customer_a")


CARD = "4111 1111 1111 1111"
PAYMENT = {
    "id": "pay_1",
    "reference": "order_01",
    "status": "authorized",
    "amount": 1250,
    "currency": "EUR",
}
PAY_1 = Known("order_01", "pay_1", "EUR")


@contextmanager
def answering(status: int, body: Any) -> Iterator[tuple[HttpGateway, list[str]]]:
    """Run a gateway that answers all alike, and yield its client and the requests' keys."""

    class Answering(Scripted):
        def begin(self, request: GatewayRequest) -> Reply:
            return Reply(status, body)

        def look_up(self, path: str, query: Any) -> Reply:
            return Reply(200, {"payments": []} if query else PAYMENT)

    books = Answering([])
    with (
        GatewayServer(books) as server,
        closing(HttpGateway(server.url, sleep=lambda _: None)) as client,
    ):
        yield client, books.keys


@pytest.mark.parametrize(
    "body", [{"title": CARD, "code": "expired_card"}, {"code": CARD}, [CARD], {"id": 1}]
)
@pytest.mark.parametrize(
    "status", [400, 402, 404, 410, 422, 451, 401, 403, 408, 409, 425, 429, 500, 503]
)
def test_a_refusal_is_final_or_may_pass(status: int, body: Any) -> None:
    """A final one declines after one try, whatever its body; any other is tried again.

    No body ends up in an error.
    """
    final = status < 500 and status not in {401, 403, 408, 409, 425, 429}
    if status == 422:  # without a code, it is about the key
        final = "code" in body
    known = f"{status} expired_card" if "expired_card" in str(body) else f"{status}"
    with answering(status, body) as (client, keys):
        if final:
            assert authorize(client) == Charge(
                None, Status.DECLINED, 1250, f"the gateway refused with {known}"
            )
            captured = client.capture(call(), PAY_1, 1250)
            assert (captured.status, captured.payment_id) == (Status.DECLINED, "pay_1")
            assert client.adjust(call(), PAY_1, 2000).amount == 1250
            assert len(keys) == 3
        else:
            with pytest.raises(GatewayUnavailableError):
                authorize(client)
            assert len(keys) > 1
        with pytest.raises(
            GatewayRefusedError if final else GatewayUnavailableError, match=str(status)
        ) as caught:
            client.refund(call(), PAY_1)
        assert CARD not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"id": name}
            for name in (
                "",
                "p" * 65,
                "pay 1",
                "pay\n",
                "pay_1\n",
                "../ledger",
                "zahlung_ü",
                1,
                None,
            )
        ),
        *({"amount": amount} for amount in (-1, 10_000_001, 12.5, True, "1250", None)),
        {"status": CARD},
        {"status": None},
    ],
)
def test_an_answer_that_no_event_can_hold_is_an_error(wrong: dict[str, Any]) -> None:
    """It names the field, not its value, which may be the customer's."""
    (field,), (value,) = wrong, wrong.values()
    with (
        answering(201, PAYMENT | wrong) as (client, _),
        pytest.raises(GatewayAnswerError, match=f"no {field} ") as caught,
    ):
        authorize(client)
    assert not value or str(value) == "1" or str(value) not in str(caught.value)


@pytest.mark.parametrize("answer", [[], {}, "text", 7])
def test_an_answer_of_another_shape_is_an_error(answer: Any) -> None:
    """It ends the attempt, and nothing else."""
    with answering(200, answer) as (client, _), pytest.raises(GatewayError):
        authorize(client)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("no funds", "no funds"),
        (" no\r\n\0funds\x1b[31m\u202e", "no funds [31m"),
        ("x" * 300, "x" * 200),
        ("\n\t", "the gateway refused with 402"),
        (["no funds"], "the gateway refused with 402"),
        (None, "the gateway refused with 402"),
        ("\ud800", "the gateway refused with 402"),
    ],
)
def test_a_reason_is_cut_to_what_an_event_can_hold(said: Any, reason: str) -> None:
    """One line of at most 200 printable characters."""
    with answering(402, PAYMENT | {"status": "declined", "reason": said}) as (client, _):
        assert authorize(client).reason == reason


# ── A gateway whose bytes are the problem ─────────────────────────────────────────────────────────


@contextmanager
def sending(chunks: Callable[[], Iterator[bytes]]) -> Iterator[tuple[HttpGateway, list[int]]]:
    """Run a server that answers with some bytes; yield its client and how many were sent."""
    sent: list[int] = []

    class Sending(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.connection.recv(65_536)
            sent.append(0)
            number = len(sent) - 1
            with suppress(OSError):
                for chunk in chunks():
                    self.wfile.write(chunk)
                    sent[number] += len(chunk)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Sending) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with closing(HttpGateway(url, connect_timeout_s=0.1, read_timeout_s=0.3)) as client:
            yield client, sent
        server.shutdown()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n", HEAD], ids=["head", "field", "body"])
def test_an_answer_that_trickles_is_given_up_before_the_deadline(head: bytes) -> None:
    """Each byte comes soon after the one before, but a request has a fixed time for all of them."""
    stopped = threading.Event()

    def trickle() -> Iterator[bytes]:
        yield head
        for _ in range(200):
            yield b"x"
            stopped.wait(0.05)

    with sending(trickle) as (client, _):
        deadline = call(seconds=4)
        with pytest.raises(GatewayUnavailableError):
            client.find(deadline, "order_01", "customer_a")
        stopped.set()
    assert deadline.deadline_ms is not None
    assert deadline.deadline_ms - epoch_ms() > 1_500


@pytest.mark.parametrize(
    "head",
    [HEAD, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"],
    ids=["long", "chunked"],
)
def test_an_endless_answer_is_not_read_to_its_end(head: bytes) -> None:
    """Nobody reads more than 64 KiB: the rest is what the network's buffers hold."""
    megabyte = b"100000\r\n%s\r\n" % bytes(1_048_576) if b"chunked" in head else bytes(1_048_576)

    def endless() -> Iterator[bytes]:
        yield head
        for _ in range(64):
            yield megabyte

    with sending(endless) as (client, sent):
        with pytest.raises(GatewayUnavailableError):
            client.find(call(seconds=4), "order_01", "customer_a")
        assert sent
        assert max(sent) < 32 * 1_048_576


def test_a_process_with_many_open_files_keeps_its_connection() -> None:
    """`select` takes no file above the 1,024th.

    The next request works, and finds that the gateway has hung up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        with gateway() as (client, server, _):
            authorize(client)
            assert len(server.ledger()) == 1
            assert authorize(client, call()).status is Status.AUTHORIZED
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
