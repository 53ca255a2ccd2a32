"""A stack whose data a customer's key encrypts: it deploys, and works as any other. The engine encrypts nothing."""

from samtranslator.yaml_helper import yaml_parse

from local.local_aws import ROOT
from tests.pipeline.pipeline import Pipeline
from tests.pipeline.saga.town import Town


def test_a_stack_with_a_key_of_its_own_works(town: Town) -> None:
    """The key's template deploys, its output is the application's parameter, and no event is lost or doubled."""
    cloud = town.cloud
    key = cloud.deploy_fast(
        "with-key-key",
        yaml_parse((ROOT / "infrastructure" / "key.yaml").read_text(encoding="utf-8")),
        ApplicationStackName="with-key",
    )
    stack = cloud.deploy_fast("with-key", KmsKeyArn=key.outputs["KmsKeyArn"])
    attributes = cloud.client("sqs").get_queue_attributes(
        QueueUrl=stack.outputs["DispatchQueueUrl"], AttributeNames=["KmsMasterKeyId"]
    )
    assert attributes["Attributes"]["KmsMasterKeyId"] == key.outputs["KmsKeyArn"]
    ledger = Pipeline(cloud, stack).simulate(rides=3, seed=1)
    assert ledger.balanced
    cloud.delete_stack("with-key")
