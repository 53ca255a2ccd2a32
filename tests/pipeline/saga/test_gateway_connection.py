"""Payment's client against the simulated gateway, over a real connection.

One charge, whatever becomes of a request.
"""

import os
import resource
import socketserver
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime

import pytest
from aws_lambda_powertools.utilities.parameters import SecretsProvider

from carride_idempotency.clock import epoch_ms
from gateway import Call, GatewayUnavailableError, Known, Reservation, Stands
from gateway_access import Bearer
from gateway_rules import Answer
from local.simulated_gateway import Books, GatewayRequest, GatewayServer, Trouble, Troubles
from stripe_gateway import StripeGateway

pytestmark = pytest.mark.integration

READ_TIMEOUT_S = 0.25
"""Where an answer is to be given up."""
PATIENT_S = 60.0
"""Where each answer has to be waited for, on a loaded machine too."""
SINCE = datetime(2026, 1, 1, tzinfo=UTC)
RESERVATION = Reservation("order_01", "customer_a", 1250, "EUR")


class Scripted(Books):
    """A gateway whose next changes meet the troubles that they are told to."""

    def __init__(self, troubles: Sequence[Trouble | None], forgotten: float = 0.0) -> None:
        super().__init__(Troubles(forgotten=forgotten))
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
    *troubles: Trouble | None, forgotten: float = 0.0
) -> Iterator[tuple[StripeGateway, GatewayServer, Scripted]]:
    """Run a gateway, and yield its client, its server and its books."""
    books = Scripted(troubles, forgotten)
    gives_up = {Trouble.LATE, Trouble.HANGING} & {*troubles}
    timeout_s = READ_TIMEOUT_S if gives_up else PATIENT_S
    with (
        GatewayServer(books, late_s=2 * READ_TIMEOUT_S, hanging_s=4 * READ_TIMEOUT_S) as server,
        closing(StripeGateway(server.url, read_timeout_s=timeout_s)) as client,
    ):
        yield client, server, books


def call(*, seconds: float | None = None, lost: Callable[[], bool] = lambda: False) -> Call:
    """Return on whose behalf the gateway is asked."""
    return Call(None if seconds is None else epoch_ms() + int(1000 * seconds), lost)


def prepared(client: StripeGateway, on_behalf: Call | None = None) -> Known:
    """Prepare the payment of a ride, and return what is recorded of it."""
    made = client.prepare(on_behalf or call(), RESERVATION, SINCE)
    return Known("order_01", made.payment_id, made.amount, made.currency)


def test_a_refused_secret_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an answer of 401 the next try begins with a new secret."""

    class Rotated(GatewayServer):
        def exchange(self, request: GatewayRequest, headers: Mapping[str, str]) -> Answer | None:
            return super().exchange(request, headers) if secrets == [] else Answer(401, {})

    secrets = ["new", "old"]
    monkeypatch.setattr(SecretsProvider, "_get", lambda *_: secrets.pop())
    with (
        Rotated(Books()) as server,
        closing(StripeGateway(server.url, Bearer("secret"))) as client,
    ):
        assert client.find(call(), "order_01", "customer_a", SINCE) is None


def test_a_gateway_may_be_below_a_path() -> None:
    """The path of its URL begins the path of every request."""
    targets = []

    class Below(GatewayServer):
        def exchange(self, request: GatewayRequest, headers: Mapping[str, str]) -> Answer | None:
            targets.append(request.target)
            target = request.target.removeprefix("/below")
            return super().exchange(request._replace(target=target), headers)

    with Below(Books()) as server, closing(StripeGateway(f"{server.url}/below/")) as client:
        assert client.reserve(call(), prepared(client)).stands is Stands.HELD
    assert all(target.startswith("/below/v1/") for target in targets)


@pytest.mark.parametrize("forgotten", [0.0, 1.0], ids=["keys are kept", "keys are forgotten"])
@pytest.mark.parametrize("trouble", Trouble)
def test_no_trouble_charges_twice(trouble: Trouble, forgotten: float) -> None:
    """Every change meets the trouble, and takes effect once, also where keys are forgotten."""
    each = [trouble, None]
    with gateway(*each * 4, forgotten=forgotten) as (client, server, _):
        known = prepared(client)
        assert client.reserve(call(), known).stands is Stands.HELD
        assert client.capture(call(), known, 1250).stands is Stands.TAKEN
        ended = client.end(call(), known, taken=True, gives_back=True)
        assert ended.stands is Stands.RETURNED
        (payment,) = server.ledger()
        assert (payment["captures"], payment["refunds"]) == ([1250], [1250])


def test_a_gateway_that_never_answers_is_given_up_before_the_deadline() -> None:
    """Time is left for whoever has to record the failure."""
    with gateway(None, *[Trouble.HANGING] * 20) as (client, server, _):
        known = prepared(client)
        deadline = call(seconds=5.5)
        with pytest.raises(GatewayUnavailableError, match="no answer in time"):
            client.reserve(deadline, known)
        assert deadline.deadline_ms is not None
        assert deadline.deadline_ms - epoch_ms() > 1_500
        assert server.ledger() == []


@pytest.mark.parametrize(
    ("lost", "seconds", "reason", "asked"), [([], 2, "in time", 1), ([0, 1], None, "taken over", 2)]
)
def test_nothing_is_begun_in_vain(
    lost: list[int], seconds: float | None, reason: str, asked: int
) -> None:
    """With too little time, or when another attempt has the key, the gateway is not asked."""
    taken = iter(lost)
    with gateway(None, *[Trouble.BUSY] * 5) as (client, _, books):
        known = prepared(client)
        with pytest.raises(GatewayUnavailableError, match=reason):
            client.reserve(call(seconds=seconds, lost=lambda: bool(next(taken))), known)
        assert len(books.keys) == asked


def test_a_gateway_that_is_not_there_can_be_asked_again() -> None:
    """Nobody listens: an error that a retry may mend."""
    with gateway() as (client, _, _):
        pass
    with pytest.raises(GatewayUnavailableError):
        client.find(call(seconds=4), "order_01", "customer_a", SINCE)


# ── A gateway whose bytes are the problem ─────────────────────────────────────────────────────────


@contextmanager
def sending(chunks: Callable[[], Iterator[bytes]]) -> Iterator[tuple[StripeGateway, list[int]]]:
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
        with closing(StripeGateway(url, connect_timeout_s=0.1, read_timeout_s=0.3)) as client:
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
            client.find(deadline, "order_01", "customer_a", SINCE)
        stopped.set()
    assert deadline.deadline_ms is not None
    assert deadline.deadline_ms - epoch_ms() > 1_500


@pytest.mark.parametrize(
    "head",
    [HEAD, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"],
    ids=["long", "chunked"],
)
def test_an_endless_answer_is_not_read_to_its_end(head: bytes) -> None:
    """Nobody reads more than a megabyte: the rest is what the network's buffers hold."""
    megabyte = b"100000\r\n%s\r\n" % bytes(1_048_576) if b"chunked" in head else bytes(1_048_576)

    def endless() -> Iterator[bytes]:
        yield head
        for _ in range(64):
            yield megabyte

    with sending(endless) as (client, sent):
        with pytest.raises(GatewayUnavailableError):
            client.find(call(seconds=4), "order_01", "customer_a", SINCE)
        assert sent
        assert max(sent) < 32 * 1_048_576


def test_a_process_with_many_open_files_keeps_its_connection() -> None:
    """`select` takes no file above the 1,024th. No request has to be sent again."""
    slept: list[float] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        with (
            GatewayServer(Books()) as server,
            closing(StripeGateway(server.url, sleep=slept.append)) as client,
        ):
            known = prepared(client)
            assert client.reserve(call(), known).stands is Stands.HELD
            assert len(server.ledger()) == 1
            assert not any(slept)
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
