"""DynamoDB's expressions, judged on one item.

Simulations evaluate millions of plain expressions, so these are evaluated here: comparisons and
functions of top-level attributes, ``SET`` of values, ``ADD`` of numbers, ``REMOVE``. The package
moto evaluates all others. Without moto they are refused, in an error that names them.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache, lru_cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from carride_idempotency.errors import ConfigurationError
from carride_idempotency.stores.transport import ServiceError

type Attribute = dict[str, Any]
type Item = dict[str, Attribute]
type Request = Mapping[str, Any]

EXPRESSIONS: Final = (
    "ConditionExpression",
    "FilterExpression",
    "KeyConditionExpression",
    "ProjectionExpression",
    "UpdateExpression",
)
_NAMES: Final = "ExpressionAttributeNames"
_VALUES: Final = "ExpressionAttributeValues"
_EXTRA: Final = "pip install 'carride-idempotency[testing]'"

_FUNCTIONS: Final = frozenset(
    {
        "attribute_exists",
        "attribute_not_exists",
        "attribute_type",
        "begins_with",
        "contains",
        "if_not_exists",
        "list_append",
        "size",
    }
)
_KEYWORDS: Final = frozenset(
    {"ADD", "AND", "BETWEEN", "DELETE", "IN", "NOT", "OR", "REMOVE", "SET"}
)
_PLACEHOLDER: Final = re.compile(r"[#:]\w+")
_WORD: Final = re.compile(r"(?<![\w#:])[A-Za-z_]\w*")

_PLAIN_CONDITION: Final = re.compile(
    r"(?:\s|AND\b|OR\b|NOT\b|attribute_(?:not_)?exists\b|attribute_type\b|[#:]?\w+|<=|>=|<>|[=<>(),])*"
)
_BEYOND_PLAIN: Final = re.compile(
    r"\b(?:begins_with|contains|size|(?i:between|in))\b|\b(?!AND\b|OR\b|NOT\b)(?i:and|or|not)\b"
)
_PLAIN_CLAUSE: Final = re.compile(
    r"(SET|ADD|REMOVE)\s(.*?)(?=\sSET\s|\sADD\s|\sREMOVE\s|$)", re.DOTALL
)
_PLAIN_ACTION: Final = {
    "SET": re.compile(
        r"(?P<target>[#\w]+)\s*=\s*"
        r"(?:(?P<value>:\w+)|if_not_exists\((?P<unless>[#\w]+),\s*(?P<default>:\w+)\))"
    ),
    "ADD": re.compile(r"(?P<target>[#\w]+)\s+(?P<value>:\w+)"),
    "REMOVE": re.compile(r"(?P<target>[#\w]+)"),
}
_BETWEEN_ACTIONS: Final = re.compile(r",\s*(?![^(]*\))")


class InvalidRequestError(ServiceError):
    """Raised when DynamoDB would answer ValidationException.

    Attributes:
        depends_on_item: the stored item is the reason; the expression itself is valid.
    """

    def __init__(self, message: str, *, depends_on_item: bool = False) -> None:
        super().__init__("ValidationException", 400, message, {})
        self.depends_on_item = depends_on_item


# ── What every expression must fulfil ─────────────────────────────────────────────────────────────


def validate(request: Request) -> None:
    """Refuse undefined and unused placeholders, and reserved words.

    Raises:
        InvalidRequestError: DynamoDB would refuse the request whatever its tables hold.
    """
    texts = tuple([request[each] for each in EXPRESSIONS if request.get(each) is not None])
    _validate(texts, tuple(request.get(_NAMES) or ()), tuple(request.get(_VALUES) or ()))


@lru_cache
def _validate(texts: tuple[str, ...], names: tuple[str, ...], values: tuple[str, ...]) -> None:
    given = {*names, *values}
    used = {placeholder for text in texts for placeholder in _PLACEHOLDER.findall(text)}
    if missing := sorted(used - given):
        kind = "name" if missing[0].startswith("#") else "value"
        raise InvalidRequestError(
            f"An expression attribute {kind} used in expression is not defined; "
            f"attribute {kind}: {missing[0]}"
        )
    if unused := sorted(given - used):
        parameter = _NAMES if unused[0].startswith("#") else _VALUES
        raise InvalidRequestError(
            f"Value provided in {parameter} unused in expressions: keys: {{{', '.join(unused)}}}"
        )
    for text in texts:
        for word in _WORD.findall(text):
            if word in _FUNCTIONS or word.upper() in _KEYWORDS:
                continue
            if word.upper() in _reserved_words():
                raise InvalidRequestError(
                    f"Invalid expression: Attribute name is a reserved keyword; "
                    f"reserved keyword: {word}"
                )


@cache
def _reserved_words() -> frozenset[str]:
    """Return the words that need a placeholder, from moto's list; none without moto."""
    if find_spec("moto") is None:
        return frozenset()
    listed = files("moto").joinpath("dynamodb", "parsing", "reserved_keywords.txt")
    return frozenset(listed.read_text(encoding="utf-8").split())


# ── Conditions ────────────────────────────────────────────────────────────────────────────────────


def holds(request: Request, found: Item, which: str) -> bool:
    """Return whether one of a request's expressions holds for an item; true if it has none."""
    text = request.get(which)
    if text is None:
        return True
    if not _is_plain_condition(text):
        return _holds_by_moto(text, request, found)
    names = request.get(_NAMES) or {}
    values = request.get(_VALUES) or {}

    def operand(name: str) -> _Operand:
        return _Operand(values.get(name) or found.get(names.get(name, name)))

    return bool(eval(_compiled(text), _PLAIN_FUNCTIONS | {"operand": operand}))  # noqa: S307 - only tokens of `_PLAIN_CONDITION`


@lru_cache
def _is_plain_condition(text: str) -> bool:
    return bool(_PLAIN_CONDITION.fullmatch(text)) and not _BEYOND_PLAIN.search(text)


_ABSENT: Final = "absent"


class _Operand:
    """An attribute of an item or a value of a request.

    An absent one equals nothing, not even itself.
    """

    def __init__(self, attribute: Attribute | None) -> None:
        self.kind = _ABSENT
        self.content: Any = math.nan
        if attribute:
            ((self.kind, content),) = attribute.items()
            self.content = _comparable(self.kind, content)

    def _compared(self, other: "_Operand", comparison: Callable[[Any, Any], bool]) -> bool:
        return self.kind == other.kind and comparison(self.content, other.content)

    def __eq__(self, other: Any) -> bool:
        return self._compared(other, operator.eq)

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __lt__(self, other: "_Operand") -> bool:
        return self._compared(other, operator.lt)

    def __le__(self, other: "_Operand") -> bool:
        return self._compared(other, operator.le)

    __hash__ = None  # type: ignore[assignment] # as Python does for a class with an equality of its own


def _comparable(kind: str, content: Any) -> Any:
    match kind:
        case "N":
            return Decimal(content)
        case "NS":
            return frozenset(map(Decimal, content))
        case "SS" | "BS":
            return frozenset(content)
        case _:
            return content


_PLAIN_FUNCTIONS: Final[dict[str, Any]] = {
    "attribute_exists": lambda found: found.kind != _ABSENT,
    "attribute_not_exists": lambda found: found.kind == _ABSENT,
    "attribute_type": lambda found, kind: found.kind == kind.content,
    "__builtins__": {},
}


@lru_cache
def _compiled(text: str) -> Any:
    """Translate a plain condition to Python."""
    known = {"AND": "and", "OR": "or", "NOT": "not", "=": "==", "<>": "!="}
    words = []
    for word in re.findall(r"[#:]?\w+|<=|>=|<>|[=<>(),]", text):
        if word in known:
            words.append(known[word])
        elif word in _FUNCTIONS or not re.match(r"[#:\w]", word):
            words.append(word)
        else:
            words.append(f"operand({word!r})")
    try:
        return compile(" ".join(words), text, "eval")
    except SyntaxError as error:
        raise InvalidRequestError(f"Invalid expression: Syntax error; near: {text!r}") from error


# ── Updates ───────────────────────────────────────────────────────────────────────────────────────


def updated(request: Request, found: Item) -> Item:
    """Return the item after an update; ``found`` stays as it is.

    Raises:
        InvalidRequestError: DynamoDB would refuse the update.
    """
    item = {**found, **request["Key"]}
    actions = _plain_actions(request["UpdateExpression"])
    if actions is None or not _adds_numbers(actions, request, found):
        return _updated_by_moto(request, item)
    names = request.get(_NAMES) or {}
    values = request.get(_VALUES) or {}
    for action in actions:
        target = names.get(action.target, action.target)
        if target in request["Key"]:
            raise InvalidRequestError(
                "One or more parameter values were invalid: "
                f"Cannot update attribute {target}. This attribute is part of the key"
            )
        if action.clause == "REMOVE":
            item.pop(target, None)
        elif action.clause == "ADD":
            item[target] = _sum(found.get(target), values[action.value])
        else:
            item[target] = values[action.value]
            if action.unless is not None:
                kept = names.get(action.unless, action.unless)
                item[target] = found.get(kept, item[target])
    return item


class _Action(NamedTuple):
    """One action of a plain update. All but the clause are placeholders, or the target's name."""

    clause: str
    target: str
    value: str | None
    """None for a REMOVE."""
    unless: str | None
    """The attribute of ``if_not_exists``, whose value is taken if it exists."""


@lru_cache
def _plain_actions(expression: str) -> tuple[_Action, ...] | None:
    """Return the actions of a plain update; None if it is not plain."""
    actions = []
    clauses = _PLAIN_CLAUSE.findall(expression.strip())
    written = " ".join(f"{clause} {body}" for clause, body in clauses)
    if not clauses or _without_spaces(written) != _without_spaces(expression):
        return None
    for clause, body in clauses:
        for text in _BETWEEN_ACTIONS.split(body.strip()):
            parsed = _PLAIN_ACTION[clause].fullmatch(text.strip())
            if parsed is None:
                return None
            groups = parsed.groupdict()
            value = groups.get("value") or groups.get("default")
            actions.append(_Action(clause, groups["target"], value, groups.get("unless")))
    repeats_a_clause = len({clause for clause, _ in clauses}) < len(clauses)
    repeats_a_target = len({action.target for action in actions}) < len(actions)
    if repeats_a_clause or repeats_a_target:
        return None  # moto says what is wrong
    return tuple(actions)


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _adds_numbers(actions: tuple[_Action, ...], request: Request, found: Item) -> bool:
    """Return whether each ADD adds a number to a number or to nothing."""
    names = request.get(_NAMES) or {}
    for action in actions:
        if action.clause != "ADD":
            continue
        there = found.get(names.get(action.target, action.target), {"N": "0"})
        if "N" not in there or "N" not in request[_VALUES][action.value]:
            return False
    return True


def _sum(first: Attribute | None, second: Attribute) -> Attribute:
    total = Decimal(second["N"])
    if first is not None:
        total += Decimal(first["N"])
    text = format(total, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return {"N": text}


# ── moto ──────────────────────────────────────────────────────────────────────────────────────────


def _require_moto(text: str) -> None:
    if find_spec("moto") is None:
        raise ConfigurationError(f"{text!r} needs moto: {_EXTRA}")


def _holds_by_moto(text: str, request: Request, found: Item) -> bool:
    _require_moto(text)
    from moto.dynamodb.comparisons import create_condition_expression_parser
    from moto.dynamodb.exceptions import MockValidationException

    try:
        parser = create_condition_expression_parser(
            text, request.get(_NAMES) or {}, request.get(_VALUES) or {}
        )
        return bool(parser.parse().expr(_moto_item(found)))
    except MockValidationException as error:
        raise InvalidRequestError(error.message) from error
    except (ValueError, KeyError) as error:
        raise InvalidRequestError(f"Invalid expression: {text!r}: {error}") from error
    except TypeError as error:
        raise ConfigurationError(
            f"{text!r} compares values of different types, which moto cannot"
        ) from error


def _updated_by_moto(request: Request, item: Item) -> Item:
    expression = request["UpdateExpression"]
    _require_moto(expression)
    from moto.dynamodb import exceptions
    from moto.dynamodb.parsing.executors import UpdateExpressionExecutor
    from moto.dynamodb.parsing.expressions import (  # type: ignore[attr-defined] # it has no types
        UpdateExpressionParser,
    )
    from moto.dynamodb.parsing.validators import UpdateExpressionValidator

    names = request.get(_NAMES) or {}
    changed = _moto_item(item)
    try:
        parsed = UpdateExpressionParser.make(expression)
        actions = UpdateExpressionValidator(
            parsed,
            expression_attribute_names=names,
            expression_attribute_values=request.get(_VALUES) or {},
            item=changed,
            table=_MotoTable(request["Key"]),  # type: ignore[arg-type]
        ).validate()
        actions.normalize()
        UpdateExpressionExecutor(actions, changed, names).execute()
    except exceptions.MockValidationException as error:
        depends = isinstance(
            error,
            (
                exceptions.AttributeDoesNotExist,
                exceptions.IncorrectDataType,
                exceptions.InvalidUpdateExpressionInvalidDocumentPath,
                exceptions.ProvidedKeyDoesNotExist,
            ),
        )
        raise InvalidRequestError(error.message, depends_on_item=depends) from error
    return {name: _wire(value) for name, value in changed.attrs.items()}


class _MotoTable:
    """What moto's validation of an update reads of a table."""

    def __init__(self, key: Item) -> None:
        self.table_key_attrs = list(key)
        self.attribute_keys = list(key)
        self.attr = [
            {"AttributeName": name, "AttributeType": kind}
            for name, attribute in key.items()
            for kind in attribute
        ]


def _moto_item(item: Item) -> Any:
    from copy import deepcopy

    from moto.dynamodb.models.dynamo_type import DynamoType
    from moto.dynamodb.models.dynamo_type import Item as MotoItem

    return MotoItem(DynamoType({"S": "key"}), None, deepcopy(item))


def _wire(value: Any) -> Attribute:
    """Return a value of moto's in the wire format."""
    if value.type == "L":
        return {"L": [_wire(each) for each in value.value]}
    if value.type == "M":
        return {"M": {name: _wire(each) for name, each in value.value.items()}}
    return {value.type: value.value}
