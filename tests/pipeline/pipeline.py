"""One deployed stack of the real template, and how tests talk to it."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from carride.history import TimelineEntry, merged, timeline_of
from local.local_aws import LocalAws, Stack
from ops.audit import CONSUMERS, Report, audit
from ops.audit.ledger import Ledger
from ops.audit.queues import peek
from ops.audit.reading import BUS, lines, scan
from ops.cli.app import main
from ops.simulation import simulate

HISTORY: Final = "ride-history"
QUIET_SECONDS: Final = 60.0


def deploy_variables(functions: Any, name: str, variables: Mapping[str, str]) -> None:
    """Give a function other environment variables, as a deployment does: by a new version."""
    functions.update_function_configuration(
        FunctionName=name, Environment={"Variables": dict(variables)}
    )
    version = functions.publish_version(FunctionName=name)["Version"]
    functions.update_alias(FunctionName=name, Name="live", FunctionVersion=version)


class Pipeline:
    """A stack on the local engine."""

    def __init__(self, cloud: LocalAws, stack: Stack) -> None:
        self.cloud = cloud
        self.stack = stack
        self.where = ("--stack", stack.name, "--region", stack.region)

    def simulate(self, **request: Any) -> Ledger:
        """Have the simulator publish, wait until every event has ended, and return the ledger."""
        list(simulate(self.stack, request))
        return self.ledger()

    def put(self, *details: Mapping[str, Any]) -> list[str]:
        """Put ride events on the bus at once, past this project's producers; return their ids."""
        bus = {
            "EventBusName": self.stack.outputs["CarRideBusName"],
            "Source": "acr.com.car-ride",
            "DetailType": "CarRideEvent",
        }
        entries = [{**bus, "Detail": json.dumps(detail)} for detail in details]
        return [
            each["EventId"]
            for each in self.cloud.client("events").put_events(Entries=entries)["Entries"]
        ]

    def carride(self, *command: str) -> int:
        """Run an operator's command on the stack, in this process, and return its status."""
        try:
            main([*command, *self.where], self.cloud.client)
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    def settle(self) -> None:
        self.cloud.wait_until_quiet(timeout=QUIET_SECONDS)

    def break_history(self, **variables: str) -> str:
        """Give the ride history only these variables of its store, without which it cannot start.

        Return its name.
        """
        functions = self.cloud.client("lambda")
        function = self.stack.resources["RideHistoryFunction"]
        known = functions.get_function_configuration(FunctionName=function)["Environment"][
            "Variables"
        ]
        known = {
            name: value
            for name, value in known.items()
            if name not in {"IDEMPOTENCY_STORE", "FAILING"}
        }
        deploy_variables(functions, function, known | variables)
        return function

    def ledger(self) -> Ledger:
        return self.audit().ledger

    def audit(self) -> Report:
        """Wait until every event has reached its end, and audit the stack."""
        self.settle()
        return audit(self.stack, grace=timedelta())

    def killed(self, consumer: str) -> int:
        """Return how many of a consumer's processes ended half-way, by Lambda's log lines."""
        (audited,) = (each for each in CONSUMERS if each.name == consumer)
        return sum(1 for _ in lines(self.stack, audited.resources, '"Runtime exited"'))

    def resources(self) -> set[tuple[str, ...]]:
        """Return what the log of all events has as their resources."""
        logged = lines(self.stack, BUS)
        return {tuple(json.loads(each["message"])["resources"]) for each in logged}

    def dead_letters(self, queue: str) -> list[dict[str, Any]]:
        """Return the bodies of the messages in a queue, which stay there."""
        messages = peek(self.cloud.client("sqs"), self.stack.outputs[f"{queue}Url"])
        return [json.loads(message["Body"]) for message in messages]

    def rides(self) -> list[tuple[TimelineEntry, ...]]:
        """Return the timeline of every ride."""
        kept = scan(
            self.cloud.client("dynamodb"),
            self.stack.outputs["RideHistoryTableName"],
            "attribute_exists(orderID)",
        )
        return [*map(timeline_of, merged(kept))]
