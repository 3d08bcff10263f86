"""Conversion between tokenisers of Hugging Face and fairseq's dictionary."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from tokenizers import AddedToken, BertWordPieceTokenizer, ByteLevelBPETokenizer, Tokenizer
from tokenizers.processors import BertProcessing, RobertaProcessing

from fairseq_ext.data.tokenisers import OF_BERT, SPECIAL, SYMBOLS
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange.hf_format import read_json, write_json
from fairseq_ext.interchange.sentence_pieces import read_sentence_pieces

FIRST = {name: i for i, name in enumerate(SYMBOLS[:4])}  # of every dictionary of fairseq
ROLES = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")  # of SYMBOLS


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokeniser of a folder: tokenizer.json, or built from older files.

    The older files are vocab.txt of BERT, vocab.json and merges.txt of RoBERTa and DeBERTa v1, and
    spm.model of DeBERTa v2 and v3.

    Raises:
        UsageError: there is none of these, or it cannot be read.
    """
    name = next((name for name in TOKENIZERS if (path / name).exists()), None)
    if name is None:
        raise UsageError(f"{path} has no {', no '.join(TOKENIZERS)}; add the encoder's tokeniser")
    try:
        tokenizer = TOKENIZERS[name](path)
    except Exception as error:  # the exceptions of `tokenizers` have no class of their own
        raise UsageError(f"{path / name} cannot be read ({error}); copy it again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_word_pieces(path: Path) -> Tokenizer:
    lines = (path / "vocab.txt").read_text("utf-8").removesuffix("\n").split("\n")
    settings = read_tokenizer_settings(path)
    return BertWordPieceTokenizer(
        {token: i for i, token in enumerate(lines)},
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )._tokenizer


def _read_byte_level_bpe(path: Path) -> Tokenizer:
    files = str(path / "vocab.json"), str(path / "merges.txt")
    prefix = read_tokenizer_settings(path).get("add_prefix_space", False)
    bpe = ByteLevelBPETokenizer.from_file(*files, add_prefix_space=prefix)._tokenizer
    bert = "[CLS]" in bpe.get_vocab()  # DeBERTa
    add_special_tokens(bpe, prefix, segments=bert, names=OF_BERT if bert else SYMBOLS)
    return bpe


def _read_unigram(path: Path) -> Tokenizer:
    return read_sentence_pieces(path / "spm.model", read_tokenizer_settings(path))


TOKENIZERS = {
    "tokenizer.json": lambda path: Tokenizer.from_file(str(path / "tokenizer.json")),
    "vocab.txt": _read_word_pieces,
    "vocab.json": _read_byte_level_bpe,
    "spm.model": _read_unigram,
}


def read_tokenizer_settings(path: Path) -> dict[str, Any]:
    """Return tokenizer_config.json of a folder, or nothing if there is none."""
    file = path / "tokenizer_config.json"
    return read_json(file) if file.exists() else {}


def list_symbols(tokenizer: Tokenizer, size: int) -> list[str]:
    """Return fairseq's names of the tokens by id, with a filler for each id without a token.

    Raises:
        UsageError: a token has no row in embeddings of `size` rows, or a special token is missing.
    """
    names = {i: SPECIAL.get(token, token) for token, i in tokenizer.get_vocab().items()}
    if max(names, default=-1) >= size:
        raise UsageError(
            f"the tokeniser has ids up to {max(names)}, the encoder {size} symbols; give its own"
        )
    if missing := set(SYMBOLS) - set(names.values()):
        raise UsageError(
            f"the tokeniser has no {', '.join(sorted(missing))}; it needs the special tokens "
            f"{' '.join(OF_BERT)} or {' '.join(SYMBOLS)}"
        )
    return [names.get(i, f"madeupword{i:04d}") for i in range(size)]


def sort_for_dictionary(names: list[str]) -> list[int]:
    """Return the ids of symbols in the order of fairseq's dictionary, which begins with FIRST."""
    return sorted(range(len(names)), key=lambda i: FIRST.get(names[i], len(FIRST)))


def write_dictionary(names: list[str], file: Path) -> None:
    """Write dict.txt, which lacks the four symbols that fairseq itself puts first.

    Raises:
        UsageError: fairseq would read other symbols from it.
    """
    lines = "".join(f"{name} 0\n" for name in names[len(FIRST) :])
    file.write_text(lines, "utf-8", newline="\n")
    with suppress(RuntimeError, ValueError):  # fairseq's, for equal names and broken lines
        if Dictionary.load(str(file)).symbols == names:
            return
    odd = [name for name, n in Counter(names).items() if n > 1 or {"\n", "\r"} & {*name}]
    raise UsageError(
        f"fairseq's dictionary cannot hold {', '.join(map(repr, odd[:3]))} of the vocabulary "
        "(two equal tokens, or a line end); give another encoder"
    )


def renumber(vocabulary: Vocabulary, kind: str) -> tuple[Tokenizer, list[int]]:
    """Return a tokeniser with special tokens, and for each of its ids our dictionary's symbol.

    Args:
        vocabulary: a tokeniser with fairseq's dictionary.
        kind: "roberta" or another one, as whose special tokens surround texts.

    Raises:
        UsageError: the dictionary lacks tokens of a BPE.
    """
    dictionary, tokenizer = vocabulary.dictionary, vocabulary.tokenizer
    if not vocabulary.by_id:
        names = list_symbols(tokenizer, len(dictionary))
        return tokenizer, [dictionary.index(name) for name in names]
    numbers = {token: int(vocabulary.numbers[i]) for token, i in tokenizer.get_vocab().items()}
    if dictionary.unk() in numbers.values():
        raise UsageError(
            "dict.txt lacks tokens of the BPE beside it, which Hugging Face cannot leave out; give "
            "the dictionary that scripts/prepare_mlm.sh wrote"
        )
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"] = numbers | {name: dictionary.index(name) for name in SYMBOLS}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    add_special_tokens(tokenizer, segments=kind != "roberta")
    return tokenizer, list(range(len(dictionary)))


def add_special_tokens(
    tokenizer: Tokenizer,
    add_prefix_space: bool = False,
    segments: bool = False,
    names: Sequence[str] = SYMBOLS,
) -> None:
    """Add special tokens to a BPE, and surround texts with them.

    Args:
        tokenizer: the BPE, which is changed.
        add_prefix_space: whether a space is put before each text.
        segments: whether pairs of texts have segments, as in BERT.
        names: of the special tokens, RoBERTa's or BERT's.
    """
    *others, mask = names
    tokenizer.add_special_tokens([*others, AddedToken(mask, lstrip=True)])
    ids = tokenizer.get_vocab()
    sep, cls = ((name, ids[name]) for name in (names[2], names[0]))
    tokenizer.post_processor = (
        BertProcessing(sep, cls)
        if segments
        else RobertaProcessing(sep, cls, add_prefix_space=add_prefix_space)
    )


def find_special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the special tokens by role, as this tokeniser spells them."""
    vocabulary = tokenizer.get_vocab()
    spellings = zip(ROLES, OF_BERT, SYMBOLS, strict=True)
    return {role: name for role, *names in spellings for name in names if name in vocabulary}


def write_tokenizer(
    tokenizer: Tokenizer, special: dict[str, str], longest: int, folder: Path
) -> None:
    """Write the files that AutoTokenizer reads.

    Args:
        tokenizer: a tokeniser with special tokens.
        special: see `find_special_tokens`.
        longest: the number of tokens that the model takes.
        folder: where the files go.
    """
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest}
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), "utf-8")
    write_json(special, folder / "special_tokens_map.json")
    write_json(settings | special, folder / "tokenizer_config.json")
