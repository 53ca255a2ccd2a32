"""The engine's options, as its command line reads them."""

import argparse


class Settings(argparse.Namespace):
    """The options of `python -m engine serve`, which `--help` describes."""

    socket: int
    port: int
    """The socket's port."""
    retry_delays: tuple[float, ...]
    workers: int
    preload: list[str]
    plug_ins: list[str]
    stock: bool
    until_stdin_closes: str | None

    def delay(self, attempts: int) -> float:
        """Return the seconds until the next attempt after so many; the last delay repeats."""
        return self.retry_delays[min(attempts, len(self.retry_delays)) - 1]
