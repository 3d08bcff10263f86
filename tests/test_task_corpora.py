"""Published corpora to data for fine-tuning: real files, files in their formats, bad files."""

import gzip
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT
from files import write_text
from shell import assert_refused, bash

from fairseq_ext.errors import UsageError
from fairseq_ext.prepare import corpora as prepared
from fairseq_ext.prepare.corpora import CORPORA, EVERY, SPLITS, groups, main, summary
from fairseq_ext.prepare.step import clean

RECIPE = ROOT / "scripts/prepare_task.sh"
FIXTURES = ROOT / "tests/fixtures/corpora"


def load(out: Path) -> dict[str, list]:
    return {
        path.stem: [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
        for path in out.glob("*.jsonl")
    }


def made(corpus: str, folder: Path, tmp_path: Path) -> dict[str, list]:
    main([corpus, str(folder), str(tmp_path / corpus)])
    return load(tmp_path / corpus)


def counts(parts: dict[str, list]) -> dict[str, int]:
    return {part: len(examples) for part, examples in parts.items()}


def texts(examples: list, *keys: str) -> set:
    return {tuple(example[key] for key in keys) for example in examples}


# Real files.

REAL = {
    "sst-2": {"train": 67_349, "valid": 872},
    "rte": {"train": 2_490, "valid": 277},
    "mrpc": {"train": 3_667, "valid": 408},
    "qnli": {"train": 4_020, "valid": 437},
    "dream": {"train": 6_116, "valid": 2_040},
    "hellaswag": {"train": 3_614, "valid": 400},
    "wnut-17": {"train": 3_394, "valid": 1_009, "test": 1_287},
    "sst-5": {"train": 8_544, "valid": 1_101},
    "quora": {"train": 16_391, "valid": 1_821},
    "sts": {"train": 6_040, "valid": 863},
    "paws-wiki": {"valid": 1_500},
    "ewt-genre": {"train": 12_544, "valid": 2_001},
    "cr": {"train": 3_775},
    "mpqa": {"train": 10_606},
    "mr": {"train": 10_662},
    "trec": {"train": 4_909, "valid": 543, "test": 500},
    "sst-2-sentences": {"train": 6_920, "valid": 872, "test": 1_821},
    "masakhaner2-yor": {"train": 6_872, "valid": 982, "test": 1_961},
    "masakhaner2-yor-joined": {"train": 9_815},
    "masakhanews-orm": {"train": 1_128, "valid": 162, "test": 325},
}


@pytest.fixture(scope="module")
def real(corpora, tmp_path_factory) -> dict[str, dict[str, list]]:
    folder = tmp_path_factory.mktemp("real")
    return {corpus: made(corpus, corpora, folder) for corpus in REAL}


@pytest.mark.parametrize("corpus", REAL)
def test_counts_are_those_of_the_catalogue(real, corpus):
    assert counts(real[corpus]) == REAL[corpus]


@pytest.mark.parametrize(
    ("corpus", "keys"),
    [("quora", ["text", "pair"]), ("hellaswag", ["text"]), ("trec", ["text"]), ("qnli", ["text"])]
    + [("qnli", ["pair"])],
)
def test_nothing_is_in_both_parts(real, corpus, keys):
    train, valid = (texts(real[corpus][part], *keys) for part in ("train", "valid"))
    assert not train & valid
    if corpus == "quora":
        assert not {pair[::-1] for pair in train} & valid


def test_the_held_out_are_spread_evenly(real):
    for corpus in ("quora", "hellaswag", "trec", "qnli"):
        held = len(real[corpus]["valid"])
        assert held == pytest.approx((len(real[corpus]["train"]) + held) / EVERY, rel=0.03)


def test_empty_sentences_are_kept(real):
    for corpus, empty in (("cr", 4), ("mpqa", 3), ("mr", 0)):
        assert sum(not example["text"] for example in real[corpus]["train"]) == empty


def test_the_ends_of_real_texts(real):
    for corpus in ("sst-2", "sst-5", "mr"):
        assert all(e["text"] == e["text"].strip(" ") for e in real[corpus]["train"])
    assert real["mrpc"]["valid"][0] == {
        "text": "He said the foodservice pie business doesn 't fit the company 's long-term growth "
        "strategy .",
        "pair": '" The foodservice pie business does not fit our long-term growth strategy .',
        "label": "1",
    }
    quoted = [e for e in real["sts"]["train"] if e["text"].startswith('"Sobig') or '"' in e["text"]]
    assert quoted and not any('""' in example["text"] for example in quoted)


def test_sentences_of_wnut_end_at_lines_with_a_tab(real):
    examples = real["wnut-17"]["train"]
    assert sum(len(example["words"]) for example in examples) == 62_730
    assert all(len(example["words"]) == len(example["tags"]) for example in examples)
    assert sum(tag.startswith("B-") for example in examples for tag in example["tags"]) == 1_975


def is_iob2(tags):
    """Whether each I stands behind a B or an I of its type."""
    pairs = zip(["O", *tags], tags, strict=False)
    return all(not tag.startswith("I") or last[1:] == tag[1:] for last, tag in pairs)


def test_text_in_languages_of_few_resources_is_clean(real):
    """More than half of the published words are decomposed; articles have odd spaces."""
    words = [word for example in real["masakhaner2-yor"]["train"] for word in example["words"]]
    assert len(words) == 175_768 and all(clean(word) == word for word in words)
    assert real["masakhaner2-yor"]["train"][0]["words"][9:11] == ["wọ́n", "ti"]
    articles = real["masakhanews-orm"]["train"]
    for examples in real["masakhaner2-yor"].values():
        assert all(is_iob2(example["tags"]) for example in examples)
    assert all(clean(each[key]) == each[key] for each in articles for key in ("text", "pair"))


def test_genres_of_parsed_sentences(real):
    assert real["ewt-genre"]["train"][1] == {
        "text": "[ This killing of a respected cleric will be causing us trouble for years to come "
        ". ]",
        "label": "weblog",
    }


def test_labels_of_pairs_agree_between_corpora(real):
    """A model trained on quora is tested on paws-wiki."""
    for corpus in ("quora", "paws-wiki"):
        assert {example["label"] for example in real[corpus]["valid"]} == {"0", "1"}


# Files in the formats of publication.

PUBLISHED = {
    "sst-2": {"train": 4, "valid": 2, "test": 2},
    "rte": {"train": 3, "valid": 2, "test": 1},
    "mrpc": {"train": 11, "valid": 1, "test": 1},
    "qnli": {"train": 3, "valid": 2, "test": 1},
    "cola": {"train": 4, "valid": 2, "test": 2},
    "mnli": {"train": 3, "valid": 1, "valid_mismatched": 2, "test": 1, "test_mismatched": 1},
    "qqp": {"train": 3, "valid": 1, "test": 1},
    "sts-b": {"train": 3, "valid": 1, "test": 1},
    "wnli": {"train": 2, "valid": 1, "test": 1},
    "squad-1.1": {"train": 3, "valid": 1},
    "squad-2.0": {"train": 3, "valid": 2},
    "race": {"train": 3, "valid": 2, "test": 2},
    "dream": {"train": 3, "valid": 1, "test": 1},
    "hellaswag": {"train": 2, "valid": 1, "test": 1},
    "anli": {"train": 9, "valid": 3, "test": 3},
    "paws-qqp": {"train": 2, "valid": 1},
    "paws-wiki": {"train": 2, "valid": 1, "test": 1},
    "subj": {"train": 5},
}


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> dict[str, dict[str, list]]:
    folder = tmp_path_factory.mktemp("published")
    return {corpus: made(corpus, FIXTURES, folder) for corpus in PUBLISHED}


def test_every_corpus_is_read_here():
    assert {*REAL, *PUBLISHED} == {*CORPORA}


@pytest.mark.parametrize("corpus", PUBLISHED)
def test_parts_of_published_files(published, corpus):
    assert counts(published[corpus]) == PUBLISHED[corpus]


KEYS = {
    "sentence_classification": ["text", "label"],
    "sentence_regression": ["text", "pair", "label"],
    "multiple_choice": ["text", "question", "choices", "label"],
    "span_extraction": ["id", "text", "question", "answers"],
}
UNLABELLED = {"sst-2", "rte", "qnli", "cola", "mnli", "qqp", "sts-b", "wnli", "hellaswag"}


@pytest.mark.parametrize("corpus", PUBLISHED)
def test_keys_stand_in_their_order(published, corpus):
    keys = KEYS[CORPORA[corpus].task]
    for part, examples in published[corpus].items():
        for example in examples:
            expected = [key for key in keys if key != "question" or corpus != "hellaswag"]
            if part.startswith("test") and corpus in UNLABELLED:
                expected.remove("label")
            if "pair" in example and "pair" not in expected:
                expected.insert(1, "pair")
            assert list(example) == expected


def pair(text: str, pair: str, label: object) -> dict:
    return {"text": text, "pair": pair, "label": label}


@pytest.mark.parametrize(
    ("corpus", "part", "index", "expected"),
    [
        ("sst-2", "train", 1, {"text": "quietly funny", "label": "1"}),
        ("sst-2", "test", 0, {"text": "nobody will miss the second hour ."}),
        ("cola", "train", 0, {"text": "The gull stole the bread.", "label": "1"}),
        ("cola", "test", 0, {"text": "The tide turned twice."}),
        (
            *("mrpc", "train", 0),
            pair(
                '" We sold every loaf by nine , " the baker said .',
                'The baker said that by nine " every loaf was sold .',
                "1",
            ),
        ),
        (
            *("mnli", "valid", 0),
            pair("The path follows the cliff.", "The path goes inland.", "contradiction"),
        ),
        ("sts-b", "train", 0, pair("A dog swims in the harbour.", "A dog is swimming.", 3.8)),
        (
            *("anli", "train", 4),
            pair(
                "Boat 2 was built of oak in the old yard.", "Boat 2 was sold in spring.", "neutral"
            ),
        ),
        (
            *("dream", "train", 0),
            {
                "text": "M: Is the ferry still running? W: Not in this fog.",
                "question": "Why is there no ferry?",
                "choices": ["Fog.", "Ice.", "A strike."],
                "label": 0,
            },
        ),
        (
            *("hellaswag", "valid", 0),
            {
                "text": "Mending nets: A woman holds a net. she",
                "choices": ["sings to it.", "drops the moon.", "ties a knot.", "boils it."],
                "label": 2,
            },
        ),
        (
            *("race", "train", 1),
            {
                "text": "Tom missed the ferry.\nHe swam home.",
                "question": "Tom _ home.",
                "choices": ["rowed", "walked", "flew", "swam"],
                "label": 3,
            },
        ),
    ],
)
def test_worked_examples(published, corpus, part, index, expected):
    assert published[corpus][part][index] == expected


def test_answers_stand_at_their_starts(published):
    for corpus in ("squad-1.1", "squad-2.0"):
        for examples in published[corpus].values():
            for example in examples:
                for answer in example["answers"]:
                    assert example["text"][answer["start"] :].startswith(answer["text"])
    late = published["squad-1.1"]["train"][1]
    assert late["answers"] == [{"text": "1902", "start": late["text"].index("1902")}]
    assert published["squad-1.1"]["train"][2]["text"].startswith(" The old pier")
    assert published["squad-2.0"]["train"][1]["answers"] == []


def test_broken_lines_of_qqp_are_counted(tmp_path, caplog):
    made("qqp", FIXTURES, tmp_path)
    assert "QQP/train.tsv: 2 lines do not have all columns: left out" in caplog.text


def test_what_is_printed(tmp_path, capsys):
    for corpus in ("squad-2.0", "sts-b", "rte"):
        made(corpus, FIXTURES, tmp_path)
    said = capsys.readouterr().out
    for line in (
        "train: 3 examples, 66.7% answerable\n",
        "train: 3 examples, labels 0.0 to 5.0, mean 2.93\n",
        "train: 3 examples, labels entailment 66.7%, not_entailment 33.3%\n",
        "test: 1 examples, no labels\n",
    ):
        assert line in said


def test_what_to_do_without_a_part_for_validation(tmp_path, capsys):
    made("rte", FIXTURES, tmp_path)
    assert "has no valid.jsonl" not in capsys.readouterr().out
    made("subj", FIXTURES, tmp_path)
    said = capsys.readouterr().out
    assert (
        f"subj has no valid.jsonl; make it with 'python -m fairseq_ext.prepare.hold_out {tmp_path}"
        in said
    )
    assert said.endswith("or cross-validate with --folds 10 and --fold 1, 2, … 10\n")


def test_what_is_printed_of_real_files(real):
    reviews = summary("train", real["cr"]["train"])
    assert reviews == "train: 3,775 examples, 4 without text, labels 0 36.2%, 1 63.8%"
    tagged = summary("valid", real["wnut-17"]["valid"])
    assert tagged.startswith("valid: 1,009 examples, 836 entities (corporation 4.1%, ")


def test_list_has_every_corpus(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--list"])
    rows = [line.split()[:2] for line in capsys.readouterr().out.strip().split("\n")]
    assert ended.value.code == 0
    assert rows == [[name, corpus.task] for name, corpus in CORPORA.items()]


# Layouts.


def copy(corpus_folder: str, tmp_path: Path) -> Path:
    shutil.copytree(FIXTURES / corpus_folder, tmp_path / "corpora" / corpus_folder)
    return tmp_path / "corpora"


def test_compressed_files_are_read_too(published, tmp_path):
    folder = copy("RACE", tmp_path)
    for path in folder.rglob("*.txt"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert made("race", folder, tmp_path) == published["race"]


def test_a_folder_that_is_partly_unpacked(tmp_path):
    for name in ("a.txt", "a.txt.gz", "b.txt.gz", "c.txt", "d.md"):
        (tmp_path / name).touch()
    names = [file.name for file in prepared.matching_files(tmp_path, "*.txt")]
    assert names == ["a.txt", "b.txt.gz", "c.txt"]


def test_byte_order_mark_and_line_ends_go(published, tmp_path):
    folder = copy("SST-2", tmp_path)
    path = folder / "SST-2/train.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert made("sst-2", folder, tmp_path) == published["sst-2"]


def test_published_splits_come_before_our_own(tmp_path):
    folder = copy("hellaswag", tmp_path)
    shutil.copy(folder / "hellaswag/hellaswag_train.jsonl", folder / "hellaswag/val-part.jsonl")
    assert counts(made("hellaswag", folder, tmp_path)) == PUBLISHED["hellaswag"]
    for part in ("train", "test"):
        tsv = folder / "MRPC" / f"{part}.tsv"
        tsv.parent.mkdir(exist_ok=True)
        shutil.copy(FIXTURES / f"MRPC/msr_paraphrase_{part}.txt", tsv)
    shutil.copy(folder / "MRPC/test.tsv", folder / "MRPC/dev.tsv")
    assert counts(made("mrpc", folder, tmp_path)) == {"train": 12, "valid": 1, "test": 1}


def test_groups_are_joined_by_either_side():
    pairs = ["ax", "by", "cz", "bx", "dw", "az"]
    examples = [{"text": text, "pair": pair} for text, pair in pairs]
    assert groups(examples, SPLITS["no question and no sentence in both"]) == [0, 0, 0, 0, 1, 0]


def test_pairs_are_the_same_in_either_order():
    examples = [{"text": text, "pair": pair} for text, pair in ["ab", "ac", "ba", "ab"]]
    assert groups(examples, SPLITS["no pair in both"]) == [0, 1, 0, 0]


# The recipe.


@pytest.mark.recipe
def test_recipe(tmp_path):
    out = tmp_path / "data" / "squad"
    done = bash(RECIPE, "squad-2.0", out, FAIRSEQ_EXT_CORPORA=str(FIXTURES))
    assert (done.returncode, done.stderr) == (0, "")
    assert "train: 3 examples" in done.stdout and done.stdout.endswith(f"{out} is ready.\n")
    assert [path.name for path in out.parent.iterdir()] == ["squad"]
    assert counts(load(out)) == PUBLISHED["squad-2.0"]
    again = bash(RECIPE, "squad-2.0", out, FAIRSEQ_EXT_CORPORA=str(FIXTURES))
    assert again.returncode == 0 and "is there already" in again.stdout
    other = edited(tmp_path, "squad/train-v2.0.json", "Ida Berg", "Ada Berg")
    changed = bash(RECIPE, "squad-2.0", out, FAIRSEQ_EXT_CORPORA=str(other))
    assert_refused(
        changed, f"'{out}' was made from {other}/squad/train-v2.0.json, which has changed"
    )


@pytest.mark.skipif(not shutil.which("flock"), reason="this system has no flock")
def test_side_by_side_one_makes_it_and_the_others_take_it(tmp_path):
    def call(_: int) -> subprocess.CompletedProcess:
        return bash(RECIPE, "cola", tmp_path / "cola", FAIRSEQ_EXT_CORPORA=str(FIXTURES))

    with ThreadPoolExecutor() as pool:
        done = list(pool.map(call, range(3)))
    assert [each.returncode for each in done] == [0] * 3, done
    assert sum("is there already" in each.stdout for each in done) == 2
    assert counts(load(tmp_path / "cola")) == PUBLISHED["cola"]


def test_interrupted_work_is_begun_again(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(prepared, "write_lines", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made("cola", FIXTURES, tmp_path)
    assert not (tmp_path / "cola").exists()
    monkeypatch.undo()
    write_text(tmp_path / ".abcdefgh.part" / "old", "")  # of a command that was killed
    os.utime(tmp_path / ".abcdefgh.part", (0, 0))
    assert counts(made("cola", FIXTURES, tmp_path)) == PUBLISHED["cola"]
    assert [path.name for path in tmp_path.iterdir()] == ["cola"]


@pytest.mark.parametrize(
    ("words", "folder", "said"),
    [
        ([], FIXTURES, ["0 words", "CORPUS and OUT"]),
        (["sst-2"], "", ["FAIRSEQ_EXT_CORPORA is not set", "'sst-2'"]),
        (["sst-3"], FIXTURES, ["'sst-3'", "sst-2, rte, mrpc"]),
    ],
)
def test_bad_arguments(tmp_path, words, folder, said):
    out = [tmp_path / "out"] if words else []
    assert_refused(bash(RECIPE, *words, *out, FAIRSEQ_EXT_CORPORA=str(folder)), *said)
    assert not list(tmp_path.iterdir())


# Bad files.


def refusal(corpus: str, folder: Path, tmp_path: Path) -> str:
    """What is said; nothing is left behind."""
    with pytest.raises(UsageError) as refused:
        made(corpus, folder, tmp_path)
    assert not list(tmp_path.glob(f"{corpus}*"))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def edited(tmp_path: Path, name: str, old: str, new: str) -> Path:
    """A folder of corpora in which a file was changed."""
    folder = copy(name.split("/")[0], tmp_path)
    text = (folder / name).read_text("utf-8")
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("corpus", "name", "old", "new", "said"),
    [
        ("rte", "RTE/train.tsv", "sentence2\t", "", ["train.tsv:2 has 4 columns", "not 3"]),
        ("rte", "RTE/train.tsv", "\tsentence2", "\tother", ["train.tsv:2 has no 'sentence2'"]),
        ("rte", "RTE/dev.tsv", "\tlabel", "\tother", ["dev.tsv:2 has no 'label'"]),
        (
            "rte",
            "RTE/dev.tsv",
            "\tnot_entailment",
            "\tneutral",
            ["dev.tsv:3", "'neutral'", "one of"],
        ),
        ("cola", "CoLA/train.tsv", "\t1\t", "\t2\t", ["train.tsv:1", "label '2'", "0, 1"]),
        ("sts-b", "STS-B/train.tsv", "\t0.000", "\t5.2", ["train.tsv:3", "'5.2'", "0 to 5"]),
        ("sts-b", "STS-B/train.tsv", "\t0.000", "\tnan", ["train.tsv:3", "'nan'", "0 to 5"]),
        ("sts-b", "STS-B/train.tsv", "\t0.000", "\t", ["train.tsv:3", "label ''", "0 to 5"]),
        ("subj", "sentclass/subj.all", "0 ida", "ida", ["subj.all:3", "'ida'", "0, 1"]),
        ("anli", "anli_v1.0/R2/dev.jsonl", '{"uid"', '{uid"', ["R2/dev.jsonl:1 is not JSON"]),
        ("anli", "anli_v1.0/R2/train.jsonl", '"label"', '"x"', ["train.jsonl:1 has no 'label'"]),
        (
            "hellaswag",
            "hellaswag/hellaswag_val.jsonl",
            '"label": 2',
            '"label": 4',
            [":1", "4 choi"],
        ),
        ("hellaswag", "hellaswag/hellaswag_val.jsonl", '"label"', '"x"', [":1 has no 'label'"]),
        ("squad-1.1", "squad/dev-v1.1.json", ": 41}", ": 40}", ["question h3", "'Ida Berg'", "40"]),
        ("squad-2.0", "squad/dev-v2.0.json", "paragraphs", "x", ["dev-v2.0.json", "'paragraphs'"]),
        ("squad-1.1", "squad/dev-v1.1.json", "[", "[,", ["dev-v1.1.json:1 is not JSON"]),
        ("dream", "dream/train.json", '"Fog."\n', '"Mist."\n', ["dialogue 1-1", "3 choices"]),
        ("dream", "dream/dev.json", "]\n]", "]", ["dev.json:", "is not JSON"]),
        ("race", "RACE/dev/high/20.txt", '"C"', '"E"', ["20.txt, question 1", "4 choices"]),
        ("race", "RACE/dev/high/20.txt", '"C"', '"BC"', ["20.txt, question 1", "4 choices"]),
        ("race", "RACE/dev/high/20.txt", '["C"]', "[]", ["20.txt", "form"]),
    ],
)
def test_bad_files(tmp_path, corpus, name, old, new, said):
    folder = edited(tmp_path, name, old, new)
    message = refusal(corpus, folder, tmp_path)
    for part in (name.split("/")[-1], *said):
        assert part in message


EWT, YES = "ud-english-ewt/en_ewt-ud-train.conllu", "1\tYes\t_\t_\t_\t_\t0\troot\t_\t_\n"


NAMES, NEWS = "masakhaner2-yor/train.txt", "masakhanews-orm/train.tsv"
NEWS_HEADER = "category\theadline\ttext\turl"


def test_words_and_articles_are_composed(tmp_path):
    """Text of tasks is cleaned like that of pre-training; a word of blanks alone stays a word."""
    decomposed, composed = "o\u0323\u0301n", "\u1ecd\u0301n"
    row = f'{NEWS_HEADER}\nsports\t\ufeff{decomposed}\t"a\u00a0""b"""\turl\n'
    for name in ("dev", "test", "train"):
        write_text(
            tmp_path / f"corpora/masakhaner2-yor/{name}.txt", f"{decomposed} B-PER\n\u00a0 O\n"
        )
        write_text(tmp_path / f"corpora/masakhanews-orm/{name}.tsv", row)
    names = {"words": [composed, "\u00a0"], "tags": ["B-PER", "O"]}
    news = {"text": composed, "pair": 'a "b"', "label": "sports"}
    for corpus, example in (("masakhaner2-yor", names), ("masakhanews-orm", news)):
        expected = dict.fromkeys(("train", "valid", "test"), [example])
        assert made(corpus, tmp_path / "corpora", tmp_path) == expected
    joined = made("masakhaner2-yor-joined", tmp_path / "corpora", tmp_path)
    assert joined == {"train": [names] * 3}


def test_entities_that_begin_with_an_i(tmp_path, caplog):
    """One line of the training part is so, and conlleval reads it so; other corpora keep tags."""
    lines = "a I-PER\nb I-PER\nc I-LOC\nd O\ne B-LOC\nf I-LOC\n"
    for name in ("dev", "test", "train"):
        write_text(tmp_path / f"corpora/masakhaner2-yor/{name}.txt", lines)
    found = made("masakhaner2-yor", tmp_path / "corpora", tmp_path)
    assert found["valid"][0]["tags"] == ["B-PER", "I-PER", "B-LOC", "O", "B-LOC", "I-LOC"]
    assert "dev.txt: 2 entities begin with an I: taken for a B" in caplog.text


def test_quora_as_published(tmp_path, caplog):
    """Some rows have no label, and some not all columns."""
    (tmp_path / "corpora/quora").mkdir(parents=True)
    header = "\tid\tsentence1\tsentence2\tis_duplicate\n"
    rows = ['1\ta\tHow?\t"Say ""how""?"\t1.0\n', "2\tb\tHow?\tWhy?\t\n", "3\tc\tHow?\n"]
    for part in ("train", "dev"):
        (tmp_path / f"corpora/quora/quora-{part}.csv").write_text(header + "".join(rows), "utf-8")
    found = made("quora", tmp_path / "corpora", tmp_path)
    example = {"text": "How?", "pair": 'Say "how"?', "label": "1"}
    assert found == {"train": [example], "valid": [example]}
    assert "2 lines do not have all columns: left out" in caplog.text


BYTES = r"""id	sentence1	sentence2	label
1	b'What is fire ?'	b"What is n't fire ?"	0
2	b' caf\xc3\xa9 "x" \'y\' \\ '	Is b'x' bytes ?	1
"""


def test_bytes_of_python_become_text(tmp_path):
    """PAWS-QQP's own program writes them; text that only holds such bytes stays."""
    for name in ("train", "dev_and_test"):
        write_text(tmp_path / f"corpora/paws_qqp/{name}.tsv", BYTES)
    expected = [
        pair("What is fire ?", "What is n't fire ?", "0"),
        pair("café \"x\" 'y' \\", "Is b'x' bytes ?", "1"),
    ]
    found = made("paws-qqp", tmp_path / "corpora", tmp_path)
    assert found == {"train": expected, "valid": expected}
    write_text(tmp_path / "corpora/sentclass/custrev.all", r"1 b'na\xc3\xafve'" + "\n")
    assert made("cr", tmp_path / "corpora", tmp_path)["train"][0]["text"] == "naïve"


STS = [
    'main-news\tMSRpar\t2012test\t1\t5.000\t"A plane is taking off.\tA "plane".\tlicence\turl',
    "main-captions\timages\t2014\t5\t0.4\tA man.\tA dog.",
]


@pytest.mark.parametrize(("corpus", "folder"), [("sts", "sts"), ("sts-b", "stsbenchmark")])
def test_sts_benchmark_as_published(tmp_path, corpus, folder):
    """Without a header; quotation marks are text, and some rows have further columns."""
    for part in ("train", "dev", "test"):
        write_text(tmp_path / f"corpora/{folder}/sts-{part}.csv", "".join(f"{x}\n" for x in STS))
    examples = [pair('"A plane is taking off.', 'A "plane".', 5.0), pair("A man.", "A dog.", 0.4)]
    found = made(corpus, tmp_path / "corpora", tmp_path)
    assert found == dict.fromkeys(("train", "valid", "test"), examples)


@pytest.mark.parametrize(
    ("corpus", "name", "content", "said"),
    [
        ("cr", "sentclass/custrev.all", r"1 b'\xff'", [":1 has bytes of Python that are no UTF-8"]),
        ("cr", "sentclass/custrev.all", "1 b'\u00e9'", [":1 has bytes of Python"]),
        ("sts", "sts/sts-train.csv", "a\tb\tc\td\t5\tx\n", [":1 has 6 columns", "not 7"]),
        ("hellaswag", "hellaswag/val-part.jsonl", '{"ctx": "\\ud83d"}', [":1 holds half of a"]),
        ("wnut-17", "wnut17/wnut17train.conll", "a\tO\n\t\nb\tO\tO\n", [":3", "a word, a tab"]),
        ("wnut-17", "wnut17/wnut17train.conll", "a\tO\nb\n", [":2", "'b'"]),
        ("wnut-17", "wnut17/wnut17train.conll", "a\tE-person\n", [":1", "B-TYPE"]),
        ("wnut-17", "wnut17/wnut17train.conll", "a\tB-animal\n", [":1", "person"]),
        ("wnut-17", "wnut17/wnut17train.conll", "\n\t\n", ["no example"]),
        ("masakhaner2-yor", NAMES, "a O\nb\tO\n", [":2", "a word, a space"]),
        ("masakhaner2-yor", NAMES, "a O\nb c O\n", [":2", "a word, a space"]),
        ("masakhaner2-yor-joined", NAMES, "a B-person\n", [":1", "one of PER, LOC, ORG, DATE"]),
        ("masakhanews-orm", NEWS, f"{NEWS_HEADER}\nx\ta\tb\tc\n", [":2 has the label 'x'"]),
        ("masakhanews-orm", NEWS, f"{NEWS_HEADER}\nsports\ta\n", [":2 has 2 columns", "not 4"]),
        ("masakhanews-orm", NEWS, f'{NEWS_HEADER}\nsports\t"a\n', [":2 is badly quoted"]),
        ("quora", "quora/quora-part.csv", 'sentence1\n"How?\n', [":2 is badly quoted"]),
        ("quora", "quora/quora-part.csv", "sentence1\nHow?\n", [":2 has no 'sentence2'"]),
        ("quora", "quora/quora-part.csv", "", ["is empty"]),
        ("paws-wiki", "pawsx-en/dev-part.tsv", "One sentence .\n", [":1 has 1 columns", "not 3"]),
        ("cr", "sentclass/custrev.all", "1 good\n\n", [":2", "label ''"]),
        ("ewt-genre", EWT, f"# sent_id = web-1\n{YES}", [":2 has the label 'web'", "answers"]),
        ("ewt-genre", EWT, f"# sent_id = email-1\n{YES}\n{YES}", [":4 has the label ''"]),
    ],
)
def test_bad_content(tmp_path, corpus, name, content, said):
    path = tmp_path / "corpora" / name
    path.parent.mkdir(parents=True)
    path.write_text(content, "utf-8")
    others = ("emerging.dev.conll", "en_ewt-ud-dev.conllu", "sts-dev.csv", "dev.txt", "dev.tsv")
    for other in (*others, "test.txt"):
        path.with_name(other).write_text("a\tO\n")
    message = refusal(corpus, tmp_path / "corpora", tmp_path)
    for part in (str(path), *said):
        assert part in message


def test_too_little_to_hold_out(tmp_path):
    folder = copy("MRPC", tmp_path)
    path = folder / "MRPC/msr_paraphrase_train.txt"
    path.write_text("\n".join(path.read_text("utf-8").split("\n")[:10]) + "\n", "utf-8")
    message = refusal("mrpc", folder, tmp_path)
    assert f"has 9 examples, every {EVERY}th" in message


def test_a_file_that_is_not_utf_8(tmp_path):
    folder = copy("CoLA", tmp_path)
    (folder / "CoLA/dev.tsv").write_bytes("x\t1\t\tFor\xeat.\n".encode("latin-1"))
    message = refusal("cola", folder, tmp_path)
    assert "dev.tsv, line 1" in message and "UTF-8" in message


@pytest.mark.parametrize(
    ("corpus", "said"),
    [
        ("cr", f"{FIXTURES} has no sentclass/custrev.all (plain or .gz), where 'cr'"),
        ("sts", f"{FIXTURES} has no sts/sts-train.csv"),
        ("sst-5", "no sst5-cased/ids-sst-train.csv and no sentclass/stsa.fine.train (plain"),
    ],
)
def test_a_missing_corpus(tmp_path, corpus, said):
    assert said in refusal(corpus, FIXTURES, tmp_path)


@pytest.mark.parametrize(
    ("corpus", "name", "part"),
    [
        ("anli", "anli_v1.0/R2/train.jsonl", "train"),
        ("anli", "anli_v1.0/R3/test.jsonl", "test"),
        ("mnli", "MNLI/dev_mismatched.tsv", "valid_mismatched"),
    ],
)
def test_a_missing_file(tmp_path, corpus, name, part):
    folder = copy(name.split("/")[0], tmp_path)
    (folder / name).unlink()
    message = refusal(corpus, folder, tmp_path)
    place, _, rest = name.partition("/")
    assert f"{folder / place} has no {rest} (plain or .gz)" in message and f"'{part}'" in message


def test_a_folder_that_is_there_is_kept(tmp_path):
    (tmp_path / "cola").mkdir()
    (tmp_path / "cola" / "notes").touch()
    with pytest.raises(UsageError, match="is there already"):
        main(["cola", str(FIXTURES), str(tmp_path / "cola")])
    assert [path.name for path in (tmp_path / "cola").iterdir()] == ["notes"]
    (tmp_path / "cola" / "notes").unlink()  # an empty one is as good as none
    assert counts(made("cola", FIXTURES, tmp_path)) == PUBLISHED["cola"]
