"""What only the deployed API shows: simultaneous copies of a request, and who is let in."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from local.local_aws import LocalAws
from tests.functions.api.client import BOOKING, Answer, Api

pytestmark = pytest.mark.integration


def test_ten_equal_requests_at_once_book_one_ride(cloud: LocalAws, name: str) -> None:
    """Ten simultaneous copies get one answer or a 409, and make one booking and one event."""
    api = Api(cloud, cloud.deploy_fast(name))

    def book(_: int) -> Answer:
        # Functions that start at once can take longer than API Gateway waits: it answers 5xx, and
        # the client retries.
        answers = (api.send("POST", "/carrides", BOOKING, key="same") for _ in range(5))
        return next(answer for answer in answers if answer.status < 500)

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(book, range(10)))
    booked = [answer for answer in answers if answer.status != 409]
    assert {answer.status for answer in booked} == {201}
    assert all(answer.body == booked[0].body for answer in booked)
    assert all("Retry-After" in answer.headers for answer in answers if answer.status == 409)
    assert len(api.items("BookingTableName")) == len(api.items("OutboxTableName")) == 1
    cloud.delete_stack(name)


def test_nobody_is_let_in_unsigned_outside_stage_local(cloud: LocalAws, name: str) -> None:
    """In every stage but `local`, each route refuses a request that carries no signature."""
    api = Api(cloud, cloud.deploy_fast(name, Stage="dev"))
    routes = [
        ("POST", "/carrides"),
        ("GET", "/carrides?customer=customer_a"),
        ("PUT", "/carrides/order_01"),
    ]
    routes += [
        ("GET", "/carrides/order_01"),
        ("POST", "/carrides/simulate"),
        ("GET", "/openapi.json"),
    ]
    assert {api.send(method, path, BOOKING, key="key").status for method, path in routes} == {403}
    assert api.send("POST", "/carrides", BOOKING, key="key", sign=True).status == 201
    cloud.delete_stack(name)
