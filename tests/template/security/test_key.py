"""A stack with a customer's key deploys and works. The engine encrypts nothing."""

from samtranslator.yaml_helper import yaml_parse

from local.local_aws import ROOT
from tests.pipeline.pipeline import Pipeline
from tests.pipeline.saga.town import Town


def test_a_stack_with_a_key_of_its_own_works(town: Town) -> None:
    """The output of the key's template is the application's parameter, and no event is lost or doubled."""
    laptop = town.laptop
    key = laptop.deploy_fast(
        "with-key-key",
        yaml_parse((ROOT / "infrastructure" / "key.yaml").read_text(encoding="utf-8")),
        ApplicationStackName="with-key",
    )
    stack = laptop.deploy_fast("with-key", KmsKeyArn=key.outputs["KmsKeyArn"])
    attributes = laptop.client("sqs").get_queue_attributes(
        QueueUrl=stack.outputs["DispatchQueueUrl"], AttributeNames=["KmsMasterKeyId"]
    )
    assert attributes["Attributes"]["KmsMasterKeyId"] == key.outputs["KmsKeyArn"]
    ledger = Pipeline(laptop, stack).simulate(rides=3, seed=1)
    assert ledger.balanced
    laptop.delete_stack("with-key")
