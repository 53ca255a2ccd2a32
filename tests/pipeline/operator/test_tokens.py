"""The user pool of docs/on-an-account.md issues tokens by which the API tells its callers apart."""

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from api.callers import caller_of
from local.local_aws import LocalAws
from ops.regions import ROOT
from tests.pipeline.operator.aws_cli import serving

pytestmark = pytest.mark.integration

PAGE: Final = (ROOT / "docs" / "on-an-account.md").read_text(encoding="utf-8")
GROUP: Final = "carride-staff"


def claims_of(token: str) -> dict[str, Any]:
    """Return a token's claims as API Gateway passes them on: a list becomes ``[one two]``."""
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return {
        name: f"[{' '.join(value)}]" if isinstance(value, list) else str(value)
        for name, value in claims.items()
    }


def test_a_customer_and_a_member_of_staff_get_tokens(cloud: LocalAws, tmp_path: Path) -> None:
    """The page's commands make both, and only one of them is staff."""
    (commands,) = re.findall(r"```sh\n(PASSWORD=.*?)```", PAGE, re.DOTALL)
    with serving(tmp_path, cloud.client) as variables:
        environment = os.environ | cloud.environment() | variables
        environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
        done = subprocess.run(
            ["/bin/bash", "-euc", f"{commands}token customer; token staff; echo $POOL $CLIENT"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    of_customer, of_staff, pool, client = done.stdout.split()[-4:]
    customer = claims_of(of_customer)
    staff = claims_of(of_staff)
    callers = [
        caller_of(
            {"requestContext": {"authorizer": {"jwt": {"claims": claims}}}},
            staff_group=GROUP,
            everyone=False,
        )
        for claims in (customer, staff)
    ]
    assert [caller.staff for caller in callers] == [False, True]
    assert callers[0].subject != callers[1].subject
    for claims in (customer, staff):
        assert claims["iss"].endswith(f"/{pool}")
        assert claims["client_id"] == client
