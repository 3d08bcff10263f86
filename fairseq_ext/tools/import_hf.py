"""Turn a Hugging Face folder of a BERT, RoBERTa or MiniLM encoder into a fairseq checkpoint.

OUT gets model.pt (a roberta_una_12 with the sizes of the encoder), dict.txt and tokenizer.json.
Nothing is downloaded, and nothing in the files is run. The weights are model.safetensors or
pytorch_model.bin, also in shards. An encoder without a head for masked language modelling (MiniLM)
stays without one: it is there to be fine-tuned.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fairseq_ext import safe_loading
from fairseq_ext.data.vocabulary import digest
from fairseq_ext.errors import UsageError
from fairseq_ext.models.pretrained import DIGEST, FIRST_POSITION
from fairseq_ext.tools import hf_format as hf
from fairseq_ext.tools.hf_vocabulary import (
    dictionary_order,
    read_tokenizer,
    symbols,
    write_dictionary,
)

EXAMPLE = """\
  fairseq-ext import-hf downloads/all-MiniLM-L6-v2 encoders/minilm
  fairseq-ext import-hf downloads/roberta-base encoders/roberta"""

ARCHITECTURE = "roberta_una_12"

# What config.json may say; the first is what it means if it does not.
ACCEPTED = {
    "position_embedding_type": ["absolute"],
    "is_decoder": [False],
    "hidden_act": list(hf.ACTIVATIONS),
}

WIDTH = "encoder_embed_dim"

# Letters of `hf.parameters`: the size in config.json, and its default there.
SIZES = {
    "V": ("vocab_size", 30522),
    "P": ("max_position_embeddings", 512),
    "T": ("type_vocab_size", 2),
    "D": hf.OPTIONS["encoder_embed_dim"],
    "F": hf.OPTIONS["encoder_ffn_embed_dim"],
}

WEIGHTS = {
    "model.safetensors": load_file,
    "pytorch_model.bin": partial(safe_loading.load, map_location="cpu"),
}

OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

UNUSED = (
    "pooler.",
    "cls.seq_relationship.",
    "embeddings.position_ids",
    "embeddings.token_type_ids",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="config.json, weights, tokenizer")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to be made")


def run(given: argparse.Namespace) -> None:
    with hf.new_folder(given.out) as work:
        state, unused = convert(given.path, work, given.out)
    print(f"{given.out} has model.pt, dict.txt and tokenizer.json")
    if unused:
        print(f"left out: {', '.join(unused)}")
    if hf.OUTPUT_BIAS not in state:
        print("there is no head for masked language modelling")


def convert(path: Path, work: Path, out: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Fill `work`, which will be named `out`; the parameters, and the names of those left out.

    Raises:
        UsageError: the encoder cannot be read, or cannot be represented exactly.
    """
    config = read_config(path)
    tensors, unused = read_tensors(path, config["model_type"])
    state = rename(tensors, config, path)
    tokenizer = read_tokenizer(path)
    names = symbols(tokenizer, config["vocab_size"])
    order = dictionary_order(names)
    untied, words = rearrange(state, config, order), [names[i] for i in order]
    write_dictionary(words, work / "dict.txt")
    tokenizer.save(str(work / "tokenizer.json"))
    model = options(config, state) | {"untie_weights_roberta": untied}
    written = checkpoint(model, state, out.absolute())
    written["extra_state"][DIGEST] = digest(words)
    torch.save(written, work / "model.pt")
    return state, unused


def read_config(path: Path) -> dict[str, Any]:
    """config.json with all that we read there.

    Raises:
        UsageError: it is not there, or says what our models cannot do.
    """
    given = hf.read_json(path / "config.json")
    if given.get("model_type") not in hf.HEADS:
        raise UsageError(
            f"{path} has model_type {given.get('model_type')}; accepted are "
            f"{' and '.join(hf.HEADS)} (MiniLM is a bert)"
        )
    defaults = dict([*hf.OPTIONS.values(), *SIZES.values()])
    pad = {"pad_token_id": int(given["model_type"] == "roberta")}
    config = pad | defaults | {name: first for name, (first, *_) in ACCEPTED.items()} | given
    for name, accepted in ACCEPTED.items():
        if config[name] not in accepted:
            raise UsageError(
                f"{path} has {name} {config[name]}, which our models cannot do; accepted: "
                f"{', '.join(map(str, accepted))}"
            )
    heads, width = (config[hf.OPTIONS[name][0]] for name in ("encoder_attention_heads", WIDTH))
    sizes = [config[name] for name, _ in (*hf.OPTIONS.values(), *SIZES.values())]
    if not all(type(size) in (int, float) and size >= 0 for size in sizes) or width % heads:
        raise UsageError(f"{path} has sizes that are no encoder's in config.json; get it again")
    return config


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], list[str]]:
    """The parameters, named as in `hf.parameters`, and the names of those without a use here.

    Raises:
        UsageError: there are none, or a file cannot be read.
    """
    name = next((name for name in WEIGHTS if shards(path / name)), None)
    if name is None:
        raise UsageError(f"{path} has no {' and no '.join(WEIGHTS)}; give a folder that has one")
    tensors = {}
    for file in shards(path / name):
        try:
            found = WEIGHTS[name](str(file))
        except (OSError, SafetensorError) as error:
            raise UsageError(f"{file} cannot be read ({error}); copy it again") from None
        if not (isinstance(found, dict) and all(map(torch.is_tensor, found.values()))):
            raise UsageError(f"{file} holds more than parameters; give what save_pretrained wrote")
        tensors |= {plain(name, kind): value for name, value in found.items()}
    unused = [name for name in tensors if name.startswith(UNUSED)]
    return {name: tensors[name] for name in tensors.keys() - unused}, unused


def shards(file: Path) -> list[Path]:
    """The file, or those that its index names; nothing if there is neither."""
    index = file.with_name(f"{file.name}.index.json")
    if file.exists() or not index.exists():
        return [file] if file.exists() else []
    parts = hf.read_json(index).get("weight_map")
    if not isinstance(parts, dict) or any(Path(part).name != part for part in parts.values()):
        raise UsageError(f"{index} does not name files beside it; get the encoder again")
    return [file.with_name(part) for part in sorted(set(parts.values()))]


def plain(name: str, kind: str) -> str:
    name = name.removeprefix(f"{kind}.")
    for old, new in OLD_NAMES.items():
        name = name.replace(old, new)
    return name


def rename(tensors: dict[str, Tensor], config: dict[str, Any], path: Path) -> dict[str, Tensor]:
    """The parameters by our names, in 32 bits.

    Raises:
        UsageError: one is missing, or of another shape than config.json says, or has no place.
    """
    kind, head = config["model_type"], spell_out_head(tensors, config, path)
    expected = hf.parameters(kind, config["num_hidden_layers"], head)
    state = {}
    for name, (ours, letters) in expected.items():
        found, shape = tensors.get(name), tuple(config[SIZES[letter][0]] for letter in letters)
        if found is None or found.shape != shape or not found.is_floating_point():
            there = "missing" if found is None else f"{found.dtype} {[*found.shape]}"
            raise UsageError(
                f"{path}: {name} is {there}, where config.json asks for floating-point numbers "
                f"{[*shape]}; give a whole BERT or RoBERTa encoder"
            )
        state[ours] = found.float()
    if further := sorted(tensors.keys() - expected.keys()):
        raise UsageError(
            f"{path} has parameters without a place in our models ({', '.join(further[:3])}); "
            "give an encoder alone or with its head for masked language modelling"
        )
    return state


def spell_out_head(tensors: dict[str, Tensor], config: dict[str, Any], path: Path) -> bool:
    """Whether there is a head; what it shares or has under another name is then added to it.

    Raises:
        UsageError: its activation function is not that of the layers.
    """
    kind = config["model_type"]
    head = hf.HEADS[kind]
    if not any(name.startswith(f"{head}.") for name in tensors):
        return False
    if kind == "roberta" and config["hidden_act"] != "gelu":
        raise UsageError(
            f"{path} has hidden_act {config['hidden_act']}, and RoBERTa's head for masked language "
            "modelling always gelu, which our models cannot do; save the encoder without the head"
        )
    bias = tensors.pop(f"{head}.bias", None)
    tensors.setdefault(f"{head}.decoder.bias", bias)
    tensors.setdefault(f"{head}.decoder.weight", tensors.get("embeddings.word_embeddings.weight"))
    return True


def rearrange(state: dict[str, Tensor], config: dict[str, Any], order: list[int]) -> bool:
    """Put symbols and positions where fairseq has them; whether output weights are of their own.

    A single token type becomes part of every position.
    """
    roberta = config["model_type"] == "roberta"
    if config["type_vocab_size"] == 1:
        state[hf.POSITIONS] = state[hf.POSITIONS] + state.pop(hf.SEGMENTS)
    first = config["pad_token_id"] + 1 if roberta else 0
    state[hf.POSITIONS] = hf.move_positions(state[hf.POSITIONS], first, FIRST_POSITION)
    head = hf.OUTPUT_WEIGHT in state
    untied = head and not torch.equal(state[hf.OUTPUT_WEIGHT], state[hf.TOKENS])
    for name in hf.BY_SYMBOL & state.keys():
        state[name] = state[name][order]
    if head and not untied:
        state[hf.OUTPUT_WEIGHT] = state[hf.TOKENS]
    return untied


def options(config: dict[str, Any], state: dict[str, Tensor]) -> dict[str, Any]:
    """Of the model, apart from the defaults of its architecture."""
    return {
        "_name": ARCHITECTURE,
        **{ours: config[theirs] for ours, (theirs, _) in hf.OPTIONS.items()},
        "activation_fn": hf.ACTIVATIONS[config["hidden_act"]],
        "max_positions": len(state[hf.POSITIONS]) - FIRST_POSITION,
        "segments": len(state[hf.SEGMENTS]) if hf.SEGMENTS in state else 0,
    }


def checkpoint(model: dict[str, Any], state: dict[str, Tensor], data: Path) -> dict[str, Any]:
    """As `fairseq-train` saves it, before any update."""
    task = {"data": str(data), "tokens_per_sample": model["max_positions"]}
    parts = {
        "model": (MODEL_DATACLASS_REGISTRY[ARCHITECTURE], model),
        "task": (TASK_DATACLASS_REGISTRY["masked_lm"], {"_name": "masked_lm", **task}),
        "criterion": (CRITERION_DATACLASS_REGISTRY["masked_lm"], {"_name": "masked_lm"}),
    }
    config = OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(FairseqConfig)))
    for part, (dataclass, given) in parts.items():
        config[part] = OmegaConf.merge(OmegaConf.structured(dataclass), given)
    return {
        "args": None,
        "cfg": OmegaConf.to_container(config, resolve=True, enum_to_str=True),
        "model": state,
        "optimizer_history": [{"num_updates": 0, "optimizer_name": "", "lr_scheduler_state": {}}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "task_state": {},
    }
