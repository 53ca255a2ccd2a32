"""The stack's queues, and a client of SQS for functions, operators and the audit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from tests.world.cloud import Cloud
from tests.world.wiring import QueueSpec, queue_url

_TWICE: Final = 0.02
"""The share of receives whose message stays visible: one of its copies was not reached."""
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = {}


@dataclass(eq=False)
class Message:
    id: str
    body: str
    attributes: Mapping[str, Any]
    sent_ms: int
    visible_ms: float = 0.0
    receives: int = 0
    moved_from: str | None = None
    """The queue in which it was received too often."""

    @property
    def system_attributes(self) -> dict[str, str]:
        """What SQS says of it."""
        found = {"SentTimestamp": str(self.sent_ms)}
        if self.moved_from is not None:
            found["DeadLetterQueueSourceArn"] = f"arn:aws:sqs:us-east-1:1:{self.moved_from}"
        return found


@dataclass(eq=False)
class Queue:
    spec: QueueSpec
    messages: list[Message] = field(default_factory=list)
    sent: int = 0
    """How many messages it ever got."""
    told: Callable[[], object] = lambda: None
    """Is called when a message comes."""


class Reader(NamedTuple):
    """The function that reads a queue."""

    function: str
    facts_in: Callable[[Message], Sequence[str]]
    """Returns the ids of the facts in a message."""


class Queues:
    """All queues of the stack, by logical id; and a client of SQS."""

    exceptions = SimpleNamespace()

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._numbers = count(1)
        self.by_name = {name: Queue(spec) for name, spec in cloud.wiring.queues.items()}

    def send(
        self, queue: str, body: str, attributes: Mapping[str, Any] = _NO_ATTRIBUTES
    ) -> Message:
        """Put a message into a queue."""
        found = self.by_name[queue]
        message = Message(
            f"message-{next(self._numbers)}", body, attributes, self._cloud.simulation.now_ms
        )
        found.messages.append(message)
        found.sent += 1
        if queue.endswith("Dlq"):
            self._cloud.say(f"gets {body}", queue)
        self._cloud.simulation.after(0.05, found.told)
        return message

    def receive(
        self, queue: Queue, most: int, hidden_s: float, reader: Reader | None = None
    ) -> list[Message]:
        """Receive visible messages, in no order; dead-letter those that were received too often."""
        now_ms = self._cloud.simulation.now_ms
        visible = [each for each in queue.messages if each.visible_ms <= now_ms]
        visible.sort(key=lambda each: self._cloud.roll(f"order {queue.spec.name} {each.id}"))
        if [each.id for each in visible] != sorted((each.id for each in visible), key=_number_in):
            self._cloud.use("messages in another order")
        received: list[Message] = []
        for message in visible:
            if len(received) == most:
                break
            message.receives += 1
            if queue.spec.receives and message.receives > queue.spec.receives:
                queue.messages.remove(message)
                moved = self.send(queue.spec.dlq, message.body, message.attributes)
                moved.moved_from = queue.spec.name
                continue
            if not self._comes_twice(message, reader):
                message.visible_ms = now_ms + hidden_s * 1000
            received.append(message)
        return received

    def _comes_twice(self, message: Message, reader: Reader | None) -> bool:
        """Return whether a message stays visible.

        The second receive takes the claim of the first one over, which uses up an attempt. So it
        counts as a fault that the message's event meets.
        """
        facts = reader.facts_in(message) if reader else []
        function = reader.function if reader else ""
        if self._cloud.have_met_enough(function, facts):
            return False
        if not self._cloud.happens("a message received twice", _TWICE, message.id):
            return False
        self._cloud.note_fault(function, facts)
        return True

    # ── As a client of SQS ────────────────────────────────────────────────────────────────────────

    def send_message(
        self,
        *,
        QueueUrl: str,  # noqa: N803 - boto3's names
        MessageBody: str,  # noqa: N803
        MessageAttributes: Mapping[str, Any] = _NO_ATTRIBUTES,  # noqa: N803
    ) -> dict[str, str]:
        send = partial(self.send, _name_in(QueueUrl), MessageBody, MessageAttributes)
        self._cloud.send_letter(send, QueueUrl)
        return {"MessageId": "sent"}

    def get_queue_url(self, *, QueueName: str) -> dict[str, str]:  # noqa: N803
        return {"QueueUrl": queue_url(QueueName)}

    def get_queue_attributes(
        self,
        *,
        QueueUrl: str,  # noqa: N803
        AttributeNames: Sequence[str],  # noqa: N803
    ) -> dict[str, dict[str, str]]:
        now_ms = self._cloud.simulation.now_ms
        messages = self.by_name[_name_in(QueueUrl)].messages
        visible = sum(each.visible_ms <= now_ms for each in messages)
        counts = {
            "ApproximateNumberOfMessages": visible,
            "ApproximateNumberOfMessagesNotVisible": len(messages) - visible,
            "ApproximateNumberOfMessagesDelayed": 0,
        }
        return {"Attributes": {name: str(counts[name]) for name in AttributeNames}}

    def receive_message(
        self,
        *,
        QueueUrl: str,  # noqa: N803
        MaxNumberOfMessages: int,  # noqa: N803
        VisibilityTimeout: int,  # noqa: N803
        **_: object,
    ) -> dict[str, Any]:
        queue = self.by_name[_name_in(QueueUrl)]
        found = self.receive(queue, MaxNumberOfMessages, VisibilityTimeout)
        return {
            "Messages": [
                {
                    "MessageId": each.id,
                    "ReceiptHandle": each.id,
                    "Body": each.body,
                    "Attributes": each.system_attributes,
                    "MessageAttributes": dict(each.attributes),
                }
                for each in found
            ]
        }

    def delete_message(self, *, QueueUrl: str, ReceiptHandle: str) -> dict[str, Any]:  # noqa: N803
        queue = self.by_name[_name_in(QueueUrl)]
        queue.messages = [each for each in queue.messages if each.id != ReceiptHandle]
        return {}

    def change_message_visibility_batch(
        self,
        *,
        QueueUrl: str,  # noqa: N803
        Entries: Sequence[Mapping[str, Any]],  # noqa: N803
    ) -> dict[str, Any]:
        now_ms = self._cloud.simulation.now_ms
        shown = {each["ReceiptHandle"]: each["VisibilityTimeout"] for each in Entries}
        for message in self.by_name[_name_in(QueueUrl)].messages:
            if message.id in shown:
                message.visible_ms = now_ms + shown[message.id] * 1000
        return {}


def _number_in(message_id: str) -> int:
    return int(message_id.rpartition("-")[2])


def _name_in(url: str) -> str:
    return url.rpartition("/")[2]
