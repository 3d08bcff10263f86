"""Pre-training through fairseq's commands and our recipe, on a few real lines."""

import gzip
import json
import re
from pathlib import Path

import pytest
import torch
from cases import slow_but_first
from conftest import PLUGIN, ROOT, fairseq, train_in_two_processes
from fairseq import checkpoint_utils
from shell import assert_refused, bash
from variants import PRETRAINING

from fairseq_ext.training_logs import parse_line

CONFIGS = sorted((ROOT / "scripts" / "configs").glob("*.yaml"))


@pytest.fixture(scope="module")
def text_bin(corpora, tmp_path_factory) -> Path:
    """Sentences of 12 Wikipedia articles in training and 4 in validation, binarised as words."""
    folder = tmp_path_factory.mktemp("text")
    with gzip.open(corpora / "wikitext-2" / "valid.txt.gz", "rt", encoding="utf-8") as text:
        articles = re.split(r"\n = [^=\n]+ = \n", text.read().lower())[1:17]
    for split, some in (("train", articles[:12]), ("valid", articles[12:])):
        sentences = ["\n".join(re.findall(r"[^=.\n]{20,200} \.", each)[:20]) for each in some]
        (folder / split).write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    made = folder / "bin"
    fairseq(
        *("preprocess", "--only-source", "--trainpref", folder / "train"),
        *("--validpref", folder / "valid", "--destdir", made),
    )
    with (made / "dict.txt").open("a", encoding="utf-8") as dictionary:
        dictionary.write("<mask> 0\n")
    (made / "bpe").mkdir()
    (made / "bpe" / "encoder.json").write_text('{".": 3, "\\u0120.": 5}')
    return made


FLAGS = [
    *("--user-dir", str(PLUGIN)),
    *"--cpu --num-workers 0 --seed 1 --tokens-per-sample 64 --batch-size 8".split(),
    *"--optimizer adam --lr 1e-3 --lr-scheduler polynomial_decay --total-num-update 20".split(),
    *"--log-format json --log-interval 1 --no-epoch-checkpoints".split(),
]


def run(data, folder, updates, objective, *options, arch="roberta_una_tiny", check=True):
    """`fairseq-train` with the task of an objective; its log is kept."""
    done = fairseq(
        *("train", data, *FLAGS, "--arch", arch, "--max-update", updates, "--save-dir", folder),
        *("--task", objective.removesuffix("_ag"), "--criterion", objective, *options),
        check=check,
    )
    Path(folder).mkdir(exist_ok=True)
    with (Path(folder) / "train.log").open("a") as log:
        log.write(done.stdout + done.stderr)
    return done


def records(folder, kind="train_inner"):
    lines = (folder / "train.log").read_text().split("\n")
    return [record for line in lines if (record := parse_line(line)) and record.kind == kind]


def values(folder, name, kind="train_inner"):
    return [r.values[name] for r in records(folder, kind) if name in r.values]


def saved(folder):
    return torch.load(folder / "checkpoint_last.pt", weights_only=False)


@pytest.mark.parametrize("objective", [name for name in PRETRAINING if name.endswith("_ag")])
def test_objectives(text_bin, tmp_path, objective):
    """The log holds the loss of the objective, what belongs to it, and its average."""
    run(text_bin, tmp_path, 3, objective, arch="roberta_hna_tiny")
    own = {"nsp": {"nsp_loss", "nsp_accuracy"}, "sop": {"sop_loss", "sop_accuracy"}}
    own |= {"detection": {"accuracy", "f1"}, "lm": set()}
    expected = {"loss"} | own[objective.removesuffix("_ag").split("_")[-1]]
    guidance = {"ag_loss", "ag_alpha"}
    trained, (valid,) = records(tmp_path), records(tmp_path, "valid")
    assert len(trained) == 3 and expected | guidance <= trained[-1].values.keys()
    assert {"loss_avg", "encoder0_u", "encoder3_u"} <= trained[-1].values.keys()
    assert expected <= valid.values.keys() and not guidance & valid.values.keys()


def test_validation_is_pure_masked_lm(text_bin, tmp_path):
    """As logged in training, as told by fairseq-validate, and by fairseq's own criterion."""
    run(text_bin, tmp_path, 3, "masked_lm_ag", "--ag-alpha", "100")
    (told,) = values(tmp_path, "loss", "valid")
    for own in ([], ["--criterion", "masked_lm"]):
        checked = fairseq(
            *(
                "validate",
                text_bin,
                "--user-dir",
                PLUGIN,
                "--path",
                tmp_path / "checkpoint_last.pt",
            ),
            *("--task", "masked_lm", "--tokens-per-sample", 64, "--cpu", "--batch-size", 8),
            *("--num-workers", 0, "--seed", 1, *own),
        )
        found = re.search(r"\| loss ([\d.]+)", checked.stdout + checked.stderr)
        assert float(found[1]) == pytest.approx(told, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "cuts"),
    [("replaced_token_detection_ag", [8]), ("masked_lm_sop_ag", [1, 8])],
)
def test_resuming_is_exact(text_bin, tmp_path, objective, cuts):
    """From within the first epoch and within the third: dropout, masks, pairs, weight, average."""
    options = ["--ag-alpha", "auto", "--ag-decay-updates", "12", "--batch-size", "32"]
    whole = tmp_path / "whole"
    run(text_bin, whole, 12, objective, *options)
    assert records(whole)[-1].values["epoch"] >= 3
    for cut in cuts:
        folder = tmp_path / f"cut-{cut}"
        run(text_bin, folder, cut, objective, *options)
        run(text_bin, folder, 12, objective, *options)
        for name in ("loss", "ag_loss", "ag_alpha"):
            expected = values(whole, name)
            assert values(folder, name) == pytest.approx(expected, abs=1e-6)
        assert values(folder, "loss_avg", "train")[-1] == values(whole, "loss_avg", "train")[-1]
        torch.testing.assert_close(saved(folder)["model"], saved(whole)["model"], atol=0, rtol=0)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("objective", ["masked_lm_ag", "masked_lm_nsp"])
def test_two_processes_equal_one(text_bin, tmp_path, objective):
    options = "--dropout 0 --attention-dropout 0 --disable-validation --optimizer sgd".split()
    options += ["--lr", "0.1"]
    run(text_bin, tmp_path / "one", 3, objective, *options, "--update-freq", "2")
    flags = [flag for flag in FLAGS if flag != "--cpu"]
    where = ["--arch", "roberta_una_tiny", "--max-update", 3, "--save-dir", tmp_path / "two"]
    what = ["--task", objective.removesuffix("_ag"), "--criterion", objective]
    train_in_two_processes(text_bin, *flags, *where, *what, *options)
    one, two = saved(tmp_path / "one"), saved(tmp_path / "two")
    torch.testing.assert_close(two["model"], one["model"], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_hydra_configurations(text_bin, tmp_path, config):
    """The files as they are, but for the size."""
    small = [
        *("common.cpu=true", "common.seed=1", "dataset.num_workers=0", "dataset.batch_size=4"),
        *("task.tokens_per_sample=64", "optimization.max_update=2", "optimization.update_freq=[2]"),
        *("distributed_training.distributed_world_size=1", "dataset.disable_validation=true"),
    ]
    fairseq(
        *("hydra-train", "--config-dir", config.parent, "--config-name", config.stem, *small),
        *(f"common.user_dir={PLUGIN}", f"task.data={text_bin}", "model._name=roberta_dna_tiny"),
        f"checkpoint.save_dir={tmp_path}",
        cwd=tmp_path,
    )
    state = saved(tmp_path)
    assert state["model"]["encoder.sentence_encoder.layers.3.fc1.weight"].shape == (512, 128)
    assert state["optimizer_history"][-1]["num_updates"] == 2
    assert state["cfg"]["lr_scheduler"]["total_num_update"] == 2
    original = config.read_text()
    assert f"_name: {state['cfg']['task']['_name']}\n" in original
    assert f"_name: {state['cfg']['criterion']['_name']}\n" in original


def test_hydra_and_the_command_line_agree(text_bin, tmp_path):
    run(text_bin, tmp_path / "cli", 2, "masked_lm_ag", "--ag-alpha", "10", "--disable-validation")
    config = {
        "common": {"user_dir": str(PLUGIN), "cpu": True, "seed": 1},
        "task": {"_name": "masked_lm", "data": str(text_bin), "tokens_per_sample": 64},
        "model": {"_name": "roberta_una_tiny"},
        "criterion": {"_name": "masked_lm_ag", "ag_alpha": "10"},
        "dataset": {"batch_size": 8, "num_workers": 0, "disable_validation": True},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "polynomial_decay", "total_num_update": 20},
        "optimization": {"max_update": 2, "lr": [0.001]},
        "checkpoint": {"save_dir": str(tmp_path / "hydra")},
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(config))
    fairseq("hydra-train", "--config-dir", tmp_path, "--config-name", "mine", cwd=tmp_path)
    ours, theirs = (saved(tmp_path / name) for name in ("hydra", "cli"))
    torch.testing.assert_close(ours["model"], theirs["model"], atol=0, rtol=0)
    assert ours["cfg"]["model"]["encoder_layers"] == theirs["cfg"]["model"]["encoder_layers"] == 4
    config["model"]["encodr_layers"] = 3
    (tmp_path / "wrong.yaml").write_text(json.dumps(config))
    wrong = ["--config-dir", tmp_path, "--config-name", "wrong"]
    refused = fairseq("hydra-train", *wrong, cwd=tmp_path, check=False)
    assert refused.returncode == 1
    last = refused.stderr.strip().split("\n")[-1]
    assert last.startswith("error: Key 'encodr_layers' not in 'RobertaUnaTinyConfig'; correct")


@pytest.mark.parametrize("flag", slow_but_first(["--bf16", "--memory-efficient-bf16", "--amp"]))
def test_precisions_that_work_on_a_cpu(text_bin, tmp_path, flag):
    run(text_bin, tmp_path, 2, "masked_lm_sop_ag", flag, arch="roberta_dna_tiny")
    assert values(tmp_path, "loss")[-1] < 13
    half = torch.bfloat16 if flag.endswith("bf16") else torch.float16
    parameters = saved(tmp_path)["model"].values()  # in float32, whatever they were
    exact = all(torch.equal(parameter.to(half).float(), parameter) for parameter in parameters)
    assert exact == (flag != "--amp")


@pytest.mark.parametrize(
    ("objective", "options", "says"),
    [
        ("masked_lm", ["--fp16"], "--fp16 needs a GPU; on a CPU give --bf16"),
        ("masked_lm_ag", ["--max-positions", "32"], "up to 64 tokens, and --max-positions is 32"),
        ("masked_lm_nsp", ["--segments", "0"], "embeddings for 0; give --segments 2"),
        ("masked_lm_sop", ["--arch", "roberta_base"], "with an --arch like roberta_una_8"),
        ("replaced_token_detection", ["--arch", "roberta_base"], "a model with heads for tokens"),
        ("replaced_token_detection", ["--replace-prob", "0"], "--replace-prob is 0; give a number"),
        ("masked_lm_nsp", ["--valid-subset", "dev"], "dev.idx is not there"),
        ("masked_lm_nsp", ["--sample-break-mode", "eos"], "--sample-break-mode eos has no effect"),
        ("masked_lm_nsp", ["--criterion", "masked_lm_ag"], "is not for --task masked_lm_nsp"),
        ("replaced_token_detection", ["--criterion", "masked_lm"], "is not for --task replaced"),
        ("masked_lm_nsp", ["--criterion", "cross_entropy"], "give --criterion masked_lm_nsp"),
        (
            "masked_lm",
            ["--sample-break-mode", "eos", "--tokens-per-sample", "16"],
            "tokens, its end counted, and",
        ),
    ],
)
def test_refusals(text_bin, tmp_path, objective, options, says):
    refused = run(text_bin, tmp_path / "run", 2, objective, *options, check=False)
    assert refused.returncode == 1
    last = refused.stderr.strip().split("\n")[-1]
    assert last.startswith("error: ") and says in last


@pytest.mark.parametrize("task", ["masked_lm_nsp", "replaced_token_detection"])
def test_a_dictionary_without_a_mask_is_refused(text_bin, tmp_path, task):
    for part in text_bin.glob("*.*"):
        (tmp_path / part.name).write_bytes(part.read_bytes())
    words = tmp_path / "dict.txt"
    words.write_text(words.read_text().replace("<mask> 0\n", ""))
    refused = run(tmp_path, tmp_path / "run", 2, task, check=False)
    assert refused.returncode == 1
    last = refused.stderr.strip().split("\n")[-1]
    assert last == f"error: {words} has no <mask>; add the line '<mask> 0' at its end"


def test_a_checkpoint_knows_what_its_task_decided(text_bin, tmp_path):
    """Positions and segments, where another task would decide otherwise."""
    run(text_bin, tmp_path, 1, "masked_lm_sop", "--disable-validation")
    model = saved(tmp_path)["cfg"]["model"]
    assert (model["max_positions"], model["segments"]) == (64, 2)
    again = read(str(tmp_path / "checkpoint_last.pt"), {})
    assert again.max_positions() == 64 and again.encoder.embed_segments.num_embeddings == 2


@pytest.mark.parametrize("task", ["masked_lm", "masked_lm_sop"])
def test_an_empty_corpus_is_refused(text_bin, tmp_path, task):
    (tmp_path / "none").touch()
    made = tmp_path / "bin"
    words = ["--srcdict", text_bin / "dict.txt", "--destdir", made]
    parts = ["--trainpref", tmp_path / "none", "--validpref", tmp_path / "none"]
    fairseq("preprocess", "--only-source", *parts, *words)
    refused = run(made, tmp_path / "run", 1, task, check=False)
    assert refused.returncode == 1
    last = refused.stderr.strip().split("\n")[-1]
    assert last.startswith(f"error: {made}/valid.idx has no text; binarise some with ")


def test_training_goes_on_with_its_own_attention(text_bin, tmp_path):
    run(text_bin, tmp_path, 1, "masked_lm", "--disable-validation")
    other = run(text_bin, tmp_path, 2, "masked_lm", arch="roberta_dna_tiny", check=False)
    assert other.returncode == 1
    assert "was trained with encoder_normaliser softmax (now doubly)" in other.stderr


def read(path, overrides):
    return checkpoint_utils.load_model_ensemble([path], arg_overrides=overrides)[0][0]


def test_a_stock_checkpoint_is_read_as_ours(text_bin, tmp_path):
    sizes = "--encoder-layers 2 --encoder-embed-dim 32 --encoder-ffn-embed-dim 64".split()
    run(text_bin, tmp_path, 2, "masked_lm", *sizes, "--encoder-attention-heads", 4, arch="roberta")
    path, results = str(tmp_path / "checkpoint_last.pt"), []
    for overrides in ({}, {"_name": "roberta_una_8", "arch": "roberta_una_8"}):
        model = read(path, overrides)
        tokens = torch.tensor([[0, 9, 8, 7, 6, 2], [0, 5, 4, 2, 1, 1]])
        with torch.no_grad():
            results.append(model.eval()(tokens)[0][tokens.ne(1)])
    assert type(model).__name__ == "RobertaUna8"
    torch.testing.assert_close(*results, atol=1e-5, rtol=0)


def pretrain(text_bin, out, *arguments):
    places = ["--data", text_bin, "--out", out]
    return bash(ROOT / "scripts" / "pretrain.sh", *arguments[:1], *places, *arguments[1:])


@pytest.mark.recipe
def test_the_recipe(text_bin, tmp_path):
    done = pretrain(text_bin, tmp_path, "convergence", "--updates", 3, "--seeds", 1, "--jobs", 2)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\S+) +1 +[\d,]+ +3 ", done.stdout, re.M) == ["plain", "ag"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    for variant in ("plain", "ag"):
        start, early = (tmp_path / f"after-{share}" / variant / "seed-1" for share in (0, 1))
        assert saved(start)["optimizer_history"][-1]["num_updates"] == 1
        assert saved(early)["optimizer_history"][-1]["num_updates"] == 1
        assert (tmp_path / variant / "seed-1" / "checkpoint_last.pt").exists()
    begun = [saved(tmp_path / "after-0" / v / "seed-1")["model"] for v in ("plain", "ag")]
    torch.testing.assert_close(*begun, atol=0, rtol=0)  # nothing was learned


@pytest.mark.slow
@pytest.mark.recipe
def test_the_recipe_with_a_search_for_each_side(text_bin, tmp_path):
    """Its choice is that with the lowest loss; one that is there replaces the search."""
    arguments = ["tuned", "--updates", 6, "--seeds", 1, "--jobs", 2]
    done = pretrain(text_bin, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    searched, trained = done.stdout.split("Picture")[0].rsplit("variant", 1)
    chosen = (tmp_path / "chosen.txt").read_text()
    assert re.fullmatch(r"plain [1-4]\nag [1-4]\n", chosen)
    for side, number in map(str.split, chosen.splitlines()):
        losses = dict(re.findall(rf"^{side}-(\d) +1 +[\d,]+ +2 +([\d.]+) ", searched, re.M))
        assert len(losses) == 4 and losses[number] == min(losses.values())
        run = saved(tmp_path / side / "seed-1")["cfg"]
        assert run["optimization"]["lr"] == [5e-4 if int(number) < 3 else 1e-3]
        assert run["model"]["attention_dropout"] == (0 if int(number) < 3 else 0.1)
    assert re.findall(r"^(\S+) +1 +[\d,]+ +6 ", trained, re.M) == ["plain", "ag"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "chosen.txt").write_text("plain 4\nag 1\n")
    done = pretrain(text_bin, tmp_path / "other", *arguments)
    assert done.returncode == 0 and not (tmp_path / "other" / "search").exists()
    run = saved(tmp_path / "other" / "plain" / "seed-1")["cfg"]
    assert run["optimization"]["lr"] == [1e-3] and run["lr_scheduler"]["warmup_updates"] == 0


@pytest.mark.parametrize(
    "experiment",
    slow_but_first(["normalisers", "alternatives", "fraction", "patterns", "robustness", "tuned"]),
)
def test_every_variant_is_one_that_fairseq_takes(text_bin, tmp_path, experiment):
    """All are built before the first training; here the sweep then refuses a flag of its own."""
    done = pretrain(text_bin, tmp_path / "out", experiment, "--", "--save-dir", "x")
    assert_refused(done, "--save-dir stands in --variant")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["converge"], "The experiment is 'converge' and must be convergence, fraction"),
        (["patterns", "--size", "_9"], "--size is '_9' and must be _tiny, _8"),
        (["patterns", "--objective", "lm"], "--objective is 'lm' and must be masked_lm"),
        (["patterns", "--", "--lrr", "1"], "--lrr is no flag of this command"),
        (["patterns", "--data", "/nowhere"], "no train.idx"),
    ],
)
def test_the_recipe_refuses(text_bin, tmp_path, arguments, says):
    assert_refused(pretrain(text_bin, tmp_path / "out", *arguments), says)
    assert not (tmp_path / "out").exists()
