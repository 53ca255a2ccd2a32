"""The engine's options."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The engine's options.

    Attributes:
        port: TCP port to listen on.
        retry_delays: Seconds before the first, second, … retry of an asynchronous invocation; the last one repeats.
        workers: Processes that one function may have for asynchronous events, or for batches of a queue.
        queue_limit: Events that one function's asynchronous queue holds before it throttles.
        preload: Python files that run in the process of every function, before the function's own code.
        plug_ins: Modules with a function ``apply(settings)``, which extend the engine itself.
        stock: Whether MiniStack runs without the engine's plug-ins.
    """

    port: int
    retry_delays: tuple[float, ...]
    workers: int
    queue_limit: int
    preload: list[str]
    plug_ins: list[str]
    stock: bool

    def delay(self, attempts: int) -> float:
        """Return the seconds until the next attempt after so many."""
        return self.retry_delays[min(attempts, len(self.retry_delays)) - 1]
