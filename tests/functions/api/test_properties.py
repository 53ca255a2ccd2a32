"""The deployed API against its description.

Valid and invalid requests generated from docs/openapi.json.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import settings
from schemathesis.specs.openapi.checks import positive_data_acceptance, unsupported_method

from local.local_aws import ROOT, LocalAws
from tests.functions.api.client import Api

pytestmark = pytest.mark.integration

schema: Final = schemathesis.openapi.from_path(ROOT / "docs" / "openapi.json")


NOT_ASKED: Final = [
    unsupported_method,  # API Gateway answers 404, not 405, where a path has no such method
    # No schema can say that a key is new, a token an earlier page's, a trip no circle.
    positive_data_acceptance,
]


@pytest.fixture(scope="module")
def shared_api(cloud: LocalAws) -> Iterator[Api]:
    """One stack for all requests of this module."""
    yield Api(cloud, cloud.deploy_fast("properties"))
    cloud.delete_stack("properties")


@schema.parametrize()
@settings(max_examples=100)
def test_every_answer_is_one_that_the_document_announces(shared_api: Api, case: Any) -> None:
    """Every request gets a documented status, media type and body, and never 5xx."""
    case.call_and_validate(base_url=shared_api.url, excluded_checks=NOT_ASKED)
