"""What every queue, function, rule and table of the template has to have."""

import json
from typing import Any, Final

import pytest

from idempotency import Policy
from tests.infrastructure.stack import Properties, Stack, attribute, every_choice, source, stack

DAY: Final = 86_400
FOURTEEN_DAYS: Final = 14 * DAY

TABLES_WITHOUT_TTL: Final = {
    "AssignmentTable": "which car a ride has or had is kept until somebody deletes it",
    "BookingTable": "what a customer booked is kept until somebody deletes it",
    "CarTable": "the fleet does not grow with the traffic",
    "PaymentTable": "what was reserved, captured or given back is kept until somebody deletes it",
    "RideTable": "a read model is kept until somebody deletes it; it can be rebuilt from the archive",
}

MAY_PUBLISH: Final = {"CarRideSimulatorFunction"}


def choices() -> list[Any]:
    """Return one test parameter for each combination of the template's parameters."""
    return [pytest.param(choice, id="-".join(choice.values())) for choice in every_choice()]


@pytest.fixture(scope="module", params=choices())
def deployed(request: pytest.FixtureRequest) -> Stack:
    """Return the transformed template, for each choice of parameters in turn."""
    return stack(**request.param)


def statements(document: Properties) -> list[Properties]:
    """Return the statements of a policy document, each with its actions as a list."""
    return [
        statement | {"Action": [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]}
        for statement in document["Statement"]
    ]


def queue_policy(deployed: Stack, queue: str) -> list[Properties]:
    """Return the statements of the one policy of a queue."""
    policies = [
        policy for policy in deployed.of_type("AWS::SQS::QueuePolicy").values() if {"Ref": queue} in policy["Queues"]
    ]
    assert len(policies) == 1, f"{queue} needs exactly one QueuePolicy: two would overwrite each other"
    return statements(policies[0]["PolicyDocument"])


def role_statements(deployed: Stack, function: str) -> list[Properties]:
    """Return what the role of a function allows."""
    role_name, _ = deployed.of_type("AWS::Lambda::Function")[function]["Role"]["Fn::GetAtt"]
    role = deployed.of_type("AWS::IAM::Role")[role_name]
    assert "ManagedPolicyArns" not in role, f"{role_name} takes over permissions that nobody here wrote down"
    return [statement for policy in role["Policies"] for statement in statements(policy["PolicyDocument"])]


def test_every_queue_keeps_its_messages_for_fourteen_days_encrypted(deployed: Stack) -> None:
    """Nobody loses a dead letter over a long weekend, and none lies there in the clear."""
    for name, queue in deployed.of_type("AWS::SQS::Queue").items():
        assert queue["MessageRetentionPeriod"] == FOURTEEN_DAYS, name
        assert queue["SqsManagedSseEnabled"] is True, name


def test_every_queue_refuses_unencrypted_connections(deployed: Stack) -> None:
    """A queue's policy denies everything that does not come over TLS."""
    for name in deployed.of_type("AWS::SQS::Queue"):
        assert any(
            statement["Effect"] == "Deny"
            and statement["Principal"] == "*"
            and statement["Action"] == ["sqs:*"]
            and statement["Resource"] == attribute(name)
            and statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
            for statement in queue_policy(deployed, name)
        ), name


def test_every_queue_has_an_alarm_that_tells_somebody(deployed: Stack) -> None:
    """One message in a dead-letter queue raises an alarm; where a function works a queue off, an old message does."""
    alarms = deployed.of_type("AWS::CloudWatch::Alarm").values()
    for name, queue in deployed.of_type("AWS::SQS::Queue").items():
        dimension = [{"Name": "QueueName", "Value": attribute(name, "QueueName")}]
        watching = [alarm for alarm in alarms if alarm.get("Dimensions") == dimension]
        assert len(watching) == 1, name
        assert watching[0]["AlarmActions"] == [{"Ref": "AlarmTopic"}], name
        if "RedrivePolicy" in queue:
            assert watching[0]["MetricName"] == "ApproximateAgeOfOldestMessage", name
        else:
            assert watching[0]["MetricName"] == "ApproximateNumberOfMessagesVisible", name
            assert watching[0]["Threshold"] == 0, name


def test_every_queue_is_an_output(deployed: Stack) -> None:
    """Whoever looks for a dead letter finds its queue among the outputs."""
    values = [output["Value"] for output in deployed.outputs.values()]
    for name in deployed.of_type("AWS::SQS::Queue"):
        assert {"Ref": name} in values, name


def test_every_function_logs_to_a_group_with_a_retention(deployed: Stack) -> None:
    """No function writes to a log group that keeps its entries for ever."""
    groups = deployed.of_type("AWS::Logs::LogGroup")
    for name, function in deployed.of_type("AWS::Lambda::Function").items():
        assert groups[function["LoggingConfig"]["LogGroup"]["Ref"]]["RetentionInDays"] == {"Ref": "LogRetentionDays"}, (
            name
        )
    assert all("RetentionInDays" in group for group in groups.values())


def test_every_function_has_a_place_for_what_it_failed_on(deployed: Stack) -> None:
    """What nobody waits for is kept when the retries are used up, in a queue that only dead letters go to."""
    queues = deployed.of_type("AWS::SQS::Queue")
    configs = {
        config["FunctionName"]["Ref"]: config for config in deployed.of_type("AWS::Lambda::EventInvokeConfig").values()
    }
    mappings = {
        mapping["FunctionName"]["Ref"]: mapping["EventSourceArn"]["Fn::GetAtt"][0]
        for mapping in deployed.of_type("AWS::Lambda::EventSourceMapping").values()
    }
    for name in deployed.of_type("AWS::Lambda::Function"):
        if is_waited_for(deployed, name):
            continue
        if name in mappings:
            redrive = queues[mappings[name]]["RedrivePolicy"]
            assert "RedrivePolicy" not in queues[redrive["deadLetterTargetArn"]["Fn::GetAtt"][0]], name
            continue
        destination = configs[name]["DestinationConfig"]["OnFailure"]["Destination"]
        assert "RedrivePolicy" not in queues[destination["Fn::GetAtt"][0]], name
        assert any(
            "sqs:SendMessage" in statement["Action"] and statement["Resource"] == destination
            for statement in role_statements(deployed, name)
        ), f"{name} cannot write its own OnFailure queue"


def is_waited_for(deployed: Stack, function: str) -> bool:
    """Whether only API Gateway invokes a function: then the client waits for the answer, and tries again itself."""
    principals = {
        permission["Principal"]
        for permission in deployed.of_type("AWS::Lambda::Permission").values()
        if permission["FunctionName"] == {"Ref": function}
    }
    return principals == {"apigateway.amazonaws.com"}


def test_every_function_has_a_role_of_its_own_without_wildcards(deployed: Stack) -> None:
    """A role names each action and each resource, and serves one function."""
    roles = [function["Role"]["Fn::GetAtt"][0] for function in deployed.of_type("AWS::Lambda::Function").values()]
    assert len(roles) == len(set(roles))
    for name in deployed.of_type("AWS::Lambda::Function"):
        for statement in role_statements(deployed, name):
            assert not any("*" in action for action in statement["Action"]), (name, statement)
            assert "*" not in json.dumps(statement["Resource"]), (name, statement)


def test_every_rule_target_is_retried_and_then_dead_lettered(deployed: Stack) -> None:
    """What a target does not take for a day lies in a queue that exactly this rule may write."""
    for name, rule in deployed.of_type("AWS::Events::Rule").items():
        for target in rule["Targets"]:
            assert target["RetryPolicy"] == {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": DAY}, name
            queue = target["DeadLetterConfig"]["Arn"]["Fn::GetAtt"][0]
            assert any(
                statement["Effect"] == "Allow"
                and statement["Principal"] == {"Service": "events.amazonaws.com"}
                and statement["Action"] == ["sqs:SendMessage"]
                and statement["Resource"] == attribute(queue)
                and statement["Condition"] == {"ArnEquals": {"aws:SourceArn": attribute(name)}}
                for statement in queue_policy(deployed, queue)
            ), f"{name} cannot write {queue}"


def test_rules_and_consumers_do_not_share_a_queue(deployed: Stack) -> None:
    """A message in a queue says by its place whether the rule or the consumer gave the event up."""
    of_rules = {
        target["DeadLetterConfig"]["Arn"]["Fn::GetAtt"][0]
        for rule in deployed.of_type("AWS::Events::Rule").values()
        for target in rule["Targets"]
    }
    of_functions = {
        config["DestinationConfig"]["OnFailure"]["Destination"]["Fn::GetAtt"][0]
        for config in deployed.of_type("AWS::Lambda::EventInvokeConfig").values()
    }
    assert of_rules.isdisjoint(of_functions)


def test_every_rule_may_invoke_its_function(deployed: Stack) -> None:
    """A function lets exactly the rules that target it invoke it."""
    functions = deployed.of_type("AWS::Lambda::Function")
    wanted = {
        (rule, target["Arn"]["Fn::GetAtt"][0])
        for rule, properties in deployed.of_type("AWS::Events::Rule").items()
        for target in properties["Targets"]
        if target["Arn"].get("Fn::GetAtt", [""])[0] in functions
    }
    granted = {
        (permission["SourceArn"]["Fn::GetAtt"][0], permission["FunctionName"]["Ref"])
        for permission in deployed.of_type("AWS::Lambda::Permission").values()
        if permission["Principal"] == "events.amazonaws.com"
    }
    assert granted == wanted


def test_an_event_that_breaks_the_contract_reaches_a_consumer(deployed: Stack) -> None:
    """One rule takes every ride event, whatever its detail; those of other consumers look at the type in it only."""
    rules = deployed.of_type("AWS::Events::Rule")
    assert set(rules["RideHistoryRule"]["EventPattern"]) == {"source", "detail-type"}
    consumers = deployed.of_type("AWS::Lambda::Function") | deployed.of_type("AWS::SQS::Queue")
    for name, rule in rules.items():
        if any(target["Arn"].get("Fn::GetAtt", [""])[0] in consumers for target in rule["Targets"]):
            detail = rule["EventPattern"].get("detail", {})
            for alternative in detail.get("$or", [detail]):
                assert set(alternative) <= {"type", "attributes"}, name
                assert set(alternative.get("attributes", {})) <= {"type"}, name


def test_only_producers_may_publish(deployed: Stack) -> None:
    """A consumer that could publish to the bus it listens to could feed itself for ever."""
    assert {
        name
        for name in deployed.of_type("AWS::Lambda::Function")
        if any("events:PutEvents" in statement["Action"] for statement in role_statements(deployed, name))
    } == MAY_PUBLISH


def test_every_table_expires_its_items_or_says_why_not(deployed: Stack) -> None:
    """A table grows without end only on purpose."""
    for name, table in deployed.of_type("AWS::DynamoDB::GlobalTable").items():
        expires = table.get("TimeToLiveSpecification", {}).get("Enabled") is True
        assert expires != (name in TABLES_WITHOUT_TTL), name
    assert not deployed.of_type("AWS::DynamoDB::Table"), "a plain table cannot become a global one later"


def test_every_table_can_be_restored_and_is_protected_in_production(deployed: Stack) -> None:
    """Point-in-time recovery is on everywhere; deleting takes a second thought in production."""
    for name, table in deployed.of_type("AWS::DynamoDB::GlobalTable").items():
        for replica in table["Replicas"]:
            assert replica["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}, name
            assert deployed.choose(replica["DeletionProtectionEnabled"]) is (deployed.parameters["Stage"] == "prod")


def test_faults_can_be_injected_on_a_laptop_only(deployed: Stack) -> None:
    """No deployed stage obeys an event that asks a consumer to crash."""
    for name, function in deployed.of_type("AWS::Lambda::Function").items():
        allowed = deployed.choose(function["Environment"]["Variables"]["FAULTS"])
        assert allowed == ("allowed" if deployed.parameters["Stage"] == "local" else "refused"), name


def test_layers_are_built_for_the_functions_that_load_them(deployed: Stack) -> None:
    """A compiled dependency always meets the processor it was built for."""
    architecture = [{"Ref": "Architecture"}]
    assert all(
        function["Architectures"] == architecture for function in deployed.of_type("AWS::Lambda::Function").values()
    )
    assert source()["Resources"]["CarRideLayer"]["Metadata"]["BuildArchitecture"] == architecture[0]


def test_the_window_outlasts_every_road_back() -> None:
    """A record outlives archive, redelivery, retries and redrive, one after the other."""
    archive_days = source()["Parameters"]["ArchiveRetentionDays"]["MaxValue"]
    event_bridge, lambda_retries, redrive = DAY, DAY // 4, FOURTEEN_DAYS
    assert Policy().window > archive_days * DAY + event_bridge + lambda_retries + redrive
