"""The table of corpora for fine-tuning: where the files of each lie and how they are read."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from fairseq_ext.prepare.corpora_readers import (
    Example,
    Reader,
    Sentences,
    Tabs,
    Value,
    classes,
    dream,
    genres,
    hellaswag,
    json_lines,
    label_first,
    race,
    renamed,
    similarity,
    squad,
    tagged,
)


class Split(NamedTuple):
    """A way to hold examples out: two that share one of some things stay in one part."""

    shares: Callable[[Example], Iterable[Hashable]]
    says: str


class Layout(NamedTuple):
    """A form in which a corpus is published.

    Attributes:
        folder: its name in the folder of corpora.
        files: part -> names or patterns, separated by spaces; test files may be missing.
        split: how examples are held out if there are no files for validation.
    """

    folder: str
    files: Mapping[str, str]
    read: Reader
    split: Split | None = None


class Corpus(NamedTuple):
    """A corpus: its task, and layouts of which the first that exists counts."""

    task: str
    layouts: tuple[Layout, ...]


# Files.

# What a part is called in names of files, and by us.
PARTS = {
    "train": "train",
    "dev": "valid",
    "val": "valid",
    "dev_and_test": "valid",
    "dev_matched": "valid",
    "dev_mismatched": "valid_mismatched",
    "test": "test",
    "test_matched": "test",
    "test_mismatched": "test_mismatched",
}


def parts(form: str, names: str = "train dev test") -> dict[str, str]:
    """Return the file of each part: `form` with the name of the part for {0} or {}."""
    return {PARTS[name]: form.format(name) for name in names.split()}


GLUE = parts("{}.tsv")
MNLI_FILES = parts("{}.tsv", "train dev_matched dev_mismatched test_matched test_mismatched")
WNUT_FILES = {
    "train": "wnut17train.conll",
    "valid": "emerging.dev.conll",
    "test": "emerging.test.annotated",
}
EWT_FILES = parts("en_ewt-ud-{}.conllu")

# Readers.


def digits(count: int) -> Value:
    """Return a reader of labels 0 to count - 1."""
    return classes(" ".join(map(str, range(count))))


BINARY = digits(2)
ENTAILED = classes("entailment not_entailment")
NLI = classes("entailment neutral contradiction")

CSV = Tabs(quoted=True)
COLA = Sentences(Tabs(names="source label mark sentence"), BINARY, "sentence")
SST2 = Sentences(Tabs(), BINARY, "sentence")
RTE = Sentences(Tabs(), ENTAILED, "sentence1", "sentence2")
WNLI = Sentences(Tabs(), BINARY, "sentence1", "sentence2")
MRPC = Sentences(Tabs(), BINARY, "#1 String", "#2 String", "Quality")
QNLI = Sentences(Tabs(), ENTAILED, "question", "sentence")
MNLI = Sentences(Tabs(), NLI, "sentence1", "sentence2", "gold_label")
# Some lines of the published files are broken.
QQP = Sentences(Tabs(drops=True), BINARY, "question1", "question2", "is_duplicate")
STSB = Sentences(Tabs(), similarity, "sentence1", "sentence2", "score")
PAWS = Sentences(Tabs(names="sentence1 sentence2 label"), BINARY, "sentence1", "sentence2")
SST5 = Sentences(CSV, digits(5), "sentence", label="sentiment")
STS = Sentences(CSV, similarity, "sentence1", "sentence2", "similarity")
QUORA = Sentences(CSV, renamed({"0.0": "0", "1.0": "1"}), "sentence1", "sentence2", "is_duplicate")
QUORA_WHOLE = replace(QUORA, rows=replace(CSV, drops=True, filled="is_duplicate"))
ABBREVIATED = renamed({"e": "entailment", "n": "neutral", "c": "contradiction"})
ANLI = Sentences(json_lines, ABBREVIATED, "context", "hypothesis")
GENRES = Sentences(genres, classes("answers email newsgroup reviews weblog"))
DIGIT_FIRST = {count: Sentences(label_first, digits(count)) for count in (2, 5, 6)}
WNUT = tagged("corporation", "creative-work", "group", "location", "person", "product")

# Corpora.

SAME_TEXT = Split(lambda example: [example["text"]], "no text in both")
SAME_PAIR = Split(
    lambda example: [frozenset((example["text"], example["pair"]))], "no pair in both"
)
SAME_SIDE = Split(
    lambda example: [("text", example["text"]), ("pair", example["pair"])],
    "no question and no sentence in both",
)


def _of_task(task: str) -> Callable[..., Corpus]:
    return lambda *layouts: Corpus(task, layouts)


labelled, scored = _of_task("sentence_classification"), _of_task("sentence_regression")
chosen_from, answered = _of_task("multiple_choice"), _of_task("span_extraction")


def whole(file: str) -> Corpus:
    """Return a corpus of one file, without parts, for cross-validation."""
    return labelled(Layout("sentclass", {"train": file}, DIGIT_FIRST[2]))


CORPORA = {
    "sst-2": labelled(Layout("glue-sst2", GLUE, SST2), Layout("SST-2", GLUE, SST2)),
    "rte": labelled(Layout("glue-rte", GLUE, RTE), Layout("RTE", GLUE, RTE)),
    "mrpc": labelled(
        Layout("glue-mrpc", GLUE, MRPC),
        Layout("MRPC", GLUE, MRPC),
        Layout("MRPC", parts("msr_paraphrase_{}.txt", "train test"), MRPC, SAME_PAIR),
    ),
    "qnli": labelled(
        Layout("QNLI", GLUE, QNLI),
        Layout("glue-qnli", {"train": "dev-part.tsv"}, QNLI, SAME_SIDE),
    ),
    "cola": labelled(Layout("CoLA", GLUE, COLA)),
    "mnli": labelled(Layout("MNLI", MNLI_FILES, MNLI)),
    "qqp": labelled(Layout("QQP", GLUE, QQP)),
    "sts-b": scored(Layout("STS-B", GLUE, STSB)),
    "wnli": labelled(Layout("WNLI", GLUE, WNLI)),
    "squad-1.1": answered(Layout("squad", parts("{}-v1.1.json", "train dev"), squad)),
    "squad-2.0": answered(Layout("squad", parts("{}-v2.0.json", "train dev"), squad)),
    "race": chosen_from(Layout("RACE", parts("{0}/middle/*.txt {0}/high/*.txt"), race)),
    "dream": chosen_from(Layout("dream", parts("{}.json"), dream)),
    "hellaswag": chosen_from(
        Layout("hellaswag", parts("hellaswag_{}.jsonl", "train val test"), hellaswag),
        Layout("hellaswag", {"train": "val-part.jsonl"}, hellaswag, SAME_TEXT),
    ),
    "wnut-17": Corpus("sequence_tagging", (Layout("wnut17", WNUT_FILES, WNUT),)),
    "sst-5": labelled(
        Layout("sst5-cased", parts("ids-sst-{}.csv", "train dev"), SST5),
        Layout("sentclass", parts("stsa.fine.{}"), DIGIT_FIRST[5]),
    ),
    "quora": labelled(
        Layout("quora", parts("quora-{}.csv", "train dev"), QUORA_WHOLE),
        Layout("quora", {"train": "quora-part.csv"}, QUORA, SAME_PAIR),
    ),
    "sts": scored(Layout("sts", parts("sts-{}.csv", "train dev"), STS)),
    "anli": labelled(Layout("anli_v1.0", parts("R1/{0}.jsonl R2/{0}.jsonl R3/{0}.jsonl"), ANLI)),
    "paws-qqp": labelled(Layout("paws_qqp", parts("{}.tsv", "train dev_and_test"), PAWS)),
    "paws-wiki": labelled(
        Layout("final", GLUE, PAWS), Layout("pawsx-en", {"valid": "dev-part.tsv"}, PAWS)
    ),
    "ewt-genre": labelled(Layout("ud-english-ewt", EWT_FILES, GENRES)),
    "cr": whole("custrev.all"),
    "mpqa": whole("mpqa.all"),
    "mr": whole("rt-polarity.all"),
    "subj": whole("subj.all"),
    "trec": labelled(
        Layout("sentclass", parts("TREC.{}.all", "train test"), DIGIT_FIRST[6], SAME_TEXT)
    ),
    "sst-2-sentences": labelled(Layout("sentclass", parts("stsa.binary.{}"), DIGIT_FIRST[2])),
}
