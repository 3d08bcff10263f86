"""Small data, models and texts: the files that commands read, made once."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from conftest import PLUGIN, ROOT
from corpora import format_conllu, format_gap_row
from pictures_asked import SMALL, write_data

from fairseq_ext.analysis.coreference.corpus_readers import HEADER

from .process import Process, run

OLD = ROOT / "tests" / "fixtures" / "old_checkpoints"
BASE = "--user-dir {plugin} --cpu --num-workers 0 --seed 1"


def size(*sides: str) -> str:
    """Return the flags of the smallest layers."""
    parts = "layers 1", "embed-dim 4", "ffn-embed-dim 12", "attention-heads 2"
    return " ".join(f"--{side}-{part}" for side in sides for part in parts)


LEARN = (
    f"{BASE} --max-update 1 --optimizer adam --clip-norm 0 --lr 0.03 --no-epoch-checkpoints "
    "--log-format json --log-interval 1"
)
TRANSLATE = (
    f"translation {LEARN} --task translation -s de -t en --batch-size 5 "
    f"--lr-scheduler inverse_sqrt --warmup-updates 20 --share-all-embeddings "
    f"{size('encoder', 'decoder')}"
)
ENCODE = (
    f"{LEARN} --tokens-per-sample 40 --lr-scheduler polynomial_decay --total-num-update 60 "
    f"{size('encoder')}"
)
ASK = " ".join(f"--{name.replace('_', '-')} {size}" for name, size in SMALL.items())
LABELLED = f"{ENCODE} --batch-size 4 --vocabulary vocabulary"
TRAININGS = {
    "una": f"{TRANSLATE} --arch transformer_una_tiny --criterion label_smoothed_cross_entropy",
    "hna": f"{TRANSLATE} --arch transformer_hna_tiny --criterion label_smoothed_cross_entropy",
    "asa": f"{TRANSLATE} --arch transformer_asa_tiny "
    "--criterion label_smoothed_cross_entropy_ag_asa --ag-encoder-heads next:1 --ag-alpha 1 "
    "--label-smoothing 0.1",
    "roles": f"{TRANSLATE} --arch transformer_una_tiny --criterion cross_entropy "
    "--encoder-roles rare",
    "lm": f"mono {LEARN} --task language_modeling --tokens-per-sample 20 --batch-size 2 "
    f"--lr-scheduler fixed --arch transformer_lm {size('decoder')}",
    "encoder": f"mono {ENCODE} --batch-size 2 --task masked_lm --criterion masked_lm_ag "
    "--ag-encoder-heads next:1 --ag-alpha 1 --arch roberta_una_tiny",
    "sop": f"mono {ENCODE} --batch-size 2 --task masked_lm_sop --criterion masked_lm_sop "
    "--arch roberta_una_tiny",
    "detect": f"mono {ENCODE} --batch-size 2 --task replaced_token_detection "
    "--criterion replaced_token_detection --arch roberta_una_tiny",
    **{
        task: f"labelled/{task} {LABELLED} --task {task} --criterion {task} --arch {arch}"
        for task, arch in {
            "multiple_choice": "roberta_dna_tiny",
            "sequence_tagging": "roberta_hna_tiny",
            "span_extraction": "roberta_una_tiny",
            "sentence_classification": "roberta_una_tiny",
            "sentence_regression": "roberta_una_tiny",
        }.items()
    },
    "vqa": f"questions {LEARN} --task vqa --criterion vqa --arch vqa_multi_view_hna "
    f"--batch-size 4 --lr-scheduler fixed {ASK}",
}
"""The trainings of a model of each kind: the arguments of fairseq-train but --save-dir."""

SETTINGS = """
common: {{user_dir: {plugin}, cpu: true, log_format: json, log_interval: 1}}
task: {{_name: translation, data: ../translation, source_lang: de, target_lang: en}}
model:
  _name: transformer_una_tiny
  share_all_embeddings: true
  encoder_embed_dim: 4
  encoder_ffn_embed_dim: 12
  encoder_layers: 1
  encoder_attention_heads: 2
  decoder_embed_dim: 4
  decoder_ffn_embed_dim: 12
  decoder_layers: 1
  decoder_attention_heads: 2
criterion: {{_name: label_smoothed_cross_entropy}}
dataset: {{max_tokens: 600, num_workers: 0}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
optimization: {{lr: [0.001], max_update: 1}}
checkpoint: {{save_dir: ../out}}
"""

VQA = ["vqa"] if (PLUGIN / "vqa" / "registration.py").is_file() else []
RUNS = [*"una hna asa roles lm encoder".split(), *VQA]  # others read these and labelled tasks'
TEXTS = {"text": "the bird is small .", "pair": "a bird is big ."}


def build(folder: Path) -> Path:
    """Make the files that commands read."""
    shutil.copytree(OLD / "data", folder)
    write_texts(folder)
    if VQA:
        write_data(folder / "questions")
    call(folder, "fairseq-preprocess", *PREPROCESS.split())
    shutil.copytree(folder / "text", folder / "translation" / "text")
    call(folder, "fairseq-preprocess", *PREPROCESS_MONO.split())
    for name in ("dict.txt", "tokenizer.json"):
        shutil.copy(folder / "vocabulary" / name, folder / "mono")
    for name in (*RUNS, "sequence_tagging", "sentence_classification"):
        train(folder, name, f"runs/{name}/seed-1")
    train(folder, "una", "runs/una/seed-2", "--seed", "2")
    shutil.copy(folder / "runs/una/seed-1/checkpoint_last.pt", folder / "one.pt")
    shutil.copy(folder / "runs/una/seed-2/checkpoint_last.pt", folder / "two.pt")
    for name in ("una/seed-1", "una/seed-2"):
        said = call(folder, "fairseq-generate", *GENERATE.format(run=name).split())
        (folder / "runs" / name / "generate-test.txt").write_text(said, "utf-8")
    given = ["export-hf", "runs/encoder/seed-1/checkpoint_last.pt", "hf"]
    call(folder, "fairseq-ext", *given)
    shutil.copytree(folder / "translation", folder / "parsed")
    for split in ("train", "valid"):
        call(folder, "fairseq-ext", *ANNOTATE.format(split=split).split())
    return folder


ANNOTATE = "annotate parsed --split {split} --lang de --conllu {split}.conllu"
PREFIXES = "--trainpref text/train --validpref text/valid --testpref text/test"
PREPROCESS = f"-s de -t en --joined-dictionary --destdir translation {PREFIXES}"
PREPROCESS_MONO = (
    "--only-source --srcdict vocabulary/dict.txt --destdir mono --trainpref vocabulary/train "
    "--validpref vocabulary/valid --testpref vocabulary/valid"
)
GENERATE = (
    "translation --user-dir {{plugin}} --path runs/{run}/checkpoint_last.pt --cpu --num-workers 0 "
    "--seed 1 --batch-size 4 --task translation -s de -t en --gen-subset test --beam 2 "
    "--max-len-b 8"
)


def train(folder: Path, name: str, out: str, *flags: str) -> None:
    given = [*TRAININGS[name].split(), "--save-dir", out, *flags]
    said = call(folder, "fairseq-train", *given)
    (folder / out / "train.log").write_text(said, "utf-8")


def call(folder: Path, program: str, *arguments: str) -> str:
    """Run a command that has to succeed; return what it said."""
    ended = run(Process(program, [part.format(plugin=PLUGIN) for part in arguments], folder))
    if ended.code:
        raise SystemExit(f"{program} {' '.join(arguments)} ended with {ended}")
    return ended.out + ended.err


def write_texts(folder: Path) -> None:
    """Write texts, parses, labels and links in every form that a command reads."""
    for split in ("train", "valid"):
        lines = (folder / "text" / f"{split}.de").read_text("utf-8").splitlines()
        parsed = [format_conllu(line, chain(line.split(" "))) for line in lines]
        write(folder / f"{split}.conllu", "".join(parsed))
    links = (folder / "text" / "test.de").read_text("utf-8").splitlines()
    (folder / "gold.talp").write_text("1-1 2p2\n" * len(links), "utf-8")
    (folder / "new.txt").write_text("the bird is small .\na student trusts\n", "utf-8")
    for task, labels in {
        "sentence_classification": ["good", "bad"],
        "sentence_regression": [1.5, 3.0],
    }.items():
        write_examples(folder / "labelled" / task, labels)
    (folder / "refl.0").write_text(
        "he sees himself\t2\t0 0\t\nshe sees herself\t2\t0 0\t\n", "utf-8"
    )
    row = format_gap_row("Mary Ann met Jane's aunt. She left.", "She", "Mary Ann", "Jane", "A")
    (folder / "gap-test.tsv").write_text("\t".join(HEADER) + f"\n{row}\n", "utf-8")
    conll = ROOT / "tests/fixtures/coreference/two_parts.v4_gold_conll"
    shutil.copy(conll, folder / "two_conll")
    shutil.copytree(ROOT / "tests/fixtures/corpora/SST-2", folder / "corpora/SST-2")
    shutil.copytree(ROOT / "tests/fixtures/corpora/squad", folder / "corpora/squad")
    for split in ("train", "valid", "test"):
        for language in ("de", "en"):
            name = f"{split}.{language}"
            (folder / "own").mkdir(exist_ok=True)
            shutil.copy(folder / "text" / name, folder / "own" / name)
    for part in ("train", "dev", "test"):
        for side in ("src", "tgt"):
            write(folder / f"gigaword/{part}.{side}.txt", "a bird is small .\na man is big .\n")
    write(folder / "vectors.txt", "".join(f"{word} 1 2 3 4\n" for word in ("bird", "small")))
    for name in ("train", "valid"):
        shutil.copy(folder / "vocabulary" / name, write(folder / "plain" / name, ""))
    write(folder / "configs" / "mine.yaml", SETTINGS.format(plugin=PLUGIN))
    (folder / "books").mkdir()
    (folder / "books" / "a.txt").write_text("It was small. It was big.\n\nIt left.\n" * 9, "utf-8")
    (folder / "books" / "b.txt").write_text("She left. It was small.\n" * 9, "utf-8")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def chain(words: list[str]) -> str:
    """Return heads: each word's is the word before it."""
    return " ".join(str(number) for number, _ in enumerate(words))


def write_examples(folder: Path, labels: Iterable[object]) -> None:
    folder.mkdir(parents=True)
    for split in ("train", "valid"):
        lines = [json.dumps(TEXTS | {"label": label}) + "\n" for label in labels]
        (folder / f"{split}.jsonl").write_text("".join(lines) * 4, "utf-8")
