"""Files that fairseq's commands read: what is missing, damaged or foreign is refused by name."""

import os
import shutil
from argparse import Namespace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PLUGIN, TRAIN, fairseq
from fairseq import options, tasks, utils
from fairseq.data import BaseWrapperDataset, Dictionary, data_utils, indexed_dataset
from fairseq.file_chunker_utils import Chunker, find_offsets
from fairseq_cli import interactive
from omegaconf import OmegaConf

from fairseq_ext.commands import raw_text
from fairseq_ext.data import binarised
from fairseq_ext.errors import UsageError

ROWS = [[5, 6, 2], [7, 2], [9, 8, 7, 2]]
SYMBOLS = 10


def write(prefix: Path, kind: str = "mmap", rows=ROWS) -> Path:
    """Binarise rows of numbers; return the path without an ending."""
    builder = indexed_dataset.make_builder(f"{prefix}.bin", kind, vocab_size=SYMBOLS)
    for row in rows:
        builder.add_item(torch.tensor(row))
    builder.finalize(f"{prefix}.idx")
    return prefix


def dictionary(size: int = SYMBOLS) -> Dictionary:
    words = Dictionary()
    for number in range(size - len(words)):
        words.add_symbol(f"w{number}")
    return words


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(path.read_bytes()[::-1])


@pytest.mark.parametrize("kind", ["mmap", "lazy", "cached"])
@pytest.mark.parametrize("change", [lambda path: os.truncate(path, 4), rewrite])
@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_text_that_changes_while_it_is_read_is_named(kind, change, ending, tmp_path):
    """Reading on would end in SIGBUS, or in other numbers."""
    data = indexed_dataset.make_dataset(str(write(tmp_path / "train", kind)), kind)
    change(tmp_path / f"train{ending}")
    os.utime(tmp_path / f"train{ending}", (1, 1))
    with pytest.raises(UsageError, match=rf"train\{ending} was changed while this command read it"):
        data.prefetch([0]) if kind == "cached" else data[0]


def test_text_that_is_touched_or_replaced_is_read_as_it_was(tmp_path):
    data = indexed_dataset.make_dataset(str(write(tmp_path / "train")), "mmap")
    os.utime(tmp_path / "train.bin", (1, 1))
    assert data[0].tolist() == ROWS[0]
    write(tmp_path / "new", rows=ROWS[::-1])
    (tmp_path / "new.bin").replace(tmp_path / "train.bin")
    assert data[1].tolist() == ROWS[1]
    (tmp_path / "train.idx").unlink()
    assert data[2].tolist() == ROWS[2]


DAMAGE = {
    "missing": Path.unlink,
    "a folder": make_folder,
    "empty": lambda path: path.write_bytes(b""),
    "a half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "3 bytes short": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0\0"),
    "garbage": lambda path: path.write_bytes(np.random.default_rng(1).bytes(999)),
    "text": lambda path: path.write_text("This is some text.\n" * 9),
    "zeros": lambda path: path.write_bytes(b"\0" * (path.stat().st_size + 8)),
    "cut within the head": lambda path: path.write_bytes(path.read_bytes()[:10]),
}


@pytest.mark.parametrize("impl", ["mmap", "lazy", "cached", None])
@pytest.mark.parametrize("ending", [".idx", ".bin"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_binarised_text_that_is_damaged(damage, ending, impl, tmp_path):
    """With --dataset-impl, and without, where fairseq looks at the file itself."""
    prefix = write(tmp_path / "train", "mmap" if impl in ("mmap", None) else "lazy")
    DAMAGE[damage](tmp_path / f"train{ending}")
    with pytest.raises(UsageError) as caught:
        data_utils.load_indexed_dataset(str(prefix), dictionary(), impl)
    assert str(caught.value).startswith(str(tmp_path / "train."))
    assert f"train{ending}" in str(caught.value) and "\n" not in str(caught.value)
    if damage in ("missing", "a folder"):
        with pytest.raises(UsageError, match=f"^{prefix}{ending} is "):
            indexed_dataset.dataset_exists(str(prefix), impl)


@pytest.mark.parametrize("impl", ["mmap", "lazy", "cached", None])
def test_binarised_text_that_is_whole(impl, tmp_path):
    prefix = write(tmp_path / "train", "mmap" if impl in ("mmap", None) else "lazy")
    data = data_utils.load_indexed_dataset(str(prefix), dictionary(), impl)
    if hasattr(data, "prefetch") and data.supports_prefetch:
        data.prefetch(range(len(data)))
    assert [data[i].tolist() for i in range(3)] == ROWS


@pytest.mark.parametrize(
    ("rows", "size", "said"),
    [
        (ROWS, SYMBOLS - 1, "has the number 9 and its dictionary 9 symbols"),
        ([*ROWS, [99_999, 2]], SYMBOLS, "has the number 34463 and its dictionary 10 symbols"),
    ],
)
@pytest.mark.parametrize("chunk", [3, 1 << 18])
def test_numbers_beyond_the_dictionary(rows, size, said, chunk, tmp_path, monkeypatch):
    """The largest number stands in the last chunk, or alone."""
    monkeypatch.setattr(binarised, "CHUNK", chunk)
    prefix = write(tmp_path / "train", rows=rows)
    with pytest.raises(UsageError, match=f"train.bin {said}"):
        data_utils.load_indexed_dataset(str(prefix), dictionary(size))


def test_text_of_another_split(tmp_path):
    """The files are whole, and do not belong together."""
    for name, rows in [("train", ROWS), ("valid", ROWS[:2])]:
        write(tmp_path / name, rows=rows)
    shutil.copy(tmp_path / "valid.bin", tmp_path / "train.bin")
    with pytest.raises(UsageError, match=r"train.bin has 10 bytes and train.idx tells of 18"):
        data_utils.load_indexed_dataset(str(tmp_path / "train"), dictionary())


@pytest.mark.parametrize(("kind", "impl"), [("mmap", "mmap"), ("lazy", "lazy"), ("mmap", None)])
def test_text_without_a_sentence(kind, impl, tmp_path):
    prefix = write(tmp_path / "train", kind, [])
    with pytest.raises(UsageError, match=rf"^{prefix}\.bin has no text; give text that is not"):
        data_utils.load_indexed_dataset(str(prefix), dictionary(), impl)


def test_text_in_huffman_s_code_is_left_to_fairseq(tmp_path):
    """Its files are others than those of numbers, and begin with another mark."""
    (tmp_path / "train.idx").write_bytes(indexed_dataset.HuffmanMMapIndex._HDR_MAGIC)
    (tmp_path / "train.bin").touch()
    assert indexed_dataset.infer_dataset_impl(str(tmp_path / "train")) == "huffman"


def test_a_split_that_is_not_there_is_none(tmp_path):
    assert data_utils.load_indexed_dataset(str(tmp_path / "train"), dictionary()) is None
    assert not indexed_dataset.dataset_exists(str(tmp_path / "train"), None)


def test_an_index_whose_sentences_overlap(tmp_path, monkeypatch):
    """In the first chunk, and in a later one."""
    prefix = write(tmp_path / "train")
    for place, chunk in [(26 + 12, 9), (26 + 12 + 8, 9), (26 + 12 + 16, 1)]:
        monkeypatch.setattr(binarised, "CHUNK", chunk)
        content = bytearray(Path(f"{prefix}.idx").read_bytes())
        content[place] ^= 4
        Path(f"{tmp_path}/odd.idx").write_bytes(content)
        shutil.copy(f"{prefix}.bin", tmp_path / "odd.bin")
        with pytest.raises(UsageError, match=r"odd.idx is damaged"):
            data_utils.load_indexed_dataset(str(tmp_path / "odd"), dictionary())


@pytest.mark.parametrize(
    ("place", "number"),
    [(0, 1), (3, 2), (2, 0), (4, 1), (5, 9)],
    ids=["dimensions begin", "dimensions end", "dimensions fall", "offsets begin", "offsets fall"],
)
def test_an_index_of_another_form_whose_numbers_do_not_rise(place, number, tmp_path):
    """After the head are four dimensions, then four offsets, of three sentences."""
    prefix = write(tmp_path / "train", "lazy")
    content = bytearray(Path(f"{prefix}.idx").read_bytes())
    numbers = np.frombuffer(content, np.int64, offset=8 + 5 * 8)
    assert numbers[:8].tolist() == [0, 1, 2, 3, 0, 3, 5, 9]
    numbers[place] = number
    Path(f"{prefix}.idx").write_bytes(content)
    with pytest.raises(UsageError, match=r"train.idx is damaged, or not what fairseq-preprocess"):
        data_utils.load_indexed_dataset(str(prefix), dictionary(), "lazy")


def setup(task: str, data: object, **options: str):
    """Set a task up as fairseq does with old settings."""
    options = {"source_lang": None, "target_lang": None, "dataset_impl": None, **options}
    return tasks.setup_task(Namespace(task=task, data=str(data), train_subset="train", **options))


DICTIONARIES = {
    "missing": (None, "x.txt is missing: {folder} has dict.en.txt; give a folder .*"),
    "empty": (b"", "x.txt has no symbols; "),
    "cut within a line": (b"a 1\nb 2\nc", "x.txt, line 3: 'c' is not a symbol and its count"),
    "cut within a letter": ("a 1\nü".encode()[:-1], "x.txt is not UTF-8"),
    "no text": (b"\x80\x02}q\x00", "x.txt is not UTF-8"),
    "prose": (b"This is a text.\n", "x.txt, line 1: 'This is a text.' is not a symbol"),
    "two signs": (b"a 1\nb --5\n", "x.txt, line 2: 'b --5' is not a symbol and its count"),
    "5000 digits": (b"a " + b"9" * 5000, r"x.txt cannot be read \(Incorrect dictionary .*\); give"),
    "twice": (b"a 1\nb 2\na 3\n", "x.txt, line 3: 'a' is there for the second time"),
    "a special symbol": (b"a 1\n<pad> 2\n", "x.txt, line 2: '<pad>' is there for the second"),
    "a mark": ("\ufeffa 1\nb 1\n".encode(), "x.txt begins with a byte order mark"),
}


@pytest.mark.parametrize("kind", DICTIONARIES)
def test_dictionaries_that_cannot_be_read(kind, tmp_path):
    content, said = DICTIONARIES[kind]
    (tmp_path / "dict.en.txt").write_text("a 1\n")
    if content is not None:
        (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(UsageError, match="^" + f"{tmp_path}/" + said.format(folder=tmp_path)):
        Dictionary.load(str(tmp_path / "x.txt"))


def test_a_folder_or_nothing_in_the_place_of_a_dictionary(tmp_path):
    with pytest.raises(UsageError, match=f"^{tmp_path} is a folder, and a dictionary belongs"):
        Dictionary.load(str(tmp_path))
    with pytest.raises(UsageError, match=f"dict.txt is missing: there is no {tmp_path}/no; "):
        Dictionary.load(str(tmp_path / "no" / "dict.txt"))


@pytest.mark.parametrize(
    "content", ["a 1\r\nb 2\r\n", "a 1\nb 2", "a 1\nb 2\na 3 #fairseq:overwrite"]
)
def test_dictionaries_that_can_be_read(content, tmp_path):
    (tmp_path / "dict.txt").write_bytes(content.encode())
    words = Dictionary.load(str(tmp_path / "dict.txt"))
    assert words.symbols[words.nspecial : words.nspecial + 2] == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere", "DATA is nowhere, which is not there .tried: {folder}/nowhere.; give a folder"),
        ("{folder}/no", "DATA is {folder}/no, which is not there; give"),
        ("{folder}/file", "DATA is {folder}/file, which is a file; give a folder"),
        ("{data}:nowhere", "DATA is nowhere, which is not there"),
        ("{folder}", "{folder} has no text in two languages, such as"),
    ],
)
def test_folders_of_data(given, said, data_bin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    places = {"folder": tmp_path, "data": data_bin}
    with pytest.raises(UsageError, match="^" + said.format(**places)):
        setup("translation", given.format(**places))


def test_a_task_that_nobody_registered(data_bin):
    with pytest.raises(UsageError, match=r"^there is no --task nope; give the --user-dir"):
        setup("nope", data_bin)


def test_a_task_whose_dictionaries_fairseq_does_not_read(encoder_data):
    """Its dictionary does not take what is passed to all of them."""
    with pytest.raises(UsageError, match=r"^--task cross_lingual_lm cannot be used, since this"):
        setup("cross_lingual_lm", encoder_data)


def test_languages_that_the_data_do_not_have(data_bin):
    with pytest.raises(UsageError, match=r"dict.fr.txt is missing: .* has dict.de.txt, dict.en"):
        setup("translation", data_bin, source_lang="fr", target_lang="en")


@pytest.mark.parametrize("flag", ["source-lang", "target-lang"])
def test_one_language_that_the_data_do_not_have(flag, data_bin):
    """fairseq takes both from the names of files then."""
    with pytest.raises(UsageError, match=rf"^--{flag} is fr, and the text has de and en; give"):
        setup("translation", data_bin, **{flag.replace("-", "_"): "fr"})


@pytest.mark.parametrize("fixture", ["data_bin", "encoder_data"])
def test_subsets_that_are_not_there(fixture, request):
    data = request.getfixturevalue(fixture)
    translates = fixture == "data_bin"
    task = setup("translation" if translates else "masked_lm", data)
    subsets = "test, train, valid" if translates else "train, valid"
    with pytest.raises(UsageError, match=f"{data} has {subsets}; give one of these"):
        task.load_dataset("zz")


def test_two_sides_of_different_length(data_bin, tmp_path):
    shutil.copytree(data_bin, tmp_path, dirs_exist_ok=True)
    for ending in ("idx", "bin"):
        source = tmp_path / f"valid.de-en.en.{ending}"
        shutil.copy(source, tmp_path / f"test.de-en.en.{ending}")
    task = setup("translation", tmp_path)
    with pytest.raises(UsageError, match="the two sides of test in .* different numbers of sent"):
        task.load_dataset("test")


def test_other_errors_of_data_sets_stay_what_they_are(tmp_path):
    """Tasks of fairseq whose data are no binarised sentences have such errors."""
    for name in ("input0", "label"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dict.txt").write_text("a 1\n")
    given = Namespace(task="sentence_prediction", data=str(tmp_path), num_classes=2)
    sentences = tasks.setup_task(given)
    with pytest.raises(AssertionError, match=r"^could not find dataset: .*zz"):
        sentences.load_dataset("zz")
    config = {"_name": "audio_pretraining", "data": str(tmp_path), "tpu": False}
    sounds = tasks.setup_task(OmegaConf.create(config))
    with pytest.raises(FileNotFoundError, match=r"zz\.tsv"):
        sounds.load_dataset("zz")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("no/where", "is no/where, which is not there .tried: {folder}/no/where, .*site-pack"),
        (
            "{folder}/file.py",
            "is {folder}/file.py, a file; give the folder of a package, such as /",
        ),
    ],
)
def test_user_directories(given, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.py").write_text("")
    with pytest.raises(UsageError, match="^--user-dir " + said.format(folder=tmp_path)):
        utils.import_user_module(Namespace(user_dir=given.format(folder=tmp_path)))


ARCH = ["--arch", "transformer_una_tiny"]
GENERATE = ["generate", "{data}", "--user-dir", PLUGIN, *"-s de -t en --cpu --path".split()]
COMMANDS = {
    "train, no data": (["train", "nowhere", *TRAIN, "--arch", "transformer"], "DATA is nowhere"),
    "train, no subset": (
        ["train", "{data}", *TRAIN, "--arch", "transformer_una_tiny", "--valid-subset", "zz"],
        "there is no subset zz",
    ),
    "train from a folder": (
        ["train", "{data}", *TRAIN, *ARCH, "--finetune-from-model", "{run}"],
        "--finetune-from-model is {run}, which is a folder (it is not looked for in --save-dir)",
    ),
    "generate, no checkpoint": ([*GENERATE, "no.pt"], "there is no checkpoint no.pt"),
    "generate, a folder": ([*GENERATE, "{run}"], "{run} is a folder; give a checkpoint in it"),
    "generate, no subset": (
        [*GENERATE, "{run}/checkpoint_last.pt", "--gen-subset", "zz"],
        "there is no subset zz of this --task",
    ),
    "heads, no subset": (
        ["ext", "heads", "{run}/checkpoint_last.pt", "--split", "zz", "--out", "{out}"],
        "there is no subset zz of this --task",
    ),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_commands_end_with_one_sentence(case, data_bin, hybrid_run, tmp_path):
    line, said = COMMANDS[case]
    places = {"data": data_bin, "run": hybrid_run, "out": tmp_path / "out"}
    line = [str(part).format(**places) for part in line]
    if line[0] == "train":
        line += ["--save-dir", str(tmp_path / "run"), "--max-update", "1"]
    done = fairseq(*line, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: {said.format(**places)}"), done.stderr
    assert not [*tmp_path.rglob("*.*")]


def test_a_text_that_is_cut_ends_a_verb(data_bin, hybrid_run, tmp_path):
    """It used to draw what was left."""
    shutil.copytree(data_bin, tmp_path / "data")
    text = tmp_path / "data" / "valid.de-en.de.bin"
    text.write_bytes(text.read_bytes()[:-40])
    line = ["heads", hybrid_run / "checkpoint_last.pt", "--data", tmp_path / "data"]
    done = fairseq("ext", *line, "--out", tmp_path / "out", check=False)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(f"error: {text} has ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", [0, 5, 20_000, -2])
def test_raw_text_that_is_not_utf8(tmp_path, place):
    """Wherever the byte is: fairseq searched backwards from it."""
    text = bytearray("ein schöner Vogel\n".encode() * 2000)
    text[place] = 0xFF
    (tmp_path / "train").write_bytes(text)
    with (
        pytest.raises(UsageError, match="train is not valid UTF-8; convert it to UTF-8"),
        Chunker(str(tmp_path / "train"), 0, len(text)) as lines,
    ):
        assert sum(1 for line in lines) < 2000


def test_raw_text_of_zeros(tmp_path):
    (tmp_path / "train").write_bytes(b"ein Vogel\n" + bytes(99))
    with (
        pytest.raises(UsageError, match=r"train holds U\+0000; give a file of plain text"),
        Chunker(str(tmp_path / "train"), 0, 109) as lines,
    ):
        assert [*lines] == ["ein Vogel\n"]


@pytest.mark.parametrize("chunks", [1, 2, 7])
def test_raw_text_in_chunks(tmp_path, chunks):
    """Chunks that begin within a character."""
    text = [f"{number} äöü漢字🙂\n" for number in range(200)]
    (tmp_path / "train").write_text("".join(text), "utf-8")
    name, read = str(tmp_path / "train"), []
    offsets = find_offsets(name, chunks)
    for begin, end in pairwise(offsets):
        with Chunker(name, begin, end) as lines:
            read += lines
    assert read == text


RETURNS = {"en": "a b\rc\nd\ne\nf\n", "fr": "g\nh\ni\rj\nk\n"}


@pytest.mark.parametrize("flags", ["", "--workers 3", "--only-source", "--dataset-impl raw"])
def test_a_carriage_return_ends_no_line(flags, tmp_path):
    for side, text in RETURNS.items():
        (tmp_path / f"train.{side}").write_bytes(text.encode())
    given = ["-s", "en", "-t", "fr", f"--trainpref={tmp_path}/train", f"--destdir={tmp_path}/out"]
    given += [*flags.split(), "--user-dir", PLUGIN]
    done = fairseq("preprocess", *given, check=False)
    said = "train.en, line 1: holds a carriage return, a line end for fairseq; remove it"
    assert done.returncode == 1 and said in done.stderr
    for side, text in RETURNS.items():
        spaced = text.replace("\r", " ").replace("\n", "\r\n")
        (tmp_path / f"train.{side}").write_bytes(spaced.encode())
    fairseq("preprocess", *given)
    if "raw" not in flags:
        words = Dictionary.load(str(tmp_path / "out" / "dict.en.txt"))
        data = data_utils.load_indexed_dataset(f"{tmp_path}/out/train.en-fr.en", words)
        assert words.string(data[0]) == "a b c" and len(data) == 4


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        ("--trainpref {0}/train", "{0}/train.en has 3 lines and {0}/train.fr 2"),
        (
            "--trainpref {0}/same --validpref {0}/same,{0}/train --dataset-impl raw",
            "train.en has 3",
        ),
        ("--srcdict x --tgtdict x --testpref {0}/train", "train.en has 3 lines and"),
        ("--trainpref {0}/same --testpref {0}/same", None),
        ("--trainpref {0}/train --only-source", None),
        ("--trainpref {0}/train --dict-only", None),
        ("--trainpref {0}/none", None),  # which fairseq refuses
    ],
)
def test_sides_of_different_length_are_not_binarised(flags, refused, tmp_path):
    """A last line may lack its end."""
    texts = {
        "train.en": "a\nb\nc",
        "train.fr": "d\ne\n",
        "same.en": "a\nb",
        "same.fr": "d\r\ne\r\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text.encode())
    given = ["-s", "en", "-t", "fr", *flags.format(tmp_path).split()]
    if refused is None:
        options.get_preprocessing_parser().parse_args(given)
        return
    with pytest.raises(UsageError, match=refused.format(tmp_path)):
        options.get_preprocessing_parser().parse_args(given)


@pytest.mark.parametrize(
    ("limits", "skip", "said"),
    [
        (
            (3, 99),
            False,
            r"^sentence \d+ of valid has \d+ tokens, its end counted, and 3 are possible",
        ),
        ((99, 3), False, r"and 3 are possible; .* with a larger --max-target-positions$"),
        (
            (3, 99),
            True,
            "^all 100 sentences of valid are longer .*, which is 3 on the source side and 99",
        ),
        ({"x": (2, 99)}, False, r"and 2 are possible; .* with a larger --max-source-positions$"),
    ],
)
def test_sentences_that_are_too_long(limits, skip, said, data_bin):
    task = setup("translation", data_bin)
    task.load_dataset("valid")
    data = task.dataset("valid")
    data = data if isinstance(limits, tuple) else Keyed(data)
    task.datasets["valid"] = data
    with pytest.raises(UsageError, match=said):
        task.filter_indices_by_size(data.ordered_indices(), data, limits, skip)


class Keyed(BaseWrapperDataset):
    """Sizes by key, as several tasks at once have them."""

    def size(self, index):
        return {"x": super().size(index)}

    def filter_indices_by_size(self, indices, limits):
        return super().filter_indices_by_size(indices, limits["x"])


def test_raw_data_sets_and_input_with_carriage_returns(tmp_path, monkeypatch):
    text = tmp_path / "text"
    text.write_bytes(b"w1 w2\nw1\rw2\n")
    with pytest.raises(UsageError, match=r"text, line 2: holds a carriage return"):
        indexed_dataset.IndexedRawTextDataset(str(text), dictionary())
    monkeypatch.setattr(interactive, "buffered_read", interactive.buffered_read)
    raw_text.read_input_by_lines()  # which does it where the command is loaded
    with pytest.raises(UsageError, match=r"text, line 2: holds a carriage return"):
        next(interactive.buffered_read(str(text), 9))
    with text.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert [*interactive.buffered_read("-", 9)] == [["w1 w2", "w1\rw2"]]


def test_translated_lines_are_forgotten(monkeypatch):
    """The task would keep each buffer of fairseq-interactive, 0.6 KB a line."""
    monkeypatch.setattr(interactive, "make_batches", lambda lines, cfg, task: iter(lines))
    raw_text.forget_translated_lines()
    task = Namespace(dataset_to_epoch_iter={"a buffer": "its batches"})
    assert [*interactive.make_batches(["a line"], None, task)] == ["a line"]
    assert not task.dataset_to_epoch_iter
