"""The site of docs/: it builds without a warning, and its pages show no markup."""

import doctest
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
TABLE, ITEM, EMPHASIS, LINK = r"\|---", r"^\s*(?:[-*] |\d+\. )\w", r"\*\*", r"\]\("

pytest.importorskip("mkdocs", reason="MkDocs is not installed: the extra docs brings it")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` builds it."""
    place = tmp_path_factory.mktemp("site") / "built"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", SITE / "mkdocs.yml"]
    command += ["--site-dir", place]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    said = run.stdout + run.stderr
    assert run.returncode == 0 and "WARNING" not in said, said
    return place


def prose(page: Path) -> str:
    """What a reader sees of a page as running text: without tags, with x for code."""
    article = re.search(r"<article.*?</article>", page.read_text(encoding="utf-8"), re.DOTALL)[0]
    return re.sub(r"<[^>]+>", "", re.sub(r"<(pre|code|script)\b.*?</\1>", "x", article, flags=re.DOTALL))


@pytest.mark.full
def test_every_page_is_there_and_shows_no_markup(site):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {
        "index",
        "changelog",
        "contributing",
        "recipes",
        "api",
    }
    assert {path.stem for path in site.glob("*.html")} == pages | {"404"}
    for page in pages:
        text = prose(site / f"{page}.html")
        # what this Markdown would read otherwise than a code host's
        left = re.search(rf"{TABLE}|{ITEM}|{EMPHASIS}|{LINK}|`", text, re.MULTILINE)
        assert left is None, f"{page}: {text[max(left.start() - 80, 0) : left.end() + 80]}"


def test_the_first_page_is_the_readme_with_links_between_pages(site):
    page = (site / "index.html").read_text(encoding="utf-8")
    assert (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") in page
    assert 'href="exactness.html"' in page and 'href="contributing.html"' in page
    assert 'src="learning.png"' in page and (site / "learning.png").is_file()
    assert "fonts.googleapis.com" not in page


def test_the_api_shows_docstrings_and_their_examples(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in re.findall(r"^::: (\S+)$", (SITE / "api.md").read_text(), re.MULTILINE):
        assert f'id="{name}"' in page
    assert 'id="augment.core.ragged.Ragged.take"' in page
    assert "&gt;&gt;&gt;" in page and "<blockquote>" not in page


@pytest.mark.parametrize("file", ["hooks.py", "examples.py"])
def test_what_the_site_changes_in_texts_is_as_its_examples_show(file):
    specification = importlib.util.spec_from_file_location(file.removesuffix(".py"), SITE / file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    results = doctest.testmod(module)
    assert results.attempted and not results.failed


def test_the_extra_is_part_of_what_tests_need():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras["docs"]) <= set(extras["dev"])
