"""The clients of publisher and payment in processes that fork."""

import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.integration

PROGRAM: Final = Path(__file__).with_name("forking.py")
KEYS: Final = {
    "AccessKeyId": "test",
    "SecretAccessKey": "test",
    "Token": "test",
    "Expiration": "2100-01-01T00:00:00Z",
}


class Exchange(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    server: "Aws"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        asked = self.headers.get("X-Amz-Target", self.path)
        self.server.ports[asked].add(self.client_address[1])
        content = json.dumps(KEYS | {"SecretString": "secret"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class Aws(ThreadingHTTPServer):
    """Answers every request, and notes over which connections each kind came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.ports = defaultdict[str, set[int]](set)


def test_a_child_asks_over_connections_of_its_own() -> None:
    """Each client has one connection in the parent, which it keeps, and one in the child."""
    with Aws() as aws:
        url = f"http://127.0.0.1:{aws.server_port}"
        settings = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/credentials",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        thread = threading.Thread(target=aws.serve_forever, args=(0.01,))
        thread.start()
        ended = subprocess.run(
            [sys.executable, PROGRAM, url],
            env=settings,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        aws.shutdown()
        thread.join()
    assert not ended.returncode, ended.stderr
    del aws.ports["/credentials"]
    assert {asked: len(ports) for asked, ports in aws.ports.items()} == {
        "AWSEvents.PutEvents": 2,
        "AmazonSQS.SendMessage": 2,
        "/2015-03-31/functions/simulator/invocations": 2,
        "/v1/refunds": 2,
        "secretsmanager.GetSecretValue": 2,
    }
