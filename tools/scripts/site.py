"""Make the site's pages from files that are also read on their own: hooks of mkdocs.yml."""

import os
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
FIRST: Final = ROOT / "layers" / "idempotency" / "README.md"
LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)#\s]+)(#[^)\s]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the layer's README as the first page."""
    files.append(File.generated(config, "index.md", abs_src_path=str(FIRST)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to the site's own pages.

    Keep only the text of links to other files of the repository.
    """
    source = Path(page.file.abs_src_path or "")
    here = ROOT / "docs" / page.file.src_uri

    def lead(link: re.Match[str]) -> str:
        text = link[1]
        anchor = link[3] or ""
        target = (source.parent / link[2]).resolve()
        if target == FIRST:
            target = ROOT / "docs" / "index.md"
        elif target.is_dir():
            target /= "README.md"
        is_page = target.is_relative_to(ROOT / "docs") and target.suffix != ".json"
        if not is_page:
            return text
        there = os.path.relpath(target, here.parent)
        return f"[{text}]({there}{anchor})"

    return LINK.sub(lead, markdown)
