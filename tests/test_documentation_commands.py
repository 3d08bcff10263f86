"""Each block of commands in README and docs: run in a clean checkout, or said why not.

A comment before a block decides: <!-- run -->, <!-- not run: REASON -->, or <!-- file: PATH -->,
which commands after it read. Trainings are shrunk by SHRUNK. README comes first, since other pages
go on with the data and the model that it makes.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import warm
from conftest import ROOT, train_encoder
from repository import copy_repository

from fairseq_ext.cli import main
from fairseq_ext.prepare.toy.corpus import corpus

BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.M | re.S
)
KINDS = ("bash", "python")
FILE = "file: "
RECORD = "<!-- commands of this page are not run: "
COMMAND = re.compile(r"^ {4}(bash |fairseq-|python |pip )", re.M)

SHRUNK = {
    r"(--(?:max-update|total-num-update|updates)) \d+": r"\1 2",
    r"--warmup-updates \d+": "--warmup-updates 1",
    r"--max-tokens \d+": "--max-tokens 500",
    r"--tokens-per-sample \d+": "--tokens-per-sample 64",
    r"--merges \d+": "--merges 200",
    r"--vocabulary \d+": "--vocabulary 400",
    r"--every \d+": "--every 10",
    r"--test-last \d+": "--test-last 20",
    r"--vocab-size \d+": "--vocab-size 200",
    r"--arch (transformer_[a-z]+)(?=\s)": r"--arch \1_tiny",
    r"--arch (transformer_lm_[a-z]+)(?=\s)": r"--arch \1_tiny",
    r"--arch (roberta_una)_12": r"--arch \1_tiny",
    r"--arch (deberta_una)_small": r"--arch \1_tiny",
    r"--limit \d+": "--limit 3",
    r"(fairseq-train )": r"\1--num-workers 0 ",
    r"--seeds 1 2 3": "--seeds 1 2",
    r"--beam 5": "--beam 2 --max-len-b 10",
}


class Block(NamedTuple):
    page: str
    mark: str | None
    kind: str
    code: str


def find_blocks(page: Path) -> list[Block]:
    text, name = page.read_text("utf-8"), str(page.relative_to(ROOT))
    found = [Block(name, *each.group("mark", "kind", "code")) for each in BLOCK.finditer(text)]
    return [block for block in found if block.kind in KINDS]


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {str(page.relative_to(ROOT)): find_blocks(page) for page in PAGES}
RUN = [page for page, blocks in BLOCKS.items() if any(block.mark == "run" for block in blocks)]


def test_every_block_is_run_or_says_why_not():
    for page in PAGES:
        text = page.read_text("utf-8")
        if RECORD in text:
            continue
        for block in BLOCKS[str(page.relative_to(ROOT))]:
            reason = (block.mark or "").removeprefix("not run: ")
            written = (block.mark or "").startswith(FILE)
            assert block.mark == "run" or written or len(reason.split()) > 2, block
        outside = BLOCK.sub("", text)
        assert page.name == "architecture.md" or not COMMAND.findall(outside), page


@pytest.fixture(scope="module")
def checkout(encoder_data, tmp_path_factory) -> Path:
    """A clean checkout with text of a user's own, after the commands of the README."""
    folder = copy_repository(tmp_path_factory.mktemp("door") / "checkout")
    pairs = corpus()["train"][:300]
    for side, language in enumerate(("en", "de")):
        lines = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / "corpus").mkdir(exist_ok=True)
        (folder / "corpus" / f"my.{language}").write_text(lines, "utf-8")
    texts = folder / "path" / "to" / "texts"
    texts.mkdir(parents=True)
    for number in range(6):
        lines = "".join(f"{english}\n" for english, _ in pairs[50 * number :][:50])
        (texts / f"{number}.txt").write_text(lines, "utf-8")
    encoder = train_encoder(encoder_data, "roberta_una_tiny", folder / "path" / "encoder")
    main(["export-hf", str(encoder), str(folder / "path" / "to" / "bert-base-uncased")])
    run_page("README.md", folder)
    main(["import-hf", f"{folder}/path/to/bert-base-uncased", f"{folder}/encoders/bert"])
    return folder


def shrink(code: str) -> str:
    for long, short in SHRUNK.items():
        code = re.sub(long, short, code)
    return code


def run_page(page: str, folder: Path) -> str:
    """Run the blocks of a page, and return what they print."""
    settings = {
        "PATH": f"{warm.activate()}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "FAIRSEQ_EXT_SKIP_INSTALL": "1",
        "FAIRSEQ_EXT_CORPORA": str(folder / "tests" / "fixtures" / "corpora"),
        "OMP_NUM_THREADS": "1",
    }
    said = ""
    for block in BLOCKS[page]:
        if (block.mark or "").startswith(FILE):
            path = folder / block.mark.removeprefix(FILE)
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.code, "utf-8")
        if block.mark == "run":
            program = (
                ["bash", "-euo", "pipefail", "-c"] if block.kind == "bash" else ["python", "-c"]
            )
            done = subprocess.run(
                [*program, shrink(block.code)],
                cwd=folder,
                env=os.environ | settings,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                pytest.fail(f"{block.code}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
            said += done.stdout
    return said


@pytest.mark.slow
def test_the_readme_ends_with_a_score_and_a_translation(checkout):
    """Its commands are run to make the checkout; here is what they left."""
    for made in ("data-bin/mine/sentencepiece.model", "checkpoints/mine/checkpoint_last.pt"):
        assert (checkout / made).stat().st_size
    assert (checkout / "checkpoints/mine/generate-test.txt").read_text().count("\nD-") == 20
    log = (checkout / "checkpoints/mine/train.log").read_text()
    assert "done training" in log


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in RUN if page != "README.md"])
def test_commands_of_a_page(checkout, page, tmp_path):
    folder = tmp_path / "checkout"
    shutil.copytree(checkout, folder, symlinks=True)
    if page == "docs/finetuning.md":
        shutil.rmtree(folder / "encoders")  # which it imports itself
    run_page(page, folder)
