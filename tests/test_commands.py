"""fairseq's own commands on real lines: train, resume, generate, interact, two processes."""

import json
import multiprocessing
import pickle
import re
import subprocess
import sys

import pytest
import torch
from commands import GENERATE, find_free_port, generate, read_hypotheses, read_parameters
from conftest import PLUGIN, ROOT, TASK, TRAIN, fairseq, start, train
from hangs import communicate, wait_until

from fairseq_ext.safe_loading import load_checkpoint

TINY = {"embed-dim": 128, "ffn-embed-dim": 256, "layers": 4, "attention-heads": 4}
TINY = [x for side in ("encoder", "decoder") for k, v in TINY.items() for x in (f"--{side}-{k}", v)]


def updates(output):
    """Update number -> training loss as logged."""
    lines = re.findall(r"train_inner \| (\{.*\})", output)
    return {int(x["num_updates"]): float(x["loss"]) for x in map(json.loads, lines)}


NOISE = 0.05


def assert_same_translations(ours, theirs):
    """Equal texts and scores to 1e-5; positional scores are printed with four decimals."""
    assert ours.keys() == theirs.keys() and len(ours) == 100
    for n, (score, text, positional) in ours.items():
        assert text == theirs[n][1]
        assert score == pytest.approx(theirs[n][0], abs=1e-5)
        assert positional == pytest.approx(theirs[n][2], abs=1.01e-4)


SLOWLY = [pytest.param(name, marks=pytest.mark.slow) for name in ("una", "hna")]


@pytest.fixture(scope="module", params=["dna", *SLOWLY])
def trained(request, data_bin, tmp_path_factory):
    """A checkpoint of each mechanism after some real lines."""
    folder = tmp_path_factory.mktemp(request.param)
    return train(data_bin, f"transformer_{request.param}_tiny", folder, 3)


def diversify(path):
    """Return a checkpoint with noise on its matrices, so that every sentence has a translation."""
    state = load_checkpoint(str(path))
    draw = torch.Generator().manual_seed(1)
    for name, parameter in state["model"].items():
        if parameter.dim() == 2 and "embed" not in name:
            parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=NOISE)
    torch.save(state, path.with_name("diverse.pt"))
    return path.with_name("diverse.pt")


@pytest.fixture(scope="module")
def diverse(trained):
    return diversify(trained)


@pytest.fixture(scope="module")
def translations(diverse, data_bin):
    return read_hypotheses(generate(data_bin, diverse))


def test_generate_and_interactive_agree(diverse, translations, data_bin, real_lines):
    common = ["--user-dir", PLUGIN, "--path", diverse, *GENERATE, "--buffer-size", 40]
    with (real_lines / "valid.de").open() as lines:
        command = start("interactive", data_bin, *common, stdin=lines)
        out, err = communicate(command)
    assert command.returncode == 0, err
    assert_same_translations(read_hypotheses(out), translations)
    assert len({text for _, text, _ in translations.values()}) > 20


def test_batching_does_not_change_a_translation(diverse, translations, data_bin):
    alone = generate(data_bin, diverse, "--batch-size", 1)
    assert_same_translations(read_hypotheses(alone), translations)


@pytest.fixture(scope="module")
def stock(data_bin, tmp_path_factory):
    """A checkpoint of fairseq's own transformer, with noise."""
    return diversify(train(data_bin, "transformer", tmp_path_factory.mktemp("stock"), 3, *TINY))


def named(arch):
    return ["--model-overrides", json.dumps({"_name": arch, "arch": arch}).replace('"', "'")]


def test_a_stock_checkpoint_translates_identically_as_una(stock, data_bin):
    ours = generate(data_bin, stock, *named("transformer_una_tiny"))
    assert_same_translations(read_hypotheses(ours), read_hypotheses(generate(data_bin, stock)))


@pytest.mark.slow
def test_a_una_checkpoint_translates_identically_as_stock(data_bin, tmp_path):
    ours = diversify(train(data_bin, "transformer_una_tiny", tmp_path, 3))
    theirs = generate(data_bin, ours, *named("transformer"))
    assert_same_translations(read_hypotheses(theirs), read_hypotheses(generate(data_bin, ours)))


def test_training_as_una_is_training_as_stock(data_bin, tmp_path):
    """Same seed, no dropout: the same losses, update by update."""
    runs = [
        fairseq("train", data_bin, *TRAIN, *arch, "--dropout", 0, "--max-update", 12, "--no-save")
        for arch in (["--arch", "transformer_una_tiny"], ["--arch", "transformer", *TINY])
    ]
    ours, stock = (updates(run.stdout + run.stderr) for run in runs)
    assert ours == pytest.approx(stock, abs=2e-3) and len(ours) == 12


def test_an_interrupted_run_resumes_to_the_same_numbers(data_bin, tmp_path):
    """Mid-epoch, dropout on: losses and parameters of an uninterrupted run, to the bit."""
    args = [data_bin, *TRAIN, "--arch", "transformer_hna_tiny", "--save-interval-updates", 4]
    args += ["--warmup-updates", 1]  # so that the hybrid weights move
    whole = fairseq("train", *args, "--max-update", 11, "--save-dir", tmp_path / "whole")
    cut = fairseq("train", *args, "--max-update", 7, "--save-dir", tmp_path / "cut")
    rest = fairseq("train", *args, "--max-update", 11, "--save-dir", tmp_path / "cut")
    expected = updates(whole.stdout + whole.stderr)
    resumed = updates(cut.stdout + cut.stderr) | updates(rest.stdout + rest.stderr)
    assert resumed == expected and list(updates(rest.stdout + rest.stderr))[0] == 8
    last = [read_parameters(tmp_path / run / "checkpoint_last.pt") for run in ("whole", "cut")]
    torch.testing.assert_close(*last, atol=0, rtol=0)
    assert_hybrid_weights_are_logged(rest.stdout + rest.stderr, last[1], layers=4)


def assert_hybrid_weights_are_logged(output, parameters, layers):
    """The last line of the log shows those of the checkpoint, layer by layer."""
    *_, line = map(json.loads, re.findall(r"train_inner \| (\{.*\})", output))
    logged = [float(line.pop(f"encoder{layer}_u")) for layer in range(layers)]
    offsets = [
        parameters[f"encoder.layers.{layer}.self_attn.groups.0.normaliser.offset"]
        for layer in range(layers)
    ]
    expected = [offset.sigmoid().mean().item() for offset in offsets]  # hna_init is 0.5
    assert logged == pytest.approx(expected, abs=1e-4) and len(set(logged)) == layers
    assert not [name for name in line if name.endswith("_u")]


def train_on_two_processes(data, folder, updates, *args):
    meet = f"tcp://127.0.0.1:{find_free_port()}"
    two = f"--distributed-world-size 2 --distributed-backend gloo --distributed-init-method {meet}"
    two = [*two.split(), "--distributed-no-spawn", "--ddp-backend", "legacy_ddp"]
    common = [*TRAIN, "--dropout", 0, *args, "--max-update", updates, "--save-dir", folder, *two]
    ranks = [start("train", data, *common, "--distributed-rank", rank) for rank in (0, 1)]
    for rank in ranks:
        _, err = communicate(rank)
        assert rank.returncode == 0, err
    return read_parameters(folder / "checkpoint_last.pt")


@pytest.mark.processes
@pytest.mark.slow
def test_two_processes_equal_one(data_bin, tmp_path):
    """Half the batches on each; interrupted and resumed, to the bit, as if they never had been."""
    arch = ["--arch", "transformer_hna_tiny"]
    train_on_two_processes(data_bin, tmp_path / "cut", 3, *arch)
    resumed = train_on_two_processes(data_bin, tmp_path / "cut", 6, *arch)
    whole = train_on_two_processes(data_bin, tmp_path / "two", 6, *arch)
    torch.testing.assert_close(resumed, whole, atol=0, rtol=0)
    path = train(data_bin, arch[1], tmp_path / "one", 6, "--update-freq", 2, "--dropout", 0)
    torch.testing.assert_close(whole, read_parameters(path), atol=2e-4, rtol=1e-3)


def test_hydra_trains_a_size_by_its_name(data_bin, tmp_path):
    (tmp_path / "mine.yaml").write_text(f"""
common: {{user_dir: {PLUGIN}, cpu: true, log_format: json, log_interval: 1}}
task: {{_name: translation, data: {data_bin}, source_lang: de, target_lang: en}}
model: {{_name: transformer_hna_tiny, hna_init: 0.1, share_all_embeddings: true}}
criterion: {{_name: label_smoothed_cross_entropy}}
dataset: {{max_tokens: 600, num_workers: 0}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
optimization: {{lr: [0.001], max_update: 3}}
checkpoint: {{save_dir: {tmp_path}}}
""")
    args = ["--config-dir", tmp_path, "--config-name", "mine", f"hydra.run.dir={tmp_path}"]
    fairseq("hydra-train", *args)
    saved = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert saved["cfg"]["model"]["_name"] == "transformer_hna_tiny"
    assert saved["model"]["encoder.embed_tokens.weight"].size(1) == 128
    assert sum("offset" in name for name in saved["model"]) == 4
    assert read_hypotheses(generate(data_bin, tmp_path / "checkpoint_last.pt"))
    typo = fairseq("hydra-train", *args, "+model.hna_initial=0.1", check=False)
    assert typo.returncode != 0 and "hna_initial" in typo.stderr


def test_a_model_loads_and_translates_from_python(diverse, translations, data_bin, real_lines):
    source = (real_lines / "valid.de").read_text().split("\n")[0]
    code = f"""
import fairseq_ext
from fairseq_ext.models.transformer import TransformerModel
hub = TransformerModel.from_pretrained({str(diverse.parent)!r}, {diverse.name!r}, {str(data_bin)!r})
print("SAYS", hub.translate({source!r}, beam=3, max_len_b=12))
from fairseq.checkpoint_utils import load_model_ensemble
models, cfg = load_model_ensemble([{str(diverse)!r}], {{"data": {str(data_bin)!r}}})
print("NAME", cfg.model._name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said = re.search(r"SAYS (.*)", done.stdout)[1]
    assert said == translations[0][1]
    assert re.search(r"NAME transformer_(una|dna|hna)_tiny", done.stdout)


@pytest.mark.parametrize("user_dir", ["fairseq_ext", f"{PLUGIN}/"])
def test_the_plugin_is_found_by_its_relative_path_and_with_a_slash(user_dir, data_bin):
    args = [*TRAIN, "--user-dir", user_dir, "--arch", "transformer_dna_tiny", "--max-update", 1]
    fairseq("train", data_bin, *args, "--no-save", cwd=ROOT)


def spawned_worker(pickled, answers):
    """What a data-parallel worker does first: it gets the configuration and nothing else."""
    import sys

    from fairseq import models, utils

    cfg = pickle.loads(pickled)
    utils.import_user_module(cfg.common)
    answers.put(("transformer_dna" in models.MODEL_REGISTRY, "fairseq_ext" in sys.modules))


def test_a_spawned_worker_finds_the_plugin():
    from argparse import Namespace

    pickled = pickle.dumps(Namespace(common=Namespace(user_dir=str(PLUGIN))))
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.SimpleQueue()
    worker = spawn.Process(target=spawned_worker, args=(pickled, answers))
    worker.start()
    wait_until(lambda: not worker.is_alive())
    assert worker.exitcode == 0 and answers.get() == (True, True)


@pytest.mark.slow
def test_evaluation_in_training_and_a_moving_average(data_bin, tmp_path):
    """--eval-bleu, --store-ema and --checkpoint-activations: train, resume, decode."""
    bleu = ["--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 10}']
    extras = [*bleu, "--store-ema", "--ema-decay", 0.9, "--checkpoint-activations"]
    args = [data_bin, *TRAIN, "--arch", "transformer_dna_tiny", *extras, "--save-dir", tmp_path]
    fairseq("train", *args, "--max-update", 3)
    done = fairseq("train", *args, "--max-update", 5)
    said = done.stdout + done.stderr
    assert list(updates(said)) == [4, 5] and '"valid_bleu": "' in said
    saved = load_checkpoint(path := str(tmp_path / "checkpoint_last.pt"))
    name = "encoder.layers.0.fc1.weight"
    assert (saved["extra_state"]["ema"][name] - saved["model"][name]).abs().max() > 0
    assert read_hypotheses(generate(data_bin, path))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--arch", "transformer_dna_tiny", "--encoder-normaliser", "twice"], "choose from"),
        (["--arch", "transformer_hna_tiny", "--hna-init", 1.5], "--hna-init is 1.5"),
        (
            ["--arch", "transformer_dna_tiny", "--encoder-attention-heads", 3],
            "give heads that divide",
        ),
        (["--arch", "transformer_dna_tiny", "--decoder-normaliser", "doubly"], "see the future"),
        (["--arch", "transformer_dna_tiny", "--cross-self-attention"], "is not supported"),
        (
            ["--arch", "transformer_dna_tiny", "--adaptive-input"],
            "--adaptive-input is for language models",
        ),
        (
            "--arch transformer_sinkformer_tiny --sinkformer-detach "
            "--sinkformer-iterations 1".split(),
            "--sinkformer-detach has no effect with --sinkformer-iterations 1",
        ),
    ],
)
def test_bad_flags_end_in_one_sentence(args, said, data_bin, tmp_path):
    folder = tmp_path / "never"
    done = fairseq("train", data_bin, *TRAIN, *args, "--save-dir", folder, check=False)
    assert done.returncode != 0
    assert said in done.stderr.strip().split("\n")[-1]
    assert "Traceback" not in done.stderr
    assert not list(folder.glob("*.pt"))


def test_a_checkpoint_of_another_architecture_is_refused(stock, data_bin, tmp_path):
    args = ["--arch", "transformer_una", "--restore-file", stock, "--save-dir", tmp_path]
    done = fairseq("train", data_bin, *TRAIN, *args, "--max-update", 110, check=False)
    said = done.stderr.split("\n")[-2]
    assert done.returncode == 1 and "was trained with encoder_attention_heads" in said
    assert not list(tmp_path.glob("*.pt"))


def test_validate_reads_a_checkpoint(trained, data_bin):
    """And finds the loss that training found."""
    args = ["--user-dir", PLUGIN, *TASK, "--path", trained, "--max-tokens", 600]
    done = fairseq("validate", data_bin, *args, "--valid-subset", "valid", "--log-format", "json")
    found = re.findall(r'"valid_loss": "([\d.]+)"', done.stdout + done.stderr)
    saved = load_checkpoint(str(trained))["extra_state"]["val_loss"]
    assert [float(x) for x in found] == [pytest.approx(saved, abs=2e-3)]


def test_a_run_goes_on_only_with_the_attention_it_began_with(data_bin, tmp_path):
    """una and dna have the same parameters; the hybrid weight is stored relative to hna_init."""
    train(data_bin, "transformer_una_tiny", tmp_path / "una", 1)
    train(data_bin, "transformer_hna_tiny", tmp_path / "hna", 1, "--hna-init", 0.1)
    for arch, run, said in [
        ("dna", "una", "encoder_normaliser softmax (now doubly)"),
        ("hna", "hna", "hna_init 0.1 (now 0.5)"),
    ]:
        args = ["--arch", f"transformer_{arch}_tiny", "--save-dir", tmp_path / run]
        done = fairseq("train", data_bin, *TRAIN, *args, "--max-update", 2, check=False)
        assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1
    dna = train(data_bin, "transformer_dna_tiny", tmp_path / "begun", 1)
    args = [*TRAIN, "--arch", "transformer", *TINY, "--save-dir", dna.parent]
    assert "(now softmax)" in fairseq("train", data_bin, *args, check=False).stderr
    begin = ["--restore-file", tmp_path / "una" / "checkpoint_last.pt", "--reset-optimizer"]
    train(data_bin, "transformer_dna_tiny", tmp_path / "dna", 2, *begin)
    train(data_bin, "transformer_hna_tiny", tmp_path / "hna", 2, "--hna-init", 0.1)


def test_other_refusals_are_sentences(stock, data_bin):
    args = [*TRAIN, "--arch", "transformer_dna_tiny", "--save-dir", "/proc/none"]
    done = fairseq("train", data_bin, *args, check=False)
    assert done.returncode == 1 and done.stderr.startswith(
        "error: cannot write checkpoints to /proc"
    )
    wide = ["--model-overrides", "{'encoder_ffn_embed_dim': 64}"]
    args = ["--user-dir", PLUGIN, "--path", stock, *GENERATE, *wide]
    done = fairseq("generate", data_bin, *args, check=False)
    assert done.returncode == 1 and "does not fit the model" in done.stderr.split("\n")[-2]
