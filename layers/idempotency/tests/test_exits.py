"""A process ends, whatever is open when its interpreter does: a block, a generator, a stack."""

import subprocess
import sys
from typing import Final

import pytest

PATIENCE_S: Final = 120
_CONSUMER: Final = """
import asyncio
import atexit
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from carride_idempotency import Consumer, MemoryStore
consumer = Consumer("rides", MemoryStore())
def operation():
    return consumer.operation("k1")
"""

_PLAIN: Final = {
    "a block": "block = operation(); block.__enter__()",
    "a generator": """
def work():
    with operation():
        yield
begun = work()
next(begun)
""",
    "a generator that completes its block": """
def work():
    with operation(), suppress(GeneratorExit):
        yield
begun = work()
next(begun)
""",
    "a generator with a stack": """
def work():
    with ExitStack() as stack:
        stack.enter_context(operation())
        stack.enter_context(consumer.operation("k2"))
        yield
begun = work()
next(begun)
""",
    "a context": """
@contextmanager
def work():
    with operation():
        yield
begun = work()
begun.__enter__()
""",
    "a stack": "stack = ExitStack(); stack.enter_context(operation())",
    "a stack that closes itself": """
class Stack(ExitStack):
    def __del__(self):
        self.close()
stack = Stack()
stack.enter_context(operation())
""",
    "a cycle": """
class Owner:
    def work(self):
        with operation():
            yield
owner = Owner()
owner.begun = owner.work()
next(owner.begun)
""",
}
_IN_A_LOOP: Final = {
    "a generator in a loop that is left": """
async def work():
    async with operation():
        yield
begun = work()
loop = asyncio.new_event_loop()
loop.run_until_complete(anext(begun))
""",
    "a stack in a loop that is left": """
stack = AsyncExitStack()
loop = asyncio.new_event_loop()
loop.run_until_complete(stack.enter_async_context(operation()))
""",
    "a stack in a loop that is closed at exit": """
stack = AsyncExitStack()
loop = asyncio.new_event_loop()
loop.run_until_complete(stack.enter_async_context(operation()))
atexit.register(lambda: loop.run_until_complete(stack.aclose()))
""",
    "an operation at exit": """
async def service(key):
    async with consumer.operation(key):
        pass
asyncio.run(service("k1"))
atexit.register(lambda: asyncio.run(service("k2")))
""",
}


@pytest.mark.parametrize("script", (_PLAIN | _IN_A_LOOP).values(), ids=_PLAIN | _IN_A_LOOP)
def test_a_process_ends_whatever_is_open(script: str) -> None:
    """The claim that it leaves is a crash's: the next delivery takes it over."""
    run = subprocess.run(
        [sys.executable, "-c", _CONSUMER + script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={"PYTHONPATH": ":".join(each for each in sys.path if each)},
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
