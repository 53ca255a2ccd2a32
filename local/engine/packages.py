"""Functions' packages and layers, unpacked once.

MiniStack unpacks the code and every layer anew for each process. Here the folders of a package are links to one copy
for all processes. As on AWS, functions must not write there.
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
        digest = hashlib.sha256(Path(str(self.filename)).read_bytes()).hexdigest()
        copy = Path(tempfile.gettempdir(), f"package-{digest}")
        with _lock:
            if not copy.exists():
                super().extractall(copy, members, pwd)
        for entry in copy.iterdir():
            Path(path, entry.name).symlink_to(entry)


def apply(_settings: object) -> None:
    """Have function processes share their packages."""
    lambda_runtime.zipfile = types.SimpleNamespace(**vars(zipfile) | {"ZipFile": _SharedZipFile})
