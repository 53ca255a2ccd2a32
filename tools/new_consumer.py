"""`make new-consumer NAME=…`.

Add a consumer that a rule invokes, with everything that belongs to one.

It writes texts at marked places: a handler, its test, a sample event, a block of the template and a
few rows. They pass every check. docs/add-a-consumer.md describes the next steps.
"""

import argparse
import keyword
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TEXTS: Final = Path(__file__).resolve().parent / "consumer"
"""The texts of a consumer; `{module}`, `{kebab}`, `{Noun}`, `{words}` and `{Words}` stand for its
name."""

_LONGEST: Final = 40
_YAML_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""Words that YAML does not read as text."""
_BLOCK: Final = "  # `make new-consumer` adds consumers here.\n"
_ROWS: Final = (
    # file, the line before which a text stands, the text
    (
        "template.yaml",
        "\n  # Minutes of 15 with an error",
        '    {Noun}: {{ Name: "{kebab}", Records: IdempotencyTable, Retries: 2 }}\n',
    ),
    (
        "template.yaml",
        "        BusName: !Ref CarRideBus\n        LogRuleArn",
        "            - !Ref {Noun}LogGroup\n",
    ),
    (
        "template.yaml",
        "        LatencyAlarm: !If",
        (
            "            - !Ref {Noun}UndeliveredAlarm\n"
            "            - !Ref {Noun}RuleDlqAlarm\n"
            "            - !Ref {Noun}DlqAlarm\n"
        ),
    ),
    ("ops/audit/evidence.py", ")\n\nLOG_RULE_DLQ", '    AuditedConsumer("{kebab}", "{Noun}"),\n'),
    ("pyproject.toml", "]\naddopts", ', "functions/{module}"'),
    ("pyproject.toml", "]\nexplicit_package_bases", ', "functions/{module}"'),
    (
        "events/README.md",
        "## Dead letters\n",
        (
            "## {Noun}Function\n\n| file | outcome | what happens |\n| --- | --- | --- |\n"
            "| `{module}_live.json` | New | the first event of the ride `order_01` |\n\n"
        ),
    ),
    (
        "docs/runbooks/README.md",
        "| [`DispatchQueue`](dispatch-queue.md)",
        (
            "| [`{Noun}RuleDlq`](rule-dlq.md) | events that EventBridge could not hand to it "
            "| `{Noun}Function` |\n"
            "| [`{Noun}Dlq`](consumer-dlq.md) | events that {words} gave up | `{Noun}Function` |\n"
        ),
    ),
)
_LISTS: Final = ("      Consumers: [", "      Direct: [")
"""Beginnings of the template's lists of consumers."""


class NewConsumerError(Exception):
    """The consumer cannot be made; the message says why."""


def make(name: str, root: Path = ROOT) -> list[Path]:
    """Make a consumer, and return the files that were written or changed.

    After an error nothing is written.
    """
    _check(name, root)
    forms = {
        "module": name,
        "kebab": name.replace("_", "-"),
        "Noun": "".join(word.capitalize() for word in name.split("_")),
        "words": name.replace("_", " "),
        "Words": name.replace("_", " ").capitalize(),
    }
    new = {
        root / "functions" / name / f"{name}.py": _text("handler.py.txt", forms),
        root / "tests" / "functions" / f"test_{name}.py": _text("test.py.txt", forms),
        root / "events" / f"{name}_live.json": (
            root / "events" / "ride_history_live.json"
        ).read_text("utf-8"),
    }
    for path in new:
        if path.exists():
            raise NewConsumerError(
                f"{path.relative_to(root)} exists already: choose another name, or remove it"
            )
    changed = {root / file: (root / file).read_text("utf-8") for file, _, _ in _ROWS}
    template = changed[root / "template.yaml"]
    if f"  {forms['Noun']}Rule:\n" in template or f"!Ref {forms['Noun']}Dlq" in template:
        raise NewConsumerError(
            f"template.yaml has {forms['Noun']}Rule or {forms['Noun']}Dlq: choose another name"
        )
    for file, mark, row in _ROWS:
        changed[root / file] = _before(mark, row.format_map(forms), changed[root / file], file)
    template = changed[root / "template.yaml"]
    for beginning in _LISTS:
        line = template[template.index(beginning) :].partition("\n")[0]
        template = template.replace(line, f"{line.removesuffix(']')}, {forms['Noun']}]")
    changed[root / "template.yaml"] = _before(
        _BLOCK, _text("template.yaml.txt", forms), template, "template.yaml"
    )
    for path, text in (new | changed).items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [*new, *changed]


def _text(name: str, forms: Mapping[str, str]) -> str:
    """Return a text with the forms of the name filled in; other braces stay."""
    text = (TEXTS / name).read_text("utf-8")
    for form, value in forms.items():
        text = text.replace(f"{{{form}}}", value)
    return text


def _before(mark: str, row: str, text: str, file: str) -> str:
    if text.count(mark) != 1:
        raise NewConsumerError(
            f"{file} has {mark.strip()!r} {text.count(mark)} times: correct tools/new_consumer.py"
        )
    return text.replace(mark, row + mark)


def _check(name: str, root: Path) -> None:
    words = name.split("_")
    plain = (
        name.isascii()
        and name == name.lower()
        and name[:1].isalpha()
        and all(word.isalnum() for word in words)
    )
    if not plain or len(name) > _LONGEST or keyword.iskeyword(name):
        raise NewConsumerError(
            f"NAME={name!r} cannot name a consumer: use lower-case words joined by underscores"
        )
    if name in _YAML_WORDS:
        raise NewConsumerError(f"NAME={name!r} is not text in YAML: choose another")
    for other in sorted(path.name for path in (root / "functions").iterdir() if path.is_dir()):
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
    modules = {
        path.stem
        for path in (*root.glob("*"), *root.glob("functions/*/*"), *root.glob("layers/*/*"))
    }
    installed = any(
        (Path(folder) / found).exists() for folder in sys.path for found in (name, f"{name}.py")
    )
    if name in modules | sys.stdlib_module_names or installed:
        raise NewConsumerError(
            f"NAME={name!r} would hide the module that `import {name}` finds: choose another name"
        )


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
