"""`./carride drive book`, `accept`, `start`, `complete` and `cancel`, and who signs them."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from urllib3.exceptions import HTTPError

from carride_idempotency import marshalling
from ops.cli import rides
from ops.stack import OperatorError, StackRef
from ops.tests.world import stack as ref
from ops.verbs import Plan, Session

ROLE = "arn:aws:iam::123456789012:role/carride-staff"
URL = "https://api.example"


class Cloud:
    """An account with a stack, a staff role and a booking; it keeps the requests to the API."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[Any] = []
        self.answer: Any = SimpleNamespace(status=200, json=lambda: {"orderID": "order_01"})
        self.denied = False
        self.endpoint = "https://apigateway.us-west-2.amazonaws.com"
        self.booking: dict[str, Any] = {"orderID": "order_01", "version": 2, "status": "accepted"}
        monkeypatch.setattr("urllib3.request", self.request)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "MINE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    def stack(self, **outputs: str) -> StackRef:
        found = ref(lambda service, _: getattr(self, service)())
        made = {"CarRideApiUrl": URL, "BookingTableName": "bookings"}
        vars(found).update(outputs=made | outputs)
        return found

    def session(self, **outputs: str) -> Session:
        session = Session(lambda _: None, None)
        session.stack = self.stack(**outputs)
        return session

    def request(self, method: str, url: str, **sent: Any) -> Any:
        self.requests.append((method, url, sent["headers"], json.loads(sent["body"])))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def apigatewayv2(self) -> Any:
        return SimpleNamespace(meta=SimpleNamespace(endpoint_url=self.endpoint))

    def cloudformation(self) -> Any:
        parameters = [{"ParameterKey": "Stage", "ParameterValue": "dev"}]
        found = {"StackStatus": "CREATE_COMPLETE", "Parameters": parameters}
        return SimpleNamespace(describe_stacks=lambda **_: {"Stacks": [found]})

    def dynamodb(self) -> Any:
        def get_item(**request: Any) -> Any:
            assert request["ConsistentRead"]
            wanted = marshalling.values(request["Key"])["orderID"]
            is_there = wanted == self.booking["orderID"]
            return {"Item": marshalling.item(self.booking)} if is_there else {}

        return SimpleNamespace(get_item=get_item)

    def sts(self) -> Any:
        def assume_role(**request: Any) -> Any:
            assert request["RoleArn"] == ROLE
            if self.denied:
                raise ClientError({"Error": {"Code": "AccessDenied"}}, "AssumeRole")
            names = ("AccessKeyId", "SecretAccessKey", "SessionToken")
            return {"Credentials": dict.fromkeys(names, "STAFF")}

        return SimpleNamespace(assume_role=assume_role)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    return Cloud(monkeypatch)


def signed_by(cloud: Cloud) -> str:
    """Return whose key signed the last request."""
    signature: str = cloud.requests[-1][2]["Authorization"]
    return signature.partition("Credential=")[2].partition("/")[0]


def test_a_customer_books_with_its_own_credentials(cloud: Cloud) -> None:
    """The preview names the key under which the ride is booked; nothing is sent before `do`."""
    cloud.answer.status = 201
    plan = rides.book(cloud.session(StaffRoleArn=ROLE), price=1450, key="mine")
    assert "1450 cents, under the Idempotency-Key mine" in plan.preview.plan[0]
    assert not cloud.requests
    assert plan.do().ride == {"orderID": "order_01"}
    ((method, url, headers, body),) = cloud.requests
    assert (method, url, headers["Idempotency-Key"]) == ("POST", f"{URL}/carrides", "mine")
    assert body["price"] == 1450
    assert signed_by(cloud) == "MINE"


def test_an_engine_on_this_machine_serves_the_api_of_any_stage(cloud: Cloud) -> None:
    """It has no name for the API's own host, and its callers sign as on AWS."""
    cloud.answer.status = 201
    cloud.endpoint = "http://127.0.0.1:4566"
    session = cloud.session()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StackRef, "named", lambda *_: {"CarRideApi": "a1b2"})
        rides.book(session, key="mine").do()
    assert cloud.requests[-1][1] == f"{cloud.endpoint}/_aws/execute-api/a1b2/$default/carrides"
    assert signed_by(cloud) == "MINE"


def test_each_booking_has_a_key_of_its_own(cloud: Cloud) -> None:
    """Two commands book two rides, and one that is repeated with the key books one."""
    first, second = (rides.book(cloud.session()).preview for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("action", "fields"),
    [("accept", {}), ("start", {}), ("complete", {}), ("cancel", {"reason": "a puncture"})],
)
def test_staff_drive_a_ride_at_the_version_that_is_booked(
    cloud: Cloud, action: str, fields: dict[str, str]
) -> None:
    """The staff role signs; a repeated command has the same key, so one effect."""
    for _ in range(2):
        plan: Plan[Any] = getattr(rides, action)(
            cloud.session(StaffRoleArn=ROLE), "order_01", **fields
        )
        plan.do()
    (first, second) = cloud.requests
    assert first[:2] == ("PUT", f"{URL}/carrides/order_01")
    assert first[3] == {"action": action, "version": 2, **fields}
    assert first[2]["Idempotency-Key"] == second[2]["Idempotency-Key"]
    assert signed_by(cloud) == "STAFF"


def test_a_stack_without_the_role_is_driven_as_oneself(cloud: Cloud) -> None:
    """In stage prod the company's own role is the staff's."""
    rides.accept(cloud.session(), "order_01").do()
    assert signed_by(cloud) == "MINE"


def test_a_token_takes_the_place_of_a_signature(cloud: Cloud) -> None:
    """A stack with an issuer of tokens knows customers and staff by them."""
    rides.accept(cloud.session(StaffRoleArn=ROLE), "order_01", token="token").do()  # noqa: S106 - not a secret
    assert cloud.requests[-1][2]["Authorization"] == "Bearer token"


def test_who_may_not_assume_the_role_learns_what_allows_it(cloud: Cloud) -> None:
    """Instead of a 403 of the API."""
    cloud.denied = True
    with pytest.raises(OperatorError, match=f"who assume {ROLE}: you need a policy"):
        rides.accept(cloud.session(StaffRoleArn=ROLE), "order_01").do()
    assert not cloud.requests


def test_a_ride_that_nobody_booked_is_refused_before_the_api_is_asked(cloud: Cloud) -> None:
    """The message names the verb that books one."""
    with pytest.raises(
        OperatorError, match=r"no ride order_02 was booked .* `./carride drive book`"
    ):
        rides.accept(cloud.session(), "order_02")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (HTTPError("after 30 s"), r"does not answer: after 30 s\. Run it again with --key mine"),
        (SimpleNamespace(status=503, data=b"busy"), r"503: busy\. Run it again with --key mine"),
        (SimpleNamespace(status=422, data=b"price"), "422: price$"),
    ],
    ids=["no answer", "503", "422"],
)
def test_what_is_repeated_safely_is_said(cloud: Cloud, answer: Any, said: str) -> None:
    """Where nobody knows whether the ride is booked, the message says how to send it again."""
    cloud.answer = answer
    with pytest.raises(OperatorError, match=said):
        rides.book(cloud.session(), key="mine").do()
