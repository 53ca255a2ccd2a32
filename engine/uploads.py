"""Upload the code that a template names to an engine, as ``sam package`` does."""

import hashlib
import io
import json
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml

from engine.process import REGION, EngineError

CODE: Final = {
    "AWS::Serverless::Function": "CodeUri",
    "AWS::Serverless::LayerVersion": "ContentUri",
    "AWS::Lambda::Function": "Code",
}
"""The property of a resource that names a folder of code, by type."""


class Uploads:
    """Upload code and templates to one region of the engine, as ``sam package`` does."""

    def __init__(self, s3: Any, region: str, endpoint_url: str) -> None:
        self._s3 = s3
        self._bucket = f"local-artifacts-{region}"
        self._endpoint_url = endpoint_url
        request: dict[str, Any] = {"Bucket": self._bucket}
        if region != REGION:
            request["CreateBucketConfiguration"] = {"LocationConstraint": region}
        with suppress(s3.exceptions.BucketAlreadyOwnedByYou, s3.exceptions.BucketAlreadyExists):
            s3.create_bucket(**request)

    def template(self, text: bytes) -> str:
        """Upload a template, and return its URL."""
        key = self._put(text, "template")
        return f"{self._endpoint_url}/{self._bucket}/{key}"

    def package(self, template: Path) -> dict[str, Any]:
        """Upload a template's code and nested templates, and return it with their addresses."""
        if not template.exists():
            raise EngineError(f"{template} is missing: build it first")
        body: dict[str, Any] = yaml.safe_load(template.read_text(encoding="utf-8"))
        for resource in body["Resources"].values():
            if isinstance(resource, list):  # a loop of AWS::LanguageExtensions, which has no code
                continue
            properties = resource.get("Properties", {})
            if resource["Type"] == "AWS::CloudFormation::Stack":
                nested = self.package(template.parent / properties["TemplateURL"])
                properties["TemplateURL"] = self.template(json.dumps(nested).encode())
            name = CODE.get(resource["Type"], "")
            folder = properties.get(name)
            if isinstance(folder, str):
                properties[name] = self._upload_code(template.parent / folder, name)
        return body

    def _upload_code(self, folder: Path, property_name: str) -> str | dict[str, str]:
        """Upload a folder, and return its address in the form of a property."""
        key = self._put(_zip(folder.resolve()), "zip")
        if property_name == "Code":
            return {"S3Bucket": self._bucket, "S3Key": key}
        return f"s3://{self._bucket}/{key}"

    def _put(self, content: bytes, kind: str) -> str:
        key = f"{hashlib.sha256(content).hexdigest()}.{kind}"
        self._s3.put_object(Bucket=self._bucket, Key=key, Body=content)
        return key


def _zip(folder: Path) -> bytes:
    """Return the folder as an archive; the same content gives the same bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                member = zipfile.ZipInfo(str(path.relative_to(folder)))
                member.external_attr = path.stat().st_mode << 16
                archive.writestr(member, path.read_bytes())
    return content.getvalue()
