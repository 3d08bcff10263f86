"""Turn a Hugging Face folder of a Llama or Qwen3 into a language model of today."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from fairseq_ext.errors import UsageError
from fairseq_ext.interchange import hf_llama, hf_vocabulary
from fairseq_ext.interchange.hf_format import read_text
from fairseq_ext.interchange.new_checkpoint import make_checkpoint

ROLES = {"bos_token_id": "<s>", "pad_token_id": "<pad>", "eos_token_id": "</s>"}
TOKENIZER = "tokenizer.json"


def convert(
    config: dict[str, Any], tensors: dict[str, Tensor], path: Path, work: Path, out: Path
) -> list[str]:
    """Write a language model as a fairseq checkpoint; return what is to be said of it.

    Symbols that it does not know get rows of zeros, so that their scores are 0.

    Args:
        config: its settings.
        tensors: its parameters.
        path: its folder.
        work: the folder to fill.
        out: the name that the folder will have.

    Raises:
        UsageError: it cannot be represented.
    """
    options, state = hf_llama.import_model(config, tensors, path)
    rows = [name for name in (hf_llama.EMBEDDED, hf_llama.OUTPUT) if name in state]
    names = list_words(read_tokenizer(path), config, len(state[rows[0]]))
    lacking = [symbol for symbol in hf_vocabulary.FIRST if symbol not in names]
    order = hf_vocabulary.sort_for_dictionary(names := [*names, *lacking])
    for name in rows:
        zeros = state[name].new_zeros(len(lacking), state[name].size(1))
        state[name] = torch.cat([state[name], zeros])[order]
    if options["share_decoder_input_output_embed"]:
        state[hf_llama.OUTPUT] = state[hf_llama.EMBEDDED]
    hf_vocabulary.write_dictionary([names[i] for i in order], work / "dict.txt")
    (work / TOKENIZER).write_text(read_text(path / TOKENIZER), "utf-8")
    checkpoint = make_checkpoint(options, state, out.absolute(), "language_modeling")
    with (work / "model.pt").open("wb") as file:  # so that an error of the disk is Python's
        torch.save(checkpoint, file)
    return [f"new, with scores of 0: {' '.join(lacking)}"] if lacking else []


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokeniser of a folder; raise UsageError if it has none that can be read."""
    with suppress(Exception):  # those of `tokenizers` have no class of their own
        return Tokenizer.from_str(json.dumps(json.loads(read_text(path / TOKENIZER))))
    raise UsageError(f"{path / TOKENIZER} is missing or damaged; give a folder that has one")


def list_words(tokenizer: Tokenizer, config: dict[str, Any], size: int) -> list[str]:
    """Return fairseq's names of the tokens by id, special ones by what config.json says."""
    names = hf_vocabulary.list_symbols(tokenizer, size)
    for role, symbol in ROLES.items():
        number = config.get(role)
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int) and 0 <= number < size:
            names = [f"<{i}>" if n == symbol and i != number else n for i, n in enumerate(names)]
            names[number] = symbol
    return names
