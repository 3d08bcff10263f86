"""A vocabulary of words for labelled text: tokenizer.json, and dict.txt with their counts.

Words are those of train.jsonl, in lower case, parted by white space, and of text that has not been
tokenised yet by punctuation too. The N most frequent are kept; others are unknown.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer, PreTokenizer, WhitespaceSplit

from fairseq_ext.data.examples import Field, are_texts, is_text, read
from fairseq_ext.data.tokenisers import SPECIAL
from fairseq_ext.errors import UsageError
from fairseq_ext.files import check_writable, write_lines

READ = Field("a text or a list of texts", lambda x: is_text(x) or are_texts(x), needed=False)
TEXTS = dict.fromkeys(("text", "pair", "question", "choices", "words"), READ)  # of all tasks
MARKS = tuple(",;:?!")
ATTACHED = 0.01  # share of words that end with a mark, from which text counts as not tokenised


def write_vocabulary(folder: Path, most: int = 0) -> Counter:
    """Make tokenizer.json and dict.txt beside the train.jsonl of a folder.

    Args:
        most: words to keep; 0: all.

    Returns:
        The words that are kept, with their counts.

    Raises:
        UsageError: there is no train.jsonl, no word in it, or another vocabulary is there already.
    """
    if most < 0:
        raise UsageError(f"--words is {most}; give how many words to keep, or 0 for all")
    dictionary, tokeniser = folder / "dict.txt", folder / "tokenizer.json"
    if dictionary.exists():
        raise UsageError(f"{dictionary} is there already; delete it to make another vocabulary")
    texts = list(texts_of(folder / "train.jsonl"))
    check_writable(folder, 0)
    split = splitter(texts)
    words = kept(count(texts, split), most)
    if not words:
        raise UsageError(f"{folder}/train.jsonl has no word; give text to take a vocabulary from")
    made = tokenizer(words, split).to_str()
    if tokeniser.exists() and tokeniser.read_text("utf-8") != f"{made}\n":
        raise UsageError(f"{tokeniser} is there already; delete it to make another vocabulary")
    write_lines(tokeniser, [made])
    write_lines(dictionary, (f"{word} {n}" for word, n in [*words.items(), ("<mask>", 0)]))
    return words


def texts_of(path: Path) -> Iterator[str]:
    """All text of examples of any kind."""
    for example in read(path, TEXTS):
        for value in (example.values[key] for key in TEXTS if key in example.values):
            yield from [value] if isinstance(value, str) else value


def splitter(texts: Sequence[str]) -> PreTokenizer:
    """At white space alone if the text is tokenised already: hardly a word ends with a mark."""
    words = [word for text in texts for word in text.split() if len(word) > 1]
    attached = sum(word.endswith(MARKS) for word in words)
    return BertPreTokenizer() if attached > ATTACHED * len(words) else WhitespaceSplit()


def count(texts: Iterable[str], split: PreTokenizer) -> Counter:
    """How often each word occurs."""
    lowered = map(Lowercase().normalize_str, texts)
    return Counter(word for text in lowered for word, _ in split.pre_tokenize_str(text))


def kept(words: Counter, most: int) -> Counter:
    """The most frequent words, or all, from the most frequent on; none that looks special."""
    ranked = sorted(words.items(), key=lambda entry: (-entry[1], entry[0]))
    return Counter(dict([entry for entry in ranked if entry[0] not in SPECIAL][: most or None]))


def tokenizer(words: Iterable[str], split: PreTokenizer) -> Tokenizer:
    """It knows no special symbols, so that what looks like one in a text is unknown."""
    numbers = {word: number for number, word in enumerate(["<unk>", *words])}
    made = Tokenizer(WordLevel(numbers, unk_token="<unk>"))
    made.normalizer, made.pre_tokenizer = Lowercase(), split
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_ext.prepare.word_vocabulary",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with train.jsonl")
    parser.add_argument("--words", type=int, default=0, metavar="N", help="default: 0, all")
    given = parser.parse_args(arguments)
    words = write_vocabulary(given.folder, given.words)
    print(f"vocabulary: {len(words):,} words, {words.total():,} of them in train.jsonl")


if __name__ == "__main__":
    main()
