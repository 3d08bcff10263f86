"""Turn a checkpoint with softmax attention into one of fairseq without this package.

OUT is a `transformer`, `transformer_lm` or `roberta` in fairseq's form, with no option of ours:
stock fairseq and its clients, such as CTranslate2, read it. Weights of heads, as gates have them,
become part of projections, and pruned heads and shared keys and values are written out; any other
mechanism is refused. OUT computes the same, which is checked before it is written.

Example:
  fairseq-ext export-fairseq checkpoints/mine/checkpoint_best.pt stock.pt
"""

import argparse
import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.models import build_model as build_stock
from fairseq.models.roberta.model import base_architecture
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from fairseq.tasks.language_modeling import LanguageModelingConfig
from fairseq.tasks.masked_lm import MaskedLMConfig
from fairseq.tasks.translation import TranslationConfig
from torch import Tensor, nn

from fairseq_ext.attention.options import flag
from fairseq_ext.attention.positions import EMBEDDED
from fairseq_ext.attention.sites import SITES
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import BUFFERS, get_architecture
from fairseq_ext.interchange import hf_format
from fairseq_ext.interchange.new_checkpoint import add_checkpoints, check_output, write_checkpoint
from fairseq_ext.interchange.stock_projections import fold_model
from fairseq_ext.models.architectures import FAMILIES
from fairseq_ext.models.config import default_options, list_options, stock_options, to_dict
from fairseq_ext.models.mixins import drop_adversaries
from fairseq_ext.models.model_options import name_positions
from fairseq_ext.models.pretrained import saved_options
from fairseq_ext.patches.checkpoints import explain_loading
from fairseq_ext.safe_loading import read_checkpoint

FOLDED = ("none", "static", "l0")  # gates that are weights of heads in evaluation
TOLERANCE = 1e-6  # of outputs in float64; fairseq computes some maps in float32


class Stock(NamedTuple):
    """A kind of models of fairseq's.

    Attributes:
        options: lists the names of a model's options.
        task: its name, and the dataclass of its options.
    """

    options: Callable[[], set[str]]
    task: tuple[str, type]


def _list_names(config: type | None = None) -> set[str]:
    return {name for name, *_ in (list_options(config) if config else stock_options())}


def _list_roberta_names() -> set[str]:
    args = Namespace()
    base_architecture(args)
    return {*vars(args), "max_positions"}


STOCK = {
    "transformer": Stock(_list_names, ("translation", TranslationConfig)),
    "transformer_lm": Stock(
        lambda: _list_names(TransformerLanguageModelConfig),
        ("language_modeling", LanguageModelingConfig),
    ),
    "roberta": Stock(_list_roberta_names, ("masked_lm", MaskedLMConfig)),
}
"""Family of models of ours -> the model of fairseq's that it becomes."""


def list_accepted() -> dict[str, list]:
    """Return the values that options of ours may have; the first is the value of a missing one."""
    return {
        **hf_format.list_plain(*SITES),
        **{f"{side}_positions": [None, *EMBEDDED, "none"] for side in ("encoder", "decoder")},
        "head_gate": [*FOLDED],
        "cross_layers": ["all"],
        "norm": ["layer"],
        "ffn": ["plain"],
        "qk_norm": [False],
        "segments": [None, 0],
        "layer_norm_eps": [None, 1e-5],
        "embedding_width": [0],
        "encoder_conv_kernel": [0],
        "enhanced_mask_decoder": [False],
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext export-fairseq`."""
    add_checkpoints(parser)


def run(args: argparse.Namespace) -> None:
    """Write the checkpoint, and print what it is and what was left out."""
    check_output(args.output, args.force)
    made, left_out = convert(read_checkpoint(args.checkpoint), args.checkpoint)
    write_checkpoint(made, args.output)
    print(f"{args.output} is a {made['args'].arch} of fairseq, for --task {made['args'].task}")
    if left_out:
        print(f"left out: {', '.join(left_out)}")


def convert(state: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return a checkpoint in fairseq's form, and the parameters that have no place in it.

    Raises:
        UsageError: fairseq has no model that computes the same.
    """
    options = saved_options(state)
    family = find_family(options, path)
    options = default_options(MODEL_DATACLASS_REGISTRY[get_architecture(options)]) | options
    parameters = drop_adversaries(state["model"])
    check_options(options, path)
    try:
        ours, stock, args = build_models(family, options, parameters, path)
    except Exception as error:  # what wrong options raise has no name
        raise explain_loading(error, str(path)) from error
    add_task(args, saved_options(state, "task"), *STOCK[family].task)
    history = {"num_updates": count_updates(state), "optimizer_name": "", "lr_scheduler_state": {}}
    made = {
        "args": args,
        "cfg": None,
        "model": (kept := stock.state_dict()),
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "task_state": {},
    }
    used = kept.keys() | dict(ours.named_parameters()).keys()
    return made, sorted(parameters.keys() - used)


def build_models(
    family: str, options: dict[str, Any], parameters: Mapping[str, Tensor], path: Path
) -> tuple[nn.Module, nn.Module, Namespace]:
    """Build our model and fairseq's, which computes the same, and return both with its options."""
    task = Namespace(max_positions=lambda: None, cfg=Namespace())
    task.source_dictionary = make_dictionary(parameters, "encoder")
    task.target_dictionary = make_dictionary(parameters, "decoder")
    ours: Any = MODEL_REGISTRY[get_architecture(options)].build_model(Namespace(**options), task)
    ours.load_state_dict(dict(parameters), True, Namespace(**options))
    ours.double().eval()
    args = make_arguments(family, options | ours.adopted_options())
    stock = build_stock(args, task)
    dtype = next(iter(stock.parameters())).dtype
    stock.load_state_dict(fill_parameters(stock.double(), fold_model(ours), path))
    check_same(ours, stock.eval(), task, path)
    return ours, stock.to(dtype), args


def find_family(options: Mapping[str, Any], path: Path) -> str:
    """Return the family of a model; raise UsageError for one that fairseq has no twin of."""
    name = get_architecture(options)
    base = MODEL_REGISTRY.get(name)
    for family in STOCK:
        if base and issubclass(base, FAMILIES[family].base) and not name.startswith("deberta"):
            return family
    raise UsageError(
        f"{path} has --arch {name}; give a transformer, transformer_lm or roberta of ours, like "
        "transformer_una"
    )


def check_options(options: Mapping[str, Any], path: Path) -> None:
    """Raise UsageError for an option with which fairseq has no model that computes the same."""
    hf_format.check_options(options, list_accepted(), path, "fairseq without this package")
    sides = [side for side in ("encoder", "decoder") if f"{side}_layers" in options]
    kinds = {f"{side}_positions": name_positions(side, options) for side in sides}
    if "none" in kinds.values() and len({*kinds.values()}) > 1:
        raise UsageError(
            f"{path} has {' and '.join(starmap(flag, kinds.items()))}, and fairseq without this "
            "package embeds positions on both sides or none; give such a model"
        )
    heads = options.get("cross_attention_heads") or options.get("decoder_attention_heads")
    if "cross_attention_heads" in options and heads != options["decoder_attention_heads"]:
        raise UsageError(
            f"{path} has --cross-attention-heads {heads}, which fairseq without this package has "
            "only if the decoder has as many; give a model without the option"
        )


def make_dictionary(parameters: Mapping[str, Tensor], side: str) -> Dictionary:
    """Return a dictionary of as many symbols as a side of the model embeds, or the only side."""
    parts = ("embed_tokens", "sentence_encoder.embed_tokens", "output_projection")
    names = (f"{one}.{part}.weight" for one in (side, "encoder", "decoder") for part in parts)
    matrices = [parameters[name] for name in names if name in parameters]
    bands = (x for n, x in parameters.items() if re.search(r"embed_tokens\.embeddings.*0\.w", n))
    size = len(matrices[0]) if matrices else sum(map(len, bands))
    words = Dictionary()
    for number in range(size - len(words)):
        words.add_symbol(f"w{number}", n=size - number)
    return words


def make_arguments(family: str, options: Mapping[str, Any]) -> Namespace:
    """Return the options of fairseq's model, all of them."""
    names = STOCK[family].options()
    args = Namespace(**{name: value for name, value in options.items() if name in names})
    for side in (side for side in ("encoder", "decoder") if f"{side}_layers" in names):
        kind = name_positions(side, options)
        args.no_token_positional_embeddings = kind == "none"
        setattr(args, f"{side}_learned_pos", EMBEDDED.get(kind, False))
        setattr(args, f"{side}_layers_to_keep", None)
    args.arch = args._name = family
    ARCH_CONFIG_REGISTRY[family](args)
    return args


def fill_parameters(
    stock: nn.Module, parameters: Mapping[str, Tensor], path: Path
) -> dict[str, Tensor]:
    """Return the state of fairseq's model with our parameters, and zeros for biases we lack.

    Raises:
        UsageError: it has parameters that our model has not.
    """
    state = stock.state_dict()
    absent = [n for n in state if n not in parameters and n.rpartition(".")[2] not in BUFFERS]
    if missing := [name for name in absent if not name.endswith(".bias")]:
        raise UsageError(
            f"{path} has no {missing[0]}, which fairseq's model has; give a checkpoint of "
            "pre-training or translation, with all parts"
        )
    zeros = {name: torch.zeros_like(state[name]) for name in absent}
    return {name: parameters.get(name, zeros.get(name, value)) for name, value in state.items()}


@torch.no_grad()
def check_same(ours: nn.Module, stock: nn.Module, task: Any, path: Path) -> None:
    """Raise UsageError unless both compute the same, of random tokens with padding."""
    generator = torch.Generator().manual_seed(1)
    words = task.source_dictionary, task.target_dictionary
    source, target = (torch.randint(4, len(w), (2, 6), generator=generator) for w in words)
    source[:, -1], target[:, 0] = words[0].eos(), words[1].eos()
    source[0, 3:] = torch.tensor([words[0].eos(), words[0].pad(), words[0].pad()])
    paired = hasattr(ours, "encoder") and hasattr(ours, "decoder")
    inputs = (source, torch.tensor([4, 6]), target) if paired else (source,)
    real = torch.ones_like(target, dtype=torch.bool) if paired else source.ne(words[0].pad())
    one, other = (model(*inputs)[0][real] for model in (ours, stock))
    difference = float((one - other).abs().max() / one.abs().max().clamp(min=1))
    if not difference < TOLERANCE:
        raise UsageError(
            f"{path} computes something that fairseq without this package does not (outputs differ "
            f"by {difference:.2g}); please report it with the options of the model"
        )


def add_task(args: Namespace, options: Mapping[str, Any], name: str, config: type) -> None:
    """Add a task to options of a model, with its languages and its data."""
    args.task = name
    defaults = {n: x for n, x in default_options(config).items() if x is not MISSING}
    known = {field.name for field in fields(config)} - {"_name"}
    given = {n: options[n] for n in known & options.keys()}
    for option, value in to_dict(defaults | given).items():
        if "${" not in str(value):  # follows another option
            setattr(args, option, value)
    if name == "translation":
        infer_languages(args, str(args.data))


def infer_languages(args: Namespace, data: str) -> None:
    """Add the languages to options that do not name them, by names of files in the data."""
    args.source_lang = getattr(args, "source_lang", None)
    if args.source_lang is None:
        with suppress(OSError, TypeError, ValueError):  # no such folder any more
            args.source_lang, args.target_lang = infer_language_pair(data)


def count_updates(state: Mapping[str, Any]) -> int:
    """Return the number of updates after which a checkpoint was saved."""
    return (state.get("optimizer_history") or [{}])[-1].get("num_updates", 0)
