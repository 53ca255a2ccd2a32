"""Whatever changes after a preview, what is done is what was shown, or nothing."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sqs.models import sqs_backends

from carride_idempotency.clock import epoch_ms
from carride_idempotency.operators.plans import PlanFolder
from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED
from ops import plans
from ops.audit.queues import peek
from ops.cli.app import main
from ops.stack import StackRef
from ops.tests.test_redrive import DLQ, given_up, put, ref
from ops.tests.world import AWAY

__all__ = ["ref"]

pytestmark = pytest.mark.proof

RIDES: Final = ("order_01", "order_02", "order_03")
WHERE: Final = ("--stack=carride", f"--region={AWAY}")
STATUSES: Final = (COMPLETED, FAILED, QUARANTINED, IN_PROGRESS)
LEFT_SINCE_S: Final = -600
"""A lease that ended long ago: its attempt has crashed."""


class Run(NamedTuple):
    """How a command ended."""

    status: int
    shown: Any
    """What it printed as JSON; None if nothing."""
    error: str


class Delivery(NamedTuple):
    """An event that a redrive sent to the consumer."""

    event: Any
    fact: str
    revision: str
    """Of the record that the event found."""


class Seen(NamedTuple):
    """All that a redrive may look at or change."""

    letters: dict[str, str]
    """The bodies of all messages by their ids."""
    visible: frozenset[str]
    """The ids of those that can be received."""
    records: dict[str, str]
    """The revisions of all records by their keys."""

    def letter(self, name: str) -> tuple[bool, str | None, str]:
        """Return what a plan has to be bound to: whether it is there, its body, its record."""
        body = self.letters.get(name)
        key = f"ride-history#{fact_of(body)}" if body else ""
        return name in self.visible, body, self.records.get(key, "none")


class StackAtWork:
    """A stack with a dead-letter queue, records and a consumer, and an operator's commands."""

    def __init__(self, ref: StackRef, folder: Path) -> None:
        self.ref = ref
        self.folder = folder
        """Of the plans."""
        self.delivered: list[Delivery] = []
        self.happens: Happens | None = None
        """What happens while a plan is carried out."""
        self.calls_left = 0
        """After how many calls of AWS it happens."""
        self.history = ref.client("lambda")
        self.history.invoke = self._deliver
        for service in ("sqs", "dynamodb"):
            ref.client(service).meta.events.register("before-call", self._called)

    def client(self, service: str, _region: str) -> Any:
        """Return a service of the stack, as the command line asks for it."""
        if service == "sts":
            identity = {"Account": "1", "Arn": "arn:aws:iam::1:user/a"}
            return SimpleNamespace(get_caller_identity=lambda: identity)
        if service != "cloudformation":
            return self.ref.client(service)
        outputs = [
            {"OutputKey": name, "OutputValue": value} for name, value in self.ref.outputs.items()
        ]
        described = {"Stacks": [{"StackStatus": "CREATE_COMPLETE", "Outputs": outputs}]}
        summaries = [
            {"ResourceType": kind, "LogicalResourceId": logical, "PhysicalResourceId": name}
            for kind, names in self.ref.by_type.items()
            for logical, name in names.items()
        ]
        pager = SimpleNamespace(paginate=lambda **_: [{"StackResourceSummaries": summaries}])
        return SimpleNamespace(
            describe_stacks=lambda **_: described, get_paginator=lambda _operation: pager
        )

    def run(self, *words: str) -> Run:
        """Run a command of `./carride`."""
        printed = StringIO()
        said = StringIO()
        status = 0
        with redirect_stdout(printed), redirect_stderr(said):
            try:
                main([*words, "--json", *WHERE], self.client)
            except SystemExit as ended:
                status = int(ended.code or 0)
        shown = json.loads(printed.getvalue()) if printed.getvalue() else None
        return Run(status, shown, said.getvalue())

    def empty(self) -> None:
        """Begin anew: no letter, no record, no plan."""
        self.happens = None
        self.messages().clear()
        dynamodb = self.ref.client("dynamodb")
        for table, key in (("history", "idempotencyKey"), ("marks", "id")):
            for item in dynamodb.scan(TableName=table)["Items"]:
                dynamodb.delete_item(TableName=table, Key={key: item[key]})
        for file in self.folder.glob("*"):
            file.unlink()
        self.delivered.clear()

    def messages(self) -> list[Any]:
        """Return the messages of the dead-letter queue, also the hidden ones."""
        queue = sqs_backends[DEFAULT_ACCOUNT_ID][AWAY].queues[DLQ]
        return queue._messages  # noqa: SLF001 - no client sees hidden messages

    def taken(self, at: int) -> str | None:
        """Take one of the visible messages out of the queue, and return its body."""
        visible = [each for each in self.messages() if each.visible]
        if not visible:
            return None
        message = visible[at % len(visible)]
        self.messages().remove(message)
        return str(message.body)

    def seen(self) -> Seen:
        """Return all that a redrive may look at or change."""
        messages = self.messages()
        records = dict[str, str]()
        for item in self.ref.client("dynamodb").scan(TableName="history")["Items"]:
            status, attempt, owner = (
                next(iter(item[name].values())) for name in ("status", "attempt", "owner")
            )
            revision = f"{status}, attempt {attempt}, owner {owner}"
            records[item["idempotencyKey"]["S"]] = revision
        return Seen(
            letters={each.id: each.body for each in messages},
            visible=frozenset(each.id for each in messages if each.visible),
            records=records,
        )

    def plan_file(self) -> Path:
        """Return the file of the only plan."""
        (file,) = self.folder.glob("*.json")
        return file

    def _deliver(self, **request: Any) -> None:
        """Complete an event, as the consumer does."""
        event = json.loads(request["Payload"])
        fact = event["detail"]["idempotencyid"]
        revision = self.seen().records.get(f"ride-history#{fact}", "none")
        self.delivered.append(Delivery(event, fact, revision))
        self.history.record(COMPLETED, fact)

    def _called(self, **_: Any) -> None:
        """Have something happen while a plan is carried out: its file is gone by then."""
        if self.happens is None or any(self.folder.glob("*.json")):
            return
        if self.calls_left:
            self.calls_left -= 1
            return
        happens = self.happens
        self.happens = None
        happens(self)


def event_in(body: str) -> Any:
    """Return the event in a letter."""
    return json.loads(body)["event"]


def fact_of(body: str) -> str:
    """Return the idempotency id of the event in a letter."""
    return str(event_in(body)["detail"]["idempotencyid"])


@pytest.fixture
def stack(ref: StackRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackAtWork:
    folder = tmp_path / "plans"
    monkeypatch.setattr(plans, "PLANS", folder)
    return StackAtWork(ref, folder)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have somebody type."""
    outer, inner = os.openpty()
    with os.fdopen(outer), os.fdopen(inner) as typed:
        monkeypatch.setattr("sys.stdin", typed)
        yield


# ── What may happen ───────────────────────────────────────────────────────────────────────────────

type Happens = Callable[[StackAtWork], object]


def a_letter_comes(stack: StackAtWork, ride: str) -> None:
    put(stack.ref, DLQ, given_up(ride))


def somebody_takes_a_letter(stack: StackAtWork, at: int) -> None:
    """Another operator receives and deletes it: nobody can who does not see it."""
    stack.taken(at)


def somebody_redrives_a_letter(stack: StackAtWork, at: int) -> None:
    """Another operator's redrive sends and deletes it, and the consumer completes it."""
    body = stack.taken(at)
    if body is not None:
        stack.history.record(COMPLETED, fact_of(body))


def somebody_hides_the_letters(stack: StackAtWork) -> None:
    """Another reader has received them, and not given them back."""
    stack.ref.client("sqs").receive_message(
        QueueUrl=stack.ref.outputs[f"{DLQ}Url"], MaxNumberOfMessages=10, VisibilityTimeout=600
    )


def somebody_looks_at_the_letters(stack: StackAtWork) -> None:
    """Their receive counts rise, and nothing else changes."""
    list(peek(stack.ref.client("sqs"), stack.ref.outputs[f"{DLQ}Url"]))


def the_queue_is_emptied(stack: StackAtWork) -> None:
    while stack.taken(0) is not None:
        pass


def an_event_changes(stack: StackAtWork, at: int) -> None:
    """Its message keeps its id. SQS does not do that."""
    messages = stack.messages()
    if messages:
        message = messages[at % len(messages)]
        body = json.loads(message.body)
        body["event"]["detail"]["data"]["note"] = (
            body["event"]["detail"]["data"].get("note", "") + "x"
        )
        message.body = json.dumps(body)


def a_record_changes(stack: StackAtWork, ride: str, status: str, attempt: int) -> None:
    """A delivery or another operator changes it: FAILED at attempt 0 is a released record."""
    lease_ms = None
    if status == IN_PROGRESS:
        lease_ms = epoch_ms() + LEFT_SINCE_S * 1000
    stack.history.record(status, fact_of(given_up(ride)), attempt, lease_ms)


def a_record_is_forgotten(stack: StackAtWork, ride: str) -> None:
    key = {"idempotencyKey": {"S": f"ride-history#{fact_of(given_up(ride))}"}}
    stack.ref.client("dynamodb").delete_item(TableName="history", Key=key)


def an_hour_passes(stack: StackAtWork) -> None:
    """The plan is older than it may be."""
    folder = PlanFolder(stack.folder, "./carride")
    plan = folder.named(stack.plan_file().stem)
    folder.save(plan._replace(made=plan.made - timedelta(minutes=61)))


def somebody_edits_the_plan(stack: StackAtWork, edit: Callable[[dict[str, Any]], object]) -> None:
    file = stack.plan_file()
    plan = json.loads(file.read_text())
    edit(plan)
    file.write_text(json.dumps(plan))


def the_plan_is_cut_off(stack: StackAtWork) -> None:
    file = stack.plan_file()
    file.write_text(file.read_text()[:-20])


EDITS: Final[tuple[Callable[[dict[str, Any]], object], ...]] = (
    lambda plan: plan["exact"]["letters"].append({"id": "more"}),
    lambda plan: plan["exact"]["letters"].clear(),
    lambda plan: plan["exact"].update(target="arn:aws:lambda:us-east-1:1:function:another"),
    lambda plan: plan.update(words=["redrive", "PaymentDlq"]),
    lambda plan: plan.update(made="2099-01-01T00:00:00+00:00"),
    lambda plan: plan.update(id="0123abcd"),
    lambda plan: plan.clear(),
)
places = st.integers(0, 5)
rides = st.sampled_from(RIDES)
to_stack: st.SearchStrategy[Happens] = st.one_of(
    st.builds(partial, st.just(a_letter_comes), ride=rides),
    st.builds(partial, st.just(somebody_takes_a_letter), at=places),
    st.builds(partial, st.just(somebody_redrives_a_letter), at=places),
    st.just(somebody_hides_the_letters),
    st.just(somebody_looks_at_the_letters),
    st.just(the_queue_is_emptied),
    st.builds(partial, st.just(an_event_changes), at=places),
    st.builds(
        partial,
        st.just(a_record_changes),
        ride=rides,
        status=st.sampled_from(STATUSES),
        attempt=st.integers(0, 3),
    ),
    st.builds(partial, st.just(a_record_is_forgotten), ride=rides),
)
to_plan: st.SearchStrategy[Happens] = st.one_of(
    st.just(an_hour_passes),
    st.just(the_plan_is_cut_off),
    st.builds(partial, st.just(somebody_edits_the_plan), edit=st.sampled_from(EDITS)),
)
records = st.dictionaries(rides, st.sampled_from(STATUSES), max_size=3)
letters = st.lists(rides, min_size=1, max_size=5)
options = st.lists(st.sampled_from(["--release", "--no-canary", "--limit=2"]), unique=True)
by_hypothesis = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=40,
    # A case is short, and takes too long to be shortened.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


def with_an_event_that_changes[T: Callable[..., None]](test: T) -> T:
    """Add the change to a property's cases, before each of its first calls: chance seldom does."""
    for calls_before in range(8):
        happens = partial(an_event_changes, at=0)
        test = example([RIDES[0]], {}, [], happens, calls_before)(test)
    return test


def prepared(stack: StackAtWork, there: list[str], known: dict[str, str]) -> None:
    """Put letters of rides into the queue, and records of some of their events into the table."""
    stack.empty()
    for ride in there:
        a_letter_comes(stack, ride)
    for ride, status in known.items():
        a_record_changes(stack, ride, status, attempt=3)


def previewed(stack: StackAtWork, words: list[str]) -> dict[str, Any]:
    """Return the letters that a preview shows, by their ids."""
    shown = stack.run(*words)
    assert shown.status == 0, shown.error
    return {each["letter"]["id"]: each for each in shown.shown["letters"]}


# ── What must hold ────────────────────────────────────────────────────────────────────────────────


@by_hypothesis
@given(
    letters, records, options, st.lists(to_stack, max_size=3), st.none() | to_plan, st.booleans()
)
def test_a_redrive_does_what_was_shown_or_nothing(
    stack: StackAtWork,
    there: list[str],
    known: dict[str, str],
    chosen: list[str],
    happened: list[Happens],
    to_the_plan: Happens | None,
    is_named: bool,
) -> None:
    """A refusal names what has changed, and what nobody has changed is not refused."""
    prepared(stack, there, known)
    words = ["redrive", DLQ, *chosen]
    shown = previewed(stack, words)
    name = stack.plan_file().stem
    then = stack.seen()
    for happens in [*happened, *([to_the_plan] if to_the_plan else [])]:
        happens(stack)
    before = stack.seen()
    done = stack.run(*words, "--yes", *([f"--plan={name}"] if is_named else []))
    after = stack.seen()
    ids = before.letters | then.letters
    changed = {each for each in ids if then.letter(each) != before.letter(each)}
    if "--limit=2" in chosen:
        # A letter that nobody has chosen may change.
        oldest = set(list(then.letters)[:2]) | set(list(before.letters)[:2])
        changed &= shown.keys() | oldest
    if changed or to_the_plan:
        assert done.status == 2
        assert (stack.delivered, after) == ([], before)
        about_plan = ("has expired", "not as it was written")
        assert any(each in done.error for each in [*changed, *about_plan])
        return
    assert done.status == 0, done.error
    goes = {each for each, letter in shown.items() if letter["verdict"]["goes"]}
    assert after.letters == {each: before.letters[each] for each in before.letters.keys() - goes}
    assert Counter(each.fact for each in stack.delivered) == Counter(
        fact_of(before.letters[each]) for each in goes
    )
    keys_of_goes = {f"ride-history#{each.fact}" for each in stack.delivered}
    for key in before.records.keys() - keys_of_goes:
        assert after.records[key] == before.records[key]


@by_hypothesis
@given(letters, records, options, to_stack, st.integers(0, 12))
@with_an_event_that_changes
@example(
    [RIDES[0]], {}, [], partial(a_record_changes, ride=RIDES[0], status="FAILED", attempt=1), 0
)
def test_what_changes_during_a_redrive_is_not_done(
    stack: StackAtWork,
    there: list[str],
    known: dict[str, str],
    chosen: list[str],
    happens: Happens,
    calls_before: int,
) -> None:
    """Only events that were shown are sent, and only on the records that were shown with them.

    The result accounts for each letter.
    """
    prepared(stack, there, known)
    words = ["redrive", DLQ, "--wait=1s", *chosen]
    shown = previewed(stack, words)
    then = stack.seen()
    stack.happens = happens
    stack.calls_left = calls_before
    done = stack.run(*words, "--yes")
    assert done.status in (0, 1), done.error
    goes = [each for name, each in shown.items() if each["verdict"]["goes"]]
    result = done.shown
    stays = Counter(
        each["verdict"]["why"] for each in shown.values() if not each["verdict"]["goes"]
    )
    stayed = sum(result["stayed"].values()) - stays.total()
    assert result["planned"] == len(goes) == result["sent"] + stayed + result["gone"]
    assert len(stack.delivered) == result["sent"]
    events = [event_in(then.letters[each["letter"]["id"]]) for each in goes]
    revisions = {fact_of(then.letters[each["letter"]["id"]]): each for each in goes}
    tried = set[str]()
    for delivery in stack.delivered:
        assert delivery.event in events
        planned = revisions[delivery.fact]
        # What comes between the last look and the call is for the consumer to recognise.
        if calls_before == 0 and delivery.fact not in tried:
            released = planned["verdict"]["releases"]
            wanted = "FAILED, attempt 0, owner " if released else planned["revision"]
            assert delivery.revision.startswith(wanted)
        tried.add(delivery.fact)


def test_a_terminal_frees_no_key_that_was_not_shown(stack: StackAtWork, terminal: None) -> None:
    """Release, forget and `redrive --release` want a plan; a redrive alone does not."""
    body = given_up("order_01")
    put(stack.ref, DLQ, body)
    stack.history.record(QUARANTINED, fact_of(body), 3)
    key = f"ride-history#{fact_of(body)}"
    commands = (("release", key), ("forget", key), ("redrive", DLQ, "--release"))
    before = stack.seen()
    for words in commands:
        done = stack.run(*words, "--yes")
        assert (done.status, "no plan of this command was shown" in done.error) == (2, True)
    assert (stack.seen().records, stack.delivered) == (before.records, [])
    assert stack.run("redrive", DLQ, "--yes").status == 0
    plan = stack.run("release", key)
    assert plan.status == 0
    assert stack.run("release", key, "--yes").status == 0
    assert stack.seen().records != before.records
