"""Translation and language models of transformers: logits, search, tokenisers, raw text."""

import io
import shutil
from pathlib import Path

import pytest
import torch
from cases import slow_but_first
from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from fairseq.sequence_generator import SequenceGenerator
from stock_models import CLOSING, build_model, checkpoint
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe
from tokenizers import Tokenizer
from tokenizers.models import Unigram

from fairseq_ext import cli
from fairseq_ext.data.tokenisers import SENTENCEPIECE, load_sentencepiece
from fairseq_ext.errors import UsageError
from fairseq_ext.files import write_lines
from fairseq_ext.interchange.hf_sequence_tokenizers import write_text_tokenizer
from fairseq_ext.prepare import sentencepiece
from fairseq_ext.prepare.tokenise import MosesPipeline
from fairseq_ext.prepare.toy.corpus import corpus

NEAR = {"rtol": 0, "atol": 1e-5}
LINES = [f"{english} Anna's dog & 'cat', re-read?" for english, _ in corpus()["valid"][:8]]
SYMBOLS = "a </s> <unk> <pad>"  # which are text here
UNA = "transformer_una_tiny"
TRANSLATION = {"_name": "translation", "source_lang": "en", "target_lang": "de"}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Dictionaries and codes of a BPE, as scripts/prepare_parallel.sh --hyphens makes them."""
    folder, tokenise = tmp_path_factory.mktemp("data"), MosesPipeline("en", hyphens=True)
    tokens = tokenise(LINES)
    codes = io.StringIO()
    learn_bpe(io.StringIO("\n".join(tokens)), codes, 60)
    (folder / "bpe.codes").write_text(codes.getvalue(), "utf-8")
    for language, lines in (("en", tokens), ("de", tokens[:4])):
        words = Dictionary()
        for line in lines:
            words.encode_line(split(folder, line))
        words.save(str(folder / f"dict.{language}.txt"))
    return folder


def split(folder: Path, line: str) -> str:
    with (folder / "bpe.codes").open(encoding="utf-8") as codes:
        return BPE(codes).process_line(line)


def export(state: dict, folder: Path, *more: object) -> Path:
    torch.save(state, folder / "model.pt")
    cli.main(["export-hf", str(folder / "model.pt"), str(folder / "out"), *map(str, more)])
    return folder / "out"


def read_words(data: Path) -> list[Dictionary]:
    return [Dictionary.load(str(data / f"dict.{language}.txt")) for language in ("en", "de")]


def build_translator(data: Path, ending: float = 2.8, name: str = UNA, **options) -> tuple:
    model = build_model(name, *read_words(data), ending=ending, **options)
    return model, checkpoint(name, model, TRANSLATION | {"data": str(data)}, **options)


FORMS = [CLOSING, {"decoder_kv_heads": 2, "activation_fn": "gelu"}]


@torch.no_grad()
@pytest.mark.parametrize("options", slow_but_first(FORMS))
def test_a_translation_model_is_an_fsmt(options, data, tmp_path, hugging_face):
    model, state = build_translator(data, **options)
    out, words = export(state, tmp_path), read_words(data)
    tokeniser = hugging_face.AutoTokenizer.from_pretrained(out)
    pieces = [split(data, line) for line in MosesPipeline("en", hyphens=True)([*LINES, SYMBOLS])]
    rows = [words[0].encode_line(line, add_if_not_exist=False).tolist() for line in pieces]
    assert tokeniser([*LINES, SYMBOLS])["input_ids"] == rows
    theirs = hugging_face.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    assert type(theirs).__name__ == "FSMTForConditionalGeneration"
    written = check_translations(model, theirs, tokeniser, words[1])
    assert not {"@@", "</w>"} & {*"".join(tokeniser.batch_decode(written))}


def check_translations(model, theirs, tokeniser, words: Dictionary) -> list[list[int]]:
    """Compare logits and beam search with fairseq's, and return translations of LINES."""
    given = tokeniser(LINES, padding=True, return_tensors="pt")
    before = torch.randint(4, len(words), (len(LINES), 7))
    lengths = given["attention_mask"].sum(1)
    expected, _ = model(given["input_ids"], lengths, before)
    found = theirs(**given, decoder_input_ids=before, use_cache=False).logits
    torch.testing.assert_close(found, expected, **NEAR)
    search = SequenceGenerator([model], words, beam_size=5, max_len_b=29)
    sample = {"net_input": {"src_tokens": given["input_ids"], "src_lengths": lengths}}
    best = [hypotheses[0]["tokens"].tolist() for hypotheses in search.generate([], sample)]
    written = theirs.generate(**given, max_length=31).tolist()
    assert [[i for i in row[1:] if i != 1] for row in written] == best
    assert len({*map(len, best)}) > 1
    return best


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> Path:
    """A model of SentencePiece, and its dictionaries, of which the target's lacks pieces."""
    folder = tmp_path_factory.mktemp("pieces")
    write_lines(folder / "text" / "train.en", LINES)
    names = ("text", SENTENCEPIECE, "out", "dict.en.txt")
    sentencepiece.main([*(str(folder / name) for name in names), "--vocab-size", "60"])
    lines = (folder / "dict.en.txt").read_text("utf-8").splitlines(keepends=True)
    (folder / "dict.de.txt").write_text("".join(lines[:-5]), "utf-8")
    return folder


RAW = ["", "☃☃ re-read", "ﬁt  Ａnna\u3000dog\t", SYMBOLS]
MARIAN = {
    "two dictionaries": CLOSING | {"ending": 4},
    "one dictionary": {"share_all_embeddings": True, "encoder_positions": "learned", "ending": 4},
    "no positions": {"share_decoder_input_output_embed": True, "no_scale_embedding": True}
    | {"encoder_positions": "none", "decoder_positions": "none"},
}


@torch.no_grad()
@pytest.mark.parametrize("form", slow_but_first(MARIAN))
def test_a_translation_model_with_sentencepiece_is_a_marian(form, pieces, tmp_path, hugging_face):
    options, data = MARIAN[form], pieces
    if "share_all_embeddings" in options:
        data = tmp_path / "data"
        data.mkdir()
        for name in (SENTENCEPIECE, "dict.en.txt"):
            (data / name).write_bytes((pieces / name).read_bytes())
        (data / "dict.de.txt").write_bytes((data / "dict.en.txt").read_bytes())
    model, state = build_translator(data, **options)
    out, words = export(state, tmp_path), read_words(data)
    assert (out / "target_vocab.json").exists() == (data == pieces)
    tokeniser = hugging_face.AutoTokenizer.from_pretrained(out)
    split = load_sentencepiece(data / SENTENCEPIECE).encode
    lines = [" ".join(split(line, out_type=str)) for line in LINES + RAW]
    rows = [words[0].encode_line(line, add_if_not_exist=False).tolist() for line in lines]
    assert tokeniser(LINES + RAW)["input_ids"] == rows
    theirs, info = hugging_face.AutoModelForSeq2SeqLM.from_pretrained(out, output_loading_info=True)
    assert type(theirs).__name__ == "MarianMTModel" and not any(info.values())
    written = check_translations(model, theirs.eval(), tokeniser, words[1])
    texts = [post_process(words[1].string(row), "sentencepiece") for row in written]
    assert tokeniser.batch_decode(written, skip_special_tokens=True) == texts
    card = (out / "README.md").read_text("utf-8")
    assert "pipeline_tag: translation\nlanguage: [en, de]" in card
    assert "`model._keys_to_ignore_on_save`" in card
    theirs._keys_to_ignore_on_save = None
    theirs.save_pretrained(tmp_path / "again")
    again = hugging_face.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again").eval()
    check_translations(model, again, tokeniser, words[1])


REFUSED = {
    "--encoder-normalize-before True": {"encoder_normalize_before": True},
    "--decoder-learned-pos True": {"decoder_positions": "learned"},
    "--layernorm-embedding True": {"layernorm_embedding": True},
    "--activation-fn tanh": {"activation_fn": "tanh"},
    "decoder.project_out_dim.weight": {"decoder_input_dim": 16, "decoder_output_dim": 16},
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
def test_what_an_fsmt_cannot_be(options, data, tmp_path, request):
    _, state = build_translator(data, **options)
    with pytest.raises(UsageError, match=f"model.pt has {request.node.callspec.id}"):
        export(state, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_what_a_marian_cannot_be(pieces, tmp_path):
    _, state = build_translator(pieces, decoder_normalize_before=True)
    with pytest.raises(UsageError, match="has --decoder-normalize-before True, which Marian of Hu"):
        export(state, tmp_path)


@pytest.mark.parametrize("own", [SENTENCEPIECE, "bpe.codes"])
def test_dictionaries_that_are_not_of_the_tokeniser(own, data, pieces, tmp_path):
    folder, other = (data, pieces) if own == SENTENCEPIECE else (pieces, data)
    _, state = build_translator(folder)
    (tmp_path / own).write_bytes((other / own).read_bytes())
    for name in ("dict.en.txt", "dict.de.txt"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(
        UsageError, match="most symbols of .*dict.en.txt, like .*, are no pieces of"
    ):
        export(state, tmp_path, "--vocabulary", tmp_path)


def test_pieces_that_cannot_be_renumbered(tmp_path):
    words = Dictionary()
    words.encode_line("a b")
    words.save(str(tmp_path / "dict.txt"))
    model = Unigram([(symbol, -1.0) for symbol in words.symbols], words.unk())
    Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UsageError, match="has a tokeniser of kind Unigram, whose pieces cannot ge"):
        write_text_tokenizer(len(words), 9, tmp_path, tmp_path)


@pytest.mark.parametrize("name", [UNA, "transformer_dna_tiny"])
def test_languages_that_nothing_names(name, data, tmp_path):
    _, state = build_translator(data, name=name)
    state["cfg"]["task"]["source_lang"] = None
    with pytest.raises(
        UsageError, match=r"model.pt does not name its languages, and .* ha.* no fi"
    ):
        export(state, tmp_path)
    named = Path(shutil.copytree(data, tmp_path / "named"))
    for language in ("en", "de"):
        (named / f"train.en-de.{language}.idx").touch()
    assert (export(state, tmp_path, "--vocabulary", named) / "vocab-tgt.json").is_file()


def test_text_that_the_tokeniser_of_an_fsmt_cannot_express(data, tmp_path, caplog):
    _, state = build_translator(data)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(
        UsageError, match="other has neither bpe.codes nor sentencepiece.model, and trans"
    ):
        export(state, tmp_path, "--vocabulary", other)
    (other / "bpe.codes").write_bytes((data / "bpe.codes").read_bytes())
    lines = (data / "dict.en.txt").read_text().splitlines(keepends=True)
    (other / "dict.en.txt").write_text("".join(lines[:-1]))
    with pytest.raises(UsageError, match=r"dict.en.txt has \d+ symbols, and the model \d+; give"):
        export(state, tmp_path, "--vocabulary", other)
    (other / "dict.de.txt").write_bytes((data / "dict.de.txt").read_bytes())
    twice = "".join([*lines[:-2], "ab 1\n", "ab</w>@@ 1\n"])
    (other / "dict.en.txt").write_text(twice)
    with pytest.raises(
        UsageError, match="dict.en.txt has two symbols that are one piece to the tokeniser"
    ):
        export(state, tmp_path, "--vocabulary", other)
    unsplit = "".join("unused 1\n" if line.startswith("@-@ ") else line for line in lines)
    (other / "dict.en.txt").write_text(unsplit)
    export(state, tmp_path, "--vocabulary", other)
    assert "splits words at hyphens" in caplog.text


LANGUAGE_MODELS = {
    "sinusoids": {"head_gate": "static"},
    "learned positions": {"decoder_positions": "learned", "no_scale_embedding": True}
    | {"share_decoder_input_output_embed": True, "decoder_normalize_before": False},
    "narrow embeddings": {"decoder_input_dim": 16, "decoder_output_dim": 16},
    "no positions": {"decoder_positions": "none", "no_decoder_final_norm": True},
}


@torch.no_grad()
@pytest.mark.parametrize("form", slow_but_first(LANGUAGE_MODELS))
def test_a_language_model_is_an_opt(form, data, tmp_path, hugging_face):
    options = LANGUAGE_MODELS[form]
    words = read_words(data)[0]
    words.save(str(tmp_path / "dict.txt"))
    model = build_model("transformer_lm_una_tiny", words, words, **options)
    task = {"_name": "language_modeling", "data": str(tmp_path), "tokens_per_sample": 64}
    out = export(checkpoint("transformer_lm_una_tiny", model, task, **options), tmp_path)
    theirs = hugging_face.AutoModelForCausalLM.from_pretrained(out).eval()
    tokeniser = hugging_face.AutoTokenizer.from_pretrained(out)
    lines = [split(data, line) for line in MosesPipeline("en", hyphens=True)(LINES)]
    given = tokeniser(lines, padding=True, return_tensors="pt")
    rows = [words.encode_line(line, append_eos=False).tolist() for line in lines]
    assert tokeniser(lines)["input_ids"] == [[2, *row] for row in rows]
    real = given["attention_mask"].bool()
    found, (expected, _) = theirs(**given).logits, model(given["input_ids"])
    torch.testing.assert_close(found[real], expected[real], **NEAR)
    one = torch.tensor([[2, *rows[0][:3]]])
    for _ in range(6):
        one = torch.cat([one, model(one)[0][:, -1:].argmax(-1)], 1)
    start = torch.tensor([[2, *rows[0][:3]]])
    written = theirs.generate(start, max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert written.tolist() == one.tolist()


def test_a_language_model_that_no_class_equals(data, tmp_path):
    words = read_words(data)[0]
    options = {"adaptive_softmax_cutoff": "10,20"}
    model = build_model("transformer_lm_una_tiny", words, words, **options)
    task = {"_name": "language_modeling", "data": str(data), "tokens_per_sample": 64}
    with pytest.raises(UsageError, match="--adaptive-softmax-cutoff 10,20, which OPT of Hugging"):
        export(checkpoint("transformer_lm_una_tiny", model, task, **options), tmp_path)


FOLDERS = {"MarianTokenizer": "pieces", "FSMTTokenizer": "data"}


@torch.no_grad()
@pytest.mark.parametrize("kind", slow_but_first(FOLDERS))
def test_a_folder_with_code_reads_raw_text(kind, tmp_path, library, request):
    """Its tokeniser is that of models without mechanisms, and its search is fairseq's."""
    data = request.getfixturevalue(FOLDERS[kind])
    model, state = build_translator(data, 4, "transformer_dna_tiny")
    out = export(state, tmp_path)
    tokeniser = library.AutoTokenizer.from_pretrained(out, trust_remote_code=True)
    plain = tmp_path / "plain"
    plain.mkdir()
    other = export(build_translator(data)[1], plain)
    same = library.AutoTokenizer.from_pretrained(other)
    assert type(tokeniser) is type(same) and type(same).__name__ == kind
    assert tokeniser(LINES + RAW) == same(LINES + RAW)
    if kind == "MarianTokenizer":
        theirs = library.AutoModelForSeq2SeqLM.from_pretrained(out, trust_remote_code=True).eval()
        check_translations(model, theirs, tokeniser, read_words(data)[1])
    assert "splits text at spaces" not in (out / "README.md").read_text("utf-8")


def test_a_folder_with_code_says_that_it_splits_at_spaces(data, tmp_path):
    for name in ("dict.en.txt", "dict.de.txt"):
        (tmp_path / name).write_bytes((data / name).read_bytes())
    _, state = build_translator(data, name="transformer_dna_tiny")
    out = export(state, tmp_path, "--vocabulary", tmp_path)
    assert "splits text at spaces" in (out / "README.md").read_text("utf-8")
    assert (out / "target" / "tokenizer.json").is_file()


@torch.no_grad()
def test_beam_search_of_a_language_model_with_code(data, tmp_path, library):
    """Hypotheses are fairseq's if lengths count nothing: it counts the prompt's, too."""
    words, name = read_words(data)[0], "transformer_lm_sink_tiny"
    words.save(str(tmp_path / "dict.txt"))
    options = {"decoder_normalize_before": False}
    model = build_model(name, words, words, ending=0.5, **options)
    task = {"_name": "language_modeling", "data": str(tmp_path)}
    out = export(checkpoint(name, model, task, **options), tmp_path)
    theirs = library.AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True).eval()
    search = SequenceGenerator([model], words, beam_size=5, max_len_b=40, len_penalty=0)
    rules = {"num_beams": 5, "early_stopping": True, "length_penalty": 0.0, "max_new_tokens": 40}
    lengths = set()
    for line in LINES:
        row = words.encode_line(split(data, line), add_if_not_exist=False, append_eos=False)
        prompt = torch.cat([torch.tensor([2]), row[:3]])[None]
        sample = {"net_input": {"src_tokens": prompt, "src_lengths": torch.tensor([4])}}
        [[best, *_]] = search.generate([], sample, prefix_tokens=prompt[:, 1:])
        found = theirs.generate(prompt, **rules)
        assert found[0, 1:].tolist() == best["tokens"].tolist()
        lengths.add(len(best["tokens"]))
    assert len(lengths) > 1
