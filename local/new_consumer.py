"""`make new-consumer NAME=…`: a consumer with everything that belongs to one, made after the smallest that there is.

It copies what ride_history has, in the template and beside it, under the new name and without the read model: handler,
rule, dead-letter queues, alarms, dashboard, saved queries, outputs, runbooks, audit. With a sample event and a test
they pass every check as they are. docs/add-a-consumer.md says what next.
"""

import argparse
import contextlib
import json
import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Final

from idempotency import observation

ROOT: Final = Path(__file__).resolve().parent.parent

MODEL: Final = "ride_history"
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST: Final = 40
_YAML_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""What YAML takes for something else than text."""
_PLAIN: Final = (
    re.compile(r"""^( +(?:- )?\w+: )([^\s!"'|>\[{&*#][^\n#]*?)(?= *(?:#.*)?$)""", re.MULTILINE),
    re.compile(r"([{,] \w+: )([\w-]+)(?=[ ,}])"),
)
"""Values of YAML without quotes: at the end of a line, and inside of braces."""
_BANNER: Final = "  # " + "=" * 116 + "\n"
_TABLES: Final = ("tests/infrastructure/alarms.py", "tests/infrastructure/test_graph.py")
"""Tests that list who is watched and who may do what."""
_LOGICAL_ID: Final = re.compile(r"^  (\w+):$", re.MULTILINE)

_HANDLER: Final = (
    (r'\A""".*\n', '"""{Words}: what is to be done about a ride event, once for each."""\n'),
    (r"^import timeline\n", ""),
    (r"^    ride_table: str\n", ""),
    (
        r"^( +)# The one effect .*\n +policy=Policy\(atomic=True",
        (
            r"\1# All effects are in the commit, so Lambda's retry need not wait until the lease of a killed attempt "
            r"is over.\n\1policy=Policy(same_delivery_takes_over=True"
        ),
    ),
    (r"(def handler\(.*\)) -> None:", r"\1 -> str:"),
    (
        r"^( +)operation\.write\(timeline.*\n",
        (
            r"\1# What is registered here with operation.write(Put(table, item)) is committed together with the record."
            r"\n\1return event.type\n"
        ),
    ),
)
"""How the model's handler becomes one without effects: patterns, each of which has to be found once."""

_SECTION: Final = (
    (r"^          RIDE_TABLE: .*\n", ""),
    (r"^              - Sid: UpdateRides\n(?: {16}.*\n)+", ""),
    (r"^  # Keeps the read model.*\n", "  # {Words}: each event takes effect once.\n"),
    (r"^      Description: The read model of every ride\.\n", "      Description: {Words}.\n"),
)
"""The same for the model's section of the template."""

_TEST: Final = '''\
"""{Words} on an in-process DynamoDB: each event takes effect once."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from msgspec.structs import replace

from carride.settings import from_environment
from idempotency.clock import epoch_ms
from idempotency.testing import Invocation
from {module} import Settings, make_handler
from tests.unit.functions.saga import create_table

SAMPLE = Path(__file__).parents[3] / "events" / "{module}_live.json"

type Deliver = Callable[[dict[str, Any]], str]


@pytest.fixture
def deliver() -> Iterator[Deliver]:
    """Deliver an event to a handler over an empty table and an empty queue, and return the outcome."""
    with mock_aws():
        create_table(boto3.client("dynamodb"), "idempotency", "idempotencyKey")
        url = boto3.client("sqs").create_queue(QueueName="{Noun}Dlq")["QueueUrl"]
        handler = make_handler(replace(from_environment(Settings), dead_letter_queue_url=url))
        yield lambda event: handler(event, Invocation(epoch_ms, request_id=event["id"]))["outcome"]


@pytest.fixture
def event() -> dict[str, Any]:
    """Return the sample event."""
    sample: dict[str, Any] = json.loads(SAMPLE.read_text(encoding="utf-8"))
    return sample


def test_an_event_takes_effect_once(deliver: Deliver, event: dict[str, Any]) -> None:
    """Another delivery of the same event is recognised, whatever id the delivery has."""
    assert deliver(event) == "New"
    assert deliver(event | {{"id": "another-delivery"}}) == "Duplicate"


def test_an_event_that_breaks_the_contract_is_dead_lettered(deliver: Deliver, event: dict[str, Any]) -> None:
    """It is handed to the dead-letter queue at once, and never retried."""
    del event["detail"]["idempotencyid"]
    assert deliver(event) == "DeadLettered"
'''

_SAMPLE_ROWS: Final = """\
## {Noun}Function

| file | outcome | what happens |
| --- | --- | --- |
| `{module}_live.json` | New | the first event of the ride `order_01` |

"""

_MEANING: Final = {
    "dlq": "{Words} gave events up; what they should have done has not been done.",
    "rule-dlq": (
        "EventBridge could not hand events to {words}, for a day or because it may not. The\n"
        "consumer has not seen them. Other consumers are not concerned."
    ),
}


class NewConsumerError(Exception):
    """The consumer cannot be made; the message says why."""


class Names:
    """One name in the forms that it takes: `loyalty_points`, `loyalty-points`, `LoyaltyPoints`, `loyalty points`."""

    def __init__(self, name: str) -> None:
        self.module = name
        self.kebab = name.replace("_", "-")
        self.noun = "".join(word.capitalize() for word in name.split("_"))
        self.words = name.replace("_", " ")

    def of(self, text: str) -> str:
        """Return a text about the model as one about this consumer."""
        for model, own in (
            ("RideHistory", self.noun),
            ("ride_history", self.module),
            ("ride-history", self.kebab),
            ("the ride history", self.words),
            ("The ride history", self.words.capitalize()),
        ):
            text = text.replace(model, own)
        return text

    def of_yaml(self, text: str) -> str:
        """Return YAML about the model as YAML about this consumer, which is quoted wherever it is named."""
        forms = (self.module, self.kebab, self.noun, self.words, self.words.capitalize())

        def quoted(value: re.Match[str]) -> str:
            named = any(form in value[2] for form in forms)
            return value[1] + json.dumps(value[2]) if named else value[0]

        text = self.of(text)
        for plain in _PLAIN:
            text = plain.sub(quoted, text)
        return text

    def fill(self, text: str) -> str:
        """Fill in the placeholders of a text."""
        return text.format(
            module=self.module,
            kebab=self.kebab,
            Noun=self.noun,
            words=self.words,
            Words=self.words.capitalize(),
        )


def make(name: str, root: Path = ROOT) -> list[Path]:
    """Make a consumer, and return the files that were written or changed: all of them, or after an error none.

    Args:
        name: in lower case, words joined by underscores.
        root: the project.

    Raises:
        NewConsumerError: the name cannot be used, or something of that name is there already, or the model has changed
            so much that this cannot copy it.
    """
    _check(name, root)
    names = Names(name)
    new = {
        root / "functions" / name / f"{name}.py": _handler(root, names),
        root / "tests" / "unit" / "functions" / f"test_{name}.py": names.fill(_TEST),
        root / "events" / f"{name}_live.json": (root / "events" / f"{MODEL}_live.json").read_text(encoding="utf-8"),
        **dict(_runbooks(root, names)),
    }
    changed = {
        root / "template.yaml": _template(root, names),
        root / "pyproject.toml": _project(root, names),
        root / "ops" / "audit" / "evidence.py": _audit(root, names),
        root / "events" / "README.md": _samples(root, names),
        root / "docs" / "runbooks" / "README.md": _index(root, names),
        root / "docs" / "costs.md": _costs(root),
        **{root / table: _rows(root / table, names) for table in _TABLES},
    }
    for path in new:
        if path.exists():
            raise NewConsumerError(f"{path.relative_to(root)} is there already: choose another name, or remove it")
    _write(new | changed)
    return [*new, *changed]


def _check(name: str, root: Path) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST or keyword.iskeyword(name):
        raise NewConsumerError(
            f"NAME={name!r} is no name for a consumer: use lower-case words joined by underscores, like loyalty_points"
        )
    if name in _YAML_WORDS:
        raise NewConsumerError(
            f"NAME={name!r} is no text to YAML, which the template is written in: choose another name"
        )
    for other in sorted(path.name for path in (root / "functions").iterdir() if path.is_dir()):
        if name == other:
            raise NewConsumerError(f"functions/{name} is there already: choose another name")
        # Logical ids and saved queries have no underscores. A search for the shorter name would find both functions.
        one, two = name.replace("_", ""), other.replace("_", "")
        if one in two or two in one:
            raise NewConsumerError(f"NAME={name!r} and functions/{other} contain one another: choose another name")
    modules = {path.stem for path in (*root.glob("*"), *root.glob("functions/*/*"), *root.glob("layers/*/*"))}
    if name in modules | sys.stdlib_module_names or _is_installed(name):
        raise NewConsumerError(f"NAME={name!r} would hide what `import {name}` finds now: choose another name")


def _is_installed(name: str) -> bool:
    return any((Path(folder) / found).exists() for folder in sys.path for found in (name, f"{name}.py"))


def _write(files: Mapping[Path, str]) -> None:
    """Write all files, or leave everything as it was."""
    before = {path: path.read_text(encoding="utf-8") if path.exists() else None for path in files}
    folders = [path.parent for path in files if not path.parent.exists()]
    try:
        for path, text in files.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except BaseException:
        for path, old in before.items():
            if old is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(old, encoding="utf-8")
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _rewrite(text: str, rewrites: tuple[tuple[str, str], ...], names: Names, where: str) -> str:
    """Replace each pattern, which has to be found once.

    Raises:
        NewConsumerError: it is not.
    """
    for pattern, replacement in rewrites:
        text, found = re.subn(pattern, names.fill(replacement), text, flags=re.MULTILINE)
        if found != 1:
            raise NewConsumerError(f"{where} has {pattern!r} {found} times: teach local/new_consumer.py its new form")
    return text


def _handler(root: Path, names: Names) -> str:
    """Return the model's handler without its effect."""
    path = root / "functions" / MODEL / f"{MODEL}.py"
    text = _rewrite(path.read_text(encoding="utf-8"), _HANDLER, names, str(path.relative_to(root)))
    return names.of(text)


def _section(template: str) -> tuple[int, int]:
    """Return where the model's section of the template begins and ends."""
    begin = template.index(f"{_BANNER}  # Consumer: {MODEL} ")
    return begin, template.index(_BANNER, begin + 2 * len(_BANNER) + len(f"  # Consumer: {MODEL} "))


def _template(root: Path, names: Names) -> str:
    """Return the template with the consumer's section, and its lines in the lists of others, behind the model's."""
    text = (root / "template.yaml").read_text(encoding="utf-8")
    begin, end = _section(text)
    section = text[begin:end]
    own = names.of_yaml(_rewrite(section, _SECTION, names, "template.yaml"))
    outputs = text.index("\nOutputs:\n")
    before, behind, last = text[:begin], text[end:outputs], text[outputs:]
    taken = set(_LOGICAL_ID.findall(before + behind)) & set(_LOGICAL_ID.findall(own))
    if taken:
        raise NewConsumerError(f"template.yaml has {', '.join(sorted(taken))} already: choose another name")
    return "".join((_listed(before, names), section, own, _listed(behind, names), _outputs(last, names)))


def _listed(text: str, names: Names) -> str:
    """Repeat the items about the model: of the dashboard, which is JSON, and of lists, such as a query's log groups."""

    def twice(item: re.Match[str]) -> str:
        line = item.group()
        first = line.rstrip(",\n") + ",\n" if item["bullet"] == "[" else line
        return first + names.of(line)

    return re.sub(r"^(?P<indent> +)(?P<bullet>\[|- ).*RideHistory.*\n(?!(?P=indent) )", twice, text, flags=re.MULTILINE)


def _outputs(text: str, names: Names) -> str:
    """Repeat the outputs about the model behind the last of them."""
    outputs = re.findall(r"^  RideHistory\w+:\n(?:    .*\n)+", text, re.MULTILINE)
    renamed = "".join(outputs).replace("Function that keeps the read model", f"Function of {names.words}")
    own = names.of_yaml(renamed)
    return text.replace(outputs[-1], outputs[-1] + own)


def _project(root: Path, names: Names) -> str:
    """Return the project's settings with the function's folder among those that tests and types are looked for in."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    return text.replace(f'"functions/{MODEL}"', f'"functions/{MODEL}", "functions/{names.module}"')


def _audit(root: Path, names: Names) -> str:
    """Return the audit with the consumer among those that it holds to account, by what they report."""
    text = (root / "ops" / "audit" / "evidence.py").read_text(encoding="utf-8")
    row = f'    AuditedConsumer("{names.kebab}", "{names.noun}"),\n'
    return _rewrite(
        text, ((r'(^    AuditedConsumer\("ride-history", .*\n)', rf"\1{row}"),), names, "ops/audit/evidence.py"
    )


def _rows(path: Path, names: Names) -> str:
    """Return a test's table with the model's rows twice, but for those about the read model."""

    def twice(row: re.Match[str]) -> str:
        return row.group() if "RideTable" in row.group() else row.group() + names.of(row.group())

    return re.sub(r"^.*(?:RideHistory|ride-history).*\n", twice, path.read_text(encoding="utf-8"), flags=re.MULTILINE)


def _samples(root: Path, names: Names) -> str:
    """Return the list of samples with a section for the consumer's."""
    text = (root / "events" / "README.md").read_text(encoding="utf-8")
    return text.replace("## Dead letters\n", f"{names.fill(_SAMPLE_ROWS)}## Dead letters\n")


def _runbooks(root: Path, names: Names) -> Iterator[tuple[Path, str]]:
    """Return the runbooks of the consumer's two queues."""
    folder = root / "docs" / "runbooks"
    said = re.compile(r"(?<=\*\*What the alarm means\.\*\* ).*?(?=\n\n)", re.DOTALL)
    for kind, meaning in _MEANING.items():
        page = (folder / f"ride-history-{kind}.md").read_text(encoding="utf-8")
        yield folder / f"{names.kebab}-{kind}.md", names.of(said.sub(names.fill(meaning), page))


def _index(root: Path, names: Names) -> str:
    """Return the index of the runbooks with both."""
    index = (root / "docs" / "runbooks" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`RideHistory\w*`\].*\n", index, re.MULTILINE)
    return index.replace(rows[-1], rows[-1] + names.of("".join(rows)))


def _costs(root: Path) -> str:
    """Return the page of costs with what watching another consumer costs: its alarms' metrics, and those it writes."""
    template = (root / "template.yaml").read_text(encoding="utf-8")
    section = template[slice(*_section(template))]
    added = {
        "metrics that alarms watch": section.count("MetricName: ") + section.count("Type: AWS::Events::Rule\n"),
        "custom metrics": len(observation.PROTECTED),
    }
    text = (root / "docs" / "costs.md").read_text(encoding="utf-8")
    begin = text.index("\n## Watching it\n")
    end = text.index("\n## ", begin + 1)
    total = Decimal()

    def row(cells: re.Match[str]) -> str:
        nonlocal total
        count = int(cells["count"]) + sum(more for what, more in added.items() if cells["what"].startswith(what))
        cost = count * Decimal(cells["price"])
        total += cost
        return f"| {cells['what']} | {count} | {cells['price']} | {cost:.2f} |"

    watching = re.sub(
        r"^\| (?P<what>[^|]+) \| (?P<count>\d+) \| (?P<price>[\d.]+) \| [\d.]+ \|$",
        row,
        text[begin:end],
        flags=re.MULTILINE,
    )
    watching = re.sub(r"^(\| \*\*sum\*\* .*\*\*)[\d.]+(\*\* \|)$", rf"\g<1>{total:.2f}\2", watching, flags=re.MULTILINE)
    return text[:begin] + watching + text[end:]


def main() -> None:
    """Make a consumer."""
    parser = argparse.ArgumentParser(prog="make new-consumer NAME=…", description="Add a consumer to the project.")
    parser.add_argument("name", help="in lower case, words joined by underscores: loyalty_points")
    try:
        written = make(parser.parse_args().name)
    except NewConsumerError as error:
        sys.exit(f"error: {error}")
    print("written or changed:")
    print("\n".join(f"  {path.relative_to(ROOT)}" for path in written))
    print("\nIt passes `make test` as it is. docs/add-a-consumer.md says what to do next.")


if __name__ == "__main__":
    main()
