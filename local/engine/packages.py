"""Functions' packages and layers, unpacked and compiled once.

AWS prepares a package when it is deployed. MiniStack unpacks the code and every layer anew for each process, and each
process compiles all modules again, which takes longer than a small function runs. Here the folders of a package are
links to one copy for all processes, with its compiled modules. As on AWS, functions must not write there.

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
    """A package whose `extractall` makes links to a shared copy."""

    def extractall(self, path: Any = None, members: Any = None, pwd: Any = None) -> None:
        """Link the entries at the package's top into a folder."""
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


def apply(_settings: object) -> None:
    """Have function processes share their packages."""
    shared = types.SimpleNamespace(**vars(zipfile))
    shared.ZipFile = _SharedZipFile
    lambda_runtime.zipfile = shared
