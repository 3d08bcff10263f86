"""Turn a checkpoint with mechanisms into a folder for `trust_remote_code=True` of transformers.

It has the weights, the tokeniser, config.json, and the files of attention and mechanisms that the
model uses, so that it needs torch and transformers alone.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import utils
from safetensors.torch import save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import BUFFERS
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.interchange.carried_files import REMOTE_CODE, write_flat
from fairseq_ext.interchange.code_config import MODELING, describe_model, find_modules
from fairseq_ext.interchange.hf_sequence_tokenizers import NAMES, read_dictionary
from fairseq_ext.interchange.hf_sequences import NUMBERS
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
    "--encoder-roles": ["none"],  # which need words, and some of them parses
    "--share-encoder-decoder-layers": [False],
    "--adaptive-softmax-cutoff": [None],
    "--adaptive-input": [False],
    "--character-embeddings": [False],
    "--encoder-conv-kernel": [0],
    "--enhanced-mask-decoder": [False],
    "--activation-fn": ["relu", "gelu", "gelu_accurate", "gelu_fast", "tanh", "linear"],
    **{f"--scale-{what}": [False] for what in ("fc", "attn", "heads", "resids")},
}
"""Values that options must have; the first is the value in a checkpoint without the option."""

SIZES = ("embed_dim", "attention_heads", "ffn_embed_dim", "layers")
PAD, EOS = NUMBERS["pad_token_id"], NUMBERS["eos_token_id"]
ANY_LENGTH = 10**6
SEARCH = {
    "decoder_start_token_id": EOS,
    "suppress_tokens": [PAD],
    "min_new_tokens": 1,
    "num_beams": 5,
    "early_stopping": True,
    "max_new_tokens": 200,
}
"""Settings of generation that fairseq-generate has by default."""


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
    flags = {f"--{name.replace('_', '-')}": value for name, value in model.items()}
    hf.check_settings(flags, ACCEPTED, source.checkpoint, "folders with code")
    check_sizes(model, state, source.checkpoint)
    config = describe_model(model, state)
    modules = find_modules(model)
    if hf.TOKENS in state:
        vocabulary = find_vocabulary()
        config["pad_token_id"] = write_encoder_tokenizer(vocabulary, state, config, source, work)
    else:
        write_dictionaries(source, config, work)
        search = SEARCH if config["is_encoder_decoder"] else {}
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
    special, rows = find_special_tokens(tokenizer), config["encoder_side"]["rows"]
    longest = rows - FIRST_POSITION if rows else ANY_LENGTH
    write_tokenizer(tokenizer, special, longest, segments, work)
    return tokenizer.get_vocab()[special["pad_token"]]


def write_dictionaries(source: Source, config: Mapping[str, Any], work: Path) -> None:
    """Write tokenisers of what fairseq's commands read: words or pieces between spaces.

    The folder has that of the source, or of a language model; its folder `target` has that of the
    target if that is another one.
    """
    task = saved_options(source.saved, "task")
    if not config["is_encoder_decoder"]:
        words = load_dictionary("dict.txt", task, config["decoder_side"]["symbols"], source)
        return write_words(words, "</s> $A", work)
    both = [
        load_dictionary(f"dict.{task.get(f'{name}_lang')}.txt", task, side["symbols"], source)
        for name, side in (("source", config["encoder_side"]), ("target", config["decoder_side"]))
    ]
    write_words(both[0], "$A </s>", work)
    if both[1] != both[0]:
        (work / "target").mkdir()
        write_words(both[1], "$A </s>", work / "target")
    return None


def load_dictionary(name: str, task: Mapping[str, Any], size: int, source: Source) -> list[str]:
    """Return the symbols of a dictionary: in the folder given, beside the checkpoint or its data.

    Raises:
        UsageError: there is none, or it has another size than the model.
    """
    data = Path(utils.split_paths(task.get("data") or "")[0])
    folders = [source.folder] if source.folder else [source.checkpoint.parent, data]
    path = next((place / name for place in folders if (place / name).is_file()), None)
    if path is None:
        raise UsageError(
            f"{' and '.join(map(str, folders))} have no {name}; give --vocabulary, the folder with "
            "the dictionaries that the model was trained with"
        )
    return read_dictionary(path, size)


def write_words(symbols: list[str], surrounded: str, folder: Path) -> None:
    """Write a tokeniser of symbols between spaces."""
    vocabulary = {symbol: i for i, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=NAMES["unk_token"]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single=surrounded, special_tokens=[(NAMES["eos_token"], EOS)]
    )
    tokenizer.add_special_tokens(list(NAMES.values()))
    write_tokenizer(tokenizer, NAMES, ANY_LENGTH, False, folder)
