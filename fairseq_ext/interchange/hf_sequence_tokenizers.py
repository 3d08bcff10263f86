"""Tokenisers of translation and language models in the form of Hugging Face."""

import json
import logging
import shutil
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq.data import Dictionary
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from fairseq_ext.data.tokenisers import SENTENCEPIECE, SYMBOLS, load_sentencepiece
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.interchange.hf_vocabulary import check_bpe

logger = logging.getLogger(__name__)

NAMES = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
EOS = ("</s>", 2)
TOKENISERS = ("tokenizer.json", "encoder.json", "bpe/encoder.json")
CODES = "bpe.codes"
HYPHEN = "@-@"
TEXT_ALONE = {"split_special_tokens": True}  # text that looks like a special token is text


class ParallelText(NamedTuple):
    """The text that a translation model reads and writes.

    Attributes:
        data: folder of dictionaries and tokenisers.
        languages: of source and target.
        sizes: of their dictionaries.
        longest: the number of tokens of a source.
    """

    data: Path
    languages: tuple[str, str]
    sizes: tuple[int, int]
    longest: int

    def list_dictionaries(self) -> list[Path]:
        """Return the files of the dictionaries."""
        return [self.data / f"dict.{language}.txt" for language in self.languages]

    def read_dictionaries(self) -> list[list[str]]:
        """Return the symbols of source and target; raise UsageError if they are not the model's."""
        files = self.list_dictionaries()
        return [read_dictionary(file, size) for file, size in zip(files, self.sizes, strict=True)]


def write_parallel_tokenizer(text: ParallelText, work: Path) -> None:
    """Write the tokeniser of a translation model: of its data, or else of words between spaces."""
    if (text.data / SENTENCEPIECE).is_file():
        write_sentencepiece_tokenizer(text, work)
    elif (text.data / CODES).is_file():
        write_moses_tokenizer(text, work)
    else:
        source, target = text.read_dictionaries()
        write_words(source, f"$A {EOS[0]}", text.longest, work)
        if source != target:
            (work / "target").mkdir()
            write_words(target, f"$A {EOS[0]}", text.longest, work / "target")


def write_moses_tokenizer(text: ParallelText, work: Path) -> None:
    """Write the files of FSMT's tokeniser, which is Moses' with a BPE.

    Raises:
        UsageError: a file is missing, or dictionaries and tokeniser do not express the same.
    """
    codes = text.data / CODES
    if not codes.is_file():
        raise UsageError(
            f"{text.data} has neither {CODES} nor {SENTENCEPIECE}, and translation models of "
            "Hugging Face split text by one of them; give --vocabulary, the folder that "
            "scripts/prepare_parallel.sh made"
        )
    merges = [line.split()[:2] for line in read_lines(codes) if not line.startswith("#version")]
    (work / "merges.txt").write_text("".join(f"{' '.join(pair)}\n" for pair in merges), "utf-8")
    pieces = {"".join(pair) for pair in merges}
    source, target = text.read_dictionaries()
    for side, words, file in zip(
        ("src", "tgt"), (source, target), text.list_dictionaries(), strict=True
    ):
        numbers = number_symbols(words, pieces, file, _name_in_fsmt)
        hf.write_json(numbers, work / f"vocab-{side}.json")
    if HYPHEN not in source:
        logger.warning(
            "FSMT's tokeniser splits words at hyphens (into %s), unlike the text of this model",
            HYPHEN,
        )
    settings: dict[str, Any] = {
        "tokenizer_class": "FSMTTokenizer",
        "langs": text.languages,
        **NAMES,
    }
    settings |= {"do_lower_case": not any(word != word.lower() for word in source)}
    _write_settings(settings | TEXT_ALONE, text.longest, work)


def _name_in_fsmt(symbol: str) -> str:
    if symbol in SYMBOLS:
        return symbol
    return symbol.removesuffix("@@") if symbol.endswith("@@") else f"{symbol}</w>"


def write_sentencepiece_tokenizer(text: ParallelText, work: Path) -> None:
    """Write the files of Marian's tokeniser, which is SentencePiece with a dictionary of pieces.

    Raises:
        UsageError: a file is missing, or dictionaries and tokeniser do not express the same.
    """
    processor = load_sentencepiece(model := text.data / SENTENCEPIECE)
    pieces = {processor.id_to_piece(number) for number in range(processor.vocab_size())}
    for side in ("source", "target"):
        shutil.copyfile(model, work / f"{side}.spm")
    source, target = (
        number_symbols(words, pieces, file)
        for words, file in zip(text.read_dictionaries(), text.list_dictionaries(), strict=True)
    )
    hf.write_json(source, work / "vocab.json")
    if source != target:
        hf.write_json(target, work / "target_vocab.json")
    languages = dict(zip(("source_lang", "target_lang"), text.languages, strict=True))
    settings: dict[str, Any] = {"tokenizer_class": "MarianTokenizer", **languages, **NAMES}
    settings |= {"separate_vocabs": source != target, "padding_side": "right"}
    _write_settings(settings | TEXT_ALONE, text.longest, work)


def _write_settings(settings: dict[str, Any], longest: int, work: Path) -> None:
    """Write tokenizer_config.json."""
    settings |= {"model_max_length": longest, "clean_up_tokenization_spaces": False}
    settings |= {"model_input_names": ["input_ids", "attention_mask"]}
    hf.write_json(settings, work / "tokenizer_config.json")


def number_symbols(
    words: Sequence[str],
    pieces: Container[str],
    file: Path,
    rename: Callable[[str], str] = str,
) -> dict[str, int]:
    """Return the numbers of a dictionary's symbols by their names in a tokeniser.

    Args:
        pieces: what the tokeniser makes of text, besides characters.
        file: the dictionary.

    Raises:
        UsageError: two symbols have one name, or most symbols are no pieces.
    """
    numbers = {rename(symbol): i for i, symbol in enumerate(words)}
    if len(numbers) < len(words):
        twice = next(word for i, word in enumerate(words) if numbers[rename(word)] != i)
        raise UsageError(
            f"{file} has two symbols that are one piece to the tokeniser ({rename(twice)}); give "
            "--vocabulary, a folder whose dictionary has each piece once"
        )
    own = [name for name in numbers if name not in SYMBOLS and not name.startswith("madeupword")]
    longer = [name for name in own if len(name.removesuffix("</w>")) > 1]
    strange = [name for name in longer if name not in pieces]
    if 2 * len(strange) > len(longer):
        raise UsageError(
            f"most symbols of {file}, like {strange[0]}, are no pieces of the tokeniser beside it; "
            "give --vocabulary, the folder with both that the model was trained with"
        )
    return numbers


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


def write_text_tokenizer(size: int, longest: int, data: Path, work: Path) -> None:
    """Write the tokeniser of a language model: its BPE, or words between spaces if it has none.

    A text begins with </s>, as sentences do in training.

    Args:
        size: of the dictionary.
        longest: the number of tokens of a text.
    """
    words = read_dictionary(data / "dict.txt", size)
    if not any((data / name).is_file() for name in TOKENISERS):
        return write_words(words, f"{EOS[0]} $A", longest, work)
    vocabulary = Vocabulary.load(data)
    tokens = check_bpe(vocabulary)
    content = json.loads(vocabulary.tokenizer.to_str())
    if isinstance(content["model"]["vocab"], list):
        raise UsageError(
            f"{data} has a tokeniser of kind {content['model']['type']}, whose pieces cannot get "
            "the numbers of dict.txt; export a model of a BPE"
        )
    tokens |= {name: words.index(name) for name in NAMES.values()}
    content["model"]["vocab"] = {token: i for token, i in tokens.items() if i < size}
    content |= {"added_tokens": [], "post_processor": None}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    return _write_fast_tokenizer(tokenizer, f"{EOS[0]} $A", longest, work)


def write_words(words: Sequence[str], surrounded: str, longest: int, work: Path) -> None:
    """Write a tokeniser of words between spaces."""
    numbers = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, NAMES["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    _write_fast_tokenizer(tokenizer, surrounded, longest, work)


def _write_fast_tokenizer(tokenizer: Tokenizer, surrounded: str, longest: int, work: Path) -> None:
    tokenizer.add_special_tokens([*NAMES.values()])
    tokenizer.post_processor = TemplateProcessing(single=surrounded, special_tokens=[EOS])
    (work / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), "utf-8")
    first = EOS[0] if surrounded.startswith(EOS[0]) else NAMES["bos_token"]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES, "bos_token": first}
    _write_settings(settings, longest, work)
