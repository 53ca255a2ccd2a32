"""Makes the command line out of the registry of verbs."""

import inspect
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, partial
from typing import Annotated, Any, Final, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError
from cyclopts import App, Group, Parameter

from carride_idempotency.operators.plans import what_yes_does
from ops import change_log, plans
from ops.bounds import shortened
from ops.cli.show import console, layouts, plain, show
from ops.stack import ClientFactory, OperatorError, StackRef
from ops.verbs import VERBS, Plan, Session, Verb

DESCRIPTION: Final = """\
The operator's commands for a deployed stack. A command that changes anything shows what it would
do, and does it only with --yes.

The stack is that of --stack and --region. Without them it is the local stack of
`make demo ARGS=--keep`, if one is running; otherwise the one of samconfig.toml, in the region for
which AWS's tools are configured.

A time is written as 90m, 6h or 2d (before now), or as 2026-11-21T10:00:00Z.

Exit status: 0 fine; 1 something is wrong; 2 a mistake or a refusal; 3 the evidence is incomplete;
130 interrupted."""

GROUPS: Final = {
    "drive": "Book a ride and drive it by hand; park cars; have rides simulated.",
    "failover": "Deploy to two regions, move the processing to the other one, and back.",
    "replay": "Replay the archive.",
}
TOPICS: Final = {
    "Look at a stack": ("desk audit tail ride event letters keys verify doctor"),
    "Mend": "redrive replay release settle forget republish plans",
    "Drive rides": "drive",
    "Two regions": "failover",
    "Beside a stack": "--install-completion --help",
}
"""The headings of the help, and the commands below each."""

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C."""
_ABOUT_PLAN: Final = (
    "Id of the plan that is shown, or carried out with --yes; by default --yes carries out the "
    "newest that the same command has shown within an hour, and without one what is planned now. "
    "On a terminal, release, forget and redrive --release do nothing without one."
)
_NOTHING_TO_DO: Final = "nothing was done; there is nothing to do, so --yes would change nothing"
_COMMON: Final = Group("Common options", sort_key=1)


type Call = Callable[[ClientFactory | None], int]
"""A verb with its arguments: given what makes clients, it does its work, and returns its exit
status."""


def command_line() -> App:
    """Return the command line of the registered verbs; each command returns its `Call`."""
    return _command_line(tuple(VERBS.values()))


@cache
def _command_line(verbs: Sequence[Verb]) -> App:
    app = App(
        name="carride",
        help=DESCRIPTION,
        help_format="markdown",
        version_flags=[],
        result_action="return_value",
        default_parameter=Parameter(negative="", show_default=_default),
        suppress_keyboard_interrupt=False,
    )
    headings = _headings()
    groups = {
        name: App(name=name, help=text, group=headings[name]) for name, text in GROUPS.items()
    }
    for group in groups.values():
        app.command(group)
    for verb in verbs:
        group_name, _, name = verb.name.rpartition(" ")
        above = groups.get(group_name, app)
        above.command(
            _command(verb),
            name=name,
            group=headings.get(verb.name),
            help_epilogue=_examples(verb),
        )
    app.register_install_completion_command(group=headings["--install-completion"])
    app["--help"].group = headings["--help"]
    return app


def _headings() -> dict[str, Group]:
    """Return the heading of each command in the help."""
    found = {}
    for place, (title, names) in enumerate(TOPICS.items()):
        heading = Group(title, sort_key=place)
        for name in names.split():
            found[name] = heading
    return found


def _default(value: object) -> str | None:
    return None if value in (None, False, ()) else str(value)


def _examples(verb: Verb) -> str | None:
    """Return a verb's examples as its help shows them."""
    if not verb.examples:
        return None
    lines = [f"    ./carride {verb.name} {arguments}".rstrip() for arguments in verb.examples]
    return "\n".join(["Examples:", "", *lines])


class _Common(NamedTuple):
    """The values of the options that every verb, or every acting verb, has."""

    stack: str | None
    region: str | None
    yes: bool
    as_json: bool


def _command(verb: Verb) -> Callable[..., Call]:
    """Return a command that takes a verb's own options and the common ones."""
    first, *own = inspect.signature(verb.function).parameters.values()
    wants_stack = first.name == "stack"

    def command(*given: Any, **options: Any) -> Call:
        common = _common_values(options)

        def call(clients: ClientFactory | None) -> int:
            session = Session(_sayer(common), clients, stack=common.stack, region=common.region)
            target = session.stack if wants_stack else session
            work = partial(verb.function, target, *given, **options)
            return _finished(verb, work, session, common)

        return call

    parameters = [*own, *_common_options(verb)]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__doc__ = verb.function.__doc__
    return command


def _sayer(common: _Common) -> Callable[[object], None]:
    """Return what prints sentences: beside JSON, to standard error."""
    printer = console(sys.stderr if common.as_json else sys.stdout)

    return lambda data: printer.print(show(data))


def _common_values(options: dict[str, Any]) -> _Common:
    """Take the common options out of those that a command was given."""
    options.pop("plan", None)  # `ops.plans` has read it
    return _Common(
        stack=options.pop("stack", None),
        region=options.pop("region", None),
        yes=options.pop("yes", False),
        as_json=options.pop("json", False),
    )


def _finished(verb: Verb, call: Callable[[], Any], session: Session, common: _Common) -> int:
    """Call a verb, show what it returns or carry it out, and return the exit status."""
    result = _recorded((session.stack,), call) if verb.temporary else call()
    if isinstance(result, Iterator):
        return _shown_as_it_comes(verb, result, as_json=common.as_json)
    if isinstance(result, Plan):
        return _shown_or_done(verb, result, session, common)
    if result is not None:
        _print(result, as_json=common.as_json)
    return verb.status(result)


def _shown_as_it_comes(verb: Verb, results: Iterator[Any], *, as_json: bool) -> int:
    """Show results as they come, until they end or Ctrl-C; return the exit status.

    It is that of the last result. After Ctrl-C it is 130, unless that of the last result is bad.
    """
    status = 0
    try:
        for each in results:
            _print(each, as_json=as_json, indent=None)
            status = verb.status(each)
    except KeyboardInterrupt:
        return status or INTERRUPTED
    return status


def _shown_or_done(verb: Verb, plan: Plan[Any, Any], session: Session, common: _Common) -> int:
    """Show a plan and keep it, or carry it out: the one that was shown before, if there is one."""
    regions = " and ".join(each.region for each in plan.stacks)
    session.say(f"{plan.stacks[0].name} in {regions}")
    exact = plain(plan.preview if plan.exact is None else plan.exact)
    if not common.yes:
        _print(plan.preview, as_json=common.as_json)
        shown = layouts(shortened(plan.preview))
        saved = plans.save(exact, plan.stacks, is_empty=plan.is_empty, shown=shown)
        session.say(_NOTHING_TO_DO if plan.is_empty else what_yes_does(saved))
        return 0
    try:
        must_be_shown = plan.must_be_shown and not plan.is_empty
        name = plans.take(exact, plan.stacks, must_be_shown=must_be_shown)
    except plans.StalePlanError as error:
        if common.as_json:
            _print({"changed": error.changed}, as_json=True)
        raise
    if name is None:  # nobody has seen it
        session.say(plan.preview)
    result = _recorded(plan.stacks, plan.do, plan=name, exact=exact)
    _print(result, as_json=common.as_json)
    return verb.status(result)


def _recorded(stacks: Sequence[StackRef], do: Callable[[], Any], **facts: Any) -> Any:
    """Do something, and write down who did what when to which stack, with result or error."""
    try:
        change_log.CHANGES.parent.mkdir(exist_ok=True)
        file = change_log.CHANGES.open("a", encoding="utf-8")
    except OSError as error:
        raise OperatorError(
            f"nothing was done: {change_log.CHANGES} cannot be written ({error.strerror}); "
            "make it writable, or set CARRIDE_CHANGES to another file"
        ) from error
    first = stacks[0]
    line: dict[str, Any] = {
        "time": datetime.now(UTC),
        "who": None,
        "stack": first.name,
        "region": ", ".join(each.region for each in stacks),
        "command": shlex.join(["carride", *plans.without_secrets(sys.argv[1:])]),
        **facts,
    }
    with suppress(BotoCoreError, ClientError):
        line["who"] = first.identity["Arn"]
    try:
        result = do()
        line["result"] = plain(result)
    except BaseException as error:
        line["error"] = str(error) or type(error).__name__
        raise
    finally:
        with file:
            file.write(json.dumps(plain(line)) + "\n")
    return result


def _print(data: object, *, as_json: bool, indent: int | None = 2) -> None:
    if as_json:
        print(json.dumps(plain(data), indent=indent), flush=True)
    else:
        console(sys.stdout).print(show(shortened(data)))


def _common_options(verb: Verb) -> Iterator[inspect.Parameter]:
    """Yield the options that a verb has besides its own."""
    if verb.chooses:
        yield _option("stack", str | None, None, "Name of the stack.")
        yield _option("region", str | None, None, "Its region.")
    if verb.acts:
        yield _option("yes", bool, False, "Do it; without this, only show what would be done.")
        yield _option("plan", str | None, None, _ABOUT_PLAN)
    yield _option(
        "json",
        bool,
        False,
        "Print the result as JSON with whole strings, and the rest to standard error.",
    )


def _option(name: str, kind: Any, default: object, text: str) -> inspect.Parameter:
    annotation = Annotated[kind, Parameter(group=_COMMON, help=text)]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
