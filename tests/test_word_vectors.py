"""Embeddings that begin as word vectors: files that are read or refused, and which trainings."""

import gzip
import logging

import numpy as np
import pytest
import torch
from conftest import PLUGIN, fairseq
from fairseq import utils
from fairseq.data import Dictionary
from labelled import (
    CLASSIFY,
    ORDERED,
    WORDS,
    build,
    build_model,
    task_on,
    write_encoder,
    write_examples,
    write_vocabulary,
)
from saved_state import save_state
from torch import nn

from fairseq_ext.cli import main
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange import hf_format
from fairseq_ext.interchange.export_vectors import project
from fairseq_ext.models.word_vectors import read_vectors
from fairseq_ext.prepare import byte_bpe

NUMBERS = {"the": 4, "cat": 5, ". . .": 6, "at name@x.org": 7, "<unk>": 3}
SIZES = {"encoder_layers": 1, "encoder_ffn_embed_dim": 8, "encoder_attention_heads": 2}
FIRST = "one 1 2 3\n"


def vectors(path, text):
    path.write_text(text, "utf-8")
    return path


def found(path, width=3):
    return {
        number: values.tolist() for number, values in read_vectors(path, NUMBERS, width).items()
    }


def test_words_of_glove(tmp_path):
    """Some of its words have spaces in them; a word's first vector counts."""
    text = "the 1 2 3\ndog 4 5 6\ncat -1 .5 2e-1 \nat name@x.org 7 8 9\nthe 0 0 0\n. . . 1 1 2\n"
    path = vectors(tmp_path / "glove.txt", text)
    cat = pytest.approx([-1, 0.5, 0.2])
    assert found(path) == {4: [1, 2, 3], 5: cat, 7: [7, 8, 9], 6: [1, 1, 2]}
    with gzip.open(tmp_path / "glove.txt.gz", "wt") as packed:
        packed.write(text)
    assert found(tmp_path / "glove.txt.gz") == found(path)


def test_the_first_line_of_word2vec(tmp_path):
    assert found(vectors(tmp_path / "a.vec", "2 3\nthe 1 2 3\ncat 4 5 6\n")) == {
        4: [1, 2, 3],
        5: [4, 5, 6],
    }


def test_words_that_are_parted_by_no_line(tmp_path):
    """U+0085 and no-break space are of words (glove.840B has them)."""
    path = vectors(tmp_path / "a", f"{FIRST}\x85 1 2 3\n\xa0the 4 5 6\nthe 7 8 9\n")
    assert found(path) == {4: [7, 8, 9]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{FIRST}the 1 2\n", r"a:2 has 2 fields after the word and the first line 3; correct"),
        (f"{FIRST}the 1 2 3 4\n", r"a:2 has 4 fields after the word and the first line 3"),
        (f"{FIRST}\nthe 1 2 3\n", r"a:2 has 0 fields"),
        (f"{FIRST}the 1 2 3,5\n", r"a:2 has '3,5' in the place of a number"),
        (f"{FIRST}the 1 nan 3\n", r"a:2 has 'nan' in the place of a number"),
        ("the 1 2\n", r"a:1 has vectors of 2 numbers and --encoder-embed-dim is 3; give vectors"),
        ("9 300\nthe 1 2 3\n", r"a:1 has vectors of 300 numbers and --encoder-embed-dim is 3"),
    ],
)
def test_lines_that_are_refused(tmp_path, text, says):
    with pytest.raises(UsageError, match=says):
        found(vectors(tmp_path / "a", text))


# Vectors of an encoder.


@pytest.fixture
def encoder(tmp_path):
    """A vocabulary in a folder, and an encoder's embeddings of it."""
    weight = torch.randn(4 + len(WORDS) + 1, 5, generator=torch.Generator().manual_seed(1))
    folder = write_vocabulary(tmp_path / "encoder")
    return save_state(folder / "model.pt", {}, {hf_format.TOKENS: weight}), weight


def export(encoder, words, out, *arguments):
    out.with_suffix(".dict").write_text("".join(f"{word} 1\n" for word in words))
    given = ["--words", str(out.with_suffix(".dict")), "--out", str(out), *arguments]
    main(["export-vectors", str(encoder), *given])


def test_embeddings_of_an_encoder_are_word_vectors(encoder, tmp_path, capsys):
    """Words that its tokeniser leaves in one piece are written."""
    path, weight = encoder
    export(path, ["cat", "cats", "The", "zebra", "!"], tmp_path / "out.txt")
    assert f"{tmp_path}/out.txt has vectors of 5 numbers for 3 of 5 words (60.0%)" in (
        capsys.readouterr().out
    )
    found = read_vectors(tmp_path / "out.txt", {"cat": 0, "The": 1, "!": 2}, 5)
    for number, word in enumerate(("cat", "the", "!")):
        expected = weight[4 + WORDS.index(word)]
        torch.testing.assert_close(torch.from_numpy(found[number]), expected)


def test_vectors_of_a_dictionary_from_a_larger_file(tmp_path, capsys):
    """As they are, or projected as those of an encoder are."""
    rows = np.random.default_rng(1).normal(size=(4, 3)).round(3)
    words = ["the", "dog", "cat", "sat"]
    text = "".join(f"{w} {' '.join(map(str, row))}\n" for w, row in zip(words, rows, strict=True))
    known, numbers = [0, 2, 3], {"the": 0, "cat": 1, "sat": 2}
    for name, header in (("glove.txt", ""), ("word2vec.vec", "4 3\n")):
        path, out = vectors(tmp_path / name, header + text), tmp_path / "out.txt"
        export(path, ["cat", "the", "zebra", "sat"], out)
        assert f"{out} has vectors of 3 numbers for 3 of 4 words (75.0%)" in capsys.readouterr().out
        found = read_vectors(out, numbers, 3)
        np.testing.assert_allclose([found[n] for n in range(3)], rows[known], rtol=1e-5)
        export(path, ["cat", "the", "zebra", "sat"], out, "--width", "2")
        found = read_vectors(out, numbers, 2)
        expected = project(rows[known].astype(np.float32), 2)
        np.testing.assert_allclose([found[n] for n in range(3)], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "glove.txt:1 has no vector"),
        ("the\n", "glove.txt:1 has no vector"),
        ("dog 1 2\n", "glove.txt has none of the 1 words of --words; give vectors of such"),
        ("dog 1 2\ncat 1 2 3\n", "glove.txt:2 has 3 fields after the word"),
        (None, "glove.txt is not there; give a file of word vectors"),
    ],
)
def test_files_without_such_vectors(text, says, tmp_path):
    path = tmp_path / "glove.txt"
    if text is not None:
        vectors(path, text)
    with pytest.raises(UsageError, match=says):
        export(path, ["cat"], tmp_path / "out.txt")
    assert not (tmp_path / "out.txt").exists()


@pytest.mark.parametrize("header", ["", "3 2\n"])
def test_fairseq_s_readers_lose_no_word(header, tmp_path):
    """The first line is a header, or a word; a word may have spaces in it."""
    path = vectors(tmp_path / "glove.txt", f"{header}cat 1 2\n. . 3 4\n</s> 5 6\n")
    found = utils.parse_embedding(str(path))
    assert {w: v.tolist() for w, v in found.items()} == {
        "cat": [1, 2],
        ". .": [3, 4],
        "</s>": [5, 6],
    }
    words = Dictionary()
    words.add_symbol("cat")
    embedding = utils.load_embedding(found, words, nn.Embedding(len(words), 2))
    assert embedding.weight[[words.index("cat"), words.eos()]].tolist() == [[1, 2], [5, 6]]
    with pytest.raises(UsageError, match="glove.txt has vectors of 2 numbers and the embeddings 3"):
        utils.load_embedding(found, words, nn.Embedding(len(words), 3))
    other = utils.parse_embedding(str(vectors(tmp_path / "other.txt", "dog 1 2\n")))
    with pytest.raises(UsageError, match="other.txt has none of the 5 symbols of the dictionary"):
        utils.load_embedding(other, words, nn.Embedding(len(words), 2))


@pytest.mark.parametrize("out", ["", "none/out.txt"])
def test_files_that_cannot_be_written_are_refused_before_anything_is_read(tmp_path, out):
    given = [str(tmp_path / "none.pt"), "--words", str(tmp_path / "none"), "--out"]
    place = tmp_path / out
    with pytest.raises(UsageError, match=f"^--out is {place}, which cannot be a file; give one in"):
        main(["export-vectors", *given, str(place)])


def test_projection_keeps_the_largest_variance():
    """The same inner products as by eigenvectors of the covariance, the twin."""
    vectors = np.random.default_rng(1).normal(size=(30, 6)) * [5, 4, 3, 0.3, 0.2, 0.1]
    projected = project(vectors, 3)
    centred = vectors - vectors.mean(0)
    values, directions = np.linalg.eigh(np.cov(vectors.T))
    expected = centred @ directions[:, values.argsort()[-3:]]
    np.testing.assert_allclose(projected @ projected.T, expected @ expected.T)


@pytest.mark.parametrize(
    ("words", "arguments", "says"),
    [
        (["zebra"], [], "has none of the 1 words of --words in one piece; give the dict.txt"),
        (["cat", "the"], ["--width", "3"], "--width is 3, and 2 vectors of 5 numbers have 2 comp"),
        (["cat", "the"], ["--width", "0"], "--width is 0"),
    ],
)
def test_encoders_without_such_words(words, arguments, says, encoder, tmp_path):
    with pytest.raises(UsageError, match=says):
        export(encoder[0], words, tmp_path / "out.txt", *arguments)
    assert not (tmp_path / "out.txt").exists()


def test_no_file_of_words_and_no_folder_for_vectors(encoder, tmp_path):
    with pytest.raises(
        UsageError, match="--out is .*, which cannot be a file; give one in a folder"
    ):
        export(encoder[0], ["cat"], tmp_path, "--out", str(tmp_path / "x" / "out.txt"))
    with pytest.raises(
        UsageError, match="--words is .*nowhere, which is not there; give a dict.txt"
    ):
        export(encoder[0], ["cat"], tmp_path / "out.txt", "--words", str(tmp_path / "nowhere"))


def test_not_an_encoder(tmp_path):
    model = save_state(tmp_path / "model.pt", {}, {"decoder.weight": torch.zeros(1)})
    with pytest.raises(UsageError, match=r"model\.pt has no encoder\..*embed_tokens\.weight; give"):
        export(model, ["cat"], tmp_path / "out.txt")


# Models.


def embeddings(task, arch, **options):
    sizes = SIZES if arch.startswith("roberta") else {}
    model = build_model(task, arch, **sizes, **options)
    (found,) = (x for name, x in model.named_parameters() if name.endswith("embed_tokens.weight"))
    return found.detach()


@pytest.mark.parametrize("arch", ["sentence_cnn", "sentence_bilstm", "roberta_una"])
def test_embeddings_begin_with_vectors(tmp_path, arch, caplog):
    """Words without one, and special symbols, begin as they would have."""
    name, own = "sentence_classification", {"tokens_per_sample": 9, "pooling": "max"}
    plain = embeddings(task_on(name, tmp_path, ORDERED, **own), arch)
    lines = [f"{w} {' '.join(map(str, range(i, i + 12)))}\n" for i, w in enumerate(("cat", "ran"))]
    path = vectors(tmp_path / "glove.txt", "".join(lines) + f"<pad>{' 9' * 12}\n")
    caplog.set_level(logging.INFO)
    task = task_on(
        name,
        tmp_path,
        ORDERED,
        word_vectors=str(path),
        save_dir=str(tmp_path),
        restore_file="checkpoint_last.pt",
        **own,
    )
    begun, index = embeddings(task, arch), task.source_dictionary.index
    assert begun[index("cat")].tolist() == list(range(12))
    assert begun[index("ran")].tolist() == list(range(1, 13))
    others = [n for n in range(len(plain)) if n not in (index("cat"), index("ran"))]
    assert begun[others].equal(plain[others]) and not begun[task.source_dictionary.pad()].any()
    assert f"{path}: 2 of {len(WORDS) + 1} words (15.4%) begin with their vectors" in caplog.text


def test_none_of_the_words(tmp_path):
    path = vectors(tmp_path / "glove.txt", f"elephant{' 1' * 12}\n")
    given = {"word_vectors": str(path), "save_dir": "", "restore_file": "checkpoint_last.pt"}
    task = task_on("sentence_classification", tmp_path, ORDERED, **given)
    with pytest.raises(UsageError, match=r"has none of the 13 words of the dictionary \(the, a, "):
        build_model(task, "sentence_cnn")


def test_rare_words_need_vectors(tmp_path, caplog):
    """Words that occur once are learned by heart, and more so if a head looks at them alone."""
    write_vocabulary(write_examples(tmp_path / "train.jsonl", ORDERED).parent)
    (tmp_path / "dict.txt").write_text("".join(f"{word} {n}\n" for n, word in enumerate(WORDS)))
    task = build("sentence_classification", tmp_path, tokens_per_sample=9)
    rare = {"encoder_roles": "rare", **SIZES}
    model = build_model(task, "roberta_roles", **rare, role_rare_min_count=2)
    assert model.encoder.sentence_encoder.symbols.least == 2
    other = rare | {"encoder_roles": "separator"}
    build_model(task, "roberta_roles", **other)
    with pytest.raises(UsageError, match="--role-rare-min-count 2 has no effect, since --enc"):
        build_model(task, "roberta_roles", **other, role_rare_min_count=2)
    assert not caplog.records
    build_model(task, "roberta_roles", **rare)
    assert "--encoder-roles has rare and embeddings begin at random" in caplog.text


def test_not_beside_a_trained_encoder(tmp_path):
    encoder = write_encoder(tmp_path / "encoder.pt")
    with pytest.raises(UsageError, match="--word-vectors glove.txt is for an encoder trained from"):
        own = {"word_vectors": "glove.txt", "pretrained": encoder}
        task_on("sentence_classification", tmp_path, ORDERED, **own)


def test_not_for_pieces_that_are_numbers(tmp_path):
    """As those of GPT-2's BPE are in fairseq's dictionary."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text/train").write_text("cat cat sat\n")
    byte_bpe.prepare(tmp_path / "text", tmp_path / "data/bpe", tmp_path / "data", 257)
    write_examples(tmp_path / "data/train.jsonl", ORDERED)
    with pytest.raises(UsageError, match="need a dictionary of words, and that of --vocabulary"):
        build("sentence_classification", tmp_path / "data", word_vectors="glove.txt")


def test_training_goes_on_without_the_file(tmp_path):
    """Whose vectors it began with; what it learned since is kept."""
    data = write_vocabulary(tmp_path / "data")
    for split in ("train", "valid"):
        write_examples(data / f"{split}.jsonl", ORDERED)
    path = vectors(tmp_path / "glove.txt", f"cat{' 5' * 12}\n")
    given = [data, "--user-dir", PLUGIN, *CLASSIFY, "--arch", "sentence_cnn"]
    given += ["--word-vectors", path]
    given += ["--encoder-embed-dim", 12, "--save-dir", tmp_path / "run", "--disable-validation"]

    def cat(updates):
        done = fairseq("train", *given, "--max-update", updates)
        state = torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=False)
        vector = state["model"]["encoder.embed_tokens.weight"][4 + WORDS.index("cat")]
        return done.stdout + done.stderr, vector

    said, first = cat(2)
    assert "1 of 13 words" in said
    assert (first - 5).abs().max() < 0.1 and (first != 5).any()
    path.unlink()
    said, later = cat(4)
    assert "begin with their vectors" not in said
    assert (later - first).abs().max() < 0.1 and (later != first).any()
