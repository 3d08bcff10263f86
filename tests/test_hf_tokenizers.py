"""Forms of tokenisers in folders of Hugging Face: what is read as transformers does, or refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from files import write_text
from hf_encoders import (
    SMALL,
    TEXTS,
    check_ids,
    check_states,
    ids,
    save_random,
    write_sentence_pieces,
)
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.trainers import UnigramTrainer

from fairseq_ext import safe_loading
from fairseq_ext.cli import main
from fairseq_ext.data.pieces import Piece, read_pieces
from fairseq_ext.data.tokenisers import OF_BERT, SYMBOLS
from fairseq_ext.data.vocabulary import Vocabulary, build_dictionary
from fairseq_ext.errors import UsageError
from fairseq_ext.files import read_lines
from fairseq_ext.interchange import hf_format, hf_vocabulary, hf_weights, import_hf
from fairseq_ext.interchange.hf_tokenizers import read_tokenizer
from fairseq_ext.tasks.labelled_task import LabelledTask

WORDS = [*OF_BERT, *"the The cat a dog paris Paris [ ] e ##1".split()]


def fill(folder: Path, kind: str = "bert", **files) -> Path:
    """Write files of a tokeniser: lines of .txt, JSON objects, a tokeniser."""
    for name, content in {"config": {"model_type": kind}, **files}.items():
        if isinstance(content, Tokenizer):
            write_text(folder / "tokenizer.json", content.to_str())
        elif isinstance(content, str):
            write_text(folder / f"{name}.txt", content)
        else:
            write_text(folder / f"{name}.json", json.dumps(content))
    return folder


def lines(words) -> str:
    return "".join(f"{word}\n" for word in words)


def word_pieces(
    *, lowercase: bool | None = True, words=WORDS, surrounded: bool = True
) -> Tokenizer:
    numbers = {word: i for i, word in enumerate(words)}
    made = Tokenizer(WordPiece(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if lowercase is not None:
        made.normalizer = BertNormalizer(lowercase=lowercase)
    if surrounded:
        sep, cls = (("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))
        made.post_processor = processors.BertProcessing(sep, cls)
    return made


def vocabulary(folder: Path, size: int) -> Vocabulary:
    """The tokeniser of a folder, with the dictionary that import-hf would write."""
    tokenizer = read_tokenizer(folder)
    names = hf_vocabulary.list_symbols(tokenizer, size)
    order = hf_vocabulary.sort_for_dictionary(names)
    hf_vocabulary.write_dictionary([names[i] for i in order], folder / "dict.txt")
    write_text(folder / "tokenizer.json", tokenizer.to_str())
    return Vocabulary.load(folder)


def pieces(read: Vocabulary, text: str) -> list[str]:
    return [read.dictionary.symbols[n] for n in read.encode([text])[0].numbers]


SPLIT = {"vocab": {w: i for i, w in enumerate([*SYMBOLS, "kto</w>", "ma</w>", "k", "m"])}}
JAPANESE = {"model_type": "bert", "tokenizer_class": "BertJapaneseTokenizer"}
REFUSED = {
    "a class": (
        {**SPLIT, "merges": "k m\n", "tokenizer_config": {"tokenizer_class": "HerbertTokenizer"}},
        "its tokeniser is HerbertTokenizer, which is not read here without tokenizer.json",
    ),
    "ends of words": ({**SPLIT, "merges": "k m\n"}, "has pieces marked by </w>"),
    "pieces of SentencePiece": (
        {"vocab": lines([*OF_BERT, "\u2581the", "\u2581cat"])},
        "has pieces marked by \u2581, where its tokeniser would mark them by ##",
    ),
    "a class in config.json": (
        {"vocab": lines(WORDS), "config": JAPANESE},
        "its tokeniser is BertJapaneseTokenizer, which is not read here; accepted",
    ),
    "words of MeCab": (
        {"vocab": lines(WORDS), "tokenizer_config": {"word_tokenizer_type": "mecab"}},
        "its tokeniser is BertTokenizer with mecab, which is not read here",
    ),
    "a class that does not read tokenizer.json": (
        {"tokenizer": word_pieces(), "tokenizer_config": {"tokenizer_class": "BertweetTokenizer"}},
        "its tokeniser is BertweetTokenizer, which is not read here",
    ),
    "the file of another class": (
        {"vocab": lines(WORDS), "tokenizer_config": {"tokenizer_class": "RobertaTokenizer"}},
        "has no tokenizer.json and no vocab.json, which its RobertaTokenizer reads; add it",
    ),
    "a dictionary of fairseq": (
        {"vocab": "the 100\nca@@ 50\n"},
        "it needs the special tokens [CLS]",
    ),
    "an id that another token has": (
        {"vocab": lines(WORDS), "added_tokens": {"[E1]": 7}},
        "has '[E1]' and 'cat' with the same id 7",
    ),
    "an id that is not the token's": (
        {"vocab": lines(WORDS), "added_tokens": {"cat": 9}},
        "gives the token cat the id 9, and the rest of its tokeniser 7",
    ),
}


@pytest.mark.parametrize(("files", "words"), REFUSED.values(), ids=REFUSED)
def test_forms_that_are_refused_by_name(files, words, tmp_path):
    with pytest.raises(UsageError) as caught:
        vocabulary(fill(tmp_path, **files), 30)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_pairs_in_a_form_of_their_own(tmp_path):
    made = word_pieces()
    ids_ = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing("[CLS] $A", "[CLS] $A [SEP] $B", ids_)
    with pytest.raises(UsageError, match=r"reads a pair of texts as \[CLS\] a \[SEP\] a, and our"):
        read_tokenizer(fill(tmp_path, tokenizer=made))


MARKER = {"additional_special_tokens": ["[E1]"]}
ADDED = {
    "added_tokens.json": {"vocab": lines(WORDS), "added_tokens": {"[E1]": 16}},
    "with its kind": {
        "vocab": lines(WORDS),
        "added_tokens": {"[E1]": 16},
        "special_tokens_map": MARKER,
    },
    "a name alone": {"vocab": lines(WORDS), "tokenizer_config": MARKER},
    "a piece of the vocabulary": {"vocab": lines([*WORDS, "[E1]"]), "tokenizer_config": MARKER},
    "decoder": {
        "vocab": lines(WORDS),
        "tokenizer_config": {"added_tokens_decoder": {"16": {"content": "[E1]", "special": True}}},
    },
    "beside tokenizer.json": {"tokenizer": word_pieces(), "tokenizer_config": MARKER},
    "after doubles": {"vocab": lines([*WORDS[:-1], "a", "##1"]), "added_tokens": {"[E1]": 17}},
}


@pytest.mark.parametrize("files", ADDED.values(), ids=ADDED)
def test_further_special_tokens_are_found_in_texts(files, tmp_path):
    read = vocabulary(fill(tmp_path, **files), 18)
    assert pieces(read, "the [E1] cat") == ["the", "[E1]", "cat"]
    assert pieces(read, "the [SEP] cat")[1] == "["  # text, as ever
    number = files.get("added_tokens", {}).get("[E1]", 16)
    assert read.tokenizer.token_to_id("[E1]") == number
    assert "[E1]" in read.dictionary.symbols


def test_a_special_token_in_tokenizer_json_is_found_in_texts(tmp_path):
    made = word_pieces()
    made.add_special_tokens(["[E1]"])
    assert pieces(vocabulary(fill(tmp_path, tokenizer=made), 17), "a [E1]") == ["a", "[E1]"]


VOCABULARIES = {
    "a blank line at the end": (lines([*WORDS, ""]), 16),
    "blank lines": (lines([*WORDS, "", ""]), 16),
    "a byte order mark": ("\ufeff" + lines(WORDS), 16),
    "ends of lines of Windows": (lines(WORDS).replace("\n", "\r\n"), 16),
    "both spellings": (lines([*WORDS, *SYMBOLS]), 21),
    "a gap": (lines([*WORDS[:5], "the", *WORDS[5:]]), 17),
}


@pytest.mark.parametrize(("text", "size"), VOCABULARIES.values(), ids=VOCABULARIES)
def test_odd_vocabularies(text, size, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text(text, "utf-8", newline="")
    read = vocabulary(tmp_path, size)
    assert pieces(read, "the cat") == ["the", "cat"]
    special = [
        read.dictionary.symbols[read.numbers[read.tokenizer.token_to_id(t)]] for t in OF_BERT
    ]
    assert tuple(special) == SYMBOLS
    assert len({*read.numbers}) >= len(read.tokenizer.get_vocab())
    assert read.tokenizer.encode("the", "cat").tokens == "[CLS] the [SEP] cat [SEP]".split()


SETTINGS = {
    "cased by its settings": (True, {"do_lower_case": False}, ["Paris"]),
    "cased by tokenizer.json": (False, {"tokenizer_class": "PreTrainedTokenizerFast"}, ["Paris"]),
    "lower-casing by its settings": (False, {"do_lower_case": True}, ["paris"]),
    "lower-casing by its class": (False, {"tokenizer_class": "BertTokenizer"}, ["paris"]),
    "without a normaliser": (None, {"tokenizer_class": "BertTokenizer"}, ["paris"]),
}


@pytest.mark.parametrize(("lowercase", "settings", "expected"), SETTINGS.values(), ids=SETTINGS)
def test_settings_against_tokenizer_json(
    lowercase, settings, expected, hugging_face, tmp_path, caplog
):
    fill(tmp_path, tokenizer=word_pieces(lowercase=lowercase), tokenizer_config=settings)
    theirs = hugging_face.AutoTokenizer.from_pretrained(tmp_path).tokenize("Paris")
    assert pieces(vocabulary(tmp_path, 16), "Paris") == theirs == expected
    differs = lowercase is not None and lowercase != (expected == ["paris"])
    assert ("BertNormalizer has lowercase" in caplog.text) == differs


def test_a_space_before_texts_is_what_settings_say(tmp_path, caplog):
    tokens = [*SYMBOLS, "a", "\u0120a"]
    made = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    settings = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}
    tokenizer = read_tokenizer(fill(tmp_path, "roberta", tokenizer=made, tokenizer_config=settings))
    assert json.loads(tokenizer.to_str())["pre_tokenizer"]["add_prefix_space"] is True
    assert "add_prefix_space True" in caplog.text


def test_a_tokeniser_that_surrounds_nothing_gets_special_tokens(tmp_path):
    bare = word_pieces(surrounded=False)
    read = read_tokenizer(fill(tmp_path / "bert", tokenizer=bare))
    assert read.encode("the cat", "a dog").tokens == "[CLS] the cat [SEP] a dog [SEP]".split()
    bare = Tokenizer(Unigram([(name, 0.0) for name in (*SYMBOLS, "a")], 3))
    read = read_tokenizer(fill(tmp_path / "roberta", "roberta", tokenizer=bare))
    assert read.encode("a", "a").tokens == "<s> a </s> </s> a </s>".split()


@pytest.mark.parametrize(("separators", "segments"), [(1, 0), (1, 2), (2, 0), (2, 2)])
def test_a_pair_is_read_as_the_tokeniser_says(separators, segments, tmp_path):
    made = word_pieces()
    if separators == 2:
        made.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    task = LabelledTask.__new__(LabelledTask)
    task.pretrained = "model.pt"
    task.vocabulary = vocabulary(fill(tmp_path, tokenizer=made), 16)
    task._set_form({"segments": segments})
    assert (task.separators, task.segments) == (separators, segments)
    task.pretrained = None  # a new encoder has the form of its segments
    task._set_form({"segments": segments})
    assert task.separators == (1 if segments else 2)


def test_vocabularies_that_surround_nothing_have_the_form_of_their_segments(tmp_path):
    assert Vocabulary(word_pieces(surrounded=False), make_dictionary(), False).separators() is None


def make_dictionary():
    return build_dictionary([*SYMBOLS[:4], *WORDS[5:], "<mask>"])


@pytest.mark.parametrize("segments", [False, True])
def test_exported_settings_say_if_there_are_segments(segments, tmp_path):
    tokenizer = word_pieces()
    special = hf_vocabulary.find_special_tokens(tokenizer)
    hf_vocabulary.write_tokenizer(tokenizer, special, 40, segments, tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert ("token_type_ids" in settings["model_input_names"]) == segments
    assert settings["model_input_names"][0] == "input_ids"


def test_the_line_on_unknown_tokens():
    read = Vocabulary(word_pieces(), make_dictionary(), False)
    assert hf_vocabulary.count_unknown(read) == "19 of 22"


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 440473133\n"
READ = {
    "tokenizer.json": lambda path: read_tokenizer(path.parent),
    "vocab.txt": lambda path: read_tokenizer(path.parent),
    "vocab.json": lambda path: read_tokenizer(path.parent),
    "spm.model": lambda path: read_tokenizer(path.parent),
    "sentencepiece.bpe.model": lambda path: read_tokenizer(path.parent),
    "config.json": lambda path: import_hf.read_config(path.parent),
    "added_tokens.json": hf_format.read_json,
    "model.safetensors": lambda path: hf_weights.read_tensors(path.parent, "bert"),
    "pytorch_model.bin": lambda path: hf_weights.read_tensors(path.parent, "bert"),
    "checkpoint.pt": lambda path: safe_loading.load(str(path)),
    "train.txt": lambda path: [*read_lines(path)],
    "dict.txt": lambda path: Vocabulary.load(path.parent),
}


@pytest.mark.parametrize("name", READ)
def test_pointers_of_git_lfs_are_named(name, tmp_path):
    write_text(tmp_path / name, POINTER)
    with pytest.raises(UsageError, match=rf"{name} is a pointer of Git LFS, not the file itself;"):
        READ[name](tmp_path / name)


def test_a_shard_that_is_a_pointer(tmp_path):
    write_text(tmp_path / "1.safetensors", POINTER)
    index = {"weight_map": {"a": "1.safetensors"}}
    write_text(tmp_path / "model.safetensors.index.json", json.dumps(index))
    with pytest.raises(UsageError, match="1.safetensors is a pointer of Git LFS"):
        hf_weights.read_tensors(tmp_path, "bert")


def test_ends_of_words_end_them():
    read = read_pieces(["kto</w>", "m", "a</w>", "</w>"])
    assert read[:2] == [Piece(b"kto", False, True), Piece(b"m", False, False)]


FRONT = {
    "camembert": ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"],
    "xlm-roberta": ["<s>", "<pad>", "</s>", "<unk>"],
}
CLASSES = {"camembert": "Camembert", "xlm-roberta": "XLMRoberta"}


@pytest.fixture(params=FRONT)
def french(request, hugging_face, tmp_path):
    """A small encoder that fairseq trained, and the pieces of its SentencePiece model."""
    learned = Tokenizer(Unigram())
    learned.pre_tokenizer = Metaspace()
    trainer = UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    learned.train_from_iterator(TEXTS, trainer)
    scores = [tuple(pair) for pair in json.loads(learned.to_str())["model"]["vocab"]][1:]
    front = FRONT[request.param]
    vocab = [*((name, 0.0) for name in front), *scores, ("<mask>", 0.0)]
    name, folder = CLASSES[request.param], tmp_path / "given"
    tokenizer = getattr(hugging_face, f"{name}Tokenizer")(vocab=vocab)
    tokenizer.save_pretrained(folder)
    sizes = {"vocab_size": len(vocab), "type_vocab_size": 1, "pad_token_id": 1}
    config = getattr(hugging_face, f"{name}Config")(**SMALL, **sizes)
    save_random(getattr(hugging_face, f"{name}ForMaskedLM")(config), folder, 0.15)
    return SimpleNamespace(folder=folder, scores=scores, kind=request.param)


def test_encoders_of_other_languages(french, hugging_face, tmp_path):
    """CamemBERT and XLM-R: tokens, hidden states and logits are those of transformers."""
    ours, back = tmp_path / "ours", tmp_path / "back"
    main(["import-hf", str(french.folder), str(ours)])
    read = Vocabulary.load(ours)
    check_ids(hugging_face, french.folder, read.tokenizer)
    near = {"rtol": 0, "atol": 1e-5}
    check_states(hugging_face, french.folder, ours, TEXTS, head=True, near=near)
    assert read.separators() == 2
    main(["export-hf", str(ours / "model.pt"), str(back)])
    check_ids(hugging_face, back, read.tokenizer)
    check_states(hugging_face, back, ours, TEXTS, head=True, near=near)


def test_their_model_files(french):
    """sentencepiece.bpe.model alone, which begins with <unk>, <s> and </s>."""
    whole = read_tokenizer(french.folder)
    (french.folder / "tokenizer.json").unlink()
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *french.scores]
    write_sentence_pieces(french.folder / "sentencepiece.bpe.model", pieces)
    assert ids(read_tokenizer(french.folder), TEXTS) == ids(whole, TEXTS)
