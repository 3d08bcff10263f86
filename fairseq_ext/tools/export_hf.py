"""Turn a fairseq checkpoint of a BERT-like encoder into a Hugging Face folder.

OUT gets config.json, model.safetensors and the tokenizer: a BERT if the model has segments, else a
RoBERTa. Both know softmax attention alone. Adversaries, generators and heads of fine-tuning are
left out. The head for masked language modelling is left out too if the model was trained for
replaced-token detection, which does not train it.

Example:
  fairseq-ext export-hf checkpoints/mine/checkpoint_best.pt exported
  fairseq-ext export-hf checkpoint_last.pt exported --vocabulary data-bin/books
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq import utils
from safetensors.torch import save
from torch import Tensor

from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import BUFFERS, get_architecture
from fairseq_ext.files import new_folder
from fairseq_ext.models.mixins import drop_adversaries
from fairseq_ext.models.pretrained import DEFAULTS, FIRST_POSITION, POOLER, saved_options
from fairseq_ext.safe_loading import read_checkpoint
from fairseq_ext.tools import hf_format as hf
from fairseq_ext.tools.hf_vocabulary import find_special_tokens, renumber, write_tokenizer

# Values that options must have; the first is the value in a checkpoint without the option.
ACCEPTED: dict[str, list] = {
    "--encoder-normaliser": ["softmax"],
    "--encoder-gaussian-heads": ["0"],
    "--encoder-roles": ["none"],
    "--encoder-scorer": ["dot"],
    "--encoder-masks": ["none"],
    "--encoder-head-mixer": ["none"],
    "--head-gate": ["none", False],  # False in older checkpoints
    "--encoder-heads-left": ["all"],
    "--encoder-normalize-before": [False],
    "--layernorm-embedding": [True],
    "--encoder-layers-to-keep": [None],
    "--activation-fn": list(dict.fromkeys(hf.ACTIVATIONS.values())),
}

FINE_TUNED = ("task_head.", "classification_heads.", "generator.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext export-hf`."""
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT")
    add("out", type=Path, metavar="OUT", help="folder to be made")
    default = "that in the checkpoint or beside it, or in the data that it was trained on"
    folder = f"with dict.txt and the tokeniser (default: {default})"
    add("--vocabulary", type=Path, metavar="FOLDER", help=folder)


def run(args: argparse.Namespace) -> None:
    """Write the folder, and print what was left out."""
    hf.check_new(args.out)
    with new_folder(args.out) as work:
        left_out = convert(args.checkpoint, args.vocabulary, work)
    print(f"{args.out} has config.json, model.safetensors and the tokeniser")
    if left_out:
        print(f"left out: {', '.join(left_out)}")


def convert(checkpoint: Path, folder: Path | None, work: Path) -> list[str]:
    """Write a checkpoint in Hugging Face's format; return the parameters of heads left out.

    Args:
        checkpoint: the encoder.
        folder: the folder of the vocabulary, if it is not where `find_vocabulary` looks.
        work: the folder to fill.

    Raises:
        UsageError: the checkpoint or its vocabulary cannot be read, or cannot be represented.
    """
    saved = read_checkpoint(checkpoint)
    model, parameters = saved_options(saved), drop_adversaries(saved["model"])
    check_options(model, checkpoint)
    heads = find_unwanted_heads(saved_options(saved, "task"))
    unused = (*heads, *(f"{hf.ENCODER}.{name}" for name in BUFFERS))
    state = {n: value.float() for n, value in parameters.items() if not n.startswith(unused)}
    # RoBERTa's head for masked language modelling has gelu, whatever the layers have
    bert = hf.SEGMENTS in state or model["activation_fn"] != "gelu"
    kind, head = "bert" if bert else "roberta", hf.OUTPUT_BIAS in state
    names = hf.list_parameters(kind, model["encoder_layers"], head, POOLER[0] in state)
    check_parameters(state, {ours for ours, _ in names.values()}, checkpoint)
    check_shapes(state, dict(names.values()), model, checkpoint)
    tokenizer, order = renumber(find_vocabulary(folder, checkpoint, saved), kind)
    check_order(order, len(state[hf.TOKENS]), checkpoint)
    special = find_special_tokens(tokenizer)
    pad = tokenizer.get_vocab()[special["pad_token"]]
    longest = len(state[hf.POSITIONS]) - FIRST_POSITION
    hf.rearrange(state, order, FIRST_POSITION, 0 if bert else pad + 1)
    state.setdefault(hf.SEGMENTS, state[hf.TOKENS].new_zeros(1, state[hf.TOKENS].size(1)))
    config = make_config(model, state, kind) | {"pad_token_id": pad}
    tensors = {theirs: state[ours] for theirs, (ours, _) in names.items()}
    if head:
        tensors = rename_head(tensors, kind, config["tie_word_embeddings"])
    (work / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))
    hf.write_json(config, work / "config.json")
    write_tokenizer(tokenizer, special, longest, work)
    return [name for name in parameters if name.startswith(heads)]


def find_unwanted_heads(task: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how names of parameters of unwanted heads begin.

    The head for masked language modelling is wanted, unless the task did not train it.
    """
    trained = (task.get("_name") or task.get("task")) != "replaced_token_detection"
    return FINE_TUNED if trained else (*FINE_TUNED, f"{hf.OUTPUT}.")


def check_options(model: Mapping[str, Any], checkpoint: Path) -> None:
    """Raise UsageError for a model that is nothing like BERT, or computes something else."""
    name = get_architecture(model)
    if not name.startswith("roberta"):
        raise UsageError(f"{checkpoint} has --arch {name}; give an encoder, like roberta_una_12")
    sizes = {name: model[name] for name in hf.OPTIONS if model.get(name) is not None}
    if missing := [name for name in hf.OPTIONS if name not in {*sizes, *hf.OUR_RATES}]:
        raise UsageError(f"{checkpoint} has no {missing[0]} in its settings; give a whole one")
    hf.check_sizes(sizes, checkpoint, hf.OPTIONS.keys() - hf.OUR_RATES)
    hf.check_heads(model["encoder_embed_dim"], model["encoder_attention_heads"], checkpoint)
    flags = {f"--{option.replace('_', '-')}": value for option, value in model.items()}
    hf.check_settings(flags, ACCEPTED, checkpoint, "BERT and RoBERTa of Hugging Face")


def check_parameters(state: Mapping[str, Tensor], names: set[str], checkpoint: Path) -> None:
    """Raise UsageError if parameters are missing or too many; segments may be missing."""
    if differing := (names ^ state.keys()) - {hf.SEGMENTS}:
        raise UsageError(
            f"{checkpoint} is no plain encoder (missing or without a place: "
            f"{', '.join(sorted(differing)[:3])}); give one that fairseq 0.11 or later saved"
        )


def check_shapes(
    state: Mapping[str, Tensor],
    shapes: Mapping[str, str],
    model: Mapping[str, Any],
    checkpoint: Path,
) -> None:
    """Raise UsageError unless parameters have the sizes that the options say.

    Args:
        shapes: name of a parameter -> letters of its shape, as in `hf_format`.
    """
    rows = {"V": hf.TOKENS, "P": hf.POSITIONS, "T": hf.SEGMENTS}
    letters = {letter: [*state[n].shape, 0][0] for letter, n in rows.items() if n in state}
    letters |= {"D": model["encoder_embed_dim"], "F": model["encoder_ffn_embed_dim"]}
    for name, tensor in state.items():
        expected = [letters[letter] for letter in shapes[name]]
        if [*tensor.shape] != expected:
            raise UsageError(
                f"{checkpoint}: {name} has the shape {[*tensor.shape]}, and the settings ask for "
                f"{expected}; give a checkpoint that fairseq-train saved"
            )


def find_vocabulary(folder: Path | None, checkpoint: Path, saved: dict) -> Vocabulary:
    """Return the vocabulary of the folder, of the checkpoint or beside it, or of its data."""
    state = saved.get("task_state") or {}
    if folder is None and "vocabulary" in state:
        return Vocabulary.from_state(state["vocabulary"])
    data = utils.split_paths(saved_options(saved, "task").get("data") or "")[0]
    beside = (checkpoint.parent / "dict.txt").exists()
    return Vocabulary.load(folder or (checkpoint.parent if beside else Path(data)))


def check_order(order: list[int], size: int, checkpoint: Path) -> None:
    """Raise UsageError unless every one of the model's symbols has its place."""
    if sorted(order) != [*range(size)]:
        raise UsageError(
            f"{checkpoint} has {size} symbols, and the tokeniser with dict.txt does not have just "
            "these; give --vocabulary, the folder with its own"
        )


def rename_head(tensors: dict[str, Tensor], kind: str, tied: bool) -> dict[str, Tensor]:
    """Return parameters of a model with a head, without the parameters that the head shares."""
    head = hf.HEADS[kind]
    tensors = {n if n.startswith(head) else f"{kind}.{n}": value for n, value in tensors.items()}
    tensors[f"{head}.bias"] = tensors[f"{head}.decoder.bias"].clone()
    shared = {f"{head}.decoder.{part}" for part in ("weight", "bias")} if tied else set()
    return {name: value for name, value in tensors.items() if name not in shared}


def make_config(model: Mapping[str, Any], state: dict[str, Tensor], kind: str) -> dict[str, Any]:
    """Return the contents of config.json."""
    head = "ForMaskedLM" if hf.OUTPUT_BIAS in state else "Model"
    options = {theirs: model.get(ours, default) for ours, (theirs, default) in hf.OPTIONS.items()}
    return {
        "architectures": [kind.capitalize() + head],
        "model_type": kind,
        **options,
        "vocab_size": len(state[hf.TOKENS]),
        "max_position_embeddings": len(state[hf.POSITIONS]),
        "type_vocab_size": len(state[hf.SEGMENTS]),
        "layer_norm_eps": model.get("layer_norm_eps") or DEFAULTS["layer_norm_eps"],
        "hidden_act": hf.HIDDEN_ACTS[model["activation_fn"]],
        "position_embedding_type": "absolute",
        "tie_word_embeddings": not model.get("untie_weights_roberta"),
    }
