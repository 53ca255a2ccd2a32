"""`make local-env`: write the file for `sam local invoke --env-vars` from a deployed stack."""

import argparse
import json
import sys
from typing import Any, Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from local.engine.process import ROOT

FILE: Final = ROOT / ".aws-sam" / "env.json"


def environments(cloudformation: Any, functions: Any, stack: str) -> dict[str, dict[str, str]]:
    """Return the environment variables of each function of a stack, by the function's logical id.

    Args:
        cloudformation: a CloudFormation client.
        functions: a Lambda client.
        stack: name of the stack.
    """
    pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack)
    return {
        resource["LogicalResourceId"]: functions.get_function_configuration(
            FunctionName=resource["PhysicalResourceId"]
        ).get("Environment", {"Variables": {}})["Variables"]
        for page in pages
        for resource in page["StackResourceSummaries"]
        if resource["ResourceType"] == "AWS::Lambda::Function"
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="make local-env",
        description="Write the variables of a deployed stack's functions to a file. With it, `sam local invoke` runs a "
        "function on this machine against the stack's tables and queues.",
    )
    parser.add_argument("--stack", default="carride", help="name of the stack (carride)")
    parser.add_argument("--region", help="region of the stack (the one of your AWS configuration)")
    options = parser.parse_args()
    session: Any = boto3.session.Session(region_name=options.region)  # typed for literal names only
    try:
        found = environments(session.client("cloudformation"), session.client("lambda"), options.stack)
    except (BotoCoreError, ClientError) as error:
        sys.exit(f"error: {error}. `aws sts get-caller-identity` shows which account your credentials are for.")
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"{FILE}: {len(found)} functions. Now, for example:")
    print(f"  sam local invoke RideHistoryFunction -e events/ride_history_live.json --env-vars {FILE}")


if __name__ == "__main__":
    main()
