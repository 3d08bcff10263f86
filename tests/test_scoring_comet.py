"""COMET, with a stand-in for its command: what it is given, and what is refused.

The stand-in reads and writes the files that comet-score does, and scores by the number of words.
"""

import json
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch

from fairseq_ext import cli
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.corpus_scorers import _find_version

RAW = {
    "src.de": ["Ein Hund.", "Ein Hund schläft."],
    "ref.en": ["A dog.", "A dog sleeps."],
    "out.txt": ["A dog.", "One dog sleeps there."],
}

STAND_IN = """#!{python}
import argparse, json, os, sys
parser = argparse.ArgumentParser()
for flag in ("-s", "-t", "-r", "--to_json", "--model", "--gpus"):
    parser.add_argument(flag, required=True)
parser.add_argument("--quiet", action="store_true")
args = parser.parse_args()
if not args.model.endswith(".ckpt") and args.model != "Unbabel/wmt22-comet-da":
    raise KeyError(f"Model '{{args.model}}' not supported by COMET.")
texts = [open(path, encoding="utf-8").read().splitlines() for path in (args.s, args.t, args.r)]
samples = [dict(zip(("src", "mt", "ref"), lines)) for lines in zip(*texts)]
with open({seen!r}, "w") as file:
    json.dump({{"samples": samples, "model": args.model, "path": os.getenv("PYTHONPATH")}}, file)
for sample in samples:
    src, mt, ref = (len(text.split()) for text in sample.values())
    sample["COMET"] = src / 10 + (mt - ref) / 100
with open(args.to_json, "w") as file:
    json.dump({{args.t: samples}}, file)
"""


class Command:
    """The stand-in, and what it was given last."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "seen.json"
        script = folder / "comet-score"
        script.write_text(STAND_IN.format(python=sys.executable, seen=str(self.file)))
        script.chmod(0o755)

    @property
    def seen(self) -> dict:
        return json.loads(self.file.read_text())

    @property
    def was_run(self) -> bool:
        return self.file.exists()


@pytest.fixture
def comet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in RAW.items():
        content = "".join(f"{line}\n" for line in lines)
        (tmp_path / name).write_text(content, encoding="utf-8", newline="\n")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return Command(tmp_path / "bin")


def run(capsys, *options: str) -> dict:
    cli.main(["score", *options, "--metrics", "comet", "--json"])
    return json.loads(capsys.readouterr().out)


PLAIN = ["out.txt", "--reference", "ref.en", "--source", "src.de"]


def test_it_gets_raw_text_and_reports_the_mean(comet, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "ours")
    found = run(capsys, *PLAIN)
    samples = [{"src": s, "mt": m, "ref": r} for s, r, m in zip(*RAW.values(), strict=True)]
    assert comet.seen == {"samples": samples, "model": "Unbabel/wmt22-comet-da", "path": None}
    # .2 and .3 + .01
    assert found["outputs"][0]["scores"] == {"COMET": pytest.approx(25.5)}
    signature = found["signatures"]["COMET"]
    assert "model:Unbabel/wmt22-comet-da" in signature and "scale:100|version:unknown" in signature
    assert not any("†" in note for note in found["notes"])


def test_the_version_is_that_of_its_environment(comet, capsys, tmp_path):
    """The command's first line names the interpreter."""
    (tmp_path / "python").write_text('#!/bin/sh\n[ "$1" = -c ] && echo 2.2.7\n')
    (tmp_path / "python").chmod(0o755)
    script = tmp_path / "bin" / "comet-score"
    body = script.read_text().partition("\n")[2]
    (tmp_path / "score.py").write_text(body)
    script.write_text(f"#!{tmp_path}/python\n")
    (tmp_path / "python").write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && echo 2.2.7 && exit\nshift; '
        f'exec {sys.executable} {tmp_path}/score.py "$@"\n'
    )
    assert run(capsys, *PLAIN)["signatures"]["COMET"].endswith("|version:2.2.7")
    script.write_bytes(b"\x7fELF\n")
    assert _find_version(str(script)) == "unknown"


def test_intervals(comet, capsys):
    found = run(capsys, *PLAIN, "--confidence")
    assert found["outputs"][0]["intervals"]["COMET"] == pytest.approx([20, 31])


def test_source_lines_of_the_output(comet, capsys, tmp_path):
    """Put together again, and marked: they are no raw text."""
    rows = ["S-1\tein hund schläft .", "S-0\tein hund .", "T-0\ta dog ."]
    rows += ["T-1\ta dog sleeps .", "H-0\t-1\ta dog .", "H-1\t-1\tdogs ."]
    (tmp_path / "generated").write_text("\n".join(rows) + "\n", encoding="utf-8")
    for options in ([], ["--reference", "ref.en"]):
        found = run(capsys, "generated", *options)
        assert [sample["src"] for sample in comet.seen["samples"]] == [
            "ein hund.",
            "ein hund schläft.",
        ]
        assert any(note.startswith("COMET†") for note in found["notes"])
    found = run(capsys, "generated", "--reference", "ref.en", "--source", "src.de")
    assert [sample["src"] for sample in comet.seen["samples"]] == RAW["src.de"]
    assert any(note.startswith("COMET:") for note in found["notes"])
    for bad in ("S-0\tein <unk> .", "S-0\tein hu@@ nd .", "X"):
        (tmp_path / "generated").write_text("\n".join([rows[0], bad, *rows[2:]]) + "\n")
        with pytest.raises(UsageError, match="--source"):
            run(capsys, "generated")


def test_a_checkpoint_of_ones_own(comet, capsys, tmp_path):
    torch.save({"state_dict": {}}, "mine.ckpt")
    found = run(capsys, *PLAIN, "--comet-model", "mine.ckpt")
    assert comet.seen["model"] == str(tmp_path / "mine.ckpt")
    assert "model:mine.ckpt" in found["signatures"]["COMET"]


class Runs:
    def __reduce__(self):
        return print, ("it ran",)


def test_a_checkpoint_that_could_run_code_is_not_loaded(comet, capsys):
    options = [*PLAIN, "--comet-model", "mine.ckpt"]
    torch.save({"state_dict": {}, "hyper_parameters": Runs()}, "mine.ckpt")
    with pytest.raises(UsageError, match="could run code"):
        run(capsys, *options)
    assert not comet.was_run and "it ran" not in capsys.readouterr().out
    Path("mine.ckpt").write_bytes(pickle.dumps({}))
    with pytest.raises(UsageError, match="cannot be read as a PyTorch file"):
        run(capsys, *options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--comet-model", "none.ckpt"], "none.ckpt, and there is no such file"),
        (["--comet-model", "Unbabel/none"], "Model 'Unbabel/none' not supported by COMET"),
        (["--source", "short.de"], "2 translations and the source 1 sentences"),
        (["--source", "none.de"], "none.de"),
        (["--source", "split.de"], "--remove-bpe"),
    ],
)
def test_refusals(comet, capsys, tmp_path, options, said):
    (tmp_path / "short.de").write_text("Ein Hund.\n")
    (tmp_path / "split.de").write_text("Ein Hu@@ nd.\nx\n")
    with pytest.raises(UsageError) as refusal:
        run(capsys, *PLAIN, *options)
    assert said in str(refusal.value) and not comet.was_run


def test_without_the_command(comet, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="pipx install unbabel-comet") as refusal:
        run(capsys, *PLAIN)
    assert "an environment of its own" in str(refusal.value)
    with pytest.raises(UsageError, match="give them with --source"):
        run(capsys, *PLAIN[:3])
