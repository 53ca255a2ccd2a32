"""Drills: they break a part of the stack, see what happens, and mend it."""

import json
from datetime import UTC, datetime, timedelta

from carride.bus_entry import BusEntry
from carride.events import SOURCE
from ops import dead_letters, redrive, replay
from ops.stack import StackRef
from ops.verify import Deployment, FailedError
from ops.verify.behaviour import settled
from ops.verify.policies import statements
from ops.verify.registry import drill


@drill(
    "An event that breaks the contract is dead-lettered at once; its message stays for you to "
    "delete"
)
def _poison(it: Deployment) -> str:
    before = _broken(it.stack)
    detail = {
        "specversion": "1.0",
        "id": "verify",
        "source": "verify",
        "type": "CarRideCreated",
        "data": {},
    }
    entry = BusEntry(source=SOURCE, detail=json.dumps(detail), time=datetime.now(UTC))
    request = entry.to_request(it.stack.outputs["CarRideBusName"])
    it.client("events").put_events(Entries=[request])
    it.until("the event is in no dead-letter queue", lambda: _broken(it.stack) > before)
    return "in RideHistoryDlq, with the reason CONTRACT"


def _broken(stack: StackRef) -> int:
    """Count the dead letters of ride_history that break the contract."""
    return dead_letters.reasons(stack, "RideHistoryDlq")["CONTRACT"]


@drill(
    "A rule without permission dead-letters its events; with it, a redrive gives each its effect "
    "once"
)
def _permission(it: Deployment) -> str:
    stack = it.stack
    function = stack.outputs["RideHistoryFunctionName"]
    _dead_letter_without_permission(it, function)
    site = redrive.StackSite(stack, "RideHistoryRuleDlq")
    done = redrive.carried_out(site, redrive.plan_of(site), report=lambda _: None)
    verdict = settled(it).ledger.verdict
    return f"{done.sent} redriven; {verdict}"


def _dead_letter_without_permission(it: Deployment, function: str) -> None:
    """Take a rule's permission, publish a ride, wait for its dead letters, and give it back."""
    client = it.client("lambda")
    permission = next(iter(statements(it, function)), None)
    if permission is None:
        raise FailedError(f"nothing may invoke {function}: deploy the stack again")
    (source,) = permission["Condition"]["ArnLike"].values()
    request = {"rides": 1, "seed": int(it.began.timestamp()) + 1}
    client.remove_permission(FunctionName=function, StatementId=permission["Sid"])
    try:
        it.stack.invoke("CarRideSimulatorFunctionName", request)
        it.until(
            "nothing is in RideHistoryRuleDlq",
            lambda: dead_letters.reasons(it.stack, "RideHistoryRuleDlq"),
        )
    finally:
        client.add_permission(
            FunctionName=function,
            StatementId=permission["Sid"],
            Action="lambda:InvokeFunction",
            Principal="events.amazonaws.com",
            SourceArn=source,
        )


@drill("A replay of the archive has no further effects")
def _replay(it: Deployment) -> str:
    stack = it.stack
    now = datetime.now(UTC)
    since = it.began - timedelta(minutes=1)
    name = replay.name_for(stack.region, now)
    replay.check(stack)
    replay.start(stack, name, since, now, replay.receivers(stack))
    replay.handed_over(stack, name)
    verdict = settled(it).ledger.verdict
    return f"{name}: {verdict}"
