"""The engine's options."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The engine's options.

    Attributes:
        port: TCP port to listen on.
        host: Address to listen on; loopback, since the engine runs code that callers give it.
        retry_delays: Seconds before the first, second, … retry of an asynchronous invocation; the last one repeats.
            AWS waits 60 and 120.
        workers: Processes that one function may have for asynchronous events, or for batches of a queue.
        queue_limit: Events that one function's asynchronous queue holds before it throttles.
        preload: Python files that run in the process of every function, before the function's own code.
        plug_ins: Modules with a function ``apply(settings)``, which extend the engine itself.
    """

    port: int
    host: str = "127.0.0.1"
    retry_delays: tuple[float, ...] = (1.0, 2.0)
    workers: int = 2
    queue_limit: int = 100_000
    preload: tuple[str, ...] = ()
    plug_ins: tuple[str, ...] = ()
