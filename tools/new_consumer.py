"""`make new-consumer NAME=…` adds a consumer that a rule invokes, with all that belongs to one.

It writes texts at marked places: a handler, its test, a sample event, a block of the template and a
few rows. They pass every check. docs/add-a-consumer.md describes the next steps.
"""

import argparse
import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
TEXTS: Final = Path(__file__).resolve().parent / "consumer"
"""The texts of a consumer; `{module}`, `{kebab}`, `{Noun}`, `{noun}`, `{words}` and `{Words}` stand
for its name."""

_LONGEST: Final = 40
_YAML_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""Words that YAML does not read as text."""
_BLOCK: Final = "  # `make new-consumer` adds consumers here.\n"
_ALARM_BLOCK: Final = "  # `make new-consumer` adds alarms here.\n"


class _Row(NamedTuple):
    """A text that belongs into a file."""

    file: str
    before: str
    """The text before which it stands."""
    text: str


_OF_PAYMENT: Final = """\
        - Id: payment
          ReturnData: false
          MetricStat:
            Period: 60
            Stat: Sum
            Metric:
              Namespace: AWS/Lambda
              MetricName: {metric}
"""
"""The metric of the last consumer in an alarm, before which a further one stands."""
_METRIC: Final = """\
        - Id: {{noun}}
          ReturnData: false
          MetricStat:
            Period: 60
            Stat: Sum
            Metric:
              Namespace: AWS/Lambda
              MetricName: {metric}
              Dimensions: [{{{{ Name: FunctionName, Value: !Ref {{Noun}}Function }}}}]
"""
_TEMPLATE: Final = "template.yaml"
_ALARMS: Final = "infrastructure/observability.yaml"


def _metric(name: str) -> _Row:
    """Return the row of a metric of the function, in the alarm that has it of every consumer."""
    return _Row(_ALARMS, _OF_PAYMENT.format(metric=name), _METRIC.format(metric=name))


_ROWS: Final = (
    _Row(_TEMPLATE, "        - !Ref PartnersRuleDlq\n", "        - !Ref {Noun}RuleDlq\n"),
    _Row(_TEMPLATE, "        - !Ref OutboxPipeDlq\n", "        - !Ref {Noun}Dlq\n"),
    _Row(_TEMPLATE, "        ApiId: !Ref CarRideApi\n", "            - !Ref {Noun}LogGroup\n"),
    _Row(
        _TEMPLATE,
        "        DispatchQueue: !GetAtt DispatchQueue.QueueName\n",
        "        {Noun}Function: !Ref {Noun}Function\n",
    ),
    _Row(
        _TEMPLATE,
        "        LatencyAlarm: !If",
        (
            "        {Noun}RuleDlq: !GetAtt {Noun}RuleDlq.QueueName\n"
            "        {Noun}Dlq: !GetAtt {Noun}Dlq.QueueName\n"
        ),
    ),
    _Row(
        _TEMPLATE,
        "\n  IdempotencyTableName: {",
        (
            "  {Noun}FunctionName: {{ Value: !Ref {Noun}Function.Alias }}\n"
            "  {Noun}LogGroupName: {{ Value: !Ref {Noun}LogGroup }}\n"
            "  {Noun}RuleDlqUrl: {{ Value: !Ref {Noun}RuleDlq }}\n"
            "  {Noun}DlqUrl: {{ Value: !Ref {Noun}Dlq }}\n"
        ),
    ),
    _Row(_ALARMS, "  # Names of the queues\n", "  {Noun}Function: {{ Type: String }}\n"),
    _Row(
        _ALARMS,
        "\nConditions:\n",
        "  {Noun}RuleDlq: {{ Type: String }}\n  {Noun}Dlq: {{ Type: String }}\n",
    ),
    _Row(
        _ALARMS,
        '        ALARM("${PaymentRuleDlqAlarm}")',
        '        ALARM("${{{Noun}RuleDlqAlarm}}") OR ALARM("${{{Noun}DlqAlarm}}") OR\n',
    ),
    _Row(_ALARMS, "FILL(payment, 0)\n        - Id: carRideSimulator\n", "FILL({noun}, 0) + "),
    _Row(_ALARMS, "FILL(payment, 0)\n        - Id: carRideApi\n", "FILL({noun}, 0) + "),
    _metric("DestinationDeliveryFailures"),
    _metric("Errors"),
    _Row("ops/audit/evidence.py", ")\n\nLOG_RULE:", '    AuditedConsumer("{kebab}", "{Noun}"),\n'),
    _Row("pyproject.toml", "]\naddopts", ', "functions/{module}"'),
    _Row("pyproject.toml", "]\nexplicit_package_bases", ', "functions/{module}"'),
    _Row(
        "events/README.md",
        "## Dead letters\n",
        (
            "## {Noun}Function\n\n| file | outcome | what happens |\n| --- | --- | --- |\n"
            "| `{module}_live.json` | New | the first event of the ride `order_01` |\n\n"
        ),
    ),
    _Row(
        "ops/docs/runbooks/README.md",
        "| [`DispatchQueue`](dispatch-queue.md)",
        (
            "| [`{Noun}RuleDlq`](rule-dlq.md) | events that EventBridge could not hand to it "
            "| `{Noun}Function` |\n"
            "| [`{Noun}Dlq`](consumer-dlq.md) | events that {words} gave up | `{Noun}Function` |\n"
        ),
    ),
)


class NewConsumerError(Exception):
    """The consumer cannot be made; the message says why."""


def make(name: str, root: Path = ROOT) -> list[Path]:
    """Make a consumer, and return the files that were written or changed.

    Raises:
        NewConsumerError: the name will not do, or a file is not as expected. Nothing is written.
    """
    _check(name, root)
    forms = _forms_of(name)
    new = _new_files(name, forms, root)
    changed = {root / row.file: (root / row.file).read_text("utf-8") for row in _ROWS}
    template = root / _TEMPLATE
    noun = forms["Noun"]
    if f"  {noun}Rule:\n" in changed[template] or f"!Ref {noun}Dlq" in changed[template]:
        raise NewConsumerError(f"template.yaml has {noun}Rule or {noun}Dlq: choose another name")
    marks = re.compile(rf"(&|- Id: ){forms['noun']}\b")
    if marks.search(changed[template]) or marks.search(changed[root / _ALARMS]):
        raise NewConsumerError(
            f"the templates have an anchor or a metric {forms['noun']}: choose another name"
        )
    for row in _ROWS:
        path = root / row.file
        changed[path] = _before(row.before, row.text.format_map(forms), changed[path], row.file)
    for path, mark, text in (
        (template, _BLOCK, "template.yaml.txt"),
        (root / _ALARMS, _ALARM_BLOCK, "observability.yaml.txt"),
    ):
        changed[path] = _before(mark, _text(text, forms), changed[path], path.name)
    for path, text in (new | changed).items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [*new, *changed]


def _forms_of(name: str) -> dict[str, str]:
    """Return a name in the forms that texts have it in."""
    words = name.replace("_", " ")
    noun = "".join(word.capitalize() for word in name.split("_"))
    return {
        "module": name,
        "kebab": name.replace("_", "-"),
        "Noun": noun,
        "noun": noun[0].lower() + noun[1:],
        "words": words,
        "Words": words.capitalize(),
    }


def _new_files(name: str, forms: Mapping[str, str], root: Path) -> dict[Path, str]:
    """Return the texts of the new files: the handler, its test and its sample event."""
    sample = root / "events" / "ride_history_live.json"
    new = {
        root / "functions" / name / f"{name}.py": _text("handler.py.txt", forms),
        root / "tests" / "functions" / f"test_{name}.py": _text("test.py.txt", forms),
        root / "events" / f"{name}_live.json": sample.read_text("utf-8"),
    }
    for path in new:
        if path.exists():
            shown = path.relative_to(root)
            raise NewConsumerError(f"{shown} exists already: choose another name, or remove it")
    return new


def _text(name: str, forms: Mapping[str, str]) -> str:
    """Return a text with the forms of the name filled in; other braces stay."""
    text = (TEXTS / name).read_text("utf-8")
    for form, value in forms.items():
        text = text.replace(f"{{{form}}}", value)
    return text


def _before(mark: str, row: str, text: str, file: str) -> str:
    times = text.count(mark)
    if times != 1:
        raise NewConsumerError(
            f"{file} has {mark.strip()!r} {times} times: correct tools/new_consumer.py"
        )
    return text.replace(mark, row + mark)


def _check(name: str, root: Path) -> None:
    if not _is_plain(name):
        raise NewConsumerError(
            f"NAME={name!r} cannot name a consumer: use lower-case words joined by underscores"
        )
    if name in _YAML_WORDS:
        raise NewConsumerError(f"NAME={name!r} is not text in YAML: choose another")
    functions = sorted(path.name for path in (root / "functions").iterdir() if path.is_dir())
    for other in functions:
        if name == other:
            raise NewConsumerError(f"functions/{name} exists already: choose another name")
        # Logical ids have no underscores, and a search for the shorter name would find both
        # functions.
        one = name.replace("_", "")
        two = other.replace("_", "")
        if one in two or two in one:
            raise NewConsumerError(
                f"NAME={name!r} and functions/{other} contain one another: choose another name"
            )
    if _is_importable(name, root):
        raise NewConsumerError(
            f"NAME={name!r} would hide the module that `import {name}` finds: choose another name"
        )


def _is_plain(name: str) -> bool:
    """Return whether a name is a few lower-case words joined by underscores."""
    if not name.isascii() or name != name.lower() or not name[:1].isalpha():
        return False
    if len(name) > _LONGEST or keyword.iskeyword(name):
        return False
    return all(word.isalnum() for word in name.split("_"))


def _is_importable(name: str, root: Path) -> bool:
    """Return whether an import of this name finds a module already."""
    if name in sys.stdlib_module_names:
        return True
    for pattern in ("*", "functions/*/*", "layers/*/*"):
        if any(path.stem == name for path in root.glob(pattern)):
            return True
    for folder in map(Path, sys.path):
        if (folder / name).exists() or (folder / f"{name}.py").exists():
            return True
    return False


def main() -> None:
    """Make a consumer."""
    parser = argparse.ArgumentParser(
        prog="make new-consumer NAME=…", description="Add a consumer to the project."
    )
    parser.add_argument("name", help="lower-case words joined by underscores: loyalty_points")
    try:
        written = make(parser.parse_args().name)
    except NewConsumerError as error:
        sys.exit(f"error: {error}")
    print("written or changed:")
    print("\n".join(f"  {path.relative_to(ROOT)}" for path in written))
    print("\nIt passes `make test`. docs/add-a-consumer.md describes the next steps.")


if __name__ == "__main__":
    main()
