"""Which heads find antecedents: the measure, the baselines beside it, and the command."""

import csv
import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, train_encoder
from corpora import format_gap_row
from files import write_lines
from shell import assert_refused, bash

from fairseq_ext import cli
from fairseq_ext.analysis.coreference.antecedents import (
    ALL,
    AMONG,
    EncodedText,
    HeadAnswers,
    MentionBatch,
    ask_heads,
    check_heads,
)
from fairseq_ext.analysis.coreference.corpus_readers import HEADER, read_corpus
from fairseq_ext.analysis.coreference.mentions import Mention, Text, make_phrase
from fairseq_ext.analysis.coreference.probe import name_models, read_loss
from fairseq_ext.analysis.coreference.sieves import previous_word
from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.recording import LayerAttention
from fairseq_ext.analysis.tokens import TokenisedWords
from fairseq_ext.errors import UsageError
from fairseq_ext.testing.mechanisms import build_tiny_model

CONLL = ROOT / "tests/fixtures/coreference/two_parts.v4_gold_conll"
REFLEXIVES = [
    "our prince will love himself\t4\t0 1\t",
    "my girl could kick our mother by herself\t7\t0 1\t4 5",
    "some nephew can kick the man by himself\t7\t0 1\t4 5",
    "my queen who can kick her girl would remember your lady by herself\t12\t0 1\t5 6 9 10",
    "her girl could hurt herself\t4\t0 1\t",
]


@pytest.fixture(scope="module")
def checkpoint(encoder_data, tmp_path_factory) -> Path:
    return train_encoder(encoder_data, "roberta_una_tiny", tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def subject(checkpoint) -> ModelInspector:
    return ModelInspector(checkpoint)


@pytest.fixture(scope="module")
def reflexives(tmp_path_factory) -> Path:
    return write_lines(tmp_path_factory.mktemp("corpora") / "refl.5", *REFLEXIVES)


@pytest.fixture(scope="module")
def gap(tmp_path_factory) -> Path:
    rows = [
        format_gap_row(text, "She", "Mary Ann", "Jane", true)
        for text in ("Mary Ann met Jane's aunt. She left.", "Jane saw Mary Ann. Then She ran.")
        for true in ("A", "B", "neither")
    ]
    header = "\t".join(HEADER)
    return write_lines(tmp_path_factory.mktemp("corpora") / "gap-test.tsv", header, *rows)


# The measure.

# <s> the bo@@ y saw him self@@ </s>, of which "him self@@" is one word
WORDS = TokenisedWords(torch.arange(8), [[1], [2, 3], [4], [5, 6]])
BOY = Mention(make_phrase(3, 3), [make_phrase(1, 1)], [make_phrase(0, 0)], "pronominal")


def asked(rows: list[list[float]], among: str, mention: Mention = BOY) -> bool:
    """What one head gets right, of which the rows of "him" and "self@@" are given."""
    maps = torch.zeros(1, 1, 8, 8)
    maps[0, 0, 5:7] = torch.tensor(rows)
    return bool(MentionBatch([EncodedText(WORDS, [mention], 0)], among).judge(maps))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # of no token most, but of its word, and in the mean of both rows
        ([[0, 0.3, 0.2, 0.2, 0.3, 0, 0, 0]] * 2, ["nouns", "words", "all"]),
        ([[0, 0.4, 0, 0, 0.6, 0, 0, 0], [0, 0, 0.5, 0.5, 0, 0, 0, 0]], ["nouns", "words", "all"]),
        ([[0, 0.2, 0.2, 0.1, 0.5, 0, 0, 0]] * 2, ["nouns"]),
        ([[0, 0.2, 0.2, 0.1, 0, 0.2, 0.3, 0]] * 2, ["nouns"]),  # the mention itself
        ([[0.5, 0.1, 0.2, 0.1, 0.1, 0, 0, 0]] * 2, ["nouns", "words"]),
        ([[0, 0.1, 0.2, 0.1, 0.1, 0, 0, 0.5]] * 2, ["nouns", "words"]),
        ([[0, 0.5, 0.25, 0.25, 0, 0, 0, 0]] * 2, []),  # equal weights
        ([[1, 0, 0, 0, 0, 0, 0, 0]] * 2, []),  # none at all
        ([[0, 0.6, 0.2, 0.2, 0, 0, 0, 0]] * 2, []),
    ],
)
def test_worked_examples(rows, expected):
    assert [among for among in AMONG if asked(rows, among)] == expected


def test_any_word_of_any_antecedent():
    mention = BOY._replace(antecedents=[make_phrase(0, 0), make_phrase(1, 2)], others=[])
    for word in (1, 2, 4):
        row = [0.0] * 8
        row[word] = 1.0
        assert asked([row] * 2, "words", mention)
    assert not asked([[0, 0, 0, 0, 0, 1, 0, 0]] * 2, "words", mention)


def naive(subject: ModelInspector, text: Text, mention: Mention, among: str) -> list[list[bool]]:
    """[L][H], of a text alone and with loops."""
    words = subject.words(text.words)
    spans = words.all_spans() if among == "all" else words.spans
    wanted = {i for phrase in mention.antecedents for i in phrase.targets}
    candidates = set(range(len(spans)))
    if among == "nouns":
        candidates = wanted | {i for phrase in mention.others for i in phrase.targets}
    found = []
    for maps in subject.maps(subject.batch(words.numbers))["encoder"].values():
        line = []
        for weights in maps[0].double().tolist():
            own = words.spans[mention.phrase.head]
            attention = [sum(weights[t][s] for t in own for s in each) / len(own) for each in spans]
            chosen = max(candidates, key=attention.__getitem__)
            line.append(chosen in wanted)
        found.append(line)
    return found


@pytest.mark.parametrize("among", AMONG)
def test_naive_twin(subject, reflexives, gap, among):
    """Of texts of several lengths, with several mentions, split into pieces, in batches."""
    texts = [text for path in (reflexives, gap, CONLL) for text in read_corpus(path).texts]
    texts.sort(key=lambda text: len(subject.words(text.words).numbers))  # as they are batched
    expected = [
        naive(subject, text, mention, among)
        for text in texts
        for mention in text.mentions
        if among != "nouns" or mention.others
    ]
    found = ask_heads(subject, texts, among, max_tokens=100)
    assert found.right.tolist() == expected
    assert 0 < found.right.double().mean() < 1
    once = ask_heads(subject, texts, among, max_tokens=1)
    assert torch.equal(once.right, found.right)


class Patterned(ModelInspector):
    """Heads that look at the previous token, at the first one, and at all alike."""

    def __init__(self, subject: ModelInspector) -> None:
        self.__dict__ |= subject.__dict__

    def record_attention(self, batch, receive):
        tokens = batch["net_input"]["src_tokens"]
        size = tokens.size(1)
        previous = torch.eye(size).roll(-1, 1)
        first = torch.zeros(size, size)
        first[:, 0] = 1
        maps = torch.stack([previous, first, torch.full((size, size), 1 / size)])
        for layer in (0, 1):
            receive(LayerAttention("encoder", layer, maps.expand(len(tokens), -1, -1, -1), None))
        receive(LayerAttention("decoder", 0, torch.zeros(len(tokens), 1, size, size), None))


def test_heads_of_which_it_is_known(subject):
    """One that looks at the previous token finds what stands there, if a word is a token."""
    words = "a b c d e".split()
    assert all(len(each) == 1 for each in subject.words(words).spans)
    mentions = [
        Mention(make_phrase(i, i), [make_phrase(i - d, i - d)], [], "x")
        for i in (3, 4)
        for d in (1, 2)
    ]
    text = Text(words, [5], mentions)
    found = ask_heads(Patterned(subject), [text], "words")
    assert found.right[:, :, 0].T.tolist() == [[previous_word(text, m) for m in mentions]] * 2
    assert not found.right[:, :, 1:].any()


# Accuracies.


def test_the_best_head_and_what_is_held_out():
    """Head 0 is best on the first half, head 1 on the second."""
    right = torch.tensor([[1, 0], [1, 0], [0, 0], [0, 1], [0, 1], [1, 1]], dtype=torch.bool)
    kinds = ["proper", "nominal", "nominal", "proper", "proper", "nominal"]
    found = HeadAnswers(right[:, None], kinds, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert list(found.members) == [ALL, "nominal", "proper"]
    assert found.accuracy().tolist() == [[0.5, 0.5]]
    assert found.accuracy("nominal").tolist() == [[pytest.approx(2 / 3), pytest.approx(1 / 3)]]
    assert found.best() == (0, 0, 0.5, pytest.approx(1 / 6))  # of 3 and 3: none, and one
    assert found.best("proper") == (0, 1, pytest.approx(2 / 3), 0.0)


def test_a_half_without_mentions():
    found = HeadAnswers(torch.ones(2, 1, 3, dtype=torch.bool), ["proper"] * 2, torch.tensor([1, 1]))
    assert found.best() == (0, 0, 1.0, None)


def test_parts_of_a_text_are_of_one_half(subject):
    texts = [Text(["a", "b"], [2], [Mention(make_phrase(1, 1), [make_phrase(0, 0)], [], "x")])] * 3
    found = ask_heads(subject, texts, "words")
    assert found._halves.tolist() == [0, 1, 0]


def test_a_model_with_few_positions(subject):
    """62 words of one token fit between the ends; longer texts are asked in parts."""
    assert subject.max_positions == 64
    words = ["a"] * 100
    near, far = make_phrase(60, 60), make_phrase(2, 2)
    mentions = [Mention(make_phrase(80, 80), [phrase], [], "x") for phrase in (near, far)]
    text = Text(words, list(range(10, 101, 10)), mentions)
    assert len(ask_heads(subject, [text], "words").right) == 1
    assert len(ask_heads(subject, [text._replace(mentions=mentions[1:])], "words").right) == 0


@pytest.mark.parametrize(("left", "refused"), [("2/1", True), ("2/0", True), ("2/2", False)])
def test_a_model_with_pruned_heads(left, refused):
    """Layers are to have equally many."""
    model = build_tiny_model("roberta_una_tiny", encoder_heads_left=left)
    with pytest.raises(UsageError, match=f"of {left} heads") if refused else nullcontext():
        check_heads(SimpleNamespace(model=model, title="m"))


# The command.


@pytest.fixture(scope="module")
def runs(checkpoint, tmp_path_factory) -> list[Path]:
    """Two repetitions of a model, with losses."""
    folder, found = tmp_path_factory.mktemp("runs"), []
    for number, name in enumerate(["plain/seed-1", "plain/seed-2"], 1):
        state = torch.load(checkpoint, weights_only=False)
        state["extra_state"]["val_loss"] = float(number)
        for value in state["model"].values():
            if number == 2 and value.is_floating_point():
                value.mul_(1.5)
        found.append(folder / name / "checkpoint_last.pt")
        found[-1].parent.mkdir(parents=True)
        torch.save(state, found[-1])
    return found


@pytest.fixture(scope="module")
def probed(runs, reflexives, gap, tmp_path_factory):
    out, corpora = tmp_path_factory.mktemp("probe") / "out", [reflexives, gap, CONLL]
    command = ["probe", *map(str, runs), "--coreference", *map(str, corpora), "--out", str(out)]
    cli.main([*command, "--random", "2"])
    return out


def test_rows_of_all_heads(probed):
    with (probed / "probe.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    models = [("plain", "1"), ("plain", "2"), ("random", "1"), ("random", "2")]
    kinds = {
        "refl.5": {"all": 5, "pronominal": 5},
        "gap-test.tsv": {"all": 4, "pronominal": 4},
        CONLL.name: {"all": 4, "nominal": 1, "pronominal": 2, "proper": 1},
    }
    expected = {
        (*model, corpus, kind, str(count), str(layer), str(head))
        for model in models
        for corpus, counts in kinds.items()
        for kind, count in counts.items()
        for layer in range(4)
        for head in range(8)
    }
    assert {tuple(row.values())[:-1] for row in rows} == expected and len(rows) == len(expected)
    for row in rows:
        right = float(row["accuracy"]) * int(row["mentions"])
        assert right == pytest.approx(round(right))


def test_the_best_are_those_of_the_rows(probed):
    found = json.loads((probed / "probe.json").read_text("utf-8"))
    assert (found["among"], found["distractors"]) == ("words", 0)
    assert found["left_out"] == {"refl.5": 0, "gap-test.tsv": 2, CONLL.name: 0}
    names = ("model", "repetition", "corpus", "kind")
    for best in found["best"]:
        own = [row for row in found["rows"] if all(row[name] == best[name] for name in names)]
        most = max(own, key=lambda row: row["accuracy"])
        assert [best[n] for n in ("layer", "head", "accuracy")] == [
            most[n] for n in ("layer", "head", "accuracy")
        ]
        assert best["valid_loss"] == (None if best["model"] == "random" else best["repetition"])
    assert found["baselines"]["refl.5"]["previous word"] == {"all": 0.0, "pronominal": 0.0}
    assert found["baselines"]["refl.5"]["rules"]["all"] == 2 / 5
    first, second = (
        [row["accuracy"] for row in found["rows"] if (row["model"], row["repetition"]) == key]
        for key in (("random", 1), ("random", 2))
    )
    assert first != second


def test_the_table(runs, reflexives, probed, tmp_path, capsys):
    """Repetitions as mean and standard error; kinds in columns if there are several."""
    command = ["probe", *map(str, runs), "--out", str(tmp_path / "a"), "--coreference"]
    cli.main([*command, str(reflexives), str(CONLL), "--random", "2"])
    said = capsys.readouterr().out
    assert "refl.5, among words; 0 texts" in said
    header, *rows = said.split(f"{CONLL.name}, among words")[1].split("\n")[1:7]
    columns = "model loss mentions accuracy head held out nominal pronominal proper".split()
    assert header.split() == columns
    names = ["previous word", "nearest noun phrase", "rules", "plain", "random"]
    assert [row[:20].rstrip() for row in rows] == names
    found = json.loads((probed / "probe.json").read_text("utf-8"))["best"]
    own = [
        best["accuracy"]
        for best in found
        if (best["model"], best["corpus"], best["kind"]) == ("plain", CONLL.name, "all")
    ]
    mean, error = sum(own) / 2, abs(own[0] - own[1]) / 2
    assert f"1.500 ± 0.500         4  {mean:.3f} ± {error:.3f}" in rows[3]


def test_the_picture(probed):
    assert (probed / "probe.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in probed.iterdir()) == [
        *("probe.csv", "probe.json", "probe.png")
    ]


def test_distractors_give_a_choice(runs, reflexives, tmp_path):
    """All sentences are asked, though two have no other noun phrase of their own."""
    command = ["probe", str(runs[0]), "--coreference", str(reflexives), "--among", "nouns"]
    for count, expected in (("0", 3), ("1", 5)):
        out = tmp_path / count
        cli.main([*command, "--random", "0", "--distractors", count, "--out", str(out)])
        found = json.loads((out / "probe.json").read_text("utf-8"))
        assert {best["mentions"] for best in found["best"]} == {expected}
        assert {best["model"] for best in found["best"]} == {"plain"}


def test_encoders_of_translation_models(hybrid_run, data_bin, reflexives, tmp_path):
    checkpoint = hybrid_run / "checkpoint_last.pt"
    command = ["probe", str(checkpoint), "--data", str(data_bin), "--lowercase", "--random", "1"]
    cli.main([*command, "--coreference", str(reflexives), "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "probe.json").read_text("utf-8"))["rows"]
    assert len(rows) == 2 * 2 * 4 * 4


def test_models_of_two_shapes(runs, hybrid_run, data_bin, reflexives, tmp_path):
    """Each has random ones of its own."""
    folder = tmp_path / "data"
    folder.mkdir()
    command = ["probe", str(runs[0]), str(hybrid_run / "checkpoint_last.pt"), "--limit", "2"]
    cli.main([*command, "--coreference", str(reflexives), "--random", "1", "--out", str(folder)])
    found = json.loads((folder / "probe.json").read_text("utf-8"))
    names = {best["model"] for best in found["best"]}
    assert names == {"plain", "hna", "random, as plain", "random, as hna"}
    assert {best["mentions"] for best in found["best"]} == {2}


def test_random_models_have_the_settings_of_each(checkpoint, reflexives, tmp_path):
    """Roles have no parameters, so that both models have the same shape."""
    other = tmp_path / "roles" / "checkpoint_last.pt"
    state = torch.load(checkpoint, weights_only=False)
    state["cfg"]["model"]["encoder_roles"] = "relative,relative"
    other.parent.mkdir()
    torch.save(state, other)
    command = ["probe", str(checkpoint), str(other), "--limit", "2", "--random", "1"]
    cli.main([*command, "--coreference", str(reflexives), "--out", str(tmp_path / "out")])
    found = json.loads((tmp_path / "out" / "probe.json").read_text("utf-8"))
    rows = {}
    for row in found["rows"]:
        rows.setdefault(row["model"], []).append(row["accuracy"])
    name = checkpoint.parent.name
    assert rows.keys() == {name, "roles", f"random, as {name}", "random, as roles"}


def test_names():
    runs = [Path("x/plain/seed-1/a.pt"), Path("x/plain/seed-2/a.pt"), Path("e/minilm/model.pt")]
    assert name_models(runs) == ["plain", "plain", "minilm"]
    assert name_models([Path("x/plain/seed-1/a.pt"), Path("x/plain/seed-1/b.pt")]) == [
        *("plain/a", "plain/b")
    ]


def test_losses_of_checkpoints(runs, checkpoint, tmp_path):
    assert [read_loss(run) for run in runs] == [1.0, 2.0]
    assert read_loss(checkpoint) is None  # it was not validated
    state = torch.load(runs[0], weights_only=False)
    state["cfg"]["checkpoint"]["best_checkpoint_metric"] = "accuracy"
    torch.save(state, tmp_path / "other.pt")
    assert read_loss(tmp_path / "other.pt") is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--limit", "0"], "--limit is 0 and must be at least 1"),
        (["--distractors", "-1"], "--distractors is -1 and must be at least 0"),
        (["--random", "-1"], "--random is -1 and must be at least 0"),
        (["--max-tokens", "0"], "--max-tokens is 0 and must be at least 1"),
        (["--among", "nouns", "--limit", "1"], "refl.5 marks no noun phrases but antecedents"),
        (["--coreference", "a.txt"], "a.txt is no corpus of coreference"),
        (["--coreference", str(CONLL), str(CONLL)], "two corpora of one name"),
        (["--out", "/dev/null/x"], "/dev/null is a file"),
        (["--data", "."], "neither dictionaries nor examples"),
    ],
)
def test_what_cannot_be_probed(runs, reflexives, tmp_path, change, says):
    command = ["probe", str(runs[0]), "--coreference", str(reflexives)]
    with pytest.raises(UsageError, match=says):
        cli.main([*command, "--out", str(tmp_path / "out"), *change])
    assert not (tmp_path / "out").exists()


def test_a_model_that_reads_too_little(runs, tmp_path):
    sentence = " ".join(["word"] * 70)
    file = write_lines(tmp_path / "refl.0", f"{sentence}\t69\t0 0\t1 1")
    with pytest.raises(UsageError, match="reads at most 64 tokens, and no mention of refl.0 has"):
        cli.main(["probe", str(runs[0]), "--coreference", str(file), "--out", str(tmp_path / "o")])


# The recipe.


@pytest.mark.recipe
def test_the_recipe(runs, reflexives, gap, tmp_path):
    study = tmp_path / "study"
    for variant in ("plain", "ag-0.5", "ag-1"):
        for run in runs:
            folder = study / variant / run.parent.name
            folder.mkdir(parents=True)
            (folder / run.name).symlink_to(run)
    (tmp_path / "further").mkdir()
    further = shutil.copy(runs[0], tmp_path / "further" / "model.pt")
    corpora = tmp_path / "corpora"
    for folder, file in (("coref-synthetic", reflexives), ("gap", gap)):
        (corpora / folder).mkdir(parents=True)
        (corpora / folder / file.name).write_bytes(file.read_bytes())
    recipe = ROOT / "scripts" / "probe.sh"
    given = ["--runs", study, "--out", tmp_path / "out", "--limit", 3, "--random", 1]
    done = bash(recipe, further, *given, FAIRSEQ_EXT_CORPORA=str(corpora))
    assert done.returncode == 0, done.stderr
    for name in ("refl.5", "gap-test.tsv"):
        rows = done.stdout.split(f"{name}, among words")[1].split("\n")[2:]
        found = [re.split(r"  +", row)[0] for row in rows[:8]]
        assert found[3:] == ["plain", "ag-0.5", "ag-1", "further", "random"]
    assert json.loads((tmp_path / "out" / "probe.json").read_text("utf-8"))["distractors"] == 8


def test_what_the_recipe_refuses(tmp_path):
    recipe = ROOT / "scripts" / "probe.sh"
    done = bash(recipe, "--runs", tmp_path, FAIRSEQ_EXT_CORPORA=str(tmp_path))
    assert_refused(done, "--runs is", "no plain/seed-", "scripts/pretrain.sh fraction")
    done = bash(recipe, "--limit", "all")
    assert_refused(done, "--limit is 'all'")
