"""Options that a model takes over from the checkpoint that it is fine-tuned from."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from fairseq_ext.attention.options import read_options
from fairseq_ext.data.vocabulary import digest
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import to_dict
from fairseq_ext.models.layer_forms import FormOptions
from fairseq_ext.models.options import FACTS, OPTIONS, ROBERTA_OPTIONS
from fairseq_ext.permissions import is_given
from fairseq_ext.safe_loading import read_checkpoint

SIZES = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
POOLER = ("pooler.weight", "pooler.bias")  # in the checkpoint of an imported encoder
DIGEST = "dictionary"  # its name in checkpoints
FIRST_POSITION = 2  # row of fairseq's embedding of positions, after the row of <pad>
TODAY = {name: option.default for name, option in read_options(FormOptions).items()}
TODAY["encoder_kv_heads"] = 0
"""Options of forms of layers that checkpoints before them do not have -> default."""

FORM = {"activation_fn": "gelu", "encoder_normalize_before": False, "layernorm_embedding": True}
FORM |= TODAY
DEBERTA = {
    name: field.default
    for name, _, field in ROBERTA_OPTIONS
    if name.startswith(("disentangled_", "encoder_conv_", "embedding_width"))
}
DEFAULTS = {
    **FORM,
    **DEBERTA,
    **{name: field.default for name, _, field in OPTIONS if FACTS[name].relative is True},
    "layer_norm_eps": 1e-5,
    "pooler_dropout": 0.0,
    "pretrained_pooler": False,
}
ADOPTED = (*SIZES, *DEFAULTS, "encoder_layers_to_keep", "max_positions", "segments")


def saved_options(state: Mapping[str, Any], part: str = "model") -> dict[str, Any]:
    """Return the options of a part of a checkpoint; old ones have all of them in "args"."""
    return to_dict((state.get("cfg") or {}).get(part) or state.get("args") or {})


def read_task_name(checkpoint: Path) -> str | None:
    """Return the name of the task that a checkpoint was trained on, if it has one.

    Raises:
        UsageError: the file cannot be read, or is no checkpoint of fairseq's.
    """
    return saved_options(read_checkpoint(checkpoint), "task").get("_name")


def computing_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a model's options that decide what equal parameters compute."""
    begin = ("encoder_", "decoder_", "activation_fn", *(name for name, *_ in OPTIONS))
    return {name: value for name, value in options.items() if name.startswith(begin)}


def read_model_options(checkpoint: str | None) -> dict[str, Any]:
    """Return the options of the model in a checkpoint; none if there is no such file.

    "symbols", the size of its dictionary, and "dictionary", the digest, are among them.

    Raises:
        UsageError: the file cannot be read, or is no checkpoint of fairseq's.
    """
    if not checkpoint or not Path(checkpoint).is_file():
        return {}
    state = read_checkpoint(Path(checkpoint))
    options = saved_options(state)
    embeddings = {n.rpartition(".embed_")[2]: x for n, x in state["model"].items() if "embed_" in n}
    rows = {name: len(value) for name, value in embeddings.items() if value.dim()}
    embedded = "positions.weight" in rows
    if embedded:  # a task may have decided what no option says
        options["max_positions"] = rows["positions.weight"] - FIRST_POSITION
    if embedded or options.get("encoder_positions") and "decoder_layers" not in options:
        options["segments"] = rows.get("segments.weight", 0)
        options["symbols"] = rows["tokens.weight"]
    options["pretrained_pooler"] = POOLER[0] in state["model"]
    options[DIGEST] = (state.get("extra_state") or {}).get(DIGEST)
    return options


def check_dictionary(options: Mapping[str, Any], checkpoint: str, words: Dictionary) -> None:
    """Raise UsageError if a checkpoint with these options was trained with another dictionary."""
    symbols, saved_digest = options.get("symbols"), options.get(DIGEST)
    if options and symbols is None:
        raise UsageError(
            f"{checkpoint} is a {options.get('arch') or options.get('_name')}, and no encoder to "
            "be fine-tuned on labelled text; give one like roberta_una_12, pre-trained or of "
            "fairseq-ext import-hf"
        )
    same = saved_digest in (None, digest(words.symbols)) or is_given("--other-dictionary")
    if symbols in (None, len(words)) and same:
        return
    raise UsageError(
        f"{checkpoint} was trained with another dictionary of {symbols} symbols (here are "
        f"{len(words)}); give --vocabulary, the folder with its dict.txt and tokeniser"
    )


def adopt_options(args: Namespace, checkpoint: str | None) -> None:
    """Fill options that are None from those of the checkpoint, or with defaults.

    Raises:
        UsageError: a size is still missing, or a size or the form of the layers is not the
            checkpoint's.
    """
    saved = read_model_options(checkpoint)
    for name in ADOPTED:
        if getattr(args, name) is None:
            value = saved.get(name)
            setattr(args, name, DEFAULTS.get(name) if value is None else value)
    if saved and args.pretrained_pooler and not saved["pretrained_pooler"]:
        raise UsageError(
            f"{checkpoint} has no pooler for --pretrained-pooler; leave that out, or give one that "
            "'fairseq-ext import-hf --pooler pretrained' has made"
        )
    check_scorer(args, checkpoint, saved)
    for name in (*SIZES, *FORM, *DEBERTA):
        flag, value = f"--{name.replace('_', '-')}", getattr(args, name)
        original = saved.get(name, TODAY.get(name) if saved else None)
        if value is None and name in SIZES:
            raise UsageError(
                f"this architecture takes {flag} from a checkpoint; give --finetune-from-model and "
                "a --task on labelled text, or an --arch like roberta_una_12"
            )
        if original is not None and str(original) != str(value):
            raise UsageError(
                f"{checkpoint} has {flag} {original} and the model to be fine-tuned {value}; give "
                "the same, or an --arch without a size, like roberta_una, which takes sizes over"
            )


def check_scorer(args: Namespace, checkpoint: str | None, saved: Mapping[str, Any]) -> None:
    """Raise UsageError if one of the model and its checkpoint is a DeBERTa and the other is not."""
    present, original = args.encoder_scorer, saved.get("encoder_scorer", "dot")
    if (
        saved.get("encoder_layers")
        and present != original
        and "disentangled" in (present, original)
    ):
        form = "deberta_una" if original == "disentangled" else "roberta_una"
        raise UsageError(
            f"{checkpoint} has --encoder-scorer {original} and the model to be fine-tuned "
            f"{present}; give an --arch like {form}"
        )
