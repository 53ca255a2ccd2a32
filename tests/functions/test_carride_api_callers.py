"""Who may do what to which ride: docs/security.md says it, the API does it."""

import re
from pathlib import Path
from typing import Any, Final

import pytest

from api.callers import Action, Caller, caller_of
from api.commands import CHANGES
from api.routes import ROUTES
from tests.functions.world import BOOKING, DEV, SETTINGS, STAFF, Answer, World, request

SECURITY: Final = Path(__file__).parents[2] / "docs" / "security.md"
BY_TOKEN: Final[dict[str, dict[str, Any]]] = {
    "the owner": {"jwt": {"claims": {"sub": "a", "cognito:groups": "[riders]"}}},
    "another caller": {"jwt": {"claims": {"sub": "b", "scope": "rides"}}},
    "staff": STAFF,
}
FIELDS: Final[dict[str, Any]] = {
    "cancel": {"reason": "x"},
    "changeDestination": {"destination": "sector_09", "price": 1},
}
STARTED: Final = "`cancel` of a started ride"
BEFORE: Final = {
    "`cancel`": ("accept",),
    STARTED: ("accept", "start"),
    "`start`": ("accept",),
    "`complete`": ("accept", "start"),
}
"""What staff does to a ride before it is changed like this: it still belongs to its owner."""
ANSWERS: Final = {
    "yes": {200, 201, 202},
    "403": {403},
    "404": {404},
    "409": {409},
    "none of them": {200},
}


def table() -> list[tuple[str, str, str]]:
    """Return the cells of docs/security.md: the row's name, who asks, and the answer."""
    text = SECURITY.read_text(encoding="utf-8")
    section = text[text.index("## Who may do what to which ride") :].split("\n\n")[2]
    head, *rows = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    whos = head.split(" | ")[1:]
    cells = [row.split(" | ") for row in rows if not row.startswith("-")]
    return [(row[0], who, cell) for row in cells for who, cell in zip(whos, row[1:], strict=True)]


def action_of(row: str) -> str:
    """Return what is asked for in a row of the table."""
    return row.split("`")[1]


def ask(
    world: World, action: str, who: str, ride: str, version: int, customer: str = "customer_a"
) -> Answer:
    """Ask for something, as somebody."""
    caller: dict[str, Any] = {
        "authorizer": BY_TOKEN.get(who),
        "key": f"{action}-{who}-{ride}".replace(" ", "-"),
    }
    if action == "list":
        return world.ask(request("GET", "/carrides", query={"customer": customer}, **caller))
    method, path, body = {
        "book": ("POST", "/carrides", BOOKING),
        "read": ("GET", f"/carrides/{ride}", None),
        "simulate": ("POST", "/carrides/simulate", {}),
    }.get(
        action,
        (
            "PUT",
            f"/carrides/{ride}",
            {"action": action, "version": version, **FIELDS.get(action, {})},
        ),
    )
    return world.ask(request(method, path, body, **caller))


@pytest.mark.parametrize("row", sorted({row for row, _, _ in table()}))
def test_each_caller_may_do_what_the_page_says(world: World, row: str) -> None:
    """The API answers as the table says.

    A ride that a caller may not see is as unknown as one that does not exist.
    """
    action = action_of(row)
    cells = [(who, cell) for each, who, cell in table() if each == row]
    for number, (who, cell) in enumerate(cells):
        is_local = who not in BY_TOKEN
        world.restart(SETTINGS if is_local else DEV)
        owner = None if is_local else BY_TOKEN["the owner"]
        customer = f"customer_{number}"
        ride = world.book(key=f"booking-{number}", authorizer=owner, customerID=customer).body[
            "orderID"
        ]
        version = 1
        for step in BEFORE.get(row, ()):
            version = ask(world, step, who if is_local else "staff", ride, version).body["version"]
        if action == "read":
            world.flow()
        before = len(world.outbox())
        answer = ask(world, action, who, ride, version, customer)
        assert answer.status in ANSWERS[cell], who
        if cell == "404":
            unknown = ask(world, action, who, "no_ride", version).body
            assert {
                **answer.body,
                "detail": answer.body["detail"].replace(ride, "no_ride"),
            } == unknown
        assert cell == "yes" or len(world.outbox()) == before
        if action == "list":
            assert [one["orderID"] for one in answer.body["rides"]] == (
                [ride] if cell == "yes" else []
            )


def test_the_page_has_every_action_and_every_caller() -> None:
    """Whatever can be asked for has its row, and one route."""
    assert sorted(action for route in ROUTES.values() for action in route.may) == sorted(Action)
    assert (
        {action_of(row) for row, _, _ in table()}
        == {action.value for action in Action}
        >= set(CHANGES)
    )
    assert {who for _, who, _ in table()} == {*BY_TOKEN, "anybody in stage `local`"}


def test_a_ride_that_nobody_booked_here_is_for_staff(world: World) -> None:
    """What is known of a simulated ride, which has no owner, is shown to staff alone."""
    ride = world.booked()
    world.flow()
    world.dynamodb.delete_item(TableName="bookings", Key={"orderID": {"S": ride}})
    world.restart(DEV)
    assert [ask(world, "read", who, ride, 1).status for who in BY_TOKEN] == [404, 404, 200]


def test_pages_show_nothing_of_the_rides_of_others(world: World) -> None:
    """A customer's rides come newest first, each on one full page.

    Neither pages nor tokens depend on others' rides.
    """
    world.restart(DEV)
    whos = (
        "the owner",
        "another caller",
        "another caller",
        "another caller",
        "the owner",
        "the owner",
    )
    booked = [
        (who, world.book(authorizer=BY_TOKEN[who], key=f"key-{number}").body["orderID"])
        for number, who in enumerate(whos)
    ]
    for who, lengths in {
        "the owner": [2, 1],
        "another caller": [2, 1],
        "staff": [2, 2, 2],
        "nobody": [0],
    }.items():
        caller = BY_TOKEN.get(who, token(sub="nobody"))
        query: dict[str, Any] = {"customer": "customer_a", "limit": "2"}
        pages = []
        while query.get("next", "") is not None:
            answer = world.ask(request("GET", "/carrides", query=query, authorizer=caller)).body
            pages.append([ride["orderID"] for ride in answer["rides"]])
            used, query["next"] = query.get("next"), answer["next"]
        mine = [ride for owner, ride in booked[::-1] if who in {owner, "staff"}]
        assert [ride for page in pages for ride in page] == mine
        assert [len(page) for page in pages] == lengths
        if used:  # a token says where a page ends, not whose it is
            query |= {"customer": "customer_b", "next": used}
            assert (
                world.ask(request("GET", "/carrides", query=query, authorizer=caller)).body["rides"]
                == []
            )


def test_a_list_reads_the_rides_of_its_caller_alone(world: World) -> None:
    """However many rides others booked for the customer, a stranger's list reads none of them."""
    world.restart(DEV)
    for number in range(12):
        world.book(authorizer=BY_TOKEN["another caller"], key=f"key-{number}")
    world.book(authorizer=BY_TOKEN["the owner"], key="mine")
    query = {"customer": "customer_a", "limit": "3"}
    lengths = []
    for who in (token(sub="nobody"), BY_TOKEN["the owner"], BY_TOKEN["staff"]):
        answer = world.ask(request("GET", "/carrides", query=query, authorizer=who))
        lengths.append(len(answer.body["rides"]))
    assert lengths == [0, 1, 3]
    assert world.transport.scanned == [0, 1, 4]


def test_a_ride_that_is_no_longer_the_customers_is_not_listed(world: World) -> None:
    """An index may still have its key; the ride itself is read after that."""
    world.restart(DEV)
    owner = BY_TOKEN["the owner"]
    rides = [world.book(authorizer=owner, key=f"key-{n}").body["orderID"] for n in range(3)]

    def take_away() -> None:
        for ride, customer in zip(rides[:2], ("nobody", None), strict=True):
            key = {"orderID": {"S": ride}}
            if customer is None:
                world.dynamodb.delete_item(TableName="bookings", Key=key)
                continue
            world.dynamodb.update_item(
                TableName="bookings",
                Key=key,
                UpdateExpression="SET customerID = :customer",
                ExpressionAttributeValues={":customer": {"S": customer}},
            )

    world.transport.pass_on()
    world.transport.meanwhile(take_away)
    query = {"customer": "customer_a"}
    answer = world.ask(request("GET", "/carrides", query=query, authorizer=owner))
    assert [ride["orderID"] for ride in answer.body["rides"]] == rides[2:]


def test_a_caller_of_any_name_books_and_lists(world: World) -> None:
    """An issuer may give names that are longer than a key of DynamoDB may be."""
    world.restart(DEV)
    caller = token(sub="a" * 3000)
    booked = world.book(authorizer=caller)
    query = {"customer": "customer_a"}
    answer = world.ask(request("GET", "/carrides", query=query, authorizer=caller))
    assert [ride["orderID"] for ride in answer.body["rides"]] == [booked.body["orderID"]]
    assert max(len(item["ownerCustomer"]) for item in world.items("bookings")) == 32


ACCOUNT: Final = "123456789012"
ROLE: Final = f"arn:aws:sts::{ACCOUNT}:assumed-role"


def token(**claims: Any) -> dict[str, Any]:
    """Return what API Gateway says about a token."""
    return {"jwt": {"claims": claims, "scopes": None}}


def signed(arn: str, user: str = "AROAEXAMPLE:monday", **more: Any) -> dict[str, Any]:
    """Return what API Gateway says about a signed request."""
    return {
        "iam": {
            "userId": user,
            "userArn": arn,
            "accountId": ACCOUNT,
            "cognitoIdentity": None,
            **more,
        }
    }


@pytest.mark.parametrize(
    ("authorizer", "name", "staff"),
    [
        (token(sub="a"), "jwt:a", False),
        (token(sub="a", scope="read staff"), "jwt:a", True),
        (token(sub="a", scope="read staff:none"), "jwt:a", False),
        (token(sub="a", **{"cognito:groups": "[staff]"}), "jwt:a", True),
        (token(sub="a", **{"cognito:groups": ["staff"]}), "jwt:a", True),
        (token(sub="a", **{"cognito:groups": "[x,staff [staff] staffing]"}), "jwt:a", False),
        (token(sub="a", **{"cognito:groups": [""]}), "jwt:a", False),
        (token(sub="a", groups="[not staff]"), "jwt:a", False),
        (signed(f"{ROLE}/riders/staff"), "iam:AROAEXAMPLE", False),
        (signed(f"{ROLE}/staff/monday"), "iam:AROAEXAMPLE", True),
        (signed(f"{ROLE}/staff/monday".replace(ACCOUNT, "210987654321")), "iam:AROAEXAMPLE", False),
        (signed(f"arn:aws:iam::{ACCOUNT}:user/staff", "AIDAEXAMPLE"), "iam:AIDAEXAMPLE", False),
        (
            signed(f"{ROLE}/pool/C", cognitoIdentity={"identityId": "us-east-1:1"}),
            "identity:us-east-1:1",
            False,
        ),
    ],
)
def test_a_caller_is_staff_by_group_scope_or_role(
    authorizer: dict[str, Any], name: str, staff: bool
) -> None:
    """A group, a scope or a role counts whole, and in this account.

    Without a `StaffGroup`, nobody is staff.
    """
    event = request("GET", "/carrides", authorizer=authorizer)
    assert caller_of(event, staff_group="staff", everyone=False) == Caller(name, staff)
    assert caller_of(event, staff_group="", everyone=False) == Caller(name, staff=False)
    assert caller_of(event, staff_group="", everyone=True) == Caller(name, staff=True)


@pytest.mark.parametrize(
    "claim",
    [
        *("custom:scope", "custom:groups", "custom:cognito:groups", "cognito:roles", "groups"),
        *("roles", "scp", "permissions", "username", "preferred_username"),
    ],
)
def test_no_other_claim_makes_a_caller_staff(claim: str) -> None:
    """Users may write attributes of their own, such as `custom:scope`, which tokens repeat."""
    for value in ("staff", "[staff]", ["staff"]):
        claims = {"sub": "a", claim: value}
        event = request("GET", "/carrides", authorizer=token(**claims))
        assert not caller_of(event, staff_group="staff", everyone=False).staff


def test_a_caller_may_name_any_customer(world: World) -> None:
    """The API trusts its callers to name customers, whose cards are charged for their rides."""
    world.restart(DEV)
    owner = BY_TOKEN["the owner"]
    booked = world.book(authorizer=owner, customerID="cus_of_somebody")
    assert (booked.status, booked.body["customerID"]) == (201, "cus_of_somebody")


def test_a_caller_without_a_name_is_refused(world: World) -> None:
    """Two callers without a name would share rides and keys: only stage `local` accepts them."""
    world.restart(DEV)
    nameless: list[dict[str, Any] | None] = [
        *(
            token(),
            token(sub=""),
            token(sub=None, scope="staff"),
            {"iam": {"userArn": f"{ROLE}/staff/monday"}},
        ),
        *(signed(f"{ROLE}/staff/monday", ""), signed(f"{ROLE}/staff/monday", ":monday"), {}, None),
    ]
    requests = (
        ("POST", "/carrides", BOOKING),
        ("GET", "/carrides", None),
        ("GET", "/carrides/a", None),
    )
    for authorizer in nameless:
        for method, path, body in requests:
            answer = world.ask(request(method, path, body, authorizer=authorizer))
            assert (answer.status, answer.problem) == (403, "forbidden"), authorizer
        event = request("GET", "/carrides", authorizer=authorizer)
        assert caller_of(event, staff_group="", everyone=True) == Caller("anyone", staff=True)
    assert world.items("bookings") == world.items("idempotency") == []
