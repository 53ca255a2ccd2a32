"""Signatures of the lean transport, and where its credentials come from."""

from datetime import datetime, timedelta
from unittest.mock import patch

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given
from hypothesis import strategies as st

from carride_idempotency.stores.signing import Credentials, Signer

KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64)
VALUES = st.text(
    st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=64
).filter(str.strip)
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1))  # noqa: DTZ001 - a bound, in UTC


@given(
    st.builds(Credentials, KEYS, KEYS, st.none() | KEYS),
    st.sampled_from(["us-east-1", "eu-central-1", "ap-southeast-3"]),
    st.dictionaries(st.sampled_from(["content-type", "x-amz-target", "x-amz-meta"]), VALUES),
    st.binary(max_size=2_000) | st.text(max_size=500).map(str.encode),
    TIMES,
)
def test_a_request_is_signed_as_botocore_signs_it(
    credentials: Credentials, region: str, headers: dict[str, str], body: bytes, time: datetime
) -> None:
    """For the same request, credentials and time both make the same Authorization."""
    theirs = AWSRequest(
        "POST", f"https://dynamodb.{region}.amazonaws.com/", headers=headers, data=body
    )
    with patch("botocore.auth.get_current_datetime", lambda: time):
        SigV4Auth(BotocoreCredentials(*credentials), "dynamodb", region).add_auth(theirs)
    stamp = f"{time:%Y%m%dT%H%M%SZ}"
    ours = headers | {"host": f"dynamodb.{region}.amazonaws.com", "x-amz-date": stamp}
    if credentials.token:
        ours["x-amz-security-token"] = credentials.token
    signer = Signer(region)
    for _ in range(2):  # with a key that is derived, and one that is known
        assert (
            signer.authorization(credentials, ours, body, stamp) == theirs.headers["Authorization"]
        )
    signer.authorization(credentials, ours, body, f"{time - timedelta(days=1):%Y%m%dT%H%M%SZ}")
    assert signer.authorization(credentials, ours, body, stamp) == theirs.headers["Authorization"]
