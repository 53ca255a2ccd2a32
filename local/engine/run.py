"""Build a SAM template, deploy it to an engine of its own and keep both until Ctrl-C."""

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3

from local.engine.process import REGION, Engine, end_in_order

_OPTIONS = ("--resolve-s3", "--no-confirm-changeset", "--capabilities")
_CAPABILITIES = ("CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND")


def run(template: Path, parameters: Mapping[str, str], *, port: int, stack: str) -> None:
    """Print the outputs and addresses of the deployed template, and wait for Ctrl-C.

    Raises:
        EngineError: The engine or the SAM CLI failed.
    """
    end_in_order()
    with Engine(Path(sys.executable), port=port) as engine:
        built = engine.folder / "build"
        print("sam build …", flush=True)
        engine.sam("build", "--template-file", str(template), "--build-dir", str(built), parameters=parameters)
        print("sam deploy …", flush=True)
        target = ("--template-file", str(built / "template.yaml"), "--stack-name", stack)
        engine.sam("deploy", *target, *_OPTIONS, *_CAPABILITIES, parameters=parameters)
        rows = _addresses(engine, stack)
        width = max(map(len, rows), default=0)
        print(f"\nThe stack {stack} is deployed:")
        print(*(f"  {name:<{width}}  {value}" for name, value in rows.items()), sep="\n")
        print("\nIn another terminal, the AWS CLI, the SAM CLI and boto3 reach it with:")
        print(f"  export {' '.join(f'{name}={value}' for name, value in engine.environment().items())}")
        print(f"\nThe engine's log is {engine.log}.\n\nCtrl-C ends it.", flush=True)
        signal.pause()


def _addresses(engine: Engine, stack: str) -> dict[str, str]:
    """Return the stack's outputs, and the addresses of its HTTP APIs by logical id."""
    session: Any = boto3.session.Session(aws_access_key_id="test", aws_secret_access_key="test")  # noqa: S106 - no secret
    cloudformation = session.client("cloudformation", endpoint_url=engine.endpoint_url, region_name=REGION)
    outputs = cloudformation.describe_stacks(StackName=stack)["Stacks"][0].get("Outputs", [])
    rows = {output["OutputKey"]: output["OutputValue"] for output in outputs}
    for page in cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack):
        for resource in page["StackResourceSummaries"]:
            if resource["ResourceType"] == "AWS::ApiGatewayV2::Api":
                address = f"{engine.endpoint_url}/_aws/execute-api/{resource['PhysicalResourceId']}/$default"
                rows[resource["LogicalResourceId"]] = address
    return rows
