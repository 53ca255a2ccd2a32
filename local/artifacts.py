"""Build the project's template for the local AWS, and upload the code that a template names."""

import fcntl
import hashlib
import io
import json
import platform
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml

from engine.process import REGION, ROOT, Engine, EngineError

PARAMETERS: Final = {
    "Stage": "local",
    # Functions run on this machine's Python, hence on its processor.
    "Architecture": "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x86_64",
}
"""Template parameters of this machine."""

FOLDER: Final = ROOT / ".aws-sam" / "local"
"""Where the code for this machine is built. `make build` builds what is deployed in the folder
beside it, for another processor."""
CODE: Final = {
    "AWS::Serverless::Function": "CodeUri",
    "AWS::Serverless::LayerVersion": "ContentUri",
    "AWS::Lambda::Function": "Code",
}
"""The property of a resource that names a folder of code, by type."""


def build(engine: Engine, folder: Path = FOLDER, root: Path = ROOT) -> None:
    """Run ``sam build``, unless nothing has changed since this machine's last build."""
    last_build = folder / "last-build"
    with _locked(folder, fcntl.LOCK_EX):
        if last_build.exists() and last_build.read_text("utf-8") == _state(folder, root):
            return
        folders = ("--build-dir", str(folder / "build"), "--cache-dir", str(folder / "cache"))
        engine.sam("build", "--config-env", "local", *folders, parameters=PARAMETERS, folder=root)
        _compile(root, folder / "build")
        last_build.write_text(_state(folder, root), encoding="utf-8")


def _compile(root: Path, build: Path) -> None:
    """Compile the built code as `make build` does; a project without the script keeps its source.

    Raises:
        EngineError: it could not be compiled.
    """
    script = root / "tools" / "scripts" / "compile"
    if not script.exists():
        return
    command = [ROOT / ".venv-sam/bin/python", script, build]
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise EngineError("the code that was built could not be compiled: the lines above say why")


@contextmanager
def built() -> Iterator[Path]:
    """Yield the folder of the last build; no other process builds meanwhile."""
    with _locked(FOLDER, fcntl.LOCK_SH):
        yield FOLDER / "build"


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[None]:
    """Lock the folder of the build against other processes.

    One may write it, or many may read it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, kind)
        yield


def _state(folder: Path, root: Path) -> str:
    """Return a hash of the sources and of the build's time, which ``sam build`` changes."""
    sources = [root / "template.yaml", root / "samconfig.toml"]
    for name in ("functions", "infrastructure", "layers"):
        files = sorted((root / name).rglob("*"))
        sources += [path for path in files if path.is_file() and path.suffix != ".pyc"]
    digest = hashlib.sha256()
    for path in sources:
        digest.update(repr((path, path.read_bytes())).encode())
    template = folder / "build" / "template.yaml"
    built_at = template.stat().st_mtime_ns if template.exists() else 0
    return f"{digest.hexdigest()} {built_at}"


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
            raise EngineError(f"{template} is missing: call build() first")
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
