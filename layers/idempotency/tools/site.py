"""Make the site's pages from files that are also read on their own: hooks of mkdocs.yml."""

import os
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOM: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOM / "docs"
GENERATED: Final = {"index.md": ROOM / "README.md", "protocol.md": ROOM / "PROTOCOL.md"}
"""Pages of the site, and the files that they show."""
LINK: Final = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:)([^)#\s]+)(#[^)\s]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are files outside of docs."""
    for page, source in GENERATED.items():
        files.append(File.generated(config, page, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Have links lead to the site's own pages; of a link to another file, keep only the text."""
    source = Path(page.file.abs_src_path or "")
    here = DOCS / page.file.src_uri

    def lead(link: re.Match[str]) -> str:
        is_image, text, path, anchor = link.groups(default="")
        target = (source.parent / path).resolve()
        for name, shown in GENERATED.items():
            if target == shown:
                target = DOCS / name
        if not target.is_relative_to(DOCS):
            return text
        there = os.path.relpath(target, here.parent)
        return f"{is_image}[{text}]({there}{anchor})"

    return LINK.sub(lead, markdown)
