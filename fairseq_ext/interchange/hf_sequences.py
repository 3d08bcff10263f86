"""Translation and language models of ours in the form of Hugging Face: FSMT, Marian and OPT.

FSMT is fairseq's translation model in transformers, with Moses and a BPE. Marian has SentencePiece,
and a table of positions. OPT is a decoder with learned positions, which hold sinusoids as well, and
with an output projection of its own if embeddings are scaled.
"""

import re
from collections.abc import Callable, Mapping
from math import sqrt
from pathlib import Path
from typing import Any

from fairseq.modules import SinusoidalPositionalEmbedding
from safetensors.torch import save
from torch import Tensor
from torch.nn.functional import pad

from fairseq_ext.data.tokenisers import SENTENCEPIECE
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import BUFFERS
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.interchange.export_fairseq import convert as convert_to_stock
from fairseq_ext.interchange.export_fairseq import infer_languages
from fairseq_ext.interchange.hf_sequence_tokenizers import (
    ParallelText,
    write_moses_tokenizer,
    write_sentencepiece_tokenizer,
    write_text_tokenizer,
)

FIRST = 2  # row of the first position, in fairseq and OPT
NUMBERS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
SIDES = ("encoder", "decoder")
LONGEST = 200
"""The length of translations that fairseq-generate has by default (--max-len-b)."""

COMMON: dict[str, list] = {
    "layernorm_embedding": [False],
    "adaptive_softmax_cutoff": [None],
    "activation_fn": list(dict.fromkeys(hf.ACTIVATIONS.values())),
}
TRANSLATION: dict[str, list] = COMMON | {
    "encoder_normalize_before": [False],
    "decoder_normalize_before": [False],
    "no_cross_attention": [False],
}
SINUSOIDAL: dict[str, list] = {
    "encoder_learned_pos": [False],
    "decoder_learned_pos": [False],
    "no_token_positional_embeddings": [False],
}
LANGUAGE: dict[str, list] = COMMON | {
    "adaptive_input": [False],
    "character_embeddings": [False],
}


def convert(
    saved: Mapping[str, Any], checkpoint: Path, folder: Path | None, work: Path
) -> list[str]:
    """Write a translation or language model in Hugging Face's format; return what was left out.

    Args:
        folder: the folder of dictionaries and codes, if it is not that of the data.
        work: the folder to fill.

    Raises:
        UsageError: the model or its text cannot be represented.
    """
    made, left_out = convert_to_stock(saved, checkpoint)
    if folder and made["args"].arch == "transformer":
        infer_languages(made["args"], str(folder))
    args, data = vars(made["args"]), folder or Path(str(made["args"].data).partition(":")[0])
    state = {n: x.float() for n, x in made["model"].items() if n.split(".")[-1] not in BUFFERS}
    if args["arch"] != "transformer":
        config, tensors = _to_opt(args, state, checkpoint)
        longest = config["max_position_embeddings"]
        write_text_tokenizer(config["vocab_size"], longest, data, work)
        hf.write_json(NUMBERS, work / "generation_config.json")  # texts have many continuations
    else:
        pieces = (data / SENTENCEPIECE).is_file()
        config, tensors = (_to_marian if pieces else _to_fsmt)(args, state, checkpoint)
        sizes = len(state["encoder.embed_tokens.weight"]), len(state["decoder.embed_tokens.weight"])
        languages = args["source_lang"], args["target_lang"]
        text = ParallelText(data, languages, sizes, args["max_source_positions"])
        (write_sentencepiece_tokenizer if pieces else write_moses_tokenizer)(text, work)
        search = describe_search(args["max_target_positions"])
        hf.write_json(NUMBERS | search, work / "generation_config.json")
    write_model(config, tensors, work)
    return left_out


def describe_search(positions: int) -> dict[str, Any]:
    """Return settings of generation that fairseq-generate has by default.

    Args:
        positions: the number of positions of targets.
    """
    return {
        "decoder_start_token_id": NUMBERS["eos_token_id"],
        "forced_eos_token_id": NUMBERS["eos_token_id"],
        "suppress_tokens": [NUMBERS["pad_token_id"]],
        "min_new_tokens": 1,
        "num_beams": 5,
        "early_stopping": True,
        "max_length": min(LONGEST, positions - 1) + 2,  # with </s> at both ends
    }


def write_model(config: Mapping[str, Any], tensors: Mapping[str, Tensor], work: Path) -> None:
    """Write config.json, with the numbers of special tokens, and the parameters."""
    tensors = {name: value.clone().contiguous() for name, value in tensors.items()}
    (work / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))
    hf.write_json({**config, **NUMBERS}, work / "config.json")


def _rename(
    state: Mapping[str, Tensor], rename: Callable[[str], str | None], place: Path, model: str
) -> dict[str, Tensor]:
    """Return parameters by their names there; raise UsageError for one without a place."""
    names = {name: rename(name) for name in state}
    if lost := [name for name, new in names.items() if new is None]:
        raise UsageError(
            f"{place} has {lost[0]}, which {model} of Hugging Face has not; give a model whose "
            "embeddings are as wide as its layers"
        )
    return {str(new): state[name] for name, new in names.items()}


def _describe_translator(
    args: Mapping[str, Any], place: Path, model: str, accepted: Mapping[str, list]
) -> dict[str, Any]:
    """Return what config.json says of any translation model; raise UsageError if it has none."""
    hf.check_options(args, accepted, place, f"{model} of Hugging Face")
    if args["source_lang"] is None:
        raise UsageError(
            f"{place} does not name its languages, and {args['data']} has no files that do; give "
            "--vocabulary, the folder of its data"
        )
    if args["encoder_embed_dim"] != args["decoder_embed_dim"]:
        raise UsageError(
            f"{place} has an encoder and a decoder of different widths, which {model} of Hugging "
            "Face cannot have; give a model with one --encoder-embed-dim and --decoder-embed-dim"
        )
    config = {
        "d_model": args["encoder_embed_dim"],
        "max_position_embeddings": max(args["max_source_positions"], args["max_target_positions"]),
        "scale_embedding": not args["no_scale_embedding"],
        "activation_function": hf.HIDDEN_ACTS[args["activation_fn"]],
        **{name: args[name] for name in DROPOUTS},
        "is_encoder_decoder": True,
        "decoder_start_token_id": NUMBERS["eos_token_id"],
    }
    for side in SIDES:
        config |= {
            f"{side}_layers": args[f"{side}_layers"],
            f"{side}_attention_heads": args[f"{side}_attention_heads"],
            f"{side}_ffn_dim": args[f"{side}_ffn_embed_dim"],
            f"{side}_layerdrop": args[f"{side}_layerdrop"],
        }
    return config


def _to_fsmt(
    args: Mapping[str, Any], state: dict[str, Tensor], place: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the parameters of a translation model as FSMT."""
    config = _describe_translator(args, place, "FSMT", TRANSLATION | SINUSOIDAL)
    part = r"(encoder|decoder)\.(embed_tokens|output_projection|layers\.\d+\..*)\.(weight|bias)"
    tensors = _rename(
        state, lambda n: f"model.{n}" if re.fullmatch(part, n) else None, place, "FSMT"
    )
    shared = "model.decoder.embed_tokens.weight"
    copies = ["model.encoder.embed_tokens.weight", "model.decoder.output_projection.weight"]
    tied = all(tensors[shared].equal(tensors[name]) for name in copies)
    sizes = {"src": tensors[copies[0]], "tgt": tensors[shared]}
    config |= {
        "architectures": ["FSMTForConditionalGeneration"],
        "model_type": "fsmt",
        "langs": [args["source_lang"], args["target_lang"]],
        **{f"{side}_vocab_size": len(matrix) for side, matrix in sizes.items()},
        "tie_word_embeddings": tied,
    }
    positions = _make_positions(args, config["max_position_embeddings"], config["d_model"])
    for side in SIDES:  # transformers would report them as missing
        tensors[f"model.{side}.embed_positions.weight"] = positions
    return config, {n: x for n, x in tensors.items() if not (tied and n in copies)}


def _to_marian(
    args: Mapping[str, Any], state: dict[str, Tensor], place: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the parameters of a translation model as Marian.

    Its own sinusoids have other frequencies than fairseq's, which therefore are parameters here.
    """
    config = _describe_translator(args, place, "Marian", TRANSLATION)
    tensors = _rename(state, _name_in_marian, place, "Marian")
    source, target = (tensors[f"model.{side}.embed_tokens.weight"] for side in SIDES)
    tied = target.equal(tensors["lm_head.weight"])
    shared = tied and source.equal(target)
    if tied:
        del tensors["lm_head.weight"]
    if shared:
        tensors["model.shared.weight"] = source
        for side in SIDES:
            del tensors[f"model.{side}.embed_tokens.weight"]
    config |= {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": len(source),
        "decoder_vocab_size": len(target),
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": tied,
    }
    rows, width = config["max_position_embeddings"], config["d_model"]
    for side in SIDES:
        name = f"model.{side}.embed_positions.weight"
        table = tensors.get(name, _make_positions(args, rows, width))[FIRST:]
        tensors[name] = pad(table, (0, 0, 0, rows - len(table)))
    return config, tensors


def _name_in_marian(name: str) -> str | None:
    """Return the name of a parameter of fairseq's model in Marian, or None if it has none."""
    if name == "decoder.output_projection.weight":
        return "lm_head.weight"
    part = r"(encoder|decoder)\.(embed_tokens|embed_positions|layers\.\d+\..*)\.(weight|bias)"
    return f"model.{name}" if re.fullmatch(part, name) else None


def _make_positions(args: Mapping[str, Any], positions: int, width: int) -> Tensor:
    """Return sinusoids of positions behind the rows before the first one, or zeros without any."""
    table = SinusoidalPositionalEmbedding.get_embedding(FIRST + positions, width, 1)
    return table * (not args["no_token_positional_embeddings"])


def _to_opt(
    args: Mapping[str, Any], state: dict[str, Tensor], place: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the parameters of a language model as OPT."""
    hf.check_options(args, LANGUAGE, place, "OPT of Hugging Face")
    positions = state.pop("decoder.embed_positions.weight", None)
    if positions is None:
        longest = args["max_target_positions"] or args["tokens_per_sample"]
        positions = _make_positions(args, longest, args["decoder_embed_dim"])
    output = state.pop("decoder.output_projection.weight")
    tensors = _rename(state, _name_in_opt, place, "OPT")
    embedded = "model.decoder.embed_tokens.weight"
    width = tensors[embedded].size(1)
    if width != output.size(1):
        raise UsageError(
            f"{place} has --decoder-input-dim {width} and --decoder-output-dim {output.size(1)}, "
            "which OPT of Hugging Face cannot have; give a model with both the same"
        )
    if not args["no_scale_embedding"]:
        tensors[embedded] = sqrt(args["decoder_embed_dim"]) * tensors[embedded]
    tied = tensors[embedded].equal(output)
    tensors["model.decoder.embed_positions.weight"] = positions
    norm = "model.decoder.final_layer_norm.weight"
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": len(output),
        "hidden_size": args["decoder_embed_dim"],
        "word_embed_proj_dim": width,
        "num_hidden_layers": args["decoder_layers"],
        "num_attention_heads": args["decoder_attention_heads"],
        "ffn_dim": args["decoder_ffn_embed_dim"],
        "max_position_embeddings": len(positions) - FIRST,
        "do_layer_norm_before": args["decoder_normalize_before"],
        "_remove_final_layer_norm": norm not in tensors,
        "activation_function": hf.HIDDEN_ACTS[args["activation_fn"]],
        "dropout": args["dropout"],
        "attention_dropout": args["attention_dropout"],
        "layerdrop": args["decoder_layerdrop"],
        "tie_word_embeddings": tied,
    }
    return config, tensors if tied else tensors | {"lm_head.weight": output}


def _name_in_opt(name: str) -> str | None:
    """Return the name of a parameter of fairseq's decoder in OPT, or None if it has none."""
    there = {"layer_norm": "final_layer_norm", "project_in_dim": "project_in"}
    there |= {"project_out_dim": "project_out", "embed_tokens": "embed_tokens"}
    _, part, *rest = name.split(".")
    known = part if part == "layers" else there.get(part)
    return known and ".".join(["model.decoder", known, *rest])
