"""Translation and language models of ours in the form of Hugging Face: FSMT and OPT.

FSMT is fairseq's translation model in transformers. OPT is a decoder with learned positions, which
hold sinusoids as well, and with an output projection of its own if embeddings are scaled.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping
from math import sqrt
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.modules import SinusoidalPositionalEmbedding
from safetensors.torch import save
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from fairseq_ext.data.tokenisers import SYMBOLS
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import BUFFERS
from fairseq_ext.files import read_lines
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.interchange.export_fairseq import convert as convert_to_stock
from fairseq_ext.interchange.hf_vocabulary import check_bpe

logger = logging.getLogger(__name__)

FIRST = 2  # row of the first position, in fairseq and OPT
NUMBERS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
NAMES = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
TOKENISERS = ("tokenizer.json", "encoder.json", "bpe/encoder.json")
HYPHEN = "@-@"
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")

COMMON: dict[str, list] = {
    "--layernorm-embedding": [False],
    "--adaptive-softmax-cutoff": [None],
    "--activation-fn": list(dict.fromkeys(hf.ACTIVATIONS.values())),
}
TRANSLATION: dict[str, list] = COMMON | {
    "--encoder-normalize-before": [False],
    "--decoder-normalize-before": [False],
    "--encoder-learned-pos": [False],
    "--decoder-learned-pos": [False],
    "--no-token-positional-embeddings": [False],
    "--no-cross-attention": [False],
}
LANGUAGE: dict[str, list] = COMMON | {
    "--adaptive-input": [False],
    "--character-embeddings": [False],
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
    args, data = vars(made["args"]), folder or Path(str(made["args"].data).partition(":")[0])
    state = {n: x.float() for n, x in made["model"].items() if n.split(".")[-1] not in BUFFERS}
    form = _to_fsmt if args["arch"] == "transformer" else _to_opt
    config, tensors = form(args, state, checkpoint)
    if form is _to_fsmt:
        write_moses_tokenizer(args, config, data, work)
    else:
        write_text_tokenizer(config, data, work)
    tensors = {name: value.clone() for name, value in tensors.items()}
    (work / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))
    hf.write_json(config | NUMBERS, work / "config.json")
    search: dict[str, Any] = {"decoder_start_token_id": 2, "num_beams": 5, "early_stopping": True}
    search |= {"max_length": 200, "min_new_tokens": 1, "forced_eos_token_id": 2}
    search["suppress_tokens"] = [1]  # <pad>
    opened = {} if form is _to_opt else search  # a text may be continued in many ways
    hf.write_json(NUMBERS | opened, work / "generation_config.json")
    return left_out


def _check(args: Mapping[str, Any], accepted: Mapping[str, list], place: Path, model: str) -> None:
    """Raise UsageError for an option of fairseq's that a model of Hugging Face's cannot have."""
    flags = {f"--{name.replace('_', '-')}": value for name, value in args.items()}
    hf.check_settings(flags, accepted, place, f"{model} of Hugging Face")


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


def _to_fsmt(
    args: Mapping[str, Any], state: dict[str, Tensor], place: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the parameters of a translation model as FSMT."""
    _check(args, TRANSLATION, place, "FSMT")
    if args["encoder_embed_dim"] != args["decoder_embed_dim"]:
        raise UsageError(
            f"{place} has an encoder and a decoder of different widths, which FSMT of Hugging Face "
            "cannot have; give a model with one --encoder-embed-dim and --decoder-embed-dim"
        )
    part = r"(encoder|decoder)\.(embed_tokens|output_projection|layers\.\d+\..*)\.(weight|bias)"
    tensors = _rename(
        state, lambda n: f"model.{n}" if re.fullmatch(part, n) else None, place, "FSMT"
    )
    shared = "model.decoder.embed_tokens.weight"
    copies = ["model.encoder.embed_tokens.weight", "model.decoder.output_projection.weight"]
    tied = all(tensors[shared].equal(tensors[name]) for name in copies)
    sizes = {"src": tensors[copies[0]], "tgt": tensors[shared]}
    config = {
        "architectures": ["FSMTForConditionalGeneration"],
        "model_type": "fsmt",
        "langs": [args["source_lang"] or "src", args["target_lang"] or "tgt"],
        **{f"{side}_vocab_size": len(matrix) for side, matrix in sizes.items()},
        "d_model": args["encoder_embed_dim"],
        "max_position_embeddings": max(args["max_source_positions"], args["max_target_positions"]),
        "scale_embedding": not args["no_scale_embedding"],
        "activation_function": hf.HIDDEN_ACTS[args["activation_fn"]],
        **{name: args[name] for name in DROPOUTS},
        "is_encoder_decoder": True,
        "decoder_start_token_id": 2,
        "tie_word_embeddings": tied,
    }
    for side in ("encoder", "decoder"):
        config |= {
            f"{side}_layers": args[f"{side}_layers"],
            f"{side}_attention_heads": args[f"{side}_attention_heads"],
            f"{side}_ffn_dim": args[f"{side}_ffn_embed_dim"],
            f"{side}_layerdrop": args[f"{side}_layerdrop"],
        }
    positions = _make_sinusoids(config["max_position_embeddings"], config["d_model"])
    for side in ("encoder", "decoder"):  # transformers would report them as missing
        tensors[f"model.{side}.embed_positions.weight"] = positions
    return config, {n: x for n, x in tensors.items() if not (tied and n in copies)}


def _make_sinusoids(positions: int, width: int) -> Tensor:
    """Return fairseq's embeddings of positions, behind the rows before the first one."""
    return SinusoidalPositionalEmbedding.get_embedding(FIRST + positions, width, 1)


def _to_opt(
    args: Mapping[str, Any], state: dict[str, Tensor], place: Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the parameters of a language model as OPT."""
    _check(args, LANGUAGE, place, "OPT")
    positions = state.pop("decoder.embed_positions.weight", None)
    if positions is None:
        longest = args["max_target_positions"] or args["tokens_per_sample"]
        positions = _make_sinusoids(longest, args["decoder_embed_dim"])
        positions *= not args["no_token_positional_embeddings"]
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


def write_moses_tokenizer(
    args: Mapping[str, Any], config: Mapping[str, Any], data: Path, work: Path
) -> None:
    """Write the files of FSMT's tokeniser, which is Moses' with a BPE.

    Raises:
        UsageError: a file is missing, or dictionaries and tokeniser do not express the same.
    """
    codes = data / "bpe.codes"
    if not codes.is_file():
        raise UsageError(
            f"{data} has no bpe.codes, and FSMT of Hugging Face splits words by a BPE; give "
            "--vocabulary, the folder that scripts/prepare_parallel.sh made"
        )
    merges = [line.split()[:2] for line in read_lines(codes) if not line.startswith("#version")]
    (work / "merges.txt").write_text("".join(f"{' '.join(pair)}\n" for pair in merges), "utf-8")
    lower = True
    for side, language in (("src", args["source_lang"]), ("tgt", args["target_lang"])):
        words = _read_dictionary(data / f"dict.{language}.txt", config[f"{side}_vocab_size"])
        numbers = {_name_in_fsmt(symbol): i for i, symbol in enumerate(words)}
        if len(numbers) < len(words):
            raise UsageError(
                f"{data}/dict.{language}.txt has two symbols that are one piece to FSMT's "
                "tokeniser; give a dictionary of a BPE with @@ at the ends of pieces"
            )
        hf.write_json(numbers, work / f"vocab-{side}.json")
        if side == "src" and HYPHEN not in words:
            logger.warning(
                "FSMT's tokeniser splits words at hyphens (into %s), unlike the text of this model",
                HYPHEN,
            )
        lower = lower and (side == "tgt" or not any(word != word.lower() for word in words))
    settings = {"tokenizer_class": "FSMTTokenizer", "langs": config["langs"], **NAMES}
    settings |= {"do_lower_case": lower, "model_max_length": args["max_source_positions"]}
    hf.write_json(settings, work / "tokenizer_config.json")


def _name_in_fsmt(symbol: str) -> str:
    if symbol in SYMBOLS:
        return symbol
    return symbol.removesuffix("@@") if symbol.endswith("@@") else f"{symbol}</w>"


def _read_dictionary(file: Path, size: int) -> list[str]:
    """Return the symbols of a dictionary; raise UsageError if it is not that of the model."""
    if not file.is_file():
        raise UsageError(f"{file} is not there; give --vocabulary, the folder of the training data")
    words = Dictionary.load(str(file)).symbols
    if len(words) != size:
        raise UsageError(
            f"{file} has {len(words)} symbols, and the model {size}; give --vocabulary, the folder "
            "of its own data"
        )
    return words


def write_text_tokenizer(config: Mapping[str, Any], data: Path, work: Path) -> None:
    """Write the tokeniser of a language model: its BPE, or words between spaces if it has none.

    A text begins with </s>, as sentences do in training.
    """
    words = _read_dictionary(data / "dict.txt", config["vocab_size"])
    numbers = {word: i for i, word in enumerate(words)}
    if any((data / name).is_file() for name in TOKENISERS):
        vocabulary = Vocabulary.load(data)
        tokens = check_bpe(vocabulary)
        content = json.loads(vocabulary.tokenizer.to_str())
        content["model"]["vocab"] = tokens | {name: numbers[name] for name in NAMES.values()}
        content["post_processor"] = None
        tokenizer = Tokenizer.from_str(json.dumps(content))
    else:
        tokenizer = Tokenizer(models.WordLevel(numbers, "<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([*NAMES.values()])
    end = ("</s>", numbers["</s>"])
    tokenizer.post_processor = TemplateProcessing(single="</s> $A", special_tokens=[end])
    (work / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), "utf-8")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **NAMES,
        "bos_token": "</s>",
    }
    settings |= {"model_max_length": config["max_position_embeddings"]}
    settings |= {"model_input_names": ["input_ids", "attention_mask"]}
    hf.write_json(settings, work / "tokenizer_config.json")
