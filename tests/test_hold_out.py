"""Parts of text: some examples alone, every N-th one held out, and pairs left out."""

import json
import re

import pytest

from fairseq_ext.errors import UsageError
from fairseq_ext.prepare import bitext
from fairseq_ext.prepare.hold_out import main


def numbers(path):
    return [json.loads(line)["label"] for line in path.read_text("utf-8").split("\n")[:-1]]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for part, size in (("train", 25), ("valid", 3), ("test", 2)):
        lines = [json.dumps({"text": "é", "label": number}) + "\n" for number in range(size)]
        (folder / f"{part}.jsonl").write_text("".join(lines), "utf-8")
    (folder / "dict.txt").write_text("é 1\n")
    return folder


@pytest.mark.parametrize(
    ("flags", "train", "valid"),
    [
        ("--take 4", [0, 6, 12, 18], [0, 1, 2]),
        ("--every 10", [*range(9), *range(10, 19), *range(20, 25)], [9, 19]),
        ("--take 7 --every 3", [0, 3, 10, 14, 21], [7, 17]),
        ("", [*range(25)], [0, 1, 2]),
    ],
)
def test_parts(data, tmp_path, flags, train, valid):
    """Examples held out become the part for validation; the rest stays as it is."""
    out = tmp_path / "new" / "part"
    main([str(data), str(out), *flags.split()])
    assert numbers(out / "train.jsonl") == train and numbers(out / "valid.jsonl") == valid
    for name in ("test.jsonl", "dict.txt"):
        assert (out / name).read_bytes() == (data / name).read_bytes()
    assert len(list(out.iterdir())) == 4 and numbers(data / "train.jsonl") == [*range(25)]
    (out / "test.jsonl").unlink()
    main([str(data), str(out), *flags.split()])  # what is there is left as it is
    assert len(list(out.iterdir())) == 3


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--take 26", "train.jsonl has 25 examples, and 26 are needed"),
        ("--every 25", "train.jsonl has 25 examples, and 26 are needed"),
        ("--take 3 --every 3", "train.jsonl has 25 examples, of which 3 are taken, and 4 are"),
    ],
)
def test_too_few(data, tmp_path, flags, said):
    with pytest.raises(UsageError) as refused:
        main([str(data), str(tmp_path / "out"), *flags.split()])
    assert said in str(refused.value) and not (tmp_path / "out").exists()


def test_only_lines_of_json_are_parted(data, tmp_path, capsys):
    main([str(data), str(tmp_path / "out"), "--every", "3"])
    assert re.search(r"out/train.jsonl: \d+ examples\n.*valid.jsonl: \d+", capsys.readouterr().out)
    (data / "train.jsonl").write_text("text,label\nfine,good\n")
    with pytest.raises(UsageError, match="l:1 is no JSON object; give one with text, label"):
        main([str(data), str(tmp_path / "again")])
    (data / "train.jsonl").write_text('"fine"\n')
    with pytest.raises(UsageError, match=r"train.jsonl:1 is no JSON object"):
        main([str(data), str(tmp_path / "again")])
    (data / "train.jsonl").unlink()
    with pytest.raises(UsageError, match="train.jsonl is not there; make it with"):
        main([str(data), str(tmp_path / "again")])


def test_what_else_is_refused(data, tmp_path, capsys):
    main([str(data), str(tmp_path / "other"), "--take", "3"])
    again = "is there already, with other examples; delete it and what was trained on it"
    for flags in (["--take", "4"], ["--take", "3", "--every", "2"]):
        with pytest.raises(UsageError, match=again):
            main([str(data), str(tmp_path / "other"), *flags])
    (data / "test.jsonl").write_text('{"text": "corrected"}\n')
    with pytest.raises(UsageError, match=again):
        main([str(data), str(tmp_path / "other"), "--take", "3"])
    (data / "train.annotations").mkdir()
    with pytest.raises(UsageError, match="annotations is of all examples; annotate the part when"):
        main([str(data), str(tmp_path / "out"), "--take", "3"])
    with pytest.raises(SystemExit):
        main([str(data), str(tmp_path / "out"), "--every", "1"])
    assert "--every" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ("", [1, 2, 3, 6]),
        ("--ratio 2", [1, 2]),
        ("--longest 4", [1]),
        ("--longest 4 --ratio 3", [1, 2, 3]),
    ],
)
def test_lengths_of_pairs_that_are_kept(tmp_path, options, kept):
    """The ratio has a limit of its own; with a longest length alone it is 1.5."""
    for language, lengths in (("de", [1, 1, 1, 1]), ("en", [1, 2, 3, 6])):
        lines = "".join(f"{' '.join(['a'] * length)}\n" for length in lengths)
        (tmp_path / f"train.{language}").write_text(lines)
    command = [f"{tmp_path}={tmp_path / 'out'}", "--languages", "de", "en", *options.split()]
    bitext.main(command)
    text = (tmp_path / "out" / "train.en").read_text()
    assert [len(line.split()) for line in text.splitlines()] == kept
