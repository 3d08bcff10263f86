"""Raw text by SentencePiece: its pieces, and from text to a translation without another tool."""

import json
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, fairseq, train
from corpora import read_builtin, read_real
from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from fairseq.data.encoders import build_bpe
from omegaconf import OmegaConf
from shell import assert_refused, bash, run

from fairseq_ext import cli
from fairseq_ext.analysis.notebook import load
from fairseq_ext.analysis.tokens import TokenCodec
from fairseq_ext.commands.option_pairs import check_pairs
from fairseq_ext.data.fingerprints import take_fingerprints
from fairseq_ext.data.tokenisers import SENTENCEPIECE, load_sentencepiece
from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines, write_lines
from fairseq_ext.prepare import manifest, sentencepiece

LINES = {language: read_builtin("train", language)[:200] for language in ("en", "de")}


def prepare(folder, *flags):
    text, files = folder / "text", (SENTENCEPIECE, "pieces", "srcdict")
    sentencepiece.main([str(text), *(str(folder / name) for name in files), *flags])
    return {path.name: [*read_lines(path)] for path in sorted((folder / "pieces").iterdir())}


@pytest.fixture
def folder(tmp_path):
    for language, lines in LINES.items():
        write_lines(tmp_path / "text" / f"train.{language}", map(str.rstrip, lines))
    write_lines(tmp_path / "text" / "test.en", ["Ünd \u3000a\u0085dog, (two)!", "", "☃☃ dogs"])
    return tmp_path


@pytest.mark.parametrize("kind", sentencepiece.KINDS)
def test_raw_text_comes_back(folder, kind):
    """Each piece is in the dictionary, but for characters that the training text lacks."""
    pieces = prepare(folder, "--vocab-size", "150", "--model-type", kind)
    for name in ("train.en", "train.de"):
        joined = [post_process(line, "sentencepiece") for line in pieces[name]]
        assert joined == [*read_lines(folder / "text" / name)]
    assert post_process(pieces["test.en"][0], "sentencepiece") == "Ünd a dog, (two)!"
    assert pieces["test.en"][1] == "" and pieces["test.en"][2].startswith("▁ ☃☃ ")
    known = [line.split(" ")[0] for line in read_lines(folder / "srcdict")]
    assert len(known) == 147 and not {"<unk>", "<s>", "</s>"} & {*known}
    assert {piece for line in pieces["train.en"] for piece in line.split()} <= {*known}
    counts = [int(line.split(" ")[1]) for line in read_lines(folder / "srcdict")]
    assert counts == sorted(counts, reverse=True)


def test_a_model_that_is_there_is_kept(folder):
    prepare(folder, "--vocab-size", "150")
    before = (folder / SENTENCEPIECE).read_bytes()
    prepare(folder, "--vocab-size", "99")
    assert (folder / SENTENCEPIECE).read_bytes() == before


def test_sizes_that_the_text_does_not_have(folder, caplog):
    with pytest.raises(
        UsageError, match="--vocab-size is 20, and the characters .* alone need 59;"
    ):
        prepare(folder, "--vocab-size", "20")
    assert not (folder / SENTENCEPIECE).exists()
    prepare(folder, "--vocab-size", "5000")
    size = load_sentencepiece(folder / SENTENCEPIECE).vocab_size()
    assert f"of 5000 pieces, the training text gives {size}" in caplog.text


def test_text_without_a_character(tmp_path):
    write_lines(tmp_path / "text" / "train.en", ["", " "])
    with pytest.raises(
        UsageError, match="SentencePiece learns nothing from the .*; give more text"
    ):
        prepare(tmp_path, "--vocab-size", "20")


def test_no_training_text(tmp_path):
    write_lines(tmp_path / "text" / "valid.en", ["a"])
    with pytest.raises(UsageError, match="has no train.LANGUAGE to learn pieces from; give a"):
        prepare(tmp_path, "--vocab-size", "20")


def test_a_file_that_is_no_model(tmp_path):
    (tmp_path / SENTENCEPIECE).write_text("▁a 1\n")
    with pytest.raises(UsageError, match="sentencepiece.model is no model of SentencePiece"):
        load_sentencepiece(tmp_path / SENTENCEPIECE)


def test_words_of_a_folder(folder):
    """Words alone have the pieces that they have in their sentence."""
    pieces = prepare(folder, "--vocab-size", "150")["train.en"][:50]
    words = Dictionary.load(str(folder / "srcdict"))
    task = SimpleNamespace(source_dictionary=words, args=SimpleNamespace(data=str(folder)))
    codec = TokenCodec(task, folder, translates=True)
    for sentence, line in zip(LINES["en"], pieces, strict=False):
        encoded = codec.encode(sentence.split())
        assert words.string(encoded.numbers) == line
        assert len(encoded.spans) == len(sentence.split())
    assert take_fingerprints(task)["tokeniser"].keys() == {SENTENCEPIECE}


def test_few_pairs_that_validate_are_warned_of(caplog):
    manifest.warn_of_few({"valid.de": {"lines": 50}, "train.de": {"lines": 3}})
    assert not caplog.text
    manifest.warn_of_few({"valid.de": {"lines": 49}})
    assert "valid has 49 pairs, too few to tell by their loss" in caplog.text


@pytest.mark.parametrize(
    ("name", "option", "given"),
    [
        ("sentencepiece", "sentencepiece_model", "nowhere"),
        ("sentencepiece", "sentencepiece_model", __file__),
        ("subword_nmt", "bpe_codes", "nowhere"),
    ],
)
def test_files_that_are_none_of_a_tokeniser(name, option, given):
    cfg = OmegaConf.create({"_name": name, option: given})
    flag = f"--{option.replace('_', '-')}"
    with pytest.raises(
        UsageError, match=f"^{flag} cannot be read .*; give the m.* folder of data$"
    ):
        build_bpe(cfg)


def test_pieces_are_not_joined_twice():
    """The second time all spaces would go."""
    given = {name: (f"--{name}", "sentencepiece") for name in ("bpe", "post_process")}
    with pytest.raises(UsageError, match="--bpe is sentencepiece; pieces that are joined twice"):
        check_pairs(given)
    check_pairs(given | {"bpe": ("--bpe", None)})


@pytest.mark.recipe
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--bpe sentencepiece --merges 9", "--merges does nothing with --bpe sentencepiece"),
        ("--bpe sentencepiece --lowercase", "--lowercase does nothing with --bpe sentencepiece"),
        ("--bpe sentencepiece --vocab-size 1000001", "need too much memory: give fewer"),
        ("--vocab-size 9", "are for --bpe sentencepiece: give that, too"),
        ("--bpe sentencepiece --vocab-size x", "--vocab-size is 'x' and must be a positive number"),
        ("--bpe sentencepiece --model-type word", "--model-type is 'word' and must be one of: uni"),
        ("--test a.@ --test-last 9", "--test and --test-last are two ways to one part: give one"),
        ("--test-last 0", "--test-last is '0' and must be a positive number"),
        ("--bpe moses", "--bpe is 'moses' and must be one of: fastbpe subword-nmt sentencepiece"),
    ],
)
def test_flags_of_the_recipe(tmp_path, flags, said):
    script = ROOT / "scripts/prepare_parallel.sh"
    where = ["--offline", tmp_path, *flags.split()]
    assert_refused(bash(script, "en", "de", tmp_path / "out", *where), said)


def write_corpus(folder, corpora):
    for language in ("en", "de"):
        lines = read_builtin("train", language)
        if corpora:
            lines = read_real(corpora, "train", language)
        write_lines(folder / f"my.{language}", map(str.rstrip, lines[:1000]))
    return folder


SENTENCE = "Two dogs are running, on the beach."


@pytest.mark.recipe
@pytest.mark.slow
def test_from_raw_text_to_raw_translations(corpora, tmp_path, capsys):
    """Nothing but raw text goes in, and comes out, and each command reads the folder's model."""
    data, corpus = tmp_path / "data", write_corpus(tmp_path / "corpus", corpora)
    text = ["--offline", corpus, "--train", "my.@", "--every", 40, "--test-last", 20]
    command = ["en", "de", data, *text, "--bpe", "sentencepiece", "--vocab-size", 500]
    done = run("prepare_parallel.sh", *command)
    assert "train: 1,000 pairs, of them 956 train, 24 valid, 20 test, 0 left out" in done.stdout
    assert "valid has 2" in done.stderr and "pairs, too few" in done.stderr
    script = ROOT / "scripts/prepare_parallel.sh"
    assert_refused(bash(script, *command[:-4]), "no --merges and this command has '--merges 10000'")
    about = json.loads((data / "manifest.json").read_text())
    assert {"--bpe sentencepiece", "--vocab-size 500", "--merges "} <= {*about["settings"]}
    assert SENTENCEPIECE in about["outputs"] and "sentencepiece" in about["versions"]
    reference = data / "text" / "test.de"
    assert [*read_lines(reference)] == [*read_lines(corpus / "my.de")][-20:]

    languages = ["-s", "en", "-t", "de"]
    scoring = [
        "--eval-bleu",
        "--eval-bleu-remove-bpe",
        "sentencepiece",
        "--eval-bleu-print-samples",
    ]
    scoring += ["--eval-bleu-args", '{"beam": 1, "max_len_b": 10}']
    checkpoint = train(data, "transformer_dna_tiny", tmp_path / "run", 2, *languages, *scoring)
    model = data / SENTENCEPIECE
    pieces = ["--bpe", "sentencepiece", "--sentencepiece-model", model]
    common = [*languages, "--path", checkpoint, "--beam", 2, "--max-len-b", 9, "--cpu"]
    common += ["--user-dir", ROOT / "fairseq_ext", "--num-workers", 0]
    joined = ["--remove-bpe", "sentencepiece"]
    for flags in (pieces, joined):
        said = fairseq("generate", data, *common, *flags, "--scoring", "sacrebleu").stdout
        kinds = {kind: [s for s in said.split("\n") if s.startswith(kind)] for kind in "STHD"}
        assert len(kinds["D"]) == 20 and "BLEU" in said
        assert "▁" not in "".join([*kinds["S"], *kinds["T"], *kinds["D"]])
        target = dict(line.split("\t") for line in kinds["T"])
        assert target["T-0"] == next(read_lines(reference))
    (tmp_path / "said").write_text(said, "utf-8")
    cli.main(["score", str(tmp_path / "said"), "--reference", str(reference)])
    assert "tok:13a" in capsys.readouterr().out

    write_lines(tmp_path / "new", [SENTENCE])
    said = fairseq("interactive", data, *common, *pieces, "--input", tmp_path / "new").stdout
    (translation,) = [line.split("\t")[2] for line in said.split("\n") if line.startswith("D-")]
    assert "▁" not in translation
    found = load(checkpoint, data)
    batch = found.inspector.words(SENTENCE.split()).numbers
    words = found.inspector.source
    assert words.unk() not in batch
    assert post_process(words.string(batch), "sentencepiece") == SENTENCE
    assert "▁" not in found.translate(SENTENCE) and found.translate(SENTENCE, None).count("▁")
    assert torch.is_tensor(found.attend(SENTENCE).map("encoder", 0, 0))
