"""Turn a checkpoint of fairseq's into a Hugging Face folder.

OUT gets config.json, model.safetensors and the tokenizer. An encoder becomes a BERT if it has
segments, else a RoBERTa; a DeBERTa if its attention is disentangled. A translation model with
SentencePiece becomes a Marian, one with Moses and BPE an FSMT, a language model an OPT, and one of
today a Llama or, with --qk-norm, a Qwen3. All of them know softmax alone; weights of heads and
pruned heads of Marian, FSMT and OPT are folded into projections, as by export-fairseq. Heads of
fine-tuning become those of Hugging Face where it has the like: …ForSequenceClassification,
…ForTokenClassification, …ForMultipleChoice, …ForQuestionAnswering. Others, adversaries and
generators are left out, as is the head for masked words if replaced-token detection did not train
it. Models with mechanisms get their code with them.

Example:
  fairseq-ext export-hf checkpoints/mine/checkpoint_best.pt exported
  fairseq-ext export-hf checkpoint_last.pt exported --vocabulary data-bin/books
"""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fairseq import utils
from safetensors.torch import save
from torch import Tensor

from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import BUFFERS, get_architecture
from fairseq_ext.files import new_folder
from fairseq_ext.interchange import (
    export_code,
    export_language_model,
    hf_deberta,
    hf_deberta_first,
    hf_llama,
    hf_sequences,
)
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.interchange.code_config import needs_code
from fairseq_ext.interchange.hf_heads import convert_head
from fairseq_ext.interchange.hf_vocabulary import (
    check_order,
    find_special_tokens,
    renumber,
    write_tokenizer,
)
from fairseq_ext.interchange.model_card import read_results, write_card
from fairseq_ext.models.mixins import drop_adversaries
from fairseq_ext.models.pretrained import DEFAULTS, FIRST_POSITION, POOLER, TODAY, saved_options
from fairseq_ext.safe_loading import read_checkpoint

DISENTANGLED = "disentangled"

# Values that options must have; the first is the value in a checkpoint without the option.
ACCEPTED: dict[str, list] = {
    **hf.list_plain("encoder"),
    "encoder_heads_left": ["all"],
    "encoder_normalize_before": [False],
    "layernorm_embedding": [True],
    "encoder_layers_to_keep": [None],
    **{name: [value] for name, value in TODAY.items()},
    "activation_fn": list(dict.fromkeys(hf.ACTIVATIONS.values())),
}

MASK_POSITIONS = "encoder.mask_positions."
FINE_TUNED = ("task_head.", "classification_heads.", "generator.", MASK_POSITIONS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext export-hf`."""
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT")
    add("out", type=Path, metavar="OUT", help="folder to be made")
    default = "that in the checkpoint or beside it, or in the data that it was trained on"
    folder = f"with dict.txt and the tokeniser (default: {default})"
    add("--vocabulary", type=Path, metavar="FOLDER", help=folder)
    add("--record", type=Path, metavar="FILE", help="of fairseq-ext record; README.md shows it")


def run(args: argparse.Namespace) -> None:
    """Write the folder, and print what was left out."""
    record = read_results(args.record)
    with new_folder(args.out) as work:
        saved = read_checkpoint(args.checkpoint)
        left_out = convert(saved, args.checkpoint, args.vocabulary, work)
        write_card(saved, hf.read_json(work / "config.json"), record, work / "README.md")
    print(f"{args.out} has config.json, model.safetensors, the tokeniser and a card, README.md")
    if left_out:
        print(f"left out: {', '.join(left_out)}")
    if any(name.startswith(MASK_POSITIONS) for name in left_out):
        print("the head for masked language modelling has no absolute positions there")


def convert(saved: dict[str, Any], checkpoint: Path, folder: Path | None, work: Path) -> list[str]:
    """Write a checkpoint in Hugging Face's format; return the parameters of heads left out.

    Args:
        saved: the checkpoint.
        checkpoint: its file.
        folder: the folder of the vocabulary, if it is not where `find_vocabulary` looks.
        work: the folder to fill.

    Raises:
        UsageError: the checkpoint or its vocabulary cannot be read, or cannot be represented.
    """
    model, parameters = saved_options(saved), drop_adversaries(saved["model"])
    heads = find_unwanted_heads(task := saved_options(saved, "task"))
    if needs_code(model):
        source = export_code.Source(saved, checkpoint, folder)
        find = partial(find_vocabulary, folder, checkpoint, saved)
        return export_code.export(source, heads, find, work)
    if get_architecture(model).startswith("transformer"):
        if hf_llama.is_today(model):
            return export_language_model.convert(saved, checkpoint, folder, work)
        return hf_sequences.convert(saved, checkpoint, folder, work)
    check_options(model, checkpoint)
    unused = (*heads, *(f"{hf.ENCODER}.{name}" for name in BUFFERS))
    state = {n: value.float() for n, value in parameters.items() if not n.startswith(unused)}
    kind, names = list_parameters(model, state)
    check_parameters(state, {ours for ours, _ in names.values()}, checkpoint)
    check_shapes(state, dict(names.values()), model, checkpoint)
    tokenizer, order = renumber(find_vocabulary(folder, checkpoint, saved), kind)
    check_order(order, len(state[hf.TOKENS]), checkpoint)
    special = find_special_tokens(tokenizer)
    pad = tokenizer.get_vocab()[special["pad_token"]]
    hf.rearrange(state, order, FIRST_POSITION, pad + 1 if kind == "roberta" else 0)
    if kind not in hf_deberta.KINDS:
        state.setdefault(hf.SEGMENTS, state[hf.TOKENS].new_zeros(1, state[hf.TOKENS].size(1)))
    config = make_config(model, state, kind) | {"pad_token_id": pad}
    tensors = {theirs: state[ours] for theirs, (ours, _) in names.items()}
    if kind in hf_deberta.KINDS and hf_deberta_first.is_first_version(config, tensors):
        config |= name_architecture(hf_deberta.FIRST_VERSION, state)
        tensors = hf_deberta_first.rename_for_first_version(tensors, config["num_attention_heads"])
    labels = (saved.get("task_state") or {}).get("labels") or []
    head = None
    if hf.OUTPUT_BIAS in state:
        tensors = rename_head(tensors, config["model_type"], config["tie_word_embeddings"])
    else:
        head = convert_head(config["model_type"], task, labels, model, parameters)
    if head is not None:
        tensors = {f"{find_prefix(config['model_type'])}.{n}": x for n, x in tensors.items()}
        tensors |= {name: value.float().contiguous() for name, value in head.tensors.items()}
        base = config["architectures"][0].removesuffix("Model")
        config |= head.config | {"architectures": [base + head.architecture]}
    (work / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))
    hf.write_json(config, work / "config.json")
    segments = config["type_vocab_size"] > 1
    write_tokenizer(tokenizer, special, find_longest(model, config), segments, work)
    used, more = (head.used, head.left_out) if head else ((), [])
    return [n for n in parameters if n.startswith(heads) and n not in used] + more


def find_prefix(kind: str) -> str:
    """Return the name of the encoder in a model with a head."""
    return hf_deberta.PREFIX if kind in hf_deberta.KINDS else kind


def list_parameters(
    model: Mapping[str, Any], state: Mapping[str, Tensor]
) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return the kind of a model and its parameters: name there -> name here and shape."""
    layers, head = model["encoder_layers"], hf.OUTPUT_BIAS in state
    if model.get("encoder_scorer") == DISENTANGLED:
        form = hf_deberta.read_form({**model_sizes(model), **hf_deberta.make_config(model, state)})
        return hf_deberta.LATER_VERSIONS, hf_deberta.list_parameters(form, layers, head)
    # RoBERTa's head for masked language modelling has gelu, whatever the layers have
    bert = hf.SEGMENTS in state or model["activation_fn"] != "gelu"
    kind = "bert" if bert else "roberta"
    return kind, hf.list_parameters(kind, layers, head, POOLER[0] in state)


def model_sizes(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return sizes and rates by their names in config.json."""
    return {theirs: model.get(ours, default) for ours, (theirs, default) in hf.OPTIONS.items()}


def find_longest(model: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Return how many tokens a text may have."""
    positions = config["max_position_embeddings"]
    if config["model_type"] == "roberta":
        return positions - config["pad_token_id"] - 1
    return positions


def find_unwanted_heads(task: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how names of parameters of unwanted heads begin.

    The head for masked language modelling is wanted, unless the task did not train it.
    """
    trained = (task.get("_name") or task.get("task")) != "replaced_token_detection"
    return FINE_TUNED if trained else (*FINE_TUNED, f"{hf.OUTPUT}.")


def check_options(model: Mapping[str, Any], checkpoint: Path) -> None:
    """Raise UsageError for a model that is nothing like BERT, or computes something else."""
    name = get_architecture(model)
    if not name.startswith(("roberta", "deberta")):
        raise UsageError(
            f"{checkpoint} has --arch {name}; give a model of ours, like roberta_una_12 or "
            "transformer_una"
        )
    sizes = {name: model[name] for name in hf.OPTIONS if model.get(name) is not None}
    if missing := [name for name in hf.OPTIONS if name not in {*sizes, *hf.OUR_RATES}]:
        raise UsageError(f"{checkpoint} has no {missing[0]} in its settings; give a whole one")
    hf.check_sizes(sizes, checkpoint, hf.OPTIONS.keys() - hf.OUR_RATES)
    hf.check_heads(model["encoder_embed_dim"], model["encoder_attention_heads"], checkpoint)
    accepted, models = ACCEPTED, "BERT and RoBERTa of Hugging Face"
    if model.get("encoder_scorer") == DISENTANGLED:
        accepted, models = ACCEPTED | hf_deberta.ACCEPTED_OPTIONS, "DeBERTa of Hugging Face"
    hf.check_options(model, accepted, checkpoint, models)


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
    letters |= hf_deberta.read_letters(model)
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


def rename_head(tensors: dict[str, Tensor], kind: str, tied: bool) -> dict[str, Tensor]:
    """Return parameters of a model with a head, without the parameters that the head shares."""
    head = hf.HEADS[kind]
    prefix = find_prefix(kind)
    tensors = {n if n.startswith(head) else f"{prefix}.{n}": value for n, value in tensors.items()}
    tensors[f"{head}.bias"] = tensors[f"{head}.decoder.bias"].clone()
    shared = {f"{head}.decoder.{part}" for part in ("weight", "bias")} if tied else set()
    return {name: value for name, value in tensors.items() if name not in shared}


def make_config(model: Mapping[str, Any], state: dict[str, Tensor], kind: str) -> dict[str, Any]:
    """Return the contents of config.json."""
    if kind in hf_deberta.KINDS:
        own = hf_deberta.make_config(model, state)
    else:
        own = {
            "max_position_embeddings": len(state[hf.POSITIONS]),
            "type_vocab_size": len(state[hf.SEGMENTS]),
            "position_embedding_type": "absolute",
        }
    return {
        **name_architecture(kind, state),
        **model_sizes(model),
        **own,
        "vocab_size": len(state[hf.TOKENS]),
        "layer_norm_eps": model.get("layer_norm_eps") or DEFAULTS["layer_norm_eps"],
        "hidden_act": hf.HIDDEN_ACTS[model["activation_fn"]],
        "tie_word_embeddings": not model.get("untie_weights_roberta"),
    }


def name_architecture(kind: str, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the settings that name the class of a model, with a head if it has one."""
    name = "".join(part.capitalize() for part in kind.split("-"))
    head = "ForMaskedLM" if hf.OUTPUT_BIAS in state else "Model"
    return {"architectures": [name + head], "model_type": kind}
