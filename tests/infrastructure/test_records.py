"""Where the records live, what the tables cost by, and how long things are kept: what each choice deploys."""

import json
from typing import Any, Final

import pytest

from carride.outbox import KEPT
from idempotency import open_store
from idempotency.policy import DAY, Policy
from idempotency.stores.valkey import ValkeyStore
from tests.infrastructure.stack import Stack, source, stack

CONSUMERS: Final = ("RideHistory", "Dispatch", "Payment")
NETWORK: Final = {"VpcId": "vpc-0123456789abcdef0", "SubnetIds": "subnet-0a,subnet-0b"}
IN_VALKEY: Final = {"RecordStore": "valkey", **NETWORK}
ROADS_BACK: Final = DAY + DAY // 4 + 14 * DAY
"""EventBridge's retries, Lambda's, and a dead-letter queue, one after the other, in seconds."""


def variables(deployed: Stack, consumer: str) -> dict[str, Any]:
    """Return the environment variables of a consumer's function."""
    found: dict[str, Any] = deployed.resources[f"{consumer}Function"]["Properties"]["Environment"]["Variables"]
    return found


class TestRetention:
    """One preset for what has to fit together."""

    @pytest.fixture(params=sorted(source()["Mappings"]["Retentions"]))
    def preset(self, request: pytest.FixtureRequest) -> dict[str, int]:
        """Return each preset in turn, in days."""
        return {name: int(days) for name, days in source()["Mappings"]["Retentions"][request.param].items()}

    def test_the_window_outlasts_every_road_back(self, preset: dict[str, int]) -> None:
        """A record outlives archive, redelivery, retries and redrive, one after the other."""
        assert preset["WindowDays"] * DAY > preset["ArchiveDays"] * DAY + ROADS_BACK

    def test_what_is_told_outlasts_the_stream(self, preset: dict[str, int]) -> None:
        """An item of the outbox is there for longer than the stream that carries it, a day."""
        assert preset["OutboxDays"] > 1

    def test_logs_cover_the_archive(self, preset: dict[str, int]) -> None:
        """Whatever can be replayed can be audited; and log groups take these days only."""
        assert preset["LogDays"] >= preset["ArchiveDays"]
        assert preset["LogDays"] in {1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365}

    def test_presets_are_those_that_can_be_chosen(self) -> None:
        """Each value of the parameter has a preset, and each preset a value."""
        parameter = source()["Parameters"]["Retention"]
        assert sorted(parameter["AllowedValues"]) == sorted(source()["Mappings"]["Retentions"])
        assert parameter["Default"] == "standard"

    def test_standard_is_what_the_code_takes_by_itself(self) -> None:
        """Whoever runs a consumer without the template gets the same window and the same outbox."""
        standard = source()["Mappings"]["Retentions"]["standard"]
        assert (int(standard["WindowDays"]) * DAY, int(standard["OutboxDays"])) == (Policy().window, KEPT.days)

    def test_functions_are_told(self) -> None:
        """Every consumer gets the window, and whoever tells events for how long they are kept."""
        deployed = stack()
        window = {"Fn::FindInMap": ["Retentions", {"Ref": "Retention"}, "WindowDays"]}
        outbox = {"Fn::FindInMap": ["Retentions", {"Ref": "Retention"}, "OutboxDays"]}
        assert all(variables(deployed, consumer)["IDEMPOTENCY_WINDOW_DAYS"] == window for consumer in CONSUMERS)
        assert all(
            variables(deployed, teller)["OUTBOX_DAYS"] == outbox for teller in ("CarRideApi", "Dispatch", "Payment")
        )

    def test_the_archive_keeps_as_long_as_the_preset_says(self) -> None:
        """No archive outlives the records because its days stand elsewhere."""
        (archive,) = stack().of_type("AWS::Events::Archive").values()
        assert archive["RetentionDays"] == {"Fn::FindInMap": ["Retentions", {"Ref": "Retention"}, "ArchiveDays"]}


class TestBilling:
    """On demand, or provisioned with a capacity that follows the load."""

    @pytest.mark.parametrize("role", [{}, {"Role": "primary", "PeerRegion": "eu-west-1", "GlobalEndpoint": "present"}])
    def test_provisioned_tables_scale_in_every_direction(self, role: dict[str, str]) -> None:
        """Each table, each index and each replica has its own scaling, for reads and for writes, between the limits."""
        tables = stack(TableBilling="provisioned", **role).of_type("AWS::DynamoDB::GlobalTable")
        scaling = {
            "MinCapacity": {"Ref": "MinCapacity"},
            "MaxCapacity": {"Ref": "MaxCapacity"},
            "TargetTrackingScalingPolicyConfiguration": {"TargetValue": {"Ref": "TargetUtilization"}},
        }
        writes = {"WriteCapacityAutoScalingSettings": scaling}
        reads = {"ReadCapacityAutoScalingSettings": scaling}
        assert tables
        for name, table in tables.items():
            indexes = {index["IndexName"] for index in table.get("GlobalSecondaryIndexes", ())}
            assert table["BillingMode"] == "PROVISIONED", name
            assert table["WriteProvisionedThroughputSettings"] == writes, name
            assert all(
                index["WriteProvisionedThroughputSettings"] == writes
                for index in table.get("GlobalSecondaryIndexes", ())
            )
            assert len(table["Replicas"]) == (2 if role else 1), name
            for replica in table["Replicas"]:
                assert replica["ReadProvisionedThroughputSettings"] == reads, name
                own = replica.get("GlobalSecondaryIndexes", ())
                assert {index["IndexName"] for index in own} == indexes, name
                assert all(index["ReadProvisionedThroughputSettings"] == reads for index in own), name

    def test_tables_on_demand_have_no_capacity(self) -> None:
        """By default nothing is paid for while nothing happens."""
        tables = stack().of_type("AWS::DynamoDB::GlobalTable")
        assert {table["BillingMode"] for table in tables.values()} == {"PAY_PER_REQUEST"}
        assert "Throughput" not in json.dumps(tables)


class TestRecordStore:
    """In the table, or in Valkey."""

    def test_records_are_in_the_table_by_default(self) -> None:
        """No cache, no VPC, no client that nobody uses."""
        deployed = stack()
        for consumer in CONSUMERS:
            function = deployed.resources[f"{consumer}Function"]["Properties"]
            assert variables(deployed, consumer)["IDEMPOTENCY_STORE"] == {
                "Fn::Sub": "dynamodb:${AWS::StackName}-IdempotencyTable"
            }
            assert "VpcConfig" not in function
            assert len(function["Layers"]) == 2
            assert "ManagedPolicyArns" not in deployed.resources[f"{consumer}Role"]["Properties"]
        assert not any("Valkey" in name for name in deployed.resources)
        assert not any("EC2" in resource["Type"] for resource in deployed.resources.values())

    def test_consumers_join_the_cache_in_its_subnets(self) -> None:
        """They get its address, its client, a place in the VPC and the permission for it; the API needs none of it."""
        deployed = stack(**IN_VALKEY)
        for consumer in CONSUMERS:
            function = deployed.resources[f"{consumer}Function"]["Properties"]
            address = "valkeys://${ValkeyCache.Endpoint.Address}:${ValkeyCache.Endpoint.Port}?eviction=accepted"
            assert variables(deployed, consumer)["IDEMPOTENCY_STORE"] == {"Fn::Sub": address}
            assert function["VpcConfig"] == {
                "SubnetIds": {"Fn::Split": [",", {"Ref": "SubnetIds"}]},
                "SecurityGroupIds": [{"Ref": "ConsumerSecurityGroup"}],
            }
            assert len(function["Layers"]) == 3
            role = deployed.resources[f"{consumer}Role"]["Properties"]
            assert role["ManagedPolicyArns"] == [{"Ref": "ConsumerNetworkPolicy"}]
        api = deployed.resources["CarRideApiFunction"]["Properties"]
        assert "VpcConfig" not in api
        assert "IDEMPOTENCY_TABLE" in api["Environment"]["Variables"]

    def test_the_cache_drops_nothing_to_make_room(self) -> None:
        """A maximum of its data would have it evict records; and whoever sees it evict some is woken."""
        deployed = stack(**IN_VALKEY)
        (cache,) = deployed.of_type("AWS::ElastiCache::ServerlessCache").values()
        assert cache["Engine"] == "valkey"
        assert "CacheUsageLimits" not in cache
        alarm = deployed.resources["ValkeyEvictionsAlarm"]["Properties"]
        assert (alarm["MetricName"], alarm["Threshold"], alarm["AlarmActions"]) == (
            "Evictions",
            0,
            [{"Ref": "AlarmTopic"}],
        )

    def test_only_consumers_reach_the_cache(self) -> None:
        """Its security group lets in nobody else, on no other port."""
        (ingress,) = stack(**IN_VALKEY).resources["ValkeySecurityGroup"]["Properties"]["SecurityGroupIngress"]
        assert (ingress["SourceSecurityGroupId"], ingress["FromPort"], ingress["ToPort"]) == (
            {"Ref": "ConsumerSecurityGroup"},
            6379,
            6379,
        )

    def test_functions_may_not_use_what_lambda_needs_for_the_vpc(self) -> None:
        """Every action that is allowed to the role for Lambda is denied to the functions' own code."""
        policy = stack(**IN_VALKEY).resources["ConsumerNetworkPolicy"]["Properties"]["PolicyDocument"]
        allowed, denied = policy["Statement"]
        assert (allowed["Effect"], denied["Effect"]) == ("Allow", "Deny")
        assert allowed["Action"] == denied["Action"]
        assert "lambda:SourceFunctionArn" in json.dumps(denied["Condition"])

    def test_a_server_that_is_there_is_used(self) -> None:
        """With its address no cache is made; on a laptop no VPC is joined either."""
        deployed = stack(RecordStore="valkey", ValkeyUrl="valkey://127.0.0.1:6379", Stage="local")
        assert not deployed.of_type("AWS::ElastiCache::ServerlessCache")
        address = variables(deployed, "Dispatch")["IDEMPOTENCY_STORE"]
        assert address == {"Ref": "ValkeyUrl"}
        assert "VpcConfig" not in deployed.resources["DispatchFunction"]["Properties"]
        assert isinstance(open_store(deployed.parameters["ValkeyUrl"]), ValkeyStore)

    def test_rules_ask_for_the_network_and_refuse_a_second_region(self) -> None:
        """A deployment that could not work is refused before it begins, with what is missing."""
        rules = source()["Rules"]
        asked = json.dumps(rules["ValkeyIsInAVpc"]["Assertions"])
        assert '"SubnetIds"' in asked
        assert '"VpcId"' in asked
        assert rules["ValkeyIsInOneRegion"]["Assertions"][0]["Assert"] == {
            "Fn::Equals": [{"Ref": "Role"}, "standalone"]
        }
