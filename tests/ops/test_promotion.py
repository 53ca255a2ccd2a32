"""`./carride promote` acts only on a region that is silent, and stops where it cannot go on."""

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)

from ops.promotion import Promotion
from ops.stack import OperatorError
from tests.ops.world import AWAY, HOME
from tests.ops.world import stack as ref

URL = "https://cloudformation"
SILENT = EndpointConnectionError(endpoint_url=URL)


class Lost:
    """A secondary's stack, and the region of its primary, which says one thing after the other."""

    def __init__(self, *answers: Exception | None, table: str = "ACTIVE") -> None:
        self.answers = [*answers]
        self.table = table
        self.changes: list[str] = []
        self.slept = 0.0

    def client(self, service: str, region: str) -> Any:
        if region == HOME:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if answer is not None:
                raise answer
            stack = {"StackStatus": "CREATE_COMPLETE"}
            return SimpleNamespace(describe_stacks=lambda **_: {"Stacks": [stack]})
        return getattr(self, service)()

    def cloudformation(self) -> Any:
        body = {"Resources": {"CarTable": {"Type": "AWS::DynamoDB::GlobalTable"}}}

        def create_change_set(**_: Any) -> None:
            self.changes.append("imported")
            raise ClientError({"Error": {"Code": "Stop"}}, "CreateChangeSet")

        return SimpleNamespace(
            get_template=lambda **_: {"TemplateBody": body},
            create_change_set=create_change_set,
            describe_stacks=lambda **_: {"Stacks": [{"StackStatus": "CREATE_COMPLETE"}]},
        )

    def dynamodb(self) -> Any:
        return SimpleNamespace(
            update_table=lambda **_: self.changes.append("detached"),
            describe_table=lambda **_: {"Table": {"TableStatus": self.table}},
        )

    def s3(self) -> Any:
        return SimpleNamespace(
            put_object=lambda **_: None, meta=SimpleNamespace(endpoint_url="https://s3")
        )

    def promotion(self, lost: str = HOME) -> Promotion:
        stack = ref(self.client, AWAY, Role="secondary", PeerRegion=HOME)
        return Promotion(stack, lost, lambda _: None, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


def refused(code: str) -> ClientError:
    """Return a refusal of AWS."""
    return ClientError({"Error": {"Code": code, "Message": "because"}}, "DescribeStacks")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "answers, and its stack owns the tables"),
        (refused("AccessDenied"), "answers, so it is not lost .*AccessDenied"),
        (refused("ExpiredToken"), "answers, so it is not lost .*ExpiredToken"),
        (refused("Throttling"), "answers, so it is not lost .*Throttling"),
        (NoCredentialsError(), "could not be asked, which does not mean that it is lost"),
    ],
    ids=str,
)
def test_a_region_that_answers_is_not_lost(answer: Exception | None, said: str) -> None:
    """Also one that refuses, and one that was not asked; nothing is planned."""
    with pytest.raises(OperatorError, match=said):
        Lost(answer).promotion().importing(None)


@pytest.mark.parametrize(
    "silence",
    [
        SILENT,
        ConnectTimeoutError(endpoint_url=URL),
        ReadTimeoutError(endpoint_url=URL),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_region_is_asked_for_five_minutes_before_anything_changes(silence: Exception) -> None:
    """Refused and timed-out connections are silence; only then the replica is removed."""
    world = Lost(silence)
    plan = world.promotion().importing("bucket")
    assert world.slept == 0
    with pytest.raises(ClientError):
        plan.do()
    assert world.slept == 300
    assert world.changes == ["detached", "imported"]


@pytest.mark.parametrize("later", [None, refused("Throttling")], ids=str)
def test_one_answer_within_the_five_minutes_ends_the_promotion(later: Exception | None) -> None:
    """The region was slow, not lost; nothing has changed."""
    world = Lost(*[SILENT] * 9, later)
    plan = world.promotion().importing("bucket")
    with pytest.raises(OperatorError, match="us-west-2 answers"):
        plan.do()
    assert world.changes == []


def test_the_lost_region_is_typed() -> None:
    """Another name than the primary's is refused, so nobody promotes by habit."""
    with pytest.raises(OperatorError, match="is in us-west-2, not in eu-west-1"):
        Lost(SILENT).promotion("eu-west-1").importing(None)


def test_a_table_that_stays_in_change_ends_the_promotion_after_ten_minutes() -> None:
    """It is not waited for without end, and nothing is imported."""
    world = Lost(SILENT, table="UPDATING")
    plan = world.promotion().importing("bucket")
    with pytest.raises(OperatorError, match="still UPDATING after ten minutes"):
        plan.do()
    assert world.slept == 300 + 600
    assert world.changes == ["detached"]
