"""COMET, with a stand-in for its package: what it is given, and what is refused.

The package is neither a dependency nor downloaded; the stand-in has the two functions and the
method that are used, and scores by the number of words.
"""

import json
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from fairseq_ext import cli
from fairseq_ext.errors import UsageError

RAW = {
    "src.de": ["Ein Hund.", "Ein Hund schläft."],
    "ref.en": ["A dog.", "A dog sleeps."],
    "out.txt": ["A dog.", "One dog sleeps there."],
}


def score(sample: dict[str, str]) -> float:
    sizes = [len(sample[key].split()) for key in ("src", "mt", "ref")]
    return sizes[0] / 10 + (sizes[1] - sizes[2]) / 100


class Model:
    seen: list[dict[str, str]]

    def predict(self, samples, batch_size, gpus):
        Model.seen = samples
        scores = list(map(score, samples))
        return SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


@pytest.fixture
def comet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in RAW.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "hub").mkdir()
    torch.save({"state_dict": {"weight": torch.ones(3)}}, tmp_path / "hub" / "model.ckpt")
    loaded = []

    def download_model(name: str) -> str:
        if name != "Unbabel/wmt22-comet-da":
            raise KeyError(f"Model '{name}' not supported by COMET.")
        return str(tmp_path / "hub" / "model.ckpt")

    def load_from_checkpoint(path: str) -> Model:
        loaded.append(path)
        return Model()

    fake = ModuleType("comet")
    fake.download_model, fake.load_from_checkpoint = download_model, load_from_checkpoint
    monkeypatch.setitem(sys.modules, "comet", fake)
    return loaded


def run(capsys, *options: str) -> dict:
    cli.main(["score", *options, "--metrics", "comet", "--json"])
    return json.loads(capsys.readouterr().out)


PLAIN = ["out.txt", "--reference", "ref.en", "--source", "src.de"]


def test_it_gets_raw_text_and_reports_the_mean(comet, capsys):
    found = run(capsys, *PLAIN)
    assert Model.seen == [
        {"src": s, "mt": m, "ref": r} for s, r, m in zip(*RAW.values(), strict=True)
    ]
    # .2 and .3 + .01
    assert found["outputs"][0]["scores"] == {"COMET": pytest.approx(25.5)}
    signature = found["signatures"]["COMET"]
    assert "model:Unbabel/wmt22-comet-da" in signature and "scale:100" in signature
    assert not any("†" in note for note in found["notes"])


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
        assert [sample["src"] for sample in Model.seen] == ["ein hund.", "ein hund schläft."]
        assert any(note.startswith("COMET†") for note in found["notes"])
    found = run(capsys, "generated", "--reference", "ref.en", "--source", "src.de")
    assert [sample["src"] for sample in Model.seen] == RAW["src.de"]
    assert any(note.startswith("COMET:") for note in found["notes"])
    for bad in ("S-0\tein <unk> .", "S-0\tein hu@@ nd .", "X"):
        (tmp_path / "generated").write_text("\n".join([rows[0], bad, *rows[2:]]) + "\n")
        with pytest.raises(UsageError, match="--source"):
            run(capsys, "generated")


def test_a_checkpoint_of_ones_own(comet, capsys, tmp_path):
    torch.save({"state_dict": {}}, "mine.ckpt")
    found = run(capsys, *PLAIN, "--comet-model", "mine.ckpt")
    assert comet == ["mine.ckpt"] and "model:mine.ckpt" in found["signatures"]["COMET"]


class Runs:
    def __reduce__(self):
        return print, ("it ran",)


@pytest.mark.parametrize("where", ["mine.ckpt", "hub/model.ckpt"])
def test_a_checkpoint_that_could_run_code_is_not_loaded(comet, capsys, where):
    torch.save({"state_dict": {}, "hyper_parameters": Runs()}, where)
    options = ["--comet-model", where] if where == "mine.ckpt" else []
    with pytest.raises(UsageError, match="could run code"):
        run(capsys, *PLAIN, *options)
    assert not comet and "it ran" not in capsys.readouterr().out
    Path(where).write_bytes(pickle.dumps({}))
    with pytest.raises(UsageError, match="cannot be read as a PyTorch file"):
        run(capsys, *PLAIN, *options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--comet-model", "none.ckpt"], "none.ckpt, and there is no such file"),
        (["--comet-model", "Unbabel/none"], "not known to COMET or cannot be downloaded"),
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
    assert said in str(refusal.value) and not comet


def test_without_the_package(comet, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "comet", None)
    with pytest.raises(UsageError, match="pip install unbabel-comet"):
        run(capsys, *PLAIN)
    with pytest.raises(UsageError, match="give them with --source"):
        run(capsys, *PLAIN[:3])
