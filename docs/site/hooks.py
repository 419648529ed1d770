"""Hooks of MkDocs: pages whose files lie outside docs/, and links that work on a code host and the site."""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# File in the project -> page of the site. The README is the first page, so that nothing is said twice.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "configs/README.md": "recipes.md",
    "docs/site/api.md": "api.md",
}
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages whose files lie outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with its links between files of the project as links between pages."""
    sources = {place: source for source, place in PAGES.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return rewritten(markdown, source)


def rewritten(markdown: str, source: str) -> str:
    """Return the text of a file with its links turned into those of its page.

    A link that names no page stays as it is, and MkDocs warns of it: what is not on the site is named in code
    font, without a link.

    Args:
        markdown: the text.
        source: the file's path in the project.

    >>> rewritten("[how](docs/exactness.md#a) [b](CONTRIBUTING.md) [c](https://x.org)", "README.md")
    '[how](exactness.md#a) [b](contributing.md) [c](https://x.org)'
    >>> rewritten("[start](../README.md#two-commands)", "docs/training.md")
    '[start](index.md#two-commands)'
    """

    def replace(match: re.Match[str]) -> str:
        before, target, anchor, after = match.groups()
        if "://" in target:
            return match[0]
        path = normpath(str(PurePosixPath(source).parent / target))
        place = PAGES.get(path) or (relpath(path, "docs") if path.startswith("docs/") else target)
        return f"{before}{place}{anchor or ''}{after}"

    return _LINK.sub(replace, markdown)
