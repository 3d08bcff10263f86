"""Tokenisers as Hugging Face has them, beside fairseq's dictionary."""

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from tokenizers import AddedToken, BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer
from tokenizers.processors import BertProcessing, RobertaProcessing

from fairseq_ext.data.tokenisers import OF_BERT, SPECIAL, SYMBOLS
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.tools.hf_format import read_json, write_json

FIRST = {name: i for i, name in enumerate(SYMBOLS[:4])}  # of every dictionary of fairseq
ROLES = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")  # of SYMBOLS


def read_tokenizer(path: Path) -> Tokenizer:
    """tokenizer.json, or what vocab.txt of BERT or vocab.json and merges.txt of RoBERTa stand for.

    Raises:
        UsageError: there is none of these, or it cannot be read.
    """
    name = next((name for name in TOKENIZERS if (path / name).exists()), None)
    if name is None:
        raise UsageError(f"{path} has no {', no '.join(TOKENIZERS)}; add the encoder's tokeniser")
    try:
        tokenizer = TOKENIZERS[name](path)
    except Exception as error:  # what `tokenizers` raises has no name
        raise UsageError(f"{path / name} cannot be read ({error}); copy it again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _whole(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path / "tokenizer.json"))


def _word_pieces(path: Path) -> Tokenizer:
    lines = (path / "vocab.txt").read_text("utf-8").removesuffix("\n").split("\n")
    settings = tokenizer_settings(path)
    return BertWordPieceTokenizer(
        {token: i for i, token in enumerate(lines)},
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )._tokenizer


def _byte_level_bpe(path: Path) -> Tokenizer:
    files = str(path / "vocab.json"), str(path / "merges.txt")
    prefix = tokenizer_settings(path).get("add_prefix_space", False)
    bpe = ByteLevelBPETokenizer.from_file(*files, add_prefix_space=prefix)._tokenizer
    finish_byte_level(bpe, prefix)
    return bpe


def tokenizer_settings(path: Path) -> dict[str, Any]:
    file = path / "tokenizer_config.json"
    return read_json(file) if file.exists() else {}


TOKENIZERS = {"tokenizer.json": _whole, "vocab.txt": _word_pieces, "vocab.json": _byte_level_bpe}


def symbols(tokenizer: Tokenizer, size: int) -> list[str]:
    """fairseq's names of the tokens by id; a row of the embeddings without a token has a filler.

    Raises:
        UsageError: there is a token without a row, or a special token is missing.
    """
    names = {i: SPECIAL.get(token, token) for token, i in tokenizer.get_vocab().items()}
    if max(names, default=-1) >= size:
        raise UsageError(
            f"the tokeniser has ids up to {max(names)} and the encoder {size} symbols; give an "
            "encoder with its own tokeniser"
        )
    if missing := set(SYMBOLS) - set(names.values()):
        raise UsageError(
            f"the tokeniser has no {', '.join(sorted(missing))}; it needs the special tokens "
            f"{' '.join(OF_BERT)} or {' '.join(SYMBOLS)}"
        )
    return [names.get(i, f"madeupword{i:04d}") for i in range(size)]


def dictionary_order(names: list[str]) -> list[int]:
    """The ids of these symbols in the order of fairseq's dictionary, which opens with four."""
    return sorted(range(len(names)), key=lambda i: FIRST.get(names[i], len(FIRST)))


def write_dictionary(names: list[str], file: Path) -> None:
    """dict.txt, which begins after the four symbols that fairseq itself puts first.

    Raises:
        UsageError: fairseq reads something else in it.
    """
    lines = "".join(f"{name} 0\n" for name in names[len(FIRST) :])
    file.write_text(lines, "utf-8", newline="\n")
    with suppress(RuntimeError, ValueError):  # fairseq's, of equal names and of broken lines
        if Dictionary.load(str(file)).symbols == names:
            return
    odd = [name for name, n in Counter(names).items() if n > 1 or {"\n", "\r"} & {*name}]
    raise UsageError(
        f"fairseq's dictionary cannot hold {', '.join(map(repr, odd[:3]))} of the vocabulary "
        "(two equal tokens, or a line end); give another encoder"
    )


def renumber(vocabulary: Vocabulary, kind: str) -> tuple[Tokenizer, list[int]]:
    """A tokeniser with special tokens, and the symbol in our dictionary of each of its ids."""
    dictionary, tokenizer = vocabulary.dictionary, vocabulary.tokenizer
    if not vocabulary.by_id:
        names = symbols(tokenizer, len(dictionary))
        return tokenizer, [dictionary.index(name) for name in names]
    there = {token: int(vocabulary.numbers[i]) for token, i in tokenizer.get_vocab().items()}
    if dictionary.unk() in there.values():
        raise UsageError(
            "dict.txt lacks tokens of the BPE beside it, which Hugging Face cannot leave out; give "
            "the dictionary that scripts/prepare_mlm.sh wrote"
        )
    made = json.loads(tokenizer.to_str())
    made["model"]["vocab"] = there | {name: dictionary.index(name) for name in SYMBOLS}
    tokenizer = Tokenizer.from_str(json.dumps(made))
    finish_byte_level(tokenizer, segments=kind == "bert")
    return tokenizer, list(range(len(dictionary)))


def finish_byte_level(
    tokenizer: Tokenizer, add_prefix_space: bool = False, segments: bool = False
) -> None:
    """Add RoBERTa's special tokens, and what puts them around texts; as in BERT with segments."""
    *others, mask = SYMBOLS
    tokenizer.add_special_tokens([*others, AddedToken(mask, lstrip=True)])
    ends = [(token, tokenizer.token_to_id(token)) for token in ("</s>", "<s>")]
    tokenizer.post_processor = (
        BertProcessing(*ends)
        if segments
        else RobertaProcessing(*ends, add_prefix_space=add_prefix_space)
    )


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """By role, as this tokeniser spells them."""
    there = tokenizer.get_vocab()
    spellings = zip(ROLES, OF_BERT, SYMBOLS, strict=True)
    return {role: name for role, *names in spellings for name in names if name in there}


def write_tokenizer(
    tokenizer: Tokenizer, special: dict[str, str], longest: int, folder: Path
) -> None:
    """What AutoTokenizer reads; `longest` is the number of tokens that a model takes."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest}
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(special, folder / "special_tokens_map.json")
    write_json(settings | special, folder / "tokenizer_config.json")
