"""What tables hold in the end, and what makes two writes the same write."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from carride_idempotency.record_items import ATTRIBUTE_NAMES
from carride_idempotency.testing.dynamodb import RECORD_KEY
from carride_idempotency.testing.expressions import Item, Request

type Place = tuple[str, str]
"""A table, and the key of an item in it as text."""
type Contents = Mapping[Place, Item]
"""The items of all tables. A record's item has only what a handler keeps in it."""


def kept_in(record: Item) -> Item:
    """Return what a handler keeps in its record's item."""
    return {name: value for name, value in record.items() if name not in ATTRIBUTE_NAMES}


def as_content(item: Item) -> Item:
    """Return what an item holds for its users; of a record's item, that is what is kept in it."""
    is_record = RECORD_KEY in item and {"status", "owner"} & item.keys()
    return kept_in(item) if is_record else item


def text_of(value: object) -> str:
    """Return a text that is equal for equal contents."""
    return json.dumps(value, sort_keys=True, default=_text_of_special)


def _text_of_special(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return repr(value)


# ── Comparing the end with an undisturbed run's ───────────────────────────────────────────────────


class Expected(NamedTuple):
    """The contents after two undisturbed runs at different times.

    What differs between both, such as a random id or the time, may differ in any run.
    """

    first: Contents
    second: Contents

    def differences(self, found: Contents, ignored: set[Place]) -> list[str]:
        """Return what contents lack and have too much; places to ignore are left out."""
        wanted = self._shapes(self.first, ignored)
        shapes = self._shapes(found, ignored)
        too_much = shapes - wanted
        missing = wanted - shapes
        return [
            *[f"has {shape}" for shape in too_much.elements()],
            *[f"lacks {shape}" for shape in missing.elements()],
        ]

    def _shapes(self, contents: Contents, ignored: set[Place]) -> Counter[str]:
        """Return the items without what differs from run to run."""
        shapes: Counter[str] = Counter()
        for place, item in contents.items():
            if place not in ignored:
                shapes[self._shape(place, item)] += 1
        return shapes

    def _shape(self, place: Place, item: Item) -> str:
        table, key = place
        first = self.first.get(place)
        second = self.second.get(place)
        if first is None or second is None:
            if self._varies(table):
                names = ", ".join(sorted(item))
                return f"an item of {table} with {names}"
            return f"{table} {key}: {text_of(item)}"
        steady = {}
        for name, value in item.items():
            in_both = name in first and name in second
            varies = in_both and first[name] != second[name]
            if not varies:
                steady[name] = value
        return f"{table} {key}: {text_of(steady)}"

    def _varies(self, table: str) -> bool:
        """Return whether the keys of a table differ from run to run."""
        first = {key for name, key in self.first if name == table}
        second = {key for name, key in self.second if name == table}
        return first != second


# ── Calls of AWS ──────────────────────────────────────────────────────────────────────────────────

_TOKENS: Final = ("ClientRequestToken", "ClientToken", "ClientExecutionToken", "IdempotencyToken")
_REPLACING: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("s3", "PutObject"): ("Bucket", "Key", "Body"),
    ("s3", "DeleteObject"): ("Bucket", "Key"),
    ("s3", "CopyObject"): ("Bucket", "Key", "CopySource"),
    ("ssm", "PutParameter"): ("Name", "Value"),
    ("stepfunctions", "StartExecution"): ("stateMachineArn", "name"),
    ("scheduler", "CreateSchedule"): ("GroupName", "Name"),
}
"""Calls whose repetition changes nothing, and the parameters that make two of them equal. Each must
be given, except a schedule's group."""
_OPTIONAL: Final = frozenset({"GroupName"})


def identities(service: str, operation: str, request: Request) -> list[object]:
    """Return an identity for each effect of a call.

    Two effects have the same one if the second changes nothing.
    """
    token = _token_of(request)
    if token is not None:
        return [(operation, token)]
    name = service.replace("sfn", "stepfunctions").replace("states", "stepfunctions")
    parameters = _REPLACING.get((name, operation), ())
    if parameters and all(each in request or each in _OPTIONAL for each in parameters):
        return [tuple(_digest(request.get(each)) for each in parameters)]
    if name in {"sqs", "sns"}:
        messages = request.get("Entries") or request.get("PublishBatchRequestEntries") or [request]
        target = request.get("QueueUrl") or request.get("TopicArn") or ""
        return [_message(target, message) for message in messages]
    entries = request.get("Entries") or request.get("Records") or [request]
    return [_unlike_any_other() for _ in entries]


def _token_of(request: Request) -> Any:
    """Return the token by which the service recognises a repeated request; None without one."""
    for name in _TOKENS:
        if request.get(name):
            return request[name]
    return None


def _message(target: str, message: Mapping[str, Any]) -> object:
    """Return the identity of a message. Only FIFO queues and topics recognise a copy."""
    if not target.endswith(".fifo"):
        return _unlike_any_other()
    body = message.get("MessageBody") or message.get("Message")
    return target, message.get("MessageDeduplicationId") or text_of(body)


def _unlike_any_other() -> object:
    return object()


def _digest(value: Any) -> object:
    """Return a parameter as text or digest; the body of an object may be a file."""
    if hasattr(value, "read"):
        start = value.tell()
        content = value.read()
        value.seek(start)
        return _digest(content)
    if isinstance(value, bytes | bytearray):
        return hashlib.sha256(value).hexdigest()
    return str(value)


# ── A client's request ────────────────────────────────────────────────────────────────────────────


def wire_request(client: Any, operation: str, request: Request) -> Request:
    """Return a request in the wire format. A resource of boto3's gets one with Python values."""
    from copy import deepcopy

    model = client.meta.service_model.operation_model(operation)
    converted = deepcopy(dict(request))
    client.meta.events.emit(
        f"before-parameter-build.dynamodb.{operation}", params=converted, model=model, context={}
    )
    return converted


def client_answer(client: Any, operation: str, answer: Mapping[str, Any]) -> Any:
    """Return an answer as a client gives it. A resource of boto3's gives Python values."""
    from copy import deepcopy

    model = client.meta.service_model.operation_model(operation)
    parsed = deepcopy(dict(answer))
    client.meta.events.emit(
        f"after-call.dynamodb.{operation}",
        http_response=None,
        parsed=parsed,
        model=model,
        context={},
    )
    return parsed
