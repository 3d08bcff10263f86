"""Turn a Hugging Face folder of an encoder or a language model into a fairseq checkpoint.

An encoder is a BERT (as MiniLM is), a RoBERTa (CamemBERT, XLM-R) or one of three versions of
DeBERTa; a language model is a Llama or Qwen3. OUT gets model.pt, dict.txt and tokenizer.json: a
roberta_una_12, deberta_una_base or transformer_lm_una_today_base with the sizes of the model.

Nothing is downloaded, and nothing in the files is run. The weights are model.safetensors or
pytorch_model.bin, also in shards. An encoder without a head for masked language modelling (MiniLM)
remains without one: it is there to be fine-tuned. With --pooler pretrained, classification heads
begin with BERT's trained pooler, and their dropout is that of the encoder.

Example:
  fairseq-ext import-hf downloads/all-MiniLM-L6-v2 encoders/minilm
  fairseq-ext import-hf downloads/deberta-v3-base encoders/deberta
  fairseq-ext import-hf downloads/bert-base-uncased encoders/bert --pooler pretrained
  fairseq-ext import-hf downloads/roberta-large-mnli encoders/mnli --leave-out classifier
"""

import argparse
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.bounds import MOST_BYTES, check_regular
from fairseq_ext.data.fingerprints import FINGERPRINTS
from fairseq_ext.data.vocabulary import Vocabulary, digest
from fairseq_ext.errors import UsageError
from fairseq_ext.files import new_folder
from fairseq_ext.interchange import (
    hf_deberta,
    hf_deberta_first,
    hf_llama,
    hf_vocabulary,
    import_language_model,
)
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.interchange.hf_tokenizers import read_tokenizer
from fairseq_ext.interchange.hf_weights import POOLER, read_tensors, take_parameter
from fairseq_ext.interchange.new_checkpoint import make_checkpoint
from fairseq_ext.models.pretrained import DIGEST, FIRST_POSITION

ARCHITECTURE = "roberta_una_12"

# Values that config.json may have; the first is the value of a missing setting.
ACCEPTED: dict[str, list] = {
    "position_embedding_type": ["absolute"],
    "is_decoder": [False],
    "hidden_act": list(hf.ACTIVATIONS),
}

# Letters of shapes in `hf_format`: the size in config.json, and its default there.
SIZES = {
    "V": ("vocab_size", 30522),
    "P": ("max_position_embeddings", 512),
    "T": ("type_vocab_size", 2),
    "D": hf.OPTIONS["encoder_embed_dim"],
    "F": hf.OPTIONS["encoder_ffn_embed_dim"],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext import-hf`."""
    parser.add_argument("path", type=Path, metavar="PATH", help="config.json, weights, tokenizer")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to be made")
    text = "first layer of classification heads: a new one, or BERT's (default: new)"
    parser.add_argument("--pooler", choices=["new", "pretrained"], default="new", help=text)
    text = "heads of other tasks, by the beginnings of their parameters' names"
    parser.add_argument("--leave-out", dest="heads", nargs="+", default=(), help=text)


def run(args: argparse.Namespace) -> None:
    """Write the folder, and print what was left out."""
    check_files(args.path)
    config, pooler = hf.read_json(args.path / "config.json"), args.pooler == "pretrained"
    with new_folder(args.out) as work:
        if (kind := config.get("model_type")) in hf_llama.NAMES:
            tensors, unused = read_tensors(args.path, kind, pooler, args.heads)
            said = import_language_model.convert(config, tensors, args.path, work, args.out)
        else:
            state, unused = convert(args.path, work, args.out, pooler, args.heads)
            said = describe(state, work)
    print(f"{args.out} has model.pt, dict.txt and tokenizer.json")
    if unused:
        print(f"left out: {', '.join(unused)}")
    for line in said:
        print(line)


def describe(state: Mapping[str, Tensor], work: Path) -> list[str]:
    """Return what else is to be said of an encoder that was written."""
    lines = [] if hf.OUTPUT_BIAS in state else ["there is no head for masked language modelling"]
    unknown = hf_vocabulary.count_unknown(Vocabulary.load(work))
    return [*lines, f"{unknown} tokens of a probe text are unknown"]


def convert(
    path: Path, work: Path, out: Path, pooler: bool = False, heads: Sequence[str] = ()
) -> tuple[dict[str, Tensor], list[str]]:
    """Write an encoder as a fairseq checkpoint; return its parameters, and the names left out.

    Args:
        path: the encoder.
        work: the folder to fill.
        out: the name that the folder will have.
        pooler: whether the pooler is kept.
        heads: beginnings of names of parameters to leave out.

    Raises:
        UsageError: the encoder cannot be read, or cannot be represented exactly.
    """
    check_files(path)
    config = read_config(path)
    deberta = config["model_type"] in hf_deberta.KINDS
    if deberta and pooler:
        raise UsageError(f"{path} is a DeBERTa, whose pooler is never kept; leave --pooler out")
    tensors, unused = read_tensors(path, config["model_type"], pooler, heads)
    if deberta:
        tensors = hf_deberta_first.modernise(tensors, config)
    state = rename_parameters(tensors, config, path)
    tokenizer = read_tokenizer(path)
    names = hf_vocabulary.list_symbols(tokenizer, config["vocab_size"])
    order = hf_vocabulary.sort_for_dictionary(names)
    untied, words = rearrange(state, config, order), [names[i] for i in order]
    hf_vocabulary.write_dictionary(words, work / "dict.txt")
    (work / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), "utf-8")
    model = make_options(config, state) | {"untie_weights_roberta": untied}
    checkpoint = make_checkpoint(model, state, out.absolute())
    checkpoint["extra_state"] |= {DIGEST: digest(words), FINGERPRINTS: {"source": words}}
    with (work / "model.pt").open("wb") as file:  # so that an error of the disk is Python's
        torch.save(checkpoint, file)
    return state, unused


def check_files(path: Path) -> None:
    """Raise UsageError if a file of the folder is a pipe or a device, or far too long a text."""
    for file in path.glob("*"):
        check_regular(file, MOST_BYTES if file.suffix in (".json", ".txt") else inf)


def read_config(path: Path) -> dict[str, Any]:
    """Return config.json, with a value for everything that is read here.

    Raises:
        UsageError: it is missing, or describes what our models cannot do.
    """
    content = hf.read_json(path / "config.json")
    kind = content.get("model_type")
    if kind not in (accepted := sorted({*hf.HEADS, *hf.ROBERTAS})):
        raise UsageError(
            f"{path} has model_type {kind}; accepted are {', '.join(accepted)} (MiniLM is a bert)"
        )
    content["model_type"] = hf.ROBERTAS.get(kind, kind)
    sizes = dict([*hf.OPTIONS.values(), *SIZES.values()])
    if content["model_type"] in hf_deberta.KINDS:
        return hf_deberta.complete(content, path)
    pad = {"pad_token_id": int(content["model_type"] == "roberta")}
    config = pad | sizes | {name: values[0] for name, values in ACCEPTED.items()} | content
    hf.check_settings(config, ACCEPTED, path, "our models")
    file = path / "config.json"
    hf.check_sizes({name: config[name] for name in sizes}, file, sizes.keys() - hf.RATES)
    hf.check_heads(config["hidden_size"], config["num_attention_heads"], file)
    return config


def rename_parameters(
    tensors: dict[str, Tensor], config: dict[str, Any], path: Path
) -> dict[str, Tensor]:
    """Return the parameters by our names, in 32 bits.

    Raises:
        UsageError: one is missing, has another shape than config.json says, or has no place.
    """
    kind, head = config["model_type"], complete_head(tensors, config, path)
    pooler = any(name.startswith(POOLER) for name in tensors)
    layers, names = config["num_hidden_layers"], {letter: n for letter, (n, _) in SIZES.items()}
    if kind in hf_deberta.KINDS:
        names = hf_deberta.LETTERS
        expected = hf_deberta.list_parameters(hf_deberta.read_form(config), layers, head)
    else:
        expected = hf.list_parameters(kind, layers, head, pooler)
    state = {}
    for name, (ours, letters) in expected.items():
        shape, whole = tuple(config[names[n]] for n in letters), "BERT, RoBERTa or DeBERTa encoder"
        state[ours] = take_parameter(tensors, name, shape, path, whole)
    if further := sorted(tensors):
        raise UsageError(
            f"{path} has parameters without a place in our models ({', '.join(further[:3])}); name "
            "heads of other tasks with --leave-out, as classifier, or give an encoder without them"
        )
    return state


def complete_head(tensors: dict[str, Tensor], config: dict[str, Any], path: Path) -> bool:
    """Add parameters that the head shares or has under another name; return if there is a head.

    Raises:
        UsageError: its activation function is not the layers' own.
    """
    kind = config["model_type"]
    head = hf.HEADS[kind]
    if not any(name.startswith(f"{head}.") for name in tensors):
        return False
    if kind == "roberta" and hf.ACTIVATIONS[config["hidden_act"]] != "gelu":
        raise UsageError(
            f"{path} has hidden_act {config['hidden_act']}, and RoBERTa's head for masked language "
            "modelling always gelu, which our models cannot do; save the encoder without the head"
        )
    shared = {"bias": f"{head}.bias", "weight": "embeddings.word_embeddings.weight"}
    for part, source in shared.items():
        if source in tensors:
            tensors.setdefault(f"{head}.decoder.{part}", tensors[source])
    tensors.pop(f"{head}.bias", None)
    return True


def rearrange(state: dict[str, Tensor], config: dict[str, Any], order: list[int]) -> bool:
    """Put symbols and positions where fairseq has them; return if output weights are untied.

    A single token type becomes part of every position.
    """
    roberta = config["model_type"] == "roberta"
    if config["type_vocab_size"] == 1:  # never in DeBERTa
        state[hf.POSITIONS] = state[hf.POSITIONS] + state.pop(hf.SEGMENTS)
    first = config["pad_token_id"] + 1 if roberta else 0
    head = hf.OUTPUT_WEIGHT in state
    untied = head and not torch.equal(state[hf.OUTPUT_WEIGHT], state[hf.TOKENS])
    hf.rearrange(state, order, first, FIRST_POSITION)
    if head and not untied:
        state[hf.OUTPUT_WEIGHT] = state[hf.TOKENS]
    return untied


def make_options(config: dict[str, Any], state: dict[str, Tensor]) -> dict[str, Any]:
    """Return the model's options that differ from the defaults of its architecture."""
    if config["model_type"] in hf_deberta.KINDS:
        return hf_deberta.make_options(config)
    pooled = "pooler.weight" in state  # else heads have the usual dropout, 0
    return {
        "_name": ARCHITECTURE,
        **({"pooler_dropout": config["hidden_dropout_prob"]} if pooled else {}),
        **{ours: config[theirs] for ours, (theirs, _) in hf.OPTIONS.items()},
        "activation_fn": hf.ACTIVATIONS[config["hidden_act"]],
        "max_positions": len(state[hf.POSITIONS]) - FIRST_POSITION,
        "segments": len(state[hf.SEGMENTS]) if hf.SEGMENTS in state else 0,
    }
