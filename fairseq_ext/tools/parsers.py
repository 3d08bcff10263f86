"""Parsers that a user may have installed, applied to text that is split into words."""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import ModuleType

from fairseq_ext.data.conllu import Sentence
from fairseq_ext.errors import UsageError
from fairseq_ext.roles.role_masks import NO_WORD

Batch = Sequence[Sequence[str]]
"""The words of several sentences, none of them empty."""

Parse = Callable[[Batch], Iterator[Sentence]]
"""A parser: gives the parse of each sentence, in their order."""

UNUSED = ["tagger", "morphologizer", "attribute_ruler", "lemmatizer", "ner"]


def load_parser(name: str) -> Parse:
    """Return the parser "spacy:MODEL" or "stanza:LANG".

    Raises:
        UsageError: the name is neither, the library is not installed, or has no such model.
    """
    kind, _, model = name.partition(":")
    if kind not in LOADERS or not model:
        raise UsageError(
            f"--parser is '{name}'; give spacy:MODEL, as in spacy:en_core_web_sm, or stanza:LANG, "
            "as in stanza:en"
        )
    try:
        library = import_module(kind)
    except ImportError:
        raise UsageError(
            f"--parser is '{name}' and {kind} is not installed; pip install 'fairseq_ext[{kind}]'"
        ) from None
    return LOADERS[kind](library, model)


def _load_spacy(spacy: ModuleType, model: str) -> Parse:
    try:
        nlp = spacy.load(model, exclude=UNUSED)
    except OSError:
        raise UsageError(
            f"spacy has no model '{model}'; python -m spacy download {model}, or give another"
        ) from None
    if not any("nsubj" in labels for labels in nlp.pipe_labels.values()):
        raise UsageError(
            f"spacy's model '{model}' does not name relations as Universal Dependencies (it has no "
            "nsubj); give another, or stanza:LANG"
        )

    def parse(batch: Batch) -> Iterator[Sentence]:
        docs = [spacy.tokens.Doc(nlp.vocab, words=list(words)) for words in batch]
        for words, doc in zip(batch, nlp.pipe(docs), strict=True):
            heads = [NO_WORD if word.head.i == word.i else word.head.i for word in doc]
            yield Sentence(words, heads, [word.dep_ for word in doc])

    return parse


def _load_stanza(stanza: ModuleType, language: str) -> Parse:
    try:
        nlp = stanza.Pipeline(
            language,
            processors="tokenize,pos,lemma,depparse",
            tokenize_pretokenized=True,
            download_method=None,
            verbose=False,
        )
    except Exception as error:  # of many kinds
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"stanza has no model for '{language}' ({reason}); "
            f"python -c \"import stanza; stanza.download('{language}')\""
        ) from None

    def parse(batch: Batch) -> Iterator[Sentence]:
        parses = nlp([list(words) for words in batch]).sentences
        for words, sentence in zip(batch, parses, strict=True):
            heads = [word.head - 1 for word in sentence.words]  # 0, a root, becomes NO_WORD
            yield Sentence(words, heads, [word.deprel for word in sentence.words])

    return parse


LOADERS = {"spacy": _load_spacy, "stanza": _load_stanza}
