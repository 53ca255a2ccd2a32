"""Signatures of requests to DynamoDB, and the credentials that sign them.

A signature is AWS Signature Version 4 of a POST request to ``/`` without a query:
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

import hmac
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from threading import Lock, Thread
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from carride_idempotency.forks import renew_in_children, renew_lock
from carride_idempotency.stores.timed_socket import TimedSocket, connect

_CONTAINER: Final = "http://169.254.170.2"
_TRUSTED_HOSTS: Final = frozenset(
    {"127.0.0.1", "localhost", "::1", "169.254.170.2", "169.254.170.23"}
)
"""Where credentials may be fetched without TLS: the loopback interface, and the addresses of ECS
and EKS."""
_HTTP: Final = 80
_FETCH_TIMEOUT_S: Final = 2.0
"""How long a request waits for credentials, besides its own time."""
_REFRESH_EARLY_MS: Final = 10 * 60 * 1000
_REFRESH_AGAIN_MS: Final = 15 * 1000
"""How soon a refresh that failed is tried again."""


class CredentialsError(Exception):
    """Raised when credentials cannot be had."""


class Credentials(NamedTuple):
    """What signs a request."""

    access_key: str
    secret_key: str
    token: str | None = None
    """The session token of temporary credentials."""


class Signer:
    """Signs requests for DynamoDB in one region. It may be used from several threads."""

    def __init__(self, region: str) -> None:
        self._parts = (region, "dynamodb", "aws4_request")
        self._derived: tuple[str, str, bytes] = ("", "", b"")

    def authorization(
        self, credentials: Credentials, headers: Mapping[str, str], body: bytes, time: str
    ) -> str:
        """Return the header Authorization.

        ``headers`` are signed, by their names in lower case, with ``host`` and ``x-amz-date``,
        whose value is ``time``, such as ``20261121T083000Z``.
        """
        names = sorted(headers)
        signed = ";".join(names)
        lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in names)
        request = f"POST\n/\n\n{lines}\n{signed}\n{sha256(body).hexdigest()}"
        scope = "/".join((time[:8], *self._parts))
        text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{sha256(request.encode()).hexdigest()}"
        signature = hmac.digest(
            self._key(credentials.secret_key, time[:8]), text.encode(), "sha256"
        ).hex()
        return (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={signed}, Signature={signature}"
        )

    def _key(self, secret: str, day: str) -> bytes:
        """Return the day's key, which is derived once."""
        known_secret, known_day, key = self._derived
        if (known_secret, known_day) != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, *self._parts):
                key = hmac.digest(key, part.encode(), "sha256")
            self._derived = (secret, day, key)
        return key


def environment_credentials(environment: Mapping[str, str]) -> Credentials | None:
    """Return the credentials in an environment; None if there are none."""
    access_key = environment.get("AWS_ACCESS_KEY_ID")
    secret_key = environment.get("AWS_SECRET_ACCESS_KEY")
    if not access_key or not secret_key:
        return None
    return Credentials(access_key, secret_key, environment.get("AWS_SESSION_TOKEN") or None)


class EnvironmentCredentials:
    """The credentials of an environment, which a runtime may replace while the process lives."""

    def __init__(self, environment: Mapping[str, str], found: Credentials) -> None:
        self._environment = environment
        self._found = found

    def __call__(self, *, renew: bool = False) -> Credentials:
        """Return the first credentials; to ``renew`` them, those that the environment has now."""
        if renew:
            return environment_credentials(self._environment) or self._found
        return self._found


class ContainerCredentials:
    """Credentials that the runtime hands out over HTTP and rotates.

    SnapStart and containers have them. It raises CredentialsError if the URL is not of this
    machine, and later if there are none to be had.
    """

    def __init__(self, url: str, environment: Mapping[str, str], clock: Callable[[], int]) -> None:
        self._url = urlsplit(url)
        self._environment = environment
        self._clock = clock
        if self._url.scheme != "http" or self._url.hostname not in _TRUSTED_HOSTS:
            raise CredentialsError(f"credentials are not fetched from {url}")
        self._path = self._url.path or "/"
        if self._url.query:
            self._path += f"?{self._url.query}"
        self._lock = Lock()
        self._found: Credentials | None = None
        self._expires_ms = 0
        self._next_refresh_ms = 0
        renew_in_children(self, renew_lock)

    def __call__(self, *, renew: bool = False) -> Credentials:
        """Return the credentials; fetch them if there are none that hold, or to ``renew`` them.

        Credentials that are about to expire are renewed in a thread of their own, so that an agent
        that hangs costs no request any time.
        """
        found = self._found
        left_ms = self._expires_ms - self._clock()
        if found is None or renew or left_ms <= 0:
            end = time.monotonic() + _FETCH_TIMEOUT_S
            if not self._lock.acquire(timeout=_FETCH_TIMEOUT_S):
                raise CredentialsError("the runtime has given no credentials in time")
            try:
                if found is self._found:  # no other thread has renewed them meanwhile
                    self._renew(end)
            finally:
                self._lock.release()
            found = self._found
            assert found is not None  # noqa: S101 - otherwise the renewal raised
        elif left_ms < _REFRESH_EARLY_MS and self._clock() >= self._next_refresh_ms:
            self._next_refresh_ms = self._clock() + _REFRESH_AGAIN_MS
            Thread(target=self._refresh, name="credentials", daemon=True).start()
        return found

    def _refresh(self) -> None:
        """Renew credentials that still hold; a failure is tried again later."""
        with self._lock, suppress(CredentialsError):
            self._renew(time.monotonic() + _FETCH_TIMEOUT_S)

    def _renew(self, end: float) -> None:
        from http.client import HTTPException

        try:
            self._found, self._expires_ms = self._fetch(end)
        except OSError as error:
            raise CredentialsError(f"the runtime gave no credentials: {error!r}") from error
        except (ArithmeticError, HTTPException, LookupError, TypeError, ValueError) as error:
            # What these errors say may be a part of the answer.
            kind = type(error).__name__
            raise CredentialsError(f"the runtime's credentials cannot be read ({kind})") from None

    def _fetch(self, end: float) -> tuple[Credentials, int]:
        from datetime import datetime
        from http.client import HTTPConnection

        token = self._environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
        if file := self._environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
            with open(file, encoding="utf-8") as content:  # noqa: PTH123 - pathlib would cost import time
                token = content.read().strip()
        host = str(self._url.hostname)
        port = self._url.port or _HTTP
        with connect(host, port, end) as opened:
            connection = HTTPConnection(host, port)
            timed: Any = TimedSocket(opened, end)
            connection.sock = timed
            connection.request("GET", self._path, headers={"Authorization": token} if token else {})
            with connection.getresponse() as answer:
                found = json.loads(answer.read())
        expires = datetime.fromisoformat(found["Expiration"])
        credentials = Credentials(
            found["AccessKeyId"], found["SecretAccessKey"], found.get("Token") or ""
        )
        if not all(isinstance(each, str) for each in credentials):
            raise TypeError("credentials are text")
        return credentials, int(expires.timestamp() * 1000)


def credentials_of(
    environment: Mapping[str, str], clock: Callable[[], int]
) -> Callable[..., Credentials] | None:
    """Return what gives the credentials that an environment names.

    None means that only botocore can find some. The result may be called with ``renew``, to replace
    credentials that were refused as expired.
    """
    found = environment_credentials(environment)
    if found is not None:
        return EnvironmentCredentials(environment, found)
    path = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    url = environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")
    if path:
        url = _CONTAINER + path
    try:
        return ContainerCredentials(url, environment, clock)
    except CredentialsError:
        return None
