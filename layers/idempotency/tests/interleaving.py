"""Threads that give way between the statements of the library, in an order that a seed draws.

Each thread is a greenlet of one real thread, and time is virtual: an interleaving takes a few
milliseconds, and its seed repeats it.
"""

import ast
import inspect
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, Self

from greenlet import getcurrent, greenlet

from carride_idempotency.testing import ManualClock

_GIVE_WAY: Final = "__give_way__"
_GIVES_WAY: Final = 0.2
"""How often a thread gives way at a statement."""


class Turns(ManualClock):
    """The threads, the time and the chances of one seed. It is a consumer's clock and sleep."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)  # noqa: S311 - an order that can be repeated
        self._hub = getcurrent()
        self._ready: list[Any] = []
        self._asleep: list[tuple[int, int, Any]] = []
        self._number = 0

    def start(self, work: Callable[[], object], *, after_s: float = 0.0) -> None:
        """Start a thread."""

        def run() -> None:
            self.sleep(after_s)
            work()

        self._ready.append(greenlet(run, self._hub))

    def sleep(self, seconds: float) -> None:
        """Let some time pass for the running thread."""
        self._number += 1
        when_ms = self.now_ms + round(seconds * 1000)
        self._asleep.append((when_ms, self._number, getcurrent()))
        self._hub.switch()

    def give_way(self) -> None:
        """Let other threads run, or not."""
        if getcurrent() is not self._hub and self.chance.random() < _GIVES_WAY:
            self._ready.append(getcurrent())
            self._hub.switch()

    def run(self) -> None:
        """Run until all threads have ended. Time passes when each of them waits for it."""
        while self._ready or self._asleep:
            if not self._ready:
                self.now_ms = max(self.now_ms, min(self._asleep)[0])
            self._ready += [thread for when, _, thread in self._asleep if when <= self.now_ms]
            self._asleep = [each for each in self._asleep if each[0] > self.now_ms]
            self._ready.pop(self.chance.randrange(len(self._ready))).switch()

    def lock(self) -> "_Lock":
        """Return what stands for a `threading.Lock`."""
        return _Lock(self)


class _Lock:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_held = False

    def __enter__(self) -> Self:
        while self._is_held:
            self._turns.sleep(0)
        self._is_held = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_held = False


@contextmanager
def giving_way(*modules: ModuleType) -> Generator[Callable[[Turns], None]]:
    """Have all functions of some modules give way before each of their statements.

    The context returns a function that sets whose threads do.
    """
    turns: list[Turns] = []
    codes: list[tuple[FunctionType, CodeType]] = []

    def give_way() -> None:
        if turns:
            turns[-1].give_way()

    try:
        for module in modules:
            module.__dict__[_GIVE_WAY] = give_way
            codes += _woven(module)
        yield turns.append
    finally:
        for function, code in codes:
            function.__code__ = code
        for module in modules:
            del module.__dict__[_GIVE_WAY]


def _woven(module: ModuleType) -> list[tuple[FunctionType, CodeType]]:
    """Change the functions of a module; return them with the code that they had."""
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            _weave(node)
    ast.fix_missing_locations(tree)
    codes = dict(_codes_in(compile(tree, str(module.__file__), "exec")))
    before = [(function, function.__code__) for function in _functions_of(module)]
    for function, _ in before:
        function.__code__ = codes[function.__qualname__]
    return before


def _weave(node: ast.AST) -> None:
    """Put a call before each statement of a function, and of its blocks."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            setattr(node, name, [part for each in block for part in (_call(), each)])
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            _weave(inner)


def _call() -> ast.stmt:
    return ast.Expr(ast.Call(ast.Name(_GIVE_WAY, ast.Load()), [], []))


def _codes_in(code: CodeType) -> Generator[tuple[str, CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from _codes_in(constant)


def _functions_of(module: ModuleType) -> Generator[FunctionType]:
    """Yield the functions and methods that a module's own text defines."""
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else [value]
        for member in members:
            function = member.fget if isinstance(member, property) else member
            if isinstance(function, FunctionType) and (
                function.__code__.co_filename == module.__file__
            ):
                yield function
