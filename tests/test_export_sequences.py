"""Translation and language models as FSMT and OPT of transformers: logits, search, tokenisers."""

import io
from pathlib import Path

import pytest
import torch
from cases import slow_but_first
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from stock_models import CLOSING, build_model, checkpoint
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from fairseq_ext import cli
from fairseq_ext.errors import UsageError
from fairseq_ext.prepare.tokenise import MosesPipeline
from fairseq_ext.prepare.toy.corpus import corpus

NEAR = {"rtol": 0, "atol": 1e-5}
LINES = [f"{english} Anna's dog & 'cat', re-read?" for english, _ in corpus()["valid"][:8]]
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


def build_translator(data: Path, **options) -> tuple:
    words = read_words(data)
    model = build_model("transformer_una_tiny", *words, ending=2.8, **options)
    task = TRANSLATION | {"data": str(data)}
    return model, checkpoint("transformer_una_tiny", model, task, **options)


FORMS = [CLOSING, {"decoder_kv_heads": 2, "activation_fn": "gelu"}]


@torch.no_grad()
@pytest.mark.parametrize("options", slow_but_first(FORMS))
def test_a_translation_model_is_an_fsmt(options, data, tmp_path, hugging_face):
    model, state = build_translator(data, **options)
    out, words = export(state, tmp_path), read_words(data)
    tokeniser = hugging_face.AutoTokenizer.from_pretrained(out)
    pieces = [split(data, line) for line in MosesPipeline("en", hyphens=True)(LINES)]
    rows = [words[0].encode_line(line, add_if_not_exist=False).tolist() for line in pieces]
    assert tokeniser(LINES)["input_ids"] == rows
    theirs = hugging_face.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    assert type(theirs).__name__ == "FSMTForConditionalGeneration"
    given = tokeniser(LINES, padding=True, return_tensors="pt")
    before = torch.randint(4, len(words[1]), (len(LINES), 7))
    lengths = given["attention_mask"].sum(1)
    expected, _ = model(given["input_ids"], lengths, before)
    found = theirs(**given, decoder_input_ids=before, use_cache=False).logits
    torch.testing.assert_close(found, expected, **NEAR)
    search = SequenceGenerator([model], words[1], beam_size=5, max_len_b=29)
    sample = {"net_input": {"src_tokens": given["input_ids"], "src_lengths": lengths}}
    best = [hypotheses[0]["tokens"].tolist() for hypotheses in search.generate([], sample)]
    written = theirs.generate(**given, num_beams=5, max_length=31).tolist()
    assert [[i for i in row[1:] if i != 1] for row in written] == best
    assert len({*map(len, best)}) > 1
    assert not {"@@", "</w>"} & {*"".join(tokeniser.batch_decode(written))}


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


def test_languages_that_nothing_names(data, tmp_path):
    _, state = build_translator(data)
    state["cfg"]["task"]["source_lang"] = None
    with pytest.raises(UsageError, match=r"model.pt does not name its languages, and .* has no fi"):
        export(state, tmp_path)
    for language in ("en", "de"):
        (data / f"train.en-de.{language}.idx").touch()
    assert (export(state, tmp_path, "--vocabulary", data) / "vocab-tgt.json").is_file()


def test_text_that_the_tokeniser_of_an_fsmt_cannot_express(data, tmp_path, caplog):
    _, state = build_translator(data)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(UsageError, match="other has neither bpe.codes nor sentencepiece.model, and trans"):
        export(state, tmp_path, "--vocabulary", other)
    (other / "bpe.codes").write_bytes((data / "bpe.codes").read_bytes())
    lines = (data / "dict.en.txt").read_text().splitlines(keepends=True)
    (other / "dict.en.txt").write_text("".join(lines[:-1]))
    with pytest.raises(UsageError, match=r"dict.en.txt has \d+ symbols, and the model \d+; give"):
        export(state, tmp_path, "--vocabulary", other)
    (other / "dict.de.txt").write_bytes((data / "dict.de.txt").read_bytes())
    twice = "".join([*lines[:-2], "ab 1\n", "ab</w>@@ 1\n"])
    (other / "dict.en.txt").write_text(twice)
    with pytest.raises(UsageError, match="dict.en.txt has two symbols that are one piece to the tokeniser"):
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
