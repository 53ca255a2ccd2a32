"""What to say about settings and events of the wrong kind. It is imported when one is found."""

from typing import TYPE_CHECKING, Any

from carride_idempotency.errors import ConfigurationError

if TYPE_CHECKING:
    from carride_idempotency.sources import Source

_TEXT_AS_STORE = 'open one: store=open_store("dynamodb:<table>"), or DynamoDBStore("<table>")'
_TEXT_AS_DEAD_LETTERS = 'write dead_letters=SqsDeadLetters("<URL of the queue>")'


def _kind(value: object) -> str:
    """Say what a value is."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a {type(value).__name__}"


def not_a_store(consumer: str, value: object) -> ConfigurationError:
    """Return the error of a consumer whose ``store`` is not one."""
    return ConfigurationError(f"{consumer}: store= is {_kind(value)}: {_TEXT_AS_STORE}")


def not_an_address(address: str, options: list[str]) -> ConfigurationError:
    """Return the error of ``open_store`` for an address of no store.

    It does not repeat an address that may hold a password.
    """
    scheme, colon, rest = address.partition(":")
    if colon and scheme == "dynamodb" and "@" not in rest:
        table = rest.partition("?")[0]
        return ConfigurationError(
            f"{table!r:.100} is not the name of a table: write dynamodb:<table>, with a name of 3 "
            "to 255 letters, digits, _, - and ., or with the ARN of the table"
        )
    if colon and scheme in {"valkey", "valkeys", "redis", "rediss"}:
        return ConfigurationError(
            "this is not an address of a Valkey or Redis server: write "
            f"{scheme}://[<user>:<password>@]<host>[:<port>][/<database>]; user and password are "
            f"percent-encoded, and options after a ? are {', '.join(options)}"
        )
    return ConfigurationError(
        "this is not an address of a store: write dynamodb:<table>, or valkey://<host>, or that "
        "with valkeys:// (TLS), redis:// or rediss:// (TLS)"
    )


def not_earlier_records(value: object) -> ConfigurationError:
    """Return the error of a DynamoDBStore whose ``before`` is not of another layer."""
    return ConfigurationError(f"before= takes PowertoolsRecords(table, ...), not {value!r}")


def not_dead_letters(consumer: str, value: object) -> ConfigurationError:
    """Return the error of a consumer whose ``dead_letters`` cannot send any."""
    return ConfigurationError(
        f"{consumer}: dead_letters= is {_kind(value)}: {_TEXT_AS_DEAD_LETTERS}"
    )


def not_a_transport(value: object) -> ConfigurationError:
    """Return the error of a DynamoDBStore whose ``transport`` cannot be called."""
    return ConfigurationError(
        f"transport= is {_kind(value)}: write transport=botocore_transport(session=...), with "
        "from carride_idempotency import botocore_transport"
    )


def not_a_policy(consumer: str, value: object) -> ConfigurationError:
    """Return the error of a consumer whose ``policy`` is not one."""
    return ConfigurationError(
        f"{consumer}: policy= is {_kind(value)}: write policy=Policy(window=..., max_attempts=...)"
    )


def not_a_source(consumer: str, value: object) -> ConfigurationError:
    """Return the error of a consumer whose ``source`` is not one."""
    return ConfigurationError(
        f"{consumer}: source= is {_kind(value)}: import SQS, SNS_IN_SQS, KINESIS, DYNAMODB_STREAM, "
        "KAFKA, SNS or EVENTBRIDGE from carride_idempotency, or build a Source"
    )


def not_an_observer(consumer: str, value: object) -> ConfigurationError:
    """Return the error of a consumer whose ``observe`` cannot be called."""
    return ConfigurationError(
        f"{consumer}: observe= is {_kind(value)}: pass a function of an Observation, "
        "emf(namespace), logged(logger), or a list of such functions"
    )


def one_text_as_methods(methods: str) -> ConfigurationError:
    """Return the error of ``methods=``, whose letters would be taken for the methods."""
    return ConfigurationError(
        f"methods= is a collection of methods: write methods=[{methods!r}], and not {methods!r}"
    )


def not_two_arguments(name: str, decorator: str) -> ConfigurationError:
    """Return the error of a handler that cannot be called with an event and an operation."""
    return ConfigurationError(
        f"@{decorator} calls {name} with two arguments: write def {name}(event, operation). "
        "Lambda's context is operation.context"
    )


def not_lambdas_context(name: str, decorator: str) -> ConfigurationError:
    """Return the error of a handler that would take its operation for Lambda's context."""
    return ConfigurationError(
        f"@{decorator} calls {name} with an event and an operation, and not with Lambda's context: "
        f"write def {name}(event, operation), and operation.context where the context is needed"
    )


def bare_function(undecorated: tuple[object, ...]) -> ConfigurationError:
    """Return the error of ``@consumer.function`` without parentheses, or without a key."""
    name = getattr(undecorated[0], "__name__", "work") if undecorated else "the function"
    return ConfigurationError(
        f"@function needs the name of the argument that is the key of {name}: "
        'write @consumer.function(key="<argument>")'
    )


def not_one_argument(consumer: str, key: object) -> ConfigurationError:
    """Return the error of a function whose ``key`` names several arguments."""
    return ConfigurationError(
        f"{consumer}: key= names one argument, not {key!r}. For a composite key, let one argument "
        'be a tuple: @consumer.function(key="fact") over def work(fact: tuple[str, str], ...), and '
        "call work((a, b), ...)"
    )


def operation_without_default(consumer: str, name: str) -> ConfigurationError:
    """Return the error of a function that its callers would have to give an operation."""
    return ConfigurationError(
        f"{consumer}: give the argument operation of {name} a default: callers do not pass it. "
        f"Write def {name}(..., operation: Operation | None = None)"
    )


def not_a_decorator() -> ConfigurationError:
    """Return the error of a ``with`` block that is used as a decorator."""
    return ConfigurationError(
        "consumer.operation(...) opens a with block, and decorates nothing: write "
        "`with consumer.operation(...) as block:`, or decorate with @consumer.function(key=...)"
    )


def not_entered(name: str) -> AttributeError:
    """Return the error of a ``with`` block that is used before it is entered."""
    return AttributeError(
        f"the block has {name} once it is entered: write `with consumer.operation(...) as block:`"
    )


def block_in_a_loop() -> ConfigurationError:
    """Return the error of a ``with`` block inside a running event loop, which it would stall."""
    return ConfigurationError(
        "an event loop is running here, and a `with` block would stall it while it asks the store: "
        "write `async with consumer.operation(...) as block:`"
    )


def function_in_a_loop(name: str) -> ConfigurationError:
    """Return the error of a plain function that is called inside a running event loop."""
    return ConfigurationError(
        f"an event loop is running here, and {name} would stall it while it asks the store: "
        f"write `await asyncio.to_thread({name}, ...)`, or decorate an async def"
    )


def handler_in_a_loop(name: str) -> ConfigurationError:
    """Return the error of an ``async def`` handler that is called inside a running event loop."""
    return ConfigurationError(
        f"{name} runs its coroutine in an event loop of its own, but this thread runs one already: "
        f"write `await asyncio.to_thread({name}, event, context)`"
    )


def not_a_context(context: object, attribute: str) -> ConfigurationError:
    """Return the error of a handler that was not given Lambda's context."""
    wrong = getattr(context, attribute, None)
    if callable(wrong) and attribute == "get_remaining_time_in_millis":
        wrong = wrong()
    what = f"its {attribute} is {_kind(wrong)}"
    if isinstance(context, dict) or context is None or not hasattr(context, attribute):
        what = f"it has no {attribute}"
    return ConfigurationError(
        f"a handler needs Lambda's context, not {context!r:.100}: {what}. "
        "A test passes carride_idempotency.testing.lambda_context(), an Invocation"
    )


def not_an_event(source: "Source", event: Any, error: Exception) -> ConfigurationError:
    """Return the error of an event, or a record, that lacks what those of its source have."""
    from carride_idempotency.sources import remedy_for

    own = " or ".join(sorted(source.triggers)) or "its source"
    fields = f"the fields {sorted(map(str, event))}" if isinstance(event, dict) else _kind(event)
    help_text = remedy_for(event) or (
        "send one of those. carride_idempotency.testing builds them for tests"
    )
    return ConfigurationError(
        f"the handler takes events of {own}, and this one has {fields:.200}, "
        f"but {type(error).__name__}: {error}. Do this: {help_text}"
    )


def not_a_request(event: Any) -> ConfigurationError:
    """Return the error of an event that is no HTTP request."""
    from carride_idempotency.sources import remedy_for

    fields = f"the fields {sorted(map(str, event))}" if isinstance(event, dict) else _kind(event)
    help_text = remedy_for(event) or (
        "send one of those; carride_idempotency.testing.http_event builds one for tests"
    )
    return ConfigurationError(
        "this is not a request from API Gateway, a function URL or a load balancer: it has "
        f"{fields:.200}. Do this: {help_text}"
    )


def not_a_caller(consumer: str, who: object) -> ConfigurationError:
    """Return the error of a ``caller=`` that finds what cannot be a part of a key."""
    return ConfigurationError(
        f"{consumer}: caller= found {_kind(who)}, and a caller is a text, a whole number, a UUID "
        "or an enum member with such a value. Let it find one, such as an id, or return one text "
        "made of several parts"
    )


def not_an_external_call(name: object, call: object, probe: object) -> ConfigurationError:
    """Return the error of ``operation.external`` with arguments that it cannot use."""
    given = f"{name!r:.50}, {call!r:.100}, {probe!r:.100}"
    return ConfigurationError(
        f"external takes a name, and one or two functions of a key, not {given}. Nothing was "
        'called: write operation.external("charge", lambda key: ..., lambda key: ...)'
    )
