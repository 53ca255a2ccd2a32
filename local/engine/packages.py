"""Functions' packages and layers, unpacked and compiled once.

AWS prepares a package when it is deployed, and a new environment starts with it. MiniStack unpacks the code and every
layer anew for each process, also for the one that takes a killed one's place, and each compiles all modules again: more
work than all that a small function does. Here the folders of a package are links to one copy for all processes, which
they share with what Python compiles of it. As on AWS, code is to be read only.

Lies over the name `zipfile` of `lambda_runtime`.
"""

import hashlib
import tempfile
import threading
import types
import zipfile
from pathlib import Path
from typing import Any

from ministack.core import lambda_runtime

_lock = threading.Lock()


class _SharedZipFile(zipfile.ZipFile):
    """A package of which `extractall` makes links."""

    def extractall(self, path: Any = None, members: Any = None, pwd: Any = None) -> None:
        """Link everything that is at the package's top into a folder."""
        package = self.filename
        if package is None or path is None or members is not None:
            super().extractall(path, members, pwd)
            return
        copy = Path(tempfile.gettempdir(), f"package-{hashlib.sha256(Path(package).read_bytes()).hexdigest()}")
        with _lock:
            if not copy.exists():
                unfinished = Path(tempfile.mkdtemp(prefix="package-"))
                super().extractall(unfinished)
                unfinished.rename(copy)
        for entry in copy.iterdir():
            Path(path, entry.name).symlink_to(entry)


def apply() -> None:
    """Have function processes share their packages."""
    shared = types.SimpleNamespace(**vars(zipfile))
    shared.ZipFile = _SharedZipFile
    lambda_runtime.zipfile = shared
