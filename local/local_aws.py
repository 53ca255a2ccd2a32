"""The local AWS: start the engine, deploy the application to it, call it and wait for it.

    with LocalAws() as cloud:
        cloud.build()
        stack = cloud.deploy()
        cloud.client("lambda").invoke(FunctionName=stack.outputs["CarRideSimulatorFunctionName"])
        cloud.wait_until_quiet()

The engine is a process of its own in the environment ``.venv-engine``. It ends with the ``with``
block.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine.client import Asked, LocalCloud, engine_client
from engine.process import HOST, REGION, ROOT, EngineError
from local import artifacts
from ops.stack import StackRef as Stack

__all__ = [
    "FAULTS",
    "HOST",
    "REGION",
    "ROOT",
    "Asked",
    "EngineError",
    "LocalAws",
    "Stack",
    "engine_client",
]

FAULTS: Final = (f"--preload={ROOT / 'local' / 'faults.py'}",)
"""The engine's options with which consumers meet the faults that events ask for."""


class LocalAws(LocalCloud):
    """Run one engine, with options of ``python -m engine serve``, during the ``with`` block."""

    def __init__(self, *options: str, variables: Mapping[str, str] | None = None) -> None:
        # The transport that a deployed function chooses, without its way back: what fails here is
        # seen.
        given = {"IDEMPOTENCY_TRANSPORT": "lean", **(variables or {})}
        super().__init__(*options, variables=given)

    def build(self) -> None:
        """Run ``sam build``, unless nothing has changed since this machine's last build."""
        artifacts.build(self)

    built = staticmethod(artifacts.built)

    def deploy(self, stack_name: str = "carride", **parameters: str) -> Stack:
        """Deploy what was built with ``sam deploy``.

        The template's Stage and Architecture are set for this machine.
        """
        try:
            with artifacts.built() as build:
                template = str(build / "template.yaml")
                settings = str(ROOT / "samconfig.toml")  # SAM looks for it beside the template
                self.sam(
                    "deploy",
                    "--config-file",
                    settings,
                    "--config-env",
                    "local",
                    "--template-file",
                    template,
                    "--stack-name",
                    stack_name,
                    parameters=artifacts.PARAMETERS | parameters,
                    folder=ROOT,
                )
        except EngineError as error:
            raise self.failure("sam deploy", stack_name, error) from error
        return self.stack(stack_name)

    def deploy_fast(
        self,
        stack_name: str,
        template: Path | Mapping[str, Any] | None = None,
        *,
        region: str = REGION,
        **parameters: str,
    ) -> Stack:
        """Deploy by CloudFormation alone, for tests.

        ``template`` is a file, or a template without code; by default it is the last build.
        """
        if template is None:
            with artifacts.built() as build:
                template = self.packaged(build / "template.yaml", region=region)
        elif isinstance(template, Path):
            template = self.packaged(template, region=region)
        known = template.get("Parameters", {})
        given = {name: value for name, value in artifacts.PARAMETERS.items() if name in known}
        self.apply(stack_name, template, region=region, parameters=given | parameters)
        return self.stack(stack_name, region=region)

    def stack(self, stack_name: str, *, region: str = REGION) -> Stack:
        """Return a deployed stack."""
        return Stack(stack_name, region, self.client)
