"""Files beside text: word alignments, further folders of data, and text that is all too long."""

import logging
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import fairseq
from fairseq import tasks
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.tasks.fairseq_task import FairseqTask
from files import write_lines

from fairseq_ext.commands import files_beside_text
from fairseq_ext.commands.raw_text import buffer_place
from fairseq_ext.errors import UsageError
from fairseq_ext.training import training_checks


def dictionary() -> Dictionary:
    words = Dictionary()
    for number in range(6):
        words.add_symbol(f"w{number}")
    return words


def preprocessing(folder, **parts):
    """Return the arguments of fairseq-preprocess for text of three pairs, and the given parts."""
    for language in ("en", "fr"):
        write_lines(folder / f"train.{language}", "a b", "", "c d e")
    given = {"align_suffix": "align", "alignfile": None, "only_source": False, "validpref": None}
    given |= {"trainpref": str(folder / "train"), "testpref": None, **parts}
    return SimpleNamespace(source_lang="en", target_lang="fr", **given)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["0-0 1-1", "", "2-0"], None),
        (["0-0", "", "x"], "train.align, line 3: 'x' is no link"),
        (["0-0", "", "1:2"], "train.align, line 3: '1:2' is no link"),
        (["0-2", "", "0-0"], r"train.align, line 1: '0-2' .* \(the lines have 2 and 2 words\)"),
        (["0-0", "0-0", ""], "train.align, line 2: '0-0' .* 0 and 0 words"),
        (["0-0", ""], "train.align has 2 lines, and others"),
        (["0-0", "", "0-0", ""], "train.en has 3 lines, and others"),
        (None, "train.align is not there; give the alignments of"),
    ],
)
@pytest.mark.parametrize("flag", ["align_suffix", "alignfile"])
def test_alignments_of_other_text(flag, lines, said, tmp_path):
    args, file = preprocessing(tmp_path), tmp_path / "train.align"
    if lines is not None:
        write_lines(file, *lines)
    if flag == "alignfile":
        args = preprocessing(tmp_path, align_suffix=None, alignfile=str(file))
    if said is None:
        files_beside_text.check_alignment_files(args)
        return
    with pytest.raises(UsageError, match=said):
        files_beside_text.check_alignment_files(args)


def test_alignments_of_training_alone_are_warned_of(tmp_path, caplog):
    write_lines(tmp_path / "train.align", "0-0", "", "")
    valid = str(tmp_path / "valid")
    files_beside_text.check_alignment_files(preprocessing(tmp_path, validpref=valid))
    assert f"{valid}.align is not there; {valid} is binarised without" in caplog.text


@pytest.mark.parametrize(
    ("split", "count", "said"),
    [("train", 0, "has 0"), ("train", 2, "has 2"), ("valid", 2, "has 2"), ("train", 3, None)],
)
def test_alignments_that_a_split_lacks(split, count, said):
    cfg = SimpleNamespace(load_alignments=True, data="d", source_lang="en", target_lang="fr")
    data = SimpleNamespace(src=[1, 2, 3], align_dataset=[0] * count or None)
    if said is None:
        files_beside_text.check_alignments(cfg, split, data)
        return
    with pytest.raises(UsageError, match=f"{split} of d {said} alignments for 3 pairs"):
        files_beside_text.check_alignments(cfg, split, data)


def test_a_validation_without_alignments_is_warned_of(caplog):
    cfg = SimpleNamespace(load_alignments=True, data="d")
    data = SimpleNamespace(src=[1], align_dataset=None)
    files_beside_text.check_alignments(cfg, "valid", data)
    assert "valid of d has no alignments" in caplog.text


def test_a_criterion_of_alignments_that_are_not_loaded():
    values = {"criterion": training_checks.ALIGNED, "load_alignments": False}
    with pytest.raises(UsageError, match="_with_alignment needs alignments, and none are loaded"):
        training_checks.check_rules(values, training_checks.RULES)


def test_fairseq_preprocess_refuses_alignments_before_it_writes(tmp_path):
    preprocessing(tmp_path)
    given = ["-s", "en", "-t", "fr", "--trainpref", tmp_path / "train", "--align-suffix", "none"]
    done = fairseq("preprocess", *given, "--destdir", tmp_path / "d", check=False)
    assert done.returncode == 1 and "train.none is not there" in done.stderr
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("task", ["translation", "language_modeling", "masked_lm"])
def test_folders_with_other_dictionaries(task, tmp_path, caplog):
    names = ["dict.en.txt", "dict.fr.txt"] if task == "translation" else ["dict.txt"]
    source, target = ("en", "fr") if task == "translation" else (None, None)
    folders = [tmp_path / name for name in ("d1", "d2", "d3")]
    for folder in folders:
        folder.mkdir()
        for name in names:
            dictionary().save(str(folder / name))
    data = ":".join(map(str, folders))
    given = Namespace(task=task, data=data, source_lang=source, target_lang=target)
    tasks.setup_task(given)
    other = folders[2] / names[-1]
    lines = other.read_text().splitlines()
    other.write_text("\n".join([lines[0], lines[2], lines[1], *lines[3:]]) + "\n")
    with pytest.raises(UsageError, match=f"^{other} is another .*line 2 has 'w2' and there 'w1'"):
        tasks.setup_task(given)
    other.write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(UsageError, match=f"^{other} is another .* has 'nothing' and there 'w5'"):
        tasks.setup_task(given)
    other.unlink()
    with caplog.at_level(logging.WARNING):
        tasks.setup_task(given)
    assert f"{other} is not there; its numbers are read as those of" in caplog.text


@pytest.fixture
def pairs():
    """Sentences of 2, 9 and 8 tokens, and a task that has them as its training part."""
    words = dictionary()
    rows = [[4] * n for n in (2, 9, 8)]
    data = LanguagePairDataset([*map(np.array, rows)], np.array([2, 9, 8]), words)
    task = FairseqTask(None)
    task.datasets["train"] = data
    return task, data


def test_a_subset_of_long_sentences_alone(pairs):
    task, data = pairs
    kept = task.filter_indices_by_size(np.arange(3), data, 4, ignore_invalid_inputs=True)
    assert kept.tolist() == [0]
    with pytest.raises(UsageError, match="^all 3 sentences of train are longer than the model"):
        task.filter_indices_by_size(np.arange(3), data, (1, 5), ignore_invalid_inputs=True)


def test_long_lines_are_numbered_from_the_start_of_the_input(pairs, caplog):
    task, data = pairs
    task.datasets.clear()
    buffer_place[:] = [("in.txt", 11)]
    try:
        with pytest.raises(UsageError, match="^in.txt, line 12 has 9 tokens, .* and 4 are"):
            task.filter_indices_by_size(np.arange(3)[::-1], data, 4)
        kept = task.filter_indices_by_size(np.arange(3), data, 4, ignore_invalid_inputs=True)
    finally:
        buffer_place.clear()
    assert kept.tolist() == [0]
    assert "in.txt, line 13 has 8 tokens, its end counted, and 4 are possible; it is" in caplog.text


def test_translation_from_pretrained_bart_has_its_options():
    task = tasks.TASK_REGISTRY["translation_from_pretrained_bart"]
    given = SimpleNamespace(langs="en,fr", data="d")
    words = [dictionary(), dictionary()]
    assert task(given, *words).args is given and "[fr]" in words[1]
