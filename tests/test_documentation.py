"""README and docs: no dead link, a form that can be read, and a site that builds."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT
from readability import find_long_in_page

sys.path.append(str(ROOT / "docs"))
import print_mechanisms  # noqa: E402

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
NOT_SHORT = {"patches.md"}  # printed from docstrings
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")


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


def test_rows_of_mechanisms_are_those_of_their_pages():
    differ = [names(path) for path, old, new in print_mechanisms.print_targets() if old != new]
    assert not differ, "run `python docs/print_mechanisms.py --write`"


NEEDED = {
    "flags": {"papers", "slot", "line"},
    "variants": {"slot"},
    "term": {"variants"},
}


@pytest.mark.parametrize("row", print_mechanisms.read_rows(ROOT), ids=lambda row: row["name"])
def test_rows_of_mechanisms_are_whole(row):
    """They have what is printed, a slot that there is, and files that there are."""
    assert {"order", "name"} <= {*row}
    assert all(row.keys() >= needed for key, needed in NEEDED.items() if key in row)
    slots = print_mechanisms.read_front_matter(ROOT / "docs" / "architecture.md")["slots"]
    assert row.get("slot", "score") in [slot["slot"] for slot in slots]
    cells = " ".join(row.get(place, "") for place in ("computed", "options", "loss"))
    for name in re.findall(r"`(\w+/[\w/.]*)`", cells):
        assert (ROOT / "fairseq_ext" / name).exists(), name
    assert row.get("line", ".").endswith(".")


def test_slots_of_the_architecture_page_name_files_that_there_are():
    for slot in print_mechanisms.read_front_matter(ROOT / "docs" / "architecture.md")["slots"]:
        for name in re.findall(r"`(\w+/[\w/.]*)`", slot["file"]):
            assert (ROOT / "fairseq_ext" / name).exists(), name


def test_every_mechanism_has_rows():
    pages = {row["page"] for row in print_mechanisms.read_rows(ROOT) if "flags" in row}
    assert pages == {page.name for page in (ROOT / "docs/mechanisms").glob("*.md")} - NO_MECHANISM


def test_every_page_is_in_the_menu_of_the_site():
    menu = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8")))
    pages = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert menu == {str(page.relative_to(ROOT / "docs")) for page in pages}


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 150
    assert max(len(line) for line in lines if not line.startswith("|")) <= 120


def test_the_home_page_begins_as_the_readme_begins():
    """Up to its commands, seen from the folder of the site."""
    begin, end, _ = (ROOT / "README.md").read_text("utf-8").partition("scripts/test.sh")
    home = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert end and home.startswith((begin + end).replace("(docs/", "("))


def test_every_mechanism_has_a_page_of_the_same_shape():
    folder = ROOT / "docs" / "mechanisms"
    index, readme = ((folder / "index.md").read_text(), (ROOT / "README.md").read_text())
    for page in folder.glob("*.md"):
        if page.name not in ("index.md", *NO_MECHANISM):
            text = page.read_text("utf-8")
            parts = ("| flag |", "<!-- run", "**Where it differs", "Cost", "| measured here")
            for part in parts:
                assert part in text or (page.name, part) in NOT_THERE, (page.name, part)
            assert f"({page.name})" in index and f"mechanisms/{page.name}" in readme


NO_MECHANISM = {"own.md", "today.md"}
NOT_THERE = {("roles.md", "| flag |")}


SHORT = [page for page in PAGES if names(page).startswith("docs") and page.name not in NOT_SHORT]


@pytest.mark.parametrize("page", SHORT, ids=names)
def test_paragraphs_cells_and_lines_are_short(page):
    assert not find_long_in_page(page.read_text("utf-8"))


@pytest.mark.parametrize("name", sorted(NOT_SHORT - {"patches.md"}))
def test_pages_that_became_short_are_not_excused(name):
    assert find_long_in_page((ROOT / "docs" / name).read_text("utf-8"))


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("word\n" * 80, 0),
        ("word\n" * 80 + "- word\n" * 80, 0),
        ("x" * 161, 1),
        ("word\n" * 81, 1),
        (f"| {'word ' * 26}|", 1),
        (f"<!-- printed by a program -->\n| {'word ' * 26}|\n<!-- end of it -->", 0),
        (f"<!-- printed by a program -->\n| {'word ' * 31}|\n<!-- end of it -->", 1),
        (f"[one]({'x' * 20})\n" * 81, 1),
        (f"```bash\n{'word ' * 81}\n```", 0),
    ],
)
def test_what_is_too_long_is_found(text, faults):
    assert len(find_long_in_page(text)) == faults


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
