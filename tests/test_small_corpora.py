"""Real corpora from text to a score, shrunk: news test sets as a small WMT, parts of IWSLT 2014."""

import pytest
from cases import slow_but_first
from commands import generate, read_hypotheses
from conftest import train
from shell import run

from fairseq_ext import cli
from fairseq_ext.files import read_lines

pytestmark = pytest.mark.recipe

SIZES = {"train": 300, "valid": 40, "test": 30}
NEWS = dict(zip(SIZES, ("newstest2009", "newstest2013", "newstest2014"), strict=True))
TALKS = dict(zip(SIZES, ("train-lr", "valid", "tst2012"), strict=True))


@pytest.mark.parametrize(
    ("corpus", "source", "target", "names", "flags"),
    slow_but_first(
        [
            ("iwslt14-de-en", "de", "en", TALKS, ["--tokenised"]),
            ("newstest-en-de", "en", "de", NEWS, ["--hyphens"]),
        ]
    ),
)
def test_from_text_to_a_score(corpora, tmp_path, capsys, corpus, source, target, names, flags):
    for part, name in names.items():
        for language in (source, target):
            (path,) = (corpora / corpus).glob(f"{name}.{language}*")
            lines = [line for line, _ in zip(read_lines(path), range(SIZES[part]), strict=False)]
            text = "".join(f"{line}\n" for line in lines)
            (tmp_path / f"{part}.{language}").write_text(text, encoding="utf-8")
    data, languages = tmp_path / "data", ("-s", source, "-t", target)
    prepare = [source, target, data, "--offline", tmp_path, "--valid", "valid.@", "--merges", 300]
    run("prepare_parallel.sh", *prepare, *flags)
    checkpoint = train(data, "transformer_dna_tiny", tmp_path / "run", 4, *languages)
    said = generate(data, checkpoint, "--gen-subset", "test", "--remove-bpe", *languages)
    assert len(read_hypotheses(said)) == SIZES["test"]
    (tmp_path / "said").write_text(said, encoding="utf-8")
    reference = data / "text" / f"test.{target}"
    cli.main(["score", str(tmp_path / "said"), "--reference", str(reference), "--confidence"])
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in capsys.readouterr().out
