"""Tokenisers of translation and language models in the form of Hugging Face."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from fairseq_ext.data.tokenisers import SYMBOLS
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.interchange.hf_vocabulary import check_bpe

logger = logging.getLogger(__name__)

NAMES = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
TOKENISERS = ("tokenizer.json", "encoder.json", "bpe/encoder.json")
HYPHEN = "@-@"


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
        words = read_dictionary(data / f"dict.{language}.txt", config[f"{side}_vocab_size"])
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


def read_dictionary(file: Path, size: int) -> list[str]:
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
    words = read_dictionary(data / "dict.txt", config["vocab_size"])
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
