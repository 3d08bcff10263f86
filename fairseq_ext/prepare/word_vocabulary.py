"""A vocabulary of words for labelled text: tokenizer.json, and dict.txt with their counts.

The words of train.jsonl are taken in lower case. They are separated by white space and, in text
that has not been tokenised yet, by punctuation too. The N most frequent ones are kept; others are
unknown.
"""

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
from fairseq_ext.prepare.step import number_from, step_parser
from fairseq_ext.prepare.tokenise import TOKENISED

READ = Field("a text or a list of texts", lambda x: is_text(x) or are_texts(x), needed=False)
TEXTS = dict.fromkeys(("text", "pair", "question", "choices", "words"), READ)  # of all tasks
MARKS = tuple(",;:?!")
ATTACHED = 0.01  # share of words that end with a mark, from which text counts as not tokenised


def write_vocabulary(folder: Path, most: int = 0) -> Counter[str]:
    """Make tokenizer.json and dict.txt beside the train.jsonl of a folder.

    Args:
        folder: with train.jsonl.
        most: words to keep; 0 keeps all.

    Returns:
        The words that are kept, with their counts.

    Raises:
        UsageError: there is no train.jsonl, no word in it, or another vocabulary exists.
    """
    dictionary, tokenizer = folder / "dict.txt", folder / "tokenizer.json"
    if dictionary.exists():
        raise UsageError(f"{dictionary} is there already; delete it to make another vocabulary")
    texts = list(read_texts(folder / "train.jsonl"))
    check_writable(folder, 0)
    splitter = choose_splitter(texts)
    words = count_words(texts, splitter, most)
    if not words:
        raise UsageError(f"{folder}/train.jsonl has no word; give text to take a vocabulary from")
    content = build_tokenizer(words, splitter).to_str()
    if tokenizer.exists() and tokenizer.read_text("utf-8") != f"{content}\n":
        raise UsageError(f"{tokenizer} is there already; delete it to make another vocabulary")
    write_lines(tokenizer, [content])
    write_lines(dictionary, (f"{word} {n}" for word, n in [*words.items(), ("<mask>", 0)]))
    return words


def read_texts(path: Path) -> Iterator[str]:
    """Yield all text of examples of any task."""
    for example in read(path, TEXTS):
        for value in (example.values[key] for key in TEXTS if key in example.values):
            yield from [value] if isinstance(value, str) else value


def choose_splitter(texts: Sequence[str]) -> PreTokenizer:
    """Return a splitter at white space if the text is tokenised already, else at punctuation too.

    In tokenised text, hardly a word ends with a punctuation mark, but for escapes such as &quot;.
    """
    words = [word for text in texts for word in text.split() if len(word) > 1]
    words = [word for word in words if not TOKENISED.search(word)]
    attached = sum(word.endswith(MARKS) for word in words)
    return BertPreTokenizer() if attached > ATTACHED * len(words) else WhitespaceSplit()


def count_words(texts: Iterable[str], splitter: PreTokenizer, most: int) -> Counter[str]:
    """Return words in lower case by falling counts, at most so many (0: all), none special."""
    lowered = map(Lowercase().normalize_str, texts)
    words = Counter(word for text in lowered for word, _ in splitter.pre_tokenize_str(text))
    ranked = sorted(words.items(), key=lambda entry: (-entry[1], entry[0]))
    return Counter(dict([entry for entry in ranked if entry[0] not in SPECIAL][: most or None]))


def build_tokenizer(words: Iterable[str], splitter: PreTokenizer) -> Tokenizer:
    """Return a tokeniser without special symbols: text that looks like one is unknown."""
    numbers = {word: number for number, word in enumerate(["<unk>", *words])}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), splitter
    return tokenizer


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the vocabulary of a folder, and print its size."""
    parser = step_parser("word_vocabulary", __doc__)
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="with train.jsonl")
    add("--words", type=number_from(0), default=0, metavar="N", help="default: 0, all")
    args = parser.parse_args(arguments)
    words = write_vocabulary(args.folder, args.words)
    print(f"vocabulary: {len(words):,} words, {words.total():,} of them in train.jsonl")


if __name__ == "__main__":
    main()
