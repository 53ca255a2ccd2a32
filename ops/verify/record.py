"""The page that a run of `./carride verify` leaves: where and when it ran, and its result."""

import hashlib
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from ops.regions import ROOT
from ops.verify import Checked, Deployment, Result, to_markdown


class Run(NamedTuple):
    """What identifies a run."""

    stack: str
    stage: str
    account: str
    region: str
    commit: str
    """The commit of this checkout; with ``+ changes`` if files differ from it."""
    deployed: datetime
    """When the stack was last deployed."""
    time: datetime


def run_of(deployment: Deployment) -> Run:
    """Return what identifies a run of checks on a deployment."""
    stack = deployment.stack
    described = stack.describe() or {}
    return Run(
        stack=stack.name,
        stage=deployment.stage,
        account=stack.identity["Account"],
        region=stack.region,
        commit=commit(),
        deployed=described.get("LastUpdatedTime") or described["CreationTime"],
        time=deployment.began,
    )


def commit(folder: Path = ROOT) -> str:
    """Return the commit of a checkout, or ``unknown`` for files without git."""
    head = _git(folder, "rev-parse", "HEAD")
    if not head:
        return "unknown"
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{head} + changes" if changes else head


def _git(folder: Path, *arguments: str) -> str:
    """Return what git prints, nothing if it fails or is missing."""
    git = shutil.which("git")
    if git is None:
        return ""
    done = subprocess.run(
        [git, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def page(run: Run, results: Sequence[Result]) -> str:
    """Return the page in Markdown; its last line is the SHA-256 digest of the lines above it."""
    counts = Counter(each.verdict for each in results)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Checked)
    minutes = sum(each.seconds for each in results) / 60
    lines = [
        f"# `./carride verify` of {run.stack}",
        "",
        f"**{verdicts}**, in {minutes:.1f} minutes.",
        "",
        "| | |",
        "| --- | --- |",
        f"| account | {run.account} |",
        f"| region | {run.region} |",
        f"| stage | {run.stage} |",
        f"| commit | {run.commit} |",
        f"| deployed | {_time(run.deployed)} |",
        f"| verified | {_time(run.time)} |",
        "",
        to_markdown(results),
    ]
    text = "\n".join(lines)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text}\nSHA-256 of the lines above: `{digest}`\n"


def _time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
