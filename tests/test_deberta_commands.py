"""DeBERTa through commands: from a folder of Hugging Face to predictions, and from scratch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import slow_but_first
from conftest import PLUGIN, fairseq, train_in_two_processes
from hf_encoders import V3, make_deberta
from labelled_examples import KINDS, SENTENCES, read, write_data

from fairseq_ext.cli import main

FLAGS = [
    *("--user-dir", str(PLUGIN)),
    *"--cpu --num-workers 0 --seed 1 --optimizer adam --lr 3e-3 --no-epoch-checkpoints".split(),
    *"--batch-size 4 --max-update 2 --log-format json --log-interval 1".split(),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(hugging_face, tmp_path_factory) -> Path:
    """A DeBERTa v3 of random parameters, imported, with SentencePiece's pieces."""
    folder = tmp_path_factory.mktemp("deberta")
    make_deberta(hugging_face, folder / "given", "DebertaV2", V3, SENTENCES)
    main(["import-hf", str(folder / "given"), str(folder / "ours")])
    return folder / "ours"


def fine_tune(name, data, encoder, run, *more, arch="deberta_una", check=True):
    return fairseq(
        *("train", data / name, *FLAGS, "--task", name, *KINDS[name].flags.split()),
        *("--arch", arch, "--finetune-from-model", encoder / "model.pt", "--vocabulary", encoder),
        *("--save-dir", run, "--criterion", name, *more),
        check=check,
    )


@pytest.mark.parametrize("name", slow_but_first(KINDS))
def test_fine_tuning_on_every_task(name, data, encoder, tmp_path):
    """A fine-tuned model predicts; its sizes and form are those of the checkpoint."""
    fine_tune(name, data, encoder, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint_last.pt"
    options = torch.load(checkpoint, weights_only=False)["cfg"]["model"]
    assert options["disentangled_buckets"] == 8 and options["encoder_embed_dim"] == 32
    verb = [sys.executable, "-m", "fairseq_ext.cli", "predict", str(checkpoint), "--cpu", "--json"]
    file = data / name / "test.jsonl"
    done = subprocess.run(
        [*verb, "--examples", "--input", str(file)], check=True, capture_output=True, text=True
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(read(file))
    if name == "sequence_tagging":
        words = [len(example["words"]) for example in read(file)]
        assert [len(answer["tags"]) for answer in answers] == words


@pytest.mark.slow
def test_fine_tuning_with_mechanisms(data, encoder, tmp_path):
    """ASA, guidance, roles, doubly-normalised attention and gates on an imported encoder."""
    name = "sentence_classification"
    flags = [
        *("--asa-layers", "all", "--encoder-roles", "relative", "--encoder-normaliser", "hybrid"),
        *("--head-gate", "--ag-encoder-heads", "next:1", "--criterion", f"{name}_ag_asa"),
    ]
    fine_tune(name, data, encoder, tmp_path / "run", *flags)
    found = torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=False)["model"]
    ends = ("adversary.query.weight", "normaliser.offset", "gate", "relative.embedding.weight")
    assert all(any(key.endswith(end) for key in found) for end in ends)


@pytest.mark.parametrize(
    ("arch", "flags", "said"),
    [
        ("roberta_una", [], "give an --arch like deberta_una"),
        ("deberta_una_tiny", [], "and the model to be fine-tuned"),
        ("deberta_una", ["--disentangled-buckets", "12"], "has --disentangled-buckets 8 and the"),
    ],
)
def test_another_model_than_the_checkpoints_is_refused(arch, flags, said, data, encoder, tmp_path):
    name = "sentence_classification"
    done = fine_tune(name, data, encoder, tmp_path / "run", *flags, arch=arch, check=False)
    assert done.returncode and said in done.stderr and "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Binarised sentences."""
    folder = tmp_path_factory.mktemp("text")
    for split, some in (("train", SENTENCES[:70]), ("valid", SENTENCES[70:])):
        (folder / split).write_text("\n".join(some) + "\n", encoding="utf-8")
    fairseq(
        *("preprocess", "--only-source", "--trainpref", folder / "train"),
        *("--validpref", folder / "valid", "--destdir", folder / "bin"),
    )
    with (folder / "bin" / "dict.txt").open("a", encoding="utf-8") as dictionary:
        dictionary.write("<mask> 0\n")
    return folder / "bin"


TINY = "--disentangled-buckets 8 --disentangled-distance 20 --encoder-layers 2".split()
PRETRAINING = {
    "masked words": ("masked_lm", "masked_lm", ["--enhanced-mask-decoder"]),
    "masked words, adversaries and guidance": (
        "masked_lm",
        "masked_lm_ag_asa",
        "--enhanced-mask-decoder --asa-layers all --ag-encoder-heads next:1,prev:1".split(),
    ),
    "replaced tokens": ("replaced_token_detection",) * 2 + (["--generator-size", "0.5"],),
    "replaced tokens of a unigram": ("replaced_token_detection",) * 2 + ([],),
    "pairs": ("masked_lm_sop", "masked_lm_sop", ["--enhanced-mask-decoder"]),
}


@pytest.mark.parametrize("name", slow_but_first(PRETRAINING))
def test_pretraining_from_scratch(name, text, tmp_path):
    """Continued once, and fine-tuning finds what it needs."""
    task, criterion, flags = PRETRAINING[name]
    for updates in (2, 3):
        done = fairseq(
            *("train", text, *FLAGS, *TINY, *flags, "--task", task, "--criterion", criterion),
            *("--arch", "deberta_una_tiny", "--tokens-per-sample", 32, "--save-dir", tmp_path),
            *("--max-update", updates),
        )
        assert '"num_updates": "' + str(updates) in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_equal_one(text, tmp_path):
    """Gradients of relative embeddings, which all layers share, are summed over both."""
    flags = [*FLAGS, *TINY, *"--enhanced-mask-decoder --task masked_lm --dropout 0".split()]
    flags += "--criterion masked_lm --arch deberta_una_tiny --tokens-per-sample 32".split()
    flags += "--attention-dropout 0 --max-update 3 --disable-validation --save-dir".split()
    fairseq("train", text, *flags, tmp_path / "one", "--update-freq", 2)
    train_in_two_processes(text, *(f for f in flags if f != "--cpu"), tmp_path / "two")
    one, two = (
        torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=False)["model"]
        for name in ("one", "two")
    )
    torch.testing.assert_close(two, one, atol=2e-4, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.processes
def test_a_learned_generator_in_two_processes(text, tmp_path):
    """Each samples for its own sentences, and both have the same model afterwards."""
    task, criterion, more = PRETRAINING["replaced tokens"]
    flags = [*FLAGS, *TINY, *more, "--task", task, "--criterion", criterion]
    flags += "--arch deberta_una_tiny --tokens-per-sample 32 --max-update 3".split()
    train_in_two_processes(text, *(f for f in flags if f != "--cpu"), "--save-dir", tmp_path)
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    assert state["optimizer_history"][-1]["num_updates"] == 3
    assert all(value.isfinite().all() for value in state["model"].values())
