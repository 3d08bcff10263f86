"""Translation with roles that need parses, through fairseq's commands."""

import shutil
import subprocess
import sys

import pytest
from conftest import PLUGIN, TASK, TRAIN, fairseq, train

ROLES = ["--encoder-roles", "dependency,major,relative"]
PARSED = ["--task", "translation_roles"]
GENERATE = ["--user-dir", PLUGIN, *TASK, "--beam", 2, "--max-tokens", 2000, "--max-len-b", 12]
VALID = ["--gen-subset", "valid"]


def conllu(lines):
    """Every word depends on the one before it; every third one is an object."""
    found = []
    for line in lines:
        for place, word in enumerate(line.split()):
            relation = "root" if not place else "obj" if place % 3 == 2 else "dep"
            found.append(f"{place + 1}\t{word}\t_\t_\t_\t_\t{place}\t{relation}\t_\t_")
        found.append("")
    return "\n".join([*found, ""])


def annotate(data, split, *flags):
    verb = [sys.executable, "-m", "fairseq_ext.cli", "annotate"]
    given = [*verb, data, "--split", split, "--lang", "de", *flags]
    return subprocess.run([*map(str, given)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def annotated(data_bin, real_lines, tmp_path_factory):
    """The data with annotations of the source."""
    folder = tmp_path_factory.mktemp("annotated")
    data = shutil.copytree(data_bin, folder / "data-bin")
    for split in ("train", "valid", "test"):
        parses = folder / f"{split}.conllu"
        parses.write_text(conllu((real_lines / f"{split}.de").read_text("utf-8").split("\n")[:-1]))
        done = annotate(data, split, "--conllu", parses)
        assert done.returncode == 0, done.stderr
    return data


@pytest.fixture(scope="module")
def checkpoint(annotated, tmp_path_factory):
    folder = tmp_path_factory.mktemp("roles")
    return train(annotated, "transformer_roles_tiny", folder, 20, *ROLES, *PARSED, "--head-gate")


def scores(done):
    return [line for line in done.stdout.split("\n") if line.startswith("H-")]


def test_masks_hold_in_generation_and_can_be_turned_off(checkpoint, annotated):
    """The model is asked about the same sentences with and without what guided it."""
    path = ["--path", checkpoint, *VALID]
    guided = scores(fairseq("generate", annotated, *GENERATE, *path, *PARSED))
    alone = scores(fairseq("generate", annotated, *GENERATE, *path, *PARSED, "--batch-size", 1))
    free = ["--model-overrides", "{'encoder_roles': 'none,none,none'}"]
    unguided = scores(fairseq("generate", annotated, *GENERATE, *path, *free))
    assert len(guided) == len(unguided) == 100
    numbers = [
        {line.split("\t")[0]: float(line.split("\t")[1]) for line in x} for x in (guided, alone)
    ]
    assert numbers[0] == pytest.approx(numbers[1], abs=2e-4)
    assert sorted(guided) != sorted(unguided)


def test_what_has_no_parse_is_refused(checkpoint, annotated, data_bin, tmp_path):
    path = ["--path", checkpoint]
    done = fairseq("generate", annotated, *GENERATE, *path, check=False)
    assert done.returncode == 1 and "--task translation_roles" in done.stderr.split("\n")[-2]
    done = fairseq("generate", data_bin, *GENERATE, *path, *PARSED, check=False)
    assert done.returncode == 1 and "test.de-en.de.annotations" in done.stderr.split("\n")[-2]
    sentences = tmp_path / "sentences"
    sentences.write_text("ein hund läuft .\n")
    typed = ["--input", sentences, *GENERATE, *path]
    done = fairseq("interactive", annotated, *typed, *PARSED, check=False)
    assert done.returncode == 1 and "typed in are not parsed" in done.stderr.split("\n")[-2]
    free = ["--model-overrides", "{'encoder_roles': 'none,none,relative'}"]
    assert len(scores(fairseq("interactive", annotated, *typed, *free))) == 1


def test_a_run_goes_on_only_with_its_roles(checkpoint, annotated):
    common = [*TRAIN, *PARSED, "--arch", "transformer_roles_tiny", "--save-dir", checkpoint.parent]
    for flags, said in [
        (["--encoder-roles", "rare", "--head-gate"], "(now rare)"),
        (ROLES, "head_gate True (now False)"),
    ]:
        done = fairseq("train", annotated, *common, "--max-update", 21, *flags, check=False)
        assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1
    done = fairseq("train", annotated, *common, "--max-update", 21, *ROLES, "--head-gate")
    assert '"encoder3_gate3": ' in done.stdout
