"""Makes the command line out of the registry of verbs, and runs it."""

import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from botocore.exceptions import BotoCoreError, ClientError
from cyclopts import App, Group, Parameter
from cyclopts.exceptions import CycloptsError

import ops.cli.looks
import ops.cli.regions
import ops.cli.replay
import ops.cli.stack
import ops.doctor
import ops.promotion  # noqa: F401 - these and the modules that they show register their verbs
from ops.cli.show import console, plain, show
from ops.regions import ROOT
from ops.stack import FAILURES, ClientFactory, OperatorError, reason
from ops.verbs import VERBS, Plan, Session, Verb

DESCRIPTION: Final = """\
The operator's commands for a deployed stack. A command that changes anything shows what it would do, and does it only
with --yes.

The stack is that of --stack and --region. Without them it is the local stack of `make demo ARGS=--keep`, if one is
running; otherwise the one of samconfig.toml, in the region for which AWS's tools are configured.

A time is written as 90m, 6h or 2d (before now), or as 2026-11-21T10:00:00Z.

Exit status: 0 fine; 1 something is wrong; 2 a mistake or a refusal; 3 the evidence is incomplete; 130 interrupted."""

GROUPS: Final = {
    "failover": "Move the processing to the other region, and back.",
    "replay": "Replay the archive.",
}

CHANGES: Final = Path(os.environ.get("CARRIDE_CHANGES", ROOT / ".carride" / "changes.jsonl"))
"""A line of JSON for each change."""
_FAILED: Final = 2
_INTERRUPTED: Final = 130
_COMMON: Final = Group("Common options", sort_key=1)


def main(arguments: Sequence[str] | None = None, clients: ClientFactory | None = None) -> None:
    """Run a command, by default that of this process, and end the process with its status."""
    try:
        status = command_line(clients)(arguments, exit_on_error=False, print_error=False)
    except (*FAILURES, CycloptsError) as error:
        status = _FAILED
        console(sys.stderr).print(f"error: {reason(error)}")
    except KeyboardInterrupt as error:
        status = _INTERRUPTED
        console(sys.stderr).print(str(error) or "interrupted; run it again to continue")
    if status:
        sys.exit(status)


def command_line(clients: ClientFactory | None = None) -> App:
    """Return the command line; each command returns its exit status."""
    app = App(
        name="carride", help=DESCRIPTION, help_format="markdown", version_flags=[], result_action="return_value",
        default_parameter=Parameter(negative="", show_default=_default), suppress_keyboard_interrupt=False,
    )  # fmt: skip
    groups = {name: App(name=name, help=text) for name, text in GROUPS.items()}
    for group in groups.values():
        app.command(group)
    for verb in VERBS.values():
        group_name, _, name = verb.name.rpartition(" ")
        lines = [f"    ./carride {verb.name} {arguments}".rstrip() for arguments in verb.examples]
        examples = "\n".join(["Examples:", "", *lines]) if lines else None
        groups.get(group_name, app).command(
            _command(verb, clients), name=name, help_epilogue=examples
        )
    app.register_install_completion_command()
    return app


def _default(value: object) -> str | None:
    return None if value in (None, False, ()) else str(value)


def _command(verb: Verb, clients: ClientFactory | None) -> Callable[..., int]:
    """Return a verb's function with the common options, which shows what the verb returns."""
    first, *own = inspect.signature(verb.run).parameters.values()

    def command(*given: Any, **options: Any) -> int:
        stack, region, yes, as_json = (
            options.pop(name, None) for name in ("stack", "region", "yes", "json")
        )
        say = console(sys.stderr if as_json else sys.stdout)
        session = Session(lambda data: say.print(show(data)), clients, stack=stack, region=region)
        result = None
        try:
            result = verb.run(
                session.stack if first.name == "stack" else session, *given, **options
            )
            if isinstance(result, Iterator):
                for each in result:
                    _print(each, as_json=as_json, indent=None)
                return 0
        except KeyboardInterrupt:
            if verb.tool and not isinstance(result, Iterator):
                raise
            return 0  # what is no tool, or watches, runs until Ctrl-C
        if isinstance(result, Plan):
            return _carry_out(verb, result, session, yes=yes, as_json=as_json)
        if result is not None:
            _print(result, as_json=as_json)
        return verb.status(result)

    vars(command)["__signature__"] = inspect.Signature([*own, *_common(verb)])
    command.__doc__ = verb.run.__doc__
    return command


def _carry_out(verb: Verb, plan: Plan, session: Session, *, yes: bool, as_json: bool) -> int:
    session.say(f"{plan.stacks[0].name} in {' and '.join(each.region for each in plan.stacks)}")
    if yes:
        session.say(plan.preview)
        result = _recorded(plan)
        _print(result, as_json=as_json)
        return verb.status(result)
    _print(plan.preview, as_json=as_json)
    session.say("nothing was done; add --yes to do it")
    return 0


def _recorded(plan: Plan) -> Any:
    """Carry out a plan, and write down who did what when to which stack, with its result or error."""
    try:
        CHANGES.parent.mkdir(exist_ok=True)
        file = CHANGES.open("a", encoding="utf-8")
    except OSError as error:
        raise OperatorError(
            f"{CHANGES} cannot be written ({error.strerror}), and nothing was done"
        ) from error
    first, regions = plan.stacks[0], ", ".join(each.region for each in plan.stacks)
    line: dict[str, Any] = {
        "time": datetime.now(UTC),
        "who": None,
        "stack": first.name,
        "region": regions,
    }
    line["command"] = shlex.join(["carride", *sys.argv[1:]])
    with suppress(BotoCoreError, ClientError):
        line["who"] = first.client("sts").get_caller_identity()["Arn"]
    with file:
        try:
            result = plan.do()
            line["result"] = plain(result)
        except BaseException as error:
            line["error"] = str(error) or type(error).__name__
            raise
        finally:
            file.write(json.dumps(plain(line)) + "\n")
    return result


def _print(data: object, *, as_json: bool, indent: int | None = 2) -> None:
    if as_json:
        print(json.dumps(plain(data), indent=indent), flush=True)
    else:
        console(sys.stdout).print(show(data))


def _common(verb: Verb) -> Iterator[inspect.Parameter]:
    def option(name: str, kind: Any, default: object, text: str) -> inspect.Parameter:
        annotation = Annotated[kind, Parameter(group=_COMMON, help=text)]
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )

    if verb.chooses:
        yield option("stack", str | None, None, "Name of the stack.")
        yield option("region", str | None, None, "Its region.")
    if verb.acts:
        yield option("yes", bool, False, "Do it; without this, only show what would be done.")
    yield option("json", bool, False, "Print the result as JSON, and the rest to standard error.")
