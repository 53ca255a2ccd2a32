"""Uses the clients of publisher and payment, forks, and uses them in both processes.

`test_forks.py` starts it: ``forking.py URL``, with the URL of a server that is all of AWS and a
gateway.
"""

import os
import sys
import warnings
from typing import Any

from botocore.session import get_session

from carride.clients import events_client, lambda_client, sqs_client
from gateway_access import Bearer, signed
from gateway_connection import GatewayConnection, HttpRequest


def main(url: str) -> None:
    """Raise an error if the child cannot use what its parent has made."""
    warnings.simplefilter("ignore", DeprecationWarning)  # about forks of a process with threads
    events = events_client()
    sqs = sqs_client()
    functions = lambda_client()
    gateway = GatewayConnection(url, connect_timeout_s=5, read_timeout_s=5)
    bearer = Bearer("secret")
    session = get_session()
    access = signed(session, "us-east-1")

    def use() -> None:
        for _ in range(2):
            events.put_events(Entries=[{"DetailType": "Asked"}])
            sqs.send_message(QueueUrl=f"{url}/queue", MessageBody="{}")
            functions.invoke(FunctionName="simulator")["Payload"].read()
            gateway.exchange(HttpRequest("GET", "/v1/refunds", {}))
            bearer.forget()
            bearer("GET", url, {}, None)
            access("GET", url, {}, None)

    use()
    credentials: Any = session.get_credentials()
    credentials._refresh_lock.acquire()  # noqa: SLF001 - as another thread may at a fork
    child = os.fork()
    if not child:
        assert not credentials._refresh_lock.locked()  # noqa: SLF001 - what a request would wait for
        use()
        return
    _, status = os.waitpid(child, 0)
    assert not status
    use()


if __name__ == "__main__":
    main(*sys.argv[1:])
