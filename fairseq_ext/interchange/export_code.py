"""Turn a checkpoint with mechanisms into a folder for `trust_remote_code=True` of transformers.

It has the weights, the tokeniser, config.json, and the files of attention and mechanisms that the
model uses, so that it needs torch and transformers alone. The tokeniser is that of the data, as
models without mechanisms have it; if the data has none, it splits at spaces.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import utils
from safetensors.torch import save
from torch import Tensor, nn

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import BUFFERS
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.interchange.carried_files import REMOTE_CODE, write_flat
from fairseq_ext.interchange.code_config import MODELING, describe_model, find_modules
from fairseq_ext.interchange.export_fairseq import infer_languages
from fairseq_ext.interchange.hf_sequence_tokenizers import (
    ParallelText,
    write_parallel_tokenizer,
    write_text_tokenizer,
)
from fairseq_ext.interchange.hf_sequences import NUMBERS, describe_search
from fairseq_ext.interchange.hf_vocabulary import (
    check_order,
    find_special_tokens,
    renumber,
    write_tokenizer,
)
from fairseq_ext.interchange.remote_code.network import Head, Stack
from fairseq_ext.models.mixins import drop_adversaries
from fairseq_ext.models.pretrained import FIRST_POSITION, saved_options

ACCEPTED: dict[str, list] = {
    "encoder_roles": ["none"],  # which need words, and some of them parses
    "share_encoder_decoder_layers": [False],
    "adaptive_softmax_cutoff": [None],
    "adaptive_input": [False],
    "character_embeddings": [False],
    "encoder_conv_kernel": [0],
    "enhanced_mask_decoder": [False],
    "activation_fn": ["relu", "gelu", "gelu_accurate", "gelu_fast", "tanh", "linear"],
    **{f"scale_{what}": [False] for what in ("fc", "attn", "heads", "resids")},
}
"""Values that options must have; the first is the value in a checkpoint without the option."""

SIDES = ("source", "target")
SIZES = ("embed_dim", "attention_heads", "ffn_embed_dim", "layers")
PAD = NUMBERS["pad_token_id"]
ANY_LENGTH = 10**6


class Source(NamedTuple):
    """The contents of a checkpoint, its file, and the folder of its vocabulary, if given."""

    saved: Mapping[str, Any]
    checkpoint: Path
    folder: Path | None


def export(
    source: Source, left_out: tuple[str, ...], find_vocabulary: Callable[[], Any], work: Path
) -> list[str]:
    """Write the folder of a model; return the parameters of heads left out.

    Args:
        source: what it comes from.
        left_out: how names of parameters of heads that are left out begin.
        find_vocabulary: returns the `Vocabulary` of an encoder.
        work: what is filled.

    Raises:
        UsageError: something of it cannot be exported.
    """
    model, parameters = saved_options(source.saved), drop_adversaries(source.saved["model"])
    named = {n: x for n, x in parameters.items() if n.rpartition(".")[2] not in BUFFERS}
    state = {n: x.float() for n, x in named.items() if not n.startswith(left_out)}
    hf.check_options(model, ACCEPTED, source.checkpoint, "folders with code")
    check_sizes(model, state, source.checkpoint)
    config = describe_model(model, state)
    modules = find_modules(model)
    if hf.TOKENS in state:
        vocabulary = find_vocabulary()
        config["pad_token_id"] = write_encoder_tokenizer(vocabulary, state, config, source, work)
    else:
        write_sequence_tokenizer(source, config, work)
        positions = model.get("max_target_positions") or ANY_LENGTH
        search = describe_search(positions) if config["is_encoder_decoder"] else {}
        hf.write_json(NUMBERS | search, work / "generation_config.json")
        config |= NUMBERS
    check_parameters(state, config, source.checkpoint)
    kept = {n: x.contiguous() for n, x in state.items() if n not in config["tied"]}
    (work / "model.safetensors").write_bytes(save(kept, {"format": "pt"}))
    hf.write_json(config, work / "config.json")
    write_flat(f"{REMOTE_CODE}{MODELING}", modules, work)
    return [name for name in parameters if name.startswith(left_out)]


def check_sizes(model: Mapping[str, Any], state: Iterable[str], checkpoint: Path) -> None:
    """Raise UsageError unless settings have the sizes of all sides."""
    for side in {name.partition(".")[0] for name in state} & {"encoder", "decoder"}:
        names = [f"{side}_{size}" for size in SIZES]
        if missing := [n for n in (*names, "activation_fn") if model.get(n) is None]:
            raise UsageError(f"{checkpoint} has no {missing[0]} in its settings; give a whole one")
        hf.check_sizes({name: model[name] for name in names}, checkpoint, names)
        hf.check_heads(model[names[0]], model[names[1]], checkpoint)


def check_parameters(
    state: Mapping[str, Tensor], config: Mapping[str, Any], checkpoint: Path
) -> None:
    """Raise UsageError unless the networks have a place for all parameters, and no other ones."""
    networks: dict[str, nn.Module] = {}
    with torch.random.fork_rng(devices=[]):
        if hf.TOKENS in state:
            networks[hf.ENCODER] = stack = Stack(config["encoder_side"], PAD)
            if hf.OUTPUT_BIAS in state:
                networks[hf.OUTPUT] = Head(stack.side.width, stack.side.symbols, "gelu")
        else:
            sides = [side for side in ("encoder", "decoder") if config.get(f"{side}_side")]
            networks |= {side: Stack(config[f"{side}_side"], PAD) for side in sides}
    expected = {
        f"{prefix}.{name}": value.shape
        for prefix, network in networks.items()
        for name, value in network.state_dict().items()
    }
    found = {name: value.shape for name, value in state.items()}
    outside = {hf.SEGMENTS, "decoder.output_projection.weight"}
    if wrong := sorted(n for n, x in found.items() if n not in outside and expected.get(n) != x):
        raise UsageError(
            f"{checkpoint} has {wrong[0]} {[*found[wrong[0]]]}, for which exported code has no "
            "place; give a model without the option that makes it"
        )
    if missing := sorted(expected.keys() - found.keys()):
        raise UsageError(
            f"{checkpoint} has no {missing[0]}; give one that fairseq 0.11 or later saved"
        )


def write_encoder_tokenizer(
    vocabulary: Any, state: dict[str, Tensor], config: Mapping[str, Any], source: Source, work: Path
) -> int:
    """Write the tokeniser of an encoder, put symbols into its order; return the number of <pad>."""
    segments = config["segments"] > 1
    tokenizer, order = renumber(vocabulary, "bert" if segments else "roberta")
    check_order(order, len(state[hf.TOKENS]), source.checkpoint)
    hf.rearrange(state, order, 0, 0)
    special, longest = find_special_tokens(tokenizer), count_positions(config["encoder_side"])
    write_tokenizer(tokenizer, special, longest, segments, work)
    return tokenizer.get_vocab()[special["pad_token"]]


def count_positions(side: Mapping[str, Any]) -> int:
    """Return how many tokens a text may have."""
    return side["rows"] - FIRST_POSITION if side["rows"] else ANY_LENGTH


def write_sequence_tokenizer(source: Source, config: Mapping[str, Any], work: Path) -> None:
    """Write the tokeniser of a translation or language model."""
    task = saved_options(source.saved, "task")
    if not config["is_encoder_decoder"]:
        data, side = find_data("dict.txt", task, source), config["decoder_side"]
        return write_text_tokenizer(side["symbols"], count_positions(side), data, work)
    sides = config["encoder_side"], config["decoder_side"]
    languages = find_languages(task, source)
    data = find_data(f"dict.{languages[0]}.txt", task, source)
    sizes = sides[0]["symbols"], sides[1]["symbols"]
    text = ParallelText(data, languages, sizes, count_positions(sides[0]))
    return write_parallel_tokenizer(text, work)


def list_folders(task: Mapping[str, Any], source: Source) -> list[Path]:
    """Return the given folder of data, or else that of the checkpoint and that of its data."""
    data = Path(utils.split_paths(task.get("data") or "")[0])
    return [source.folder] if source.folder else [source.checkpoint.parent, data]


def find_languages(task: Mapping[str, Any], source: Source) -> tuple[str, str]:
    """Return source and target of a task, or of the data; raise UsageError if nothing says them."""
    languages = Namespace(**{f"{side}_lang": task.get(f"{side}_lang") for side in SIDES})
    for folder in (folders := list_folders(task, source)):
        infer_languages(languages, str(folder))
    if languages.source_lang is None:
        places = " and ".join(map(str, folders))
        raise UsageError(
            f"{source.checkpoint} does not name its languages, and {places} have no files "
            "that do; give --vocabulary, the folder of its data"
        )
    return languages.source_lang, languages.target_lang


def find_data(name: str, task: Mapping[str, Any], source: Source) -> Path:
    """Return the folder with a dictionary; raise UsageError if there is none."""
    folders = list_folders(task, source)
    if folder := next((place for place in folders if (place / name).is_file()), None):
        return folder
    raise UsageError(
        f"{' and '.join(map(str, folders))} have no {name}; give --vocabulary, the folder with "
        "the dictionaries that the model was trained with"
    )
