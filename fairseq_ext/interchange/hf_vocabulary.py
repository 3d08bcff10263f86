"""Conversion between tokenisers of Hugging Face and fairseq's dictionary."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fairseq.data import Dictionary
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import BertProcessing, RobertaProcessing

from fairseq_ext.data.tokenisers import OF_BERT, SYMBOLS, name_special_tokens
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange.hf_format import write_json

ROLES = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")  # of SYMBOLS
PROBE = "The quick brown fox jumps over the lazy dog, 12 times (and 345 more); why not 67890?"
FIRST = {name: i for i, name in enumerate(SYMBOLS[:4])}  # of every dictionary of fairseq


def list_symbols(tokenizer: Tokenizer, size: int) -> list[str]:
    """Return fairseq's names of the tokens by id, with a filler for each id without a token.

    Raises:
        UsageError: a token has no row in embeddings of `size` rows, or not one of its own.
    """
    tokens, special = tokenizer.get_vocab(), name_special_tokens(tokenizer)
    names = {i: special.get(token, token) for token, i in tokens.items()}
    if max(names, default=-1) >= size:
        raise UsageError(
            f"the tokeniser has ids up to {max(names)}, the encoder {size} symbols; give its own"
        )
    if len(names) < len(tokens):
        number, _ = Counter(tokens.values()).most_common(1)[0]
        pair = sorted(token for token, i in tokens.items() if i == number)
        raise UsageError(
            f"the tokeniser has {' and '.join(map(repr, pair[:3]))} with the same id {number}; "
            "correct its files"
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
        surround(tokenizer, segments=kind != "roberta")
        return tokenizer, [dictionary.index(name) for name in names]
    numbers = check_bpe(vocabulary)
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"] = numbers | {name: dictionary.index(name) for name in SYMBOLS}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    add_special_tokens(tokenizer)
    surround(tokenizer, segments=kind != "roberta")
    return tokenizer, list(range(len(dictionary)))


def check_bpe(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the symbol of each token; raise UsageError if the dictionary lacks some."""
    tokens = vocabulary.tokenizer.get_vocab()
    numbers = {token: int(vocabulary.numbers[i]) for token, i in tokens.items()}
    special = name_special_tokens(vocabulary.tokenizer)
    unknown = [token for token, i in numbers.items() if i == vocabulary.dictionary.unk()]
    if any(special.get(token) != "<unk>" for token in unknown):
        raise UsageError(
            "dict.txt lacks tokens of the BPE beside it, which Hugging Face cannot leave out; give "
            "the dictionary that scripts/prepare_mlm.sh wrote"
        )
    return numbers


def check_order(order: list[int], size: int, checkpoint: Path) -> None:
    """Raise UsageError unless every one of the model's symbols has its place."""
    if sorted(order) != [*range(size)]:
        raise UsageError(
            f"{checkpoint} has {size} symbols, and the tokeniser with dict.txt does not have just "
            "these; give --vocabulary, the folder with its own"
        )


def find_special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the special tokens by role, as this tokeniser spells them.

    Raises:
        UsageError: one is missing.
    """
    names = {symbol: token for token, symbol in name_special_tokens(tokenizer).items()}
    if missing := {*SYMBOLS} - names.keys():
        raise UsageError(
            f"the tokeniser has no {', '.join(sorted(missing))}; it needs the special tokens "
            f"{' '.join(OF_BERT)} or {' '.join(SYMBOLS)}"
        )
    return {role: names[symbol] for role, symbol in zip(ROLES, SYMBOLS, strict=True)}


def add_special_tokens(tokenizer: Tokenizer, names: Sequence[str] = SYMBOLS) -> None:
    """Add RoBERTa's or BERT's special tokens to a BPE."""
    *others, mask = names
    tokenizer.add_special_tokens([*others, AddedToken(mask, lstrip=True)])


def surround(tokenizer: Tokenizer, segments: bool, add_prefix_space: bool = False) -> None:
    """Surround texts with special tokens, unless the tokeniser does that already.

    Args:
        tokenizer: what is changed.
        segments: whether pairs of texts have segments and one separator, as in BERT.
        add_prefix_space: whether a BPE puts a space before each text.
    """
    special, ids = find_special_tokens(tokenizer), tokenizer.get_vocab()
    sep, cls = ((special[role], ids[special[role]]) for role in ("sep_token", "cls_token"))
    if not tokenizer.num_special_tokens_to_add(is_pair=False):
        tokenizer.post_processor = (
            BertProcessing(sep, cls)
            if segments
            else RobertaProcessing(sep, cls, add_prefix_space=add_prefix_space)
        )


def count_unknown(vocabulary: Vocabulary) -> str:
    """Return how many of how many tokens of PROBE a vocabulary does not have."""
    numbers = vocabulary.encode([PROBE])[0].numbers
    return f"{(numbers == vocabulary.dictionary.unk()).sum()} of {len(numbers)}"


def write_tokenizer(
    tokenizer: Tokenizer, special: dict[str, str], longest: int, segments: bool, folder: Path
) -> None:
    """Write the files that AutoTokenizer reads.

    Args:
        tokenizer: a tokeniser with special tokens.
        special: see `find_special_tokens`.
        longest: the number of tokens that the model takes.
        segments: whether the model tells segments apart.
        folder: where the files go.
    """
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "model_input_names": ["input_ids", *["token_type_ids"] * segments, "attention_mask"],
    }
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), "utf-8")
    write_json(special, folder / "special_tokens_map.json")
    write_json(settings | special, folder / "tokenizer_config.json")
