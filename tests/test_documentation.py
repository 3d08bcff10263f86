"""README and docs: no dead link, a form that can be read, and a site that builds."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")
REFERENCE = re.compile(r"^\[\w+\]: (\S+)$", re.M)


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def prose(page: Path) -> str:
    """A page without its blocks of code and its comments."""
    return re.sub(r"<!--.*?-->", "", FENCE.sub("", page.read_text("utf-8")), flags=re.S)


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    words = (re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", each)) for each in headings)
    return {each.strip().lower().replace(" ", "-") for each in words}


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page):
    for target in LINK.findall(prose(page)):
        if not target.startswith("https://"):
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), target


def test_references_of_the_readme_are_used():
    text = (ROOT / "README.md").read_text("utf-8")
    defined = set(re.findall(r"^\[(\w+)\]: https://", text, re.M))
    assert defined == set(re.findall(r"\]\[(\w+)\]", text))


def test_every_page_is_in_the_menu_of_the_site():
    menu = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8")))
    assert menu == {str(page.relative_to(ROOT / "docs")) for page in PAGES if "docs" in page.parts}


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 120


def test_every_mechanism_has_a_page_of_the_same_shape():
    folder = ROOT / "docs" / "mechanisms"
    index, readme = ((folder / "index.md").read_text(), (ROOT / "README.md").read_text())
    for page in folder.glob("*.md"):
        if page.name not in ("index.md", "own.md"):
            text = page.read_text("utf-8")
            parts = ("| flag |", "<!-- run", "**Where it differs", "Cost", "| measured here")
            for part in (*parts, "| | paper | released code | ours | switched by |"):
                assert part in text or (page.name, part) in NOT_THERE, (page.name, part)
            assert f"({page.name})" in index and f"mechanisms/{page.name}" in readme


NOT_THERE = {("asa.md", "Cost"), ("roles.md", "| flag |")}


@pytest.mark.slow
def test_the_site_is_built(tmp_path):
    """Strictly: a link, an anchor or a docstring that the site cannot read is an error."""
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "search" / "search_index.json").stat().st_size > 100_000
    reference = (tmp_path / "reference.html").read_text("utf-8")
    for name in ("notebook.load", "inspector.ModelInspector", "doubly.Sinkhorn"):
        assert f'.{name}"' in reference
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]*)', page.read_text()
        )
        assert not loaded, page  # the site needs no network
