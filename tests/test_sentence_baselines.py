"""CNN and BiLSTM as encoders of sentences: what they compute, and how they are trained and used."""

import json
import sys

import pytest
import torch
from conftest import PLUGIN, fairseq
from fairseq_cli.train import cli_main
from labelled import (
    CLASSIFY,
    ORDERED,
    WORDS,
    batch_of,
    build_model,
    task_on,
    write_examples,
    write_vocabulary,
)
from torch import nn

from fairseq_ext import cli
from fairseq_ext.errors import UsageError
from fairseq_ext.training_logs import read_log

ARCHS = ["sentence_cnn", "sentence_bilstm"]
EVERY = pytest.mark.parametrize("arch", ARCHS)


@pytest.fixture
def task(tmp_path):
    return task_on("sentence_classification", tmp_path, ORDERED, pooling="max")


def encoder_of(task, arch, **options):
    return build_model(task, arch, **options).encoder.double().eval()


def rows(task, *lengths, left=False, to=0):
    """[B, S] tokens of sentences of so many tokens, and which of them are real."""
    torch.manual_seed(2)
    longest, pad = max(*lengths, to), task.source_dictionary.pad()
    tokens = torch.full((len(lengths), longest), pad)
    for row, length in enumerate(lengths):
        own = slice(longest - length, None) if left else slice(length)
        tokens[row, own] = torch.randint(4, len(WORDS), (length,))
    return tokens, tokens.ne(pad)


@EVERY
def test_without_its_head_a_model_returns_features(task, arch):
    model, (tokens, _) = build_model(task, arch).eval(), rows(task, 7, 2)
    features, more = model(tokens)
    assert torch.equal(features, model.encoder(tokens)) and more["features"] is features
    assert torch.equal(model(tokens, task_head=True)[1]["features"], features)


@EVERY
@pytest.mark.parametrize("left", [False, True])
def test_padding_and_company_change_nothing(task, arch, left):
    """Nor does their order; what stands at padding is 0."""
    encoder = encoder_of(task, arch)
    tokens, real = rows(task, 7, 2, 4, left=left, to=11)
    together = encoder(tokens)
    assert together.shape == (3, 11, encoder.width) and not together[~real].any()
    for row, own, found in zip(tokens, real, together, strict=True):
        torch.testing.assert_close(found[own], encoder(row[own][None])[0], rtol=0, atol=1e-12)


@EVERY
def test_padding_has_no_gradient(task, arch):
    encoder = encoder_of(task, arch)
    tokens, _ = rows(task, 6, 3)
    encoder(tokens).square().sum().backward()
    gradient = encoder.embed_tokens.weight.grad
    assert not gradient[task.source_dictionary.pad()].any()
    assert all(gradient[token].any() for token in tokens[1, :3])


def test_feature_maps_are_sums_over_windows(task):
    """Of one embedding more to the right than to the left in windows of an even size."""
    encoder = encoder_of(task, "sentence_cnn", cnn_windows="2,3,5", cnn_maps=4)
    tokens, _ = rows(task, 4)
    x, found = encoder.embed_tokens(tokens)[0], []
    for maps, (left, right) in zip(encoder.convolutions, [(0, 1), (1, 1), (2, 2)], strict=True):
        around = nn.functional.pad(x, (0, 0, left, right))
        for place in range(4):
            window = around[place : place + left + right + 1]
            value = torch.einsum("wc,mcw->m", window, maps.weight) + maps.bias
            found.append(value.relu())
    expected = torch.stack(found).view(3, 4, 4).transpose(0, 1).reshape(4, 12)
    torch.testing.assert_close(encoder(tokens)[0], expected, rtol=0, atol=1e-12)


def test_a_bilstm_reads_in_both_directions(task):
    encoder = encoder_of(task, "sentence_bilstm", encoder_hidden_size=5)
    tokens, _ = rows(task, 6)
    changed = tokens.clone()
    changed[0, 3] = tokens[0, 3] % (len(WORDS) - 4) + 5
    differs = (encoder(tokens) - encoder(changed))[0].abs() > 0
    assert differs[:, :5].any(1).tolist() == [False] * 3 + [True] * 3
    assert differs[:, 5:].any(1).tolist() == [True] * 4 + [False] * 2


@EVERY
@pytest.mark.parametrize("pooling", ["max", "mean", "first", "attention"])
def test_every_pooling_has_the_width_of_features(tmp_path, arch, pooling):
    task = task_on("sentence_classification", tmp_path, ORDERED, pooling=pooling)
    model, batch = build_model(task, arch), batch_of(task)
    scores, extra = model(**batch["net_input"], task_head=True)
    assert scores.shape == (6, 2)
    width = {"sentence_cnn": 300, "sentence_bilstm": 300}[arch]
    assert extra["features"].size(2) == width == model.args.encoder_embed_dim
    assert model.encoder.embed_tokens.embedding_dim == 12


@EVERY
@pytest.mark.parametrize("pairs", ["joint", "apart"])
def test_pairs(tmp_path, arch, pairs):
    train = [{"text": "a cat", "pair": "the dog ran", "label": label} for label in "ab"]
    task = task_on("sentence_classification", tmp_path, train, pooling="max", pairs=pairs)
    model, batch = build_model(task, arch), batch_of(task)
    assert len(batch["net_input"]["src_tokens"]) == {"joint": 2, "apart": 4}[pairs]
    scores, _ = model(**batch["net_input"], task_head=True)
    assert scores.shape == (2, 2)


@EVERY
def test_what_depends_on_order_is_learned(task, arch):
    """Both classes have the same words; no embedding alone tells them apart."""
    model, batch = build_model(task, arch), batch_of(task)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(40):
        scores, _ = model(**batch["net_input"], task_head=True)
        loss = nn.functional.cross_entropy(scores, batch["target"])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    scores, _ = model.eval()(**batch["net_input"], task_head=True)
    assert scores.argmax(1).equal(batch["target"])


@pytest.mark.parametrize(
    ("arch", "options", "says"),
    [
        ("sentence_cnn", {"cnn_windows": "3,,4"}, "--cnn-windows is '3,,4'; give numbers"),
        ("sentence_cnn", {"cnn_windows": "3,0"}, "--cnn-windows is '3,0'"),
        ("sentence_cnn", {"cnn_windows": ""}, "--cnn-windows is ''"),
        ("sentence_cnn", {"cnn_maps": 0}, "--cnn-maps is 0; give a whole number from 1"),
        ("sentence_bilstm", {"encoder_hidden_size": -2}, "--encoder-hidden-size is -2"),
        ("sentence_bilstm", {"encoder_layers": 0}, "--encoder-layers is 0"),
    ],
)
def test_options_that_are_none(task, arch, options, says):
    with pytest.raises(UsageError, match=says):
        build_model(task, arch, **options)


@EVERY
def test_they_are_not_fine_tuned(task, arch):
    task.pretrained = "encoder.pt"
    with pytest.raises(UsageError, match=f"--arch {arch} is trained from scratch; leave --fine"):
        build_model(task, arch)


# Through the commands.


@pytest.fixture
def data(tmp_path):
    folder = write_vocabulary(tmp_path / "data")
    for split in ("train", "valid"):
        write_examples(folder / f"{split}.jsonl", ORDERED)
    return folder


@EVERY
def test_training_goes_on_and_its_checkpoint_predicts(data, tmp_path, arch, capsys):
    run = tmp_path / "run"
    given = [data, "--user-dir", PLUGIN, *CLASSIFY, "--arch", arch, "--save-dir", run]
    fairseq("train", *given, "--max-update", 2)
    done = fairseq("train", *given, "--max-update", 16)
    (run / "train.log").write_text(done.stdout + done.stderr)
    updates = [record.update for record in read_log(run) if record.kind == "train_inner"]
    assert updates == list(range(3, 17))
    (tmp_path / "new.txt").write_text("".join(f"{e['text']}\n" for e in ORDERED))
    for part in data.iterdir():
        part.unlink()
    said = tmp_path / "said"
    cli.main(
        ["predict", f"{run}/checkpoint_last.pt", "--cpu", "--json"]
        + ["--input", str(tmp_path / "new.txt"), "--output", str(said)]
    )
    answers = [json.loads(line)["label"] for line in said.read_text().split("\n")[:-1]]
    assert answers == [example["label"] for example in ORDERED]


@pytest.mark.parametrize(
    ("criterion", "says"),
    [
        ("sentence_classification_ag", "this --arch has no attention to guide"),
        ("sentence_classification_asa", "needs an --arch of ours, such as"),
    ],
)
def test_what_changes_attention_is_refused(data, tmp_path, monkeypatch, criterion, says):
    flags = [*CLASSIFY, "--arch", "sentence_cnn", "--max-update", 2, "--save-dir", tmp_path]
    flags[flags.index("--criterion") + 1] = criterion
    monkeypatch.setattr(sys, "argv", ["fairseq-train", str(data), *map(str, flags)])
    with pytest.raises(UsageError, match=says):
        cli_main()
