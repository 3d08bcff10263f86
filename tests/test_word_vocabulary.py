"""Vocabularies of words for training from scratch: what is counted, kept and unknown."""

import json

import pytest
from conftest import ROOT
from labelled import WORDS, build, write_examples, write_vocabulary
from shell import assert_refused, bash

from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.prepare.word_vocabulary import write_vocabulary as write

FIXTURES = ROOT / "tests/fixtures/corpora"
TOKENISED = [
    "The cat did n't sit , did it ?",
    "U.S. cats 'd sit\u00a03.5 times .",
    "",
    "so-so",
]
RAW = ["It didn't sit, did it?", "No: (cats) sit."]


def folder_of(path, texts):
    path.mkdir(parents=True, exist_ok=True)
    examples = [{"text": text, "label": str(n % 2)} for n, text in enumerate(texts)]
    write_examples(path / "train.jsonl", examples)
    return path


def dictionary(folder):
    return [line.split(" ") for line in (folder / "dict.txt").read_text("utf-8").split("\n")[:-1]]


def encoded(folder, text):
    vocabulary = Vocabulary.load(folder)
    (pieces,) = vocabulary.encode([text])
    return [vocabulary.dictionary[number] for number in pieces.numbers]


def test_words_of_tokenised_text(tmp_path):
    """Are parted by white space of any kind; in the order of their counts, then of letters."""
    words = write(folder_of(tmp_path, TOKENISED))
    expected = "did:2 sit:2 'd:1 ,:1 .:1 3.5:1 ?:1 cat:1 cats:1 it:1 n't:1 so-so:1 the:1"
    expected += " times:1 u.s.:1 <mask>:0"
    assert [":".join(entry) for entry in dictionary(tmp_path)] == expected.split()
    assert words.total() == 17 and len(words) == 15
    assert encoded(tmp_path, "THE dog\tsat 3.5 Cats.") == "the <unk> <unk> 3.5 <unk>".split()


def test_words_of_raw_text(tmp_path):
    write(folder_of(tmp_path, RAW))
    assert {"didn": "1", "'": "1", "t": "1", ",": "1", "cats": "1"}.items() <= dict(
        dictionary(tmp_path)
    ).items()
    assert encoded(tmp_path, "cats, it?") == "cats , it ?".split()


def test_the_most_frequent_are_kept(tmp_path):
    assert list(write(folder_of(tmp_path, TOKENISED), 4)) == ["did", "sit", "'d", ","]
    assert encoded(tmp_path, "did , .") == ["did", ",", "<unk>"]


def test_what_looks_special_is_unknown(tmp_path):
    write(folder_of(tmp_path, ["a <pad> </s> b", "<mask> a"]))
    assert dictionary(tmp_path) == [["a", "2"], ["b", "1"], ["<mask>", "0"]]
    assert encoded(tmp_path, "a <mask> </s> b") == ["a", "<unk>", "<unk>", "b"]


@pytest.mark.parametrize(
    "example",
    [
        {"text": "one two", "pair": "three"},
        {"text": "one", "question": "two", "choices": ["three", "one"], "label": 0},
        {"words": ["one", "two", "three"], "tags": ["four", "O", "O"]},
        {"id": "four", "text": "one two three", "answers": [{"text": "four", "start": 0}]},
    ],
)
def test_text_of_all_tasks(tmp_path, example):
    write_examples(tmp_path / "train.jsonl", [example])
    assert set(write(tmp_path)) == {"one", "two", "three"}


def test_counts_stay_with_a_checkpoint(tmp_path):
    write(folder_of(tmp_path, TOKENISED))
    state = build("sentence_classification", tmp_path).state_dict()
    again = build("sentence_classification", tmp_path / "gone", begun=False)
    again.load_state_dict(json.loads(json.dumps(state)))
    words = again.source_dictionary
    assert words.count[words.index("did")] == 2 and words.count[words.index("times")] == 1
    assert words.count == Vocabulary.load(tmp_path).dictionary.count


def test_other_counts_are_another_vocabulary(tmp_path):
    """As roles see it."""
    write(folder_of(tmp_path, TOKENISED))
    task = build("sentence_classification", tmp_path)
    text = (tmp_path / "dict.txt").read_text("utf-8").replace("did 2", "did 3")
    (tmp_path / "dict.txt").write_text(text, "utf-8")
    with pytest.raises(UsageError, match="was trained with other vocabulary than now"):
        build("sentence_classification", tmp_path).load_state_dict(task.state_dict())


def test_text_without_words(tmp_path):
    with pytest.raises(UsageError, match=r"train\.jsonl has no word; give text"):
        write(folder_of(tmp_path, ["", " "]))
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


def test_another_vocabulary_is_kept(tmp_path):
    write_vocabulary(folder_of(tmp_path, TOKENISED), WORDS)
    with pytest.raises(UsageError, match=r"dict\.txt is there already; delete it"):
        write(tmp_path)


def test_an_interrupted_vocabulary_is_completed(tmp_path):
    write_vocabulary(folder_of(tmp_path, TOKENISED), WORDS)
    before = (tmp_path / "dict.txt").read_bytes()
    (tmp_path / "dict.txt").unlink()
    with pytest.raises(UsageError, match=r"tokenizer\.json is there already; delete it"):
        write(tmp_path, 1)
    write_vocabulary(tmp_path, WORDS)
    assert (tmp_path / "dict.txt").read_bytes() == before


def test_the_recipe_without_a_training_part(tmp_path):
    (tmp_path / "final").mkdir()
    (tmp_path / "final/valid.jsonl").touch()
    done = bash(ROOT / "scripts/prepare_task.sh", "paws-wiki", tmp_path / "final", "--words", 3)
    assert_refused(done, "final' has no train.jsonl", "leave --words out")


@pytest.mark.recipe
def test_the_recipe(tmp_path):
    """A folder that is there without a vocabulary gets one; other words or texts are refused."""
    recipe, out = ROOT / "scripts/prepare_task.sh", tmp_path / "subj"
    assert bash(recipe, "subj", out, FAIRSEQ_EXT_CORPORA=str(FIXTURES)).returncode == 0
    assert not (out / "dict.txt").exists()
    assert_refused(bash(recipe, "mr", out, "--words", 3), "made with 'CORPUS subj'", "'CORPUS mr'")
    done = bash(recipe, "subj", out, "--words", 3)
    assert (done.returncode, done.stderr) == (0, "")
    assert "vocabulary: 3 words" in done.stdout and done.stdout.endswith(f"{out} is ready.\n")
    assert sorted(path.name for path in out.iterdir()) == [
        *("dict.txt", "manifest.json", "tokenizer.json", "train.jsonl")
    ]
    for words in ((), ("--words", 3)):
        again = bash(recipe, "subj", out, *words, FAIRSEQ_EXT_CORPORA=str(FIXTURES))
        assert again.returncode == 0 and "is there already: delete it" in again.stdout
    other = bash(recipe, "subj", out, "--words", 0, FAIRSEQ_EXT_CORPORA=str(FIXTURES))
    assert_refused(other, "made with '--words 3'", "'--words 0'")
    assert len(dictionary(out)) == 4
    assert_refused(bash(recipe, "subj", out, "--words", "few"), "--words is 'few'")
