from typing import Any, Final

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.httpsession import URLLib3Session

from local.local_aws import LocalAws, Stack
from tests.engine.conftest import Deploy
from tests.engine.support import Resource, function, needed

ANSWERS: Final = 'return {"statusCode": 201, "body": json.dumps([event["routeKey"], event["pathParameters"]["ride"]])}'


def api(**auth: Any) -> dict[str, Resource]:
    """A function behind one route of an HTTP API."""
    route = {"Type": "HttpApi", "Properties": {"ApiId": {"Ref": "Api"}, "Path": "/rides/{ride}", "Method": "put"}}
    return {
        "Api": {"Type": "AWS::Serverless::HttpApi", "Properties": {"Auth": auth} if auth else {}},
        "Function": function(ANSWERS, Events={"Ride": route}),
    }


def request(cloud: LocalAws, stack: Stack, method: str = "PUT", *, signed: bool = False) -> tuple[int, str]:
    """Call the API; return status and answer."""
    call = AWSRequest(method, f"{cloud.endpoint_url}/_aws/execute-api/{stack.resources['Api']}/$default/rides/7")
    if signed:
        SigV4Auth(Credentials("test", "test"), "execute-api", cloud.region).add_auth(call)
    answer = URLLib3Session().send(call.prepare())
    return answer.status_code, answer.text


@needed("http_api")
def test_a_route_of_the_document_reaches_its_function(engine: LocalAws, deploy: Deploy) -> None:
    """A path and method of the API call their function with the path's parameters; another method does not."""
    stack = deploy(**api())
    assert request(engine, stack) == (201, '["PUT /rides/{ride}", "7"]')
    assert request(engine, stack, "DELETE")[0] == 404


def test_a_route_with_iam_refuses_an_unsigned_call(engine: LocalAws, deploy: Deploy) -> None:
    """Where the document asks for a signature, a call without one is refused and a signed one is not."""
    stack = deploy(**api(EnableIamAuthorizer=True, DefaultAuthorizer="AWS_IAM"))
    assert request(engine, stack)[0] == 403
    assert request(engine, stack, signed=True)[0] == 201
