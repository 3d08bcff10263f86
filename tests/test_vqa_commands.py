"""Visual question answering by commands: train, resume, validate, predict, columns, weights."""

import json
import re
import shlex
import shutil

import pytest
import torch
from conftest import PLUGIN, ROOT, fairseq, train_in_two_processes
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from pictures_asked import (
    ANSWERS,
    FLAGS,
    SIZES,
    VIEWS,
    make_boxes,
    make_questions,
    write_data,
    write_features,
    write_lines,
)

from fairseq_ext import cli
from fairseq_ext.errors import UsageError

ARCH = ["--arch", "vqa_multi_view_hna"]
TRAIN = ["--user-dir", PLUGIN, *FLAGS]


def train(data, folder, *flags, arch=ARCH, **options):
    return fairseq("train", data, *TRAIN, *arch, "--save-dir", folder, *flags, **options)


def read_state(path):
    return torch.load(path, weights_only=False)  # the options of adamax are a Namespace


def read_parameters(path):
    return read_state(path)["model"]


def updates(output, kind="train_inner"):
    """The values that fairseq-train has logged, one mapping for each line."""
    return [json.loads(line) for line in re.findall(rf"\| {kind} \| (\{{.*\}})", output)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("vqa") / "data")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """A run of five updates with its log; an epoch has three."""
    folder = tmp_path_factory.mktemp("run") / "hna" / "seed-1"
    best = ["--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric"]
    saved = ["--save-interval-updates", 2, "--max-update", 5]
    done = train(data, folder, *best, *saved)
    (folder / "train.log").write_text(done.stdout + done.stderr, "utf-8")
    return folder


@pytest.fixture(scope="module")
def checkpoint(run):
    return run / "checkpoint_last.pt"


def test_accuracy_and_the_hybrid_weight_are_logged(run):
    log = (run / "train.log").read_text()
    logged = [float(line["views0_u"]) for line in updates(log)]
    offset = read_parameters(run / "checkpoint_last.pt")["views.normaliser.offset"]
    assert logged[-1] == pytest.approx(offset.sigmoid().item(), abs=1e-4)
    assert len({*logged}) == 5
    *_, last = updates(log, "valid")
    for kind in ("", "_number", "_other", "_yes_no"):
        assert 0 <= float(last[f"valid_accuracy{kind}"]) <= 100
    state = read_state(run / "checkpoint_best.pt")
    best = max(float(line["valid_accuracy"]) for line in updates(log, "valid"))
    assert state["extra_state"]["best"] == pytest.approx(best, abs=0.01)


def test_an_interrupted_training_goes_on_to_the_same_parameters(data, run, tmp_path):
    """A training resumed from the middle of an epoch is the same to the bit."""
    shutil.copy(run / "checkpoint_1_2.pt", tmp_path / "checkpoint_last.pt")
    done = train(data, tmp_path, "--max-update", 5)
    assert [line["num_updates"] for line in updates(done.stdout + done.stderr)] == ["3", "4", "5"]
    ours, whole = (read_parameters(f / "checkpoint_last.pt") for f in (tmp_path, run))
    torch.testing.assert_close(ours, whole, atol=0, rtol=0)


def test_batches_of_several_steps_are_one_batch(data, tmp_path):
    """The loss is a mean over questions; so are the gradients of --update-freq."""
    common = ["--max-update", 1, "--required-batch-size-multiple", 1, "--disable-validation"]
    train(data, tmp_path / "one", *common, "--batch-size", 12)
    train(data, tmp_path / "three", *common, "--update-freq", 3)
    ours, whole = (read_parameters(tmp_path / f / "checkpoint_last.pt") for f in ("three", "one"))
    torch.testing.assert_close(ours, whole, atol=1e-5, rtol=1e-4)


@pytest.mark.processes
@pytest.mark.slow
def test_two_processes_equal_one(data, tmp_path):
    common = [*TRAIN, *ARCH, "--max-update", 2, "--required-batch-size-multiple", 1]
    fairseq("train", data, *common, "--batch-size", 12, "--save-dir", tmp_path / "one")
    flags = [flag for flag in common if flag != "--cpu"]
    where = ["--batch-size", 6, "--save-dir", tmp_path / "two"]
    train_in_two_processes(data, *flags, *where)
    ours, whole = (read_parameters(tmp_path / f / "checkpoint_last.pt") for f in ("two", "one"))
    torch.testing.assert_close(ours, whole, atol=1e-5, rtol=1e-4)


def test_16_bits_and_batches_by_boxes(data, tmp_path):
    flags = ["--bf16", "--max-tokens", 40, "--batch-size", 3, "--max-update", 2]
    done = train(data, tmp_path, *flags, arch=["--arch", "vqa_concat"])
    losses = [float(line["loss"]) for line in updates(done.stdout + done.stderr)]
    assert len(losses) == 2 and all(0 < loss < 10 for loss in losses)
    sizes = [float(line["bsz"]) for line in updates(done.stdout + done.stderr)]
    assert max(sizes) <= 3


def test_validation_of_a_checkpoint(data, checkpoint, run):
    """The accuracy is that of the training's own validation, however batches are made."""
    *_, last = updates((run / "train.log").read_text(), "valid")
    for batches in (["--batch-size", 1], ["--max-tokens", 60]):
        done = fairseq(
            *("validate", data, "--user-dir", PLUGIN, "--task", "vqa", "--path", checkpoint),
            *("--cpu", "--num-workers", 0, *batches),
        )
        line = (done.stdout + done.stderr).splitlines()[-1]
        for name in ("accuracy", "accuracy_number", "accuracy_other", "loss"):
            value = float(re.search(rf"\| {name} (\S+)", line)[1])
            assert value == pytest.approx(float(last[f"valid_{name}"]), abs=0.01)


@pytest.mark.parametrize("size", [2, 32])
def test_predict_writes_what_the_server_takes(data, checkpoint, tmp_path, size):
    out = tmp_path / "results.json"
    sizes = ["--batch-size", str(size)]
    cli.main(["predict", str(checkpoint), "--split", "test", "--output", str(out), "--cpu", *sizes])
    results = json.loads(out.read_text("utf-8"))
    (model,), _, task = load_model_ensemble_and_task([str(checkpoint)])
    dataset = task.read_split("test", annotated=False)
    model.eval()
    expected = []
    for number, line in enumerate(make_questions(SIZES["test"])):
        best = model(**dataset.collater([number])["net_input"])[0].argmax()
        expected.append({"question_id": line["question_id"], "answer": ANSWERS[best]})
    assert results == expected


def test_predict_from_another_folder(data, checkpoint, tmp_path, capsys):
    moved = shutil.copytree(data, tmp_path / "moved")
    write_lines(moved / "test.jsonl", make_questions(1, annotated=False, first=7))
    cli.main(["predict", str(checkpoint), "--split", "test", "--data", str(moved)])
    (result,) = json.loads(capsys.readouterr().out)
    assert result["question_id"] == 7 and result["answer"] in ANSWERS


PREDICTIONS = {
    "no split": ([], "answers questions about pictures; give --split, such as test"),
    "text": (["--split", "test", "--input", "x"], "--input is for models of text, and"),
    "json": (["--split", "test", "--json"], "--json is for models of text"),
    "right": (["--split", "test", "--right"], "--right is for models of text"),
    "an unknown split": (["--split", "dev"], "dev.jsonl is not there"),
    "another folder": (["--split", "test", "--data", "nowhere"], "there is no folder nowhere"),
}


@pytest.mark.parametrize("case", PREDICTIONS)
def test_predictions_that_are_refused(checkpoint, case):
    flags, says = PREDICTIONS[case]
    with pytest.raises(UsageError, match=says):
        cli.main(["predict", str(checkpoint), *flags])


def test_columns_count_boxes_that_are_explained_away(data, checkpoint, tmp_path, capsys):
    """Against a count over single pictures; test has no answers."""
    out = tmp_path / "out"
    flags = ["--epsilon", "0.9", "--max-tokens", "30"]
    cli.main(["columns", str(checkpoint), "--split", "test", "--out", str(out), *flags])
    rows = json.loads((out / "column_sums.json").read_text())["rows"]
    assert [(row["site"], row["layer"], row["head"]) for row in rows] == [
        *(("views", 0, 0), ("views", 1, 0)),
    ]
    (model,), _, _ = load_model_ensemble_and_task([str(checkpoint)])
    views = [make_boxes(20 + place) for place in range(len(VIEWS))]
    for row in rows:
        sums = []
        for question in make_questions(SIZES["test"]):
            boxes = [torch.tensor(view[question["image_id"]]).float()[None] for view in views]
            weights = model.views.weights(boxes[0], boxes[1 + row["layer"]])
            sums += weights[0, 0].sum(0).tolist()
        assert row["keys"] == len(sums)
        assert row["explained_away"] == pytest.approx(sum(x < 0.9 for x in sums) / len(sums))
    assert "over 2 heads of multi-view attention" in capsys.readouterr().out


def test_columns_of_some_questions(checkpoint, data, tmp_path):
    cli.main(["columns", str(checkpoint), "--limit", "1", "--out", str(tmp_path / "out")])
    rows = json.loads((tmp_path / "out" / "column_sums.json").read_text())["rows"]
    assert [row["keys"] for row in rows] == [len(make_boxes(10 + place)[1]) for place in (1, 2)]
    with pytest.raises(UsageError, match="--max-tokens is 5 and valid has pictures of 1. boxes"):
        cli.main(["columns", str(checkpoint), "--max-tokens", "5", "--out", str(tmp_path / "x")])
    with pytest.raises(UsageError, match="checkpoint_last has no encoder self-attention; give"):
        cli.main(["columns", str(checkpoint), "--site", "encoder", "--out", str(tmp_path / "x")])


def test_weights_over_a_training(run, tmp_path):
    cli.main(["weights", str(run), "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "weights.json").read_text())["rows"]
    assert {(row["site"], row["kind"], row["layer"]) for row in rows} == {("views", "u", 0)}
    assert [row["update"] for row in rows] == [1, 2, 3, 4, 5, None]
    offset = read_parameters(run / "checkpoint_last.pt")["views.normaliser.offset"]
    assert rows[-1]["value"] == pytest.approx(offset.sigmoid().item())
    assert (tmp_path / "weights_u.png").stat().st_size > 1000


def test_other_verbs_refuse_such_a_checkpoint(checkpoint, tmp_path):
    with pytest.raises(UsageError, match="is a vqa_multi_view_hna, whose maps cannot be had"):
        cli.main(["heads", str(checkpoint), "--out", str(tmp_path)])


def test_the_recipe_of_the_page_trains(data, tmp_path):
    """The page's flags train a small model; the rate rises from 0.002 to 0.01 in 1,000 updates."""
    page = (ROOT / "docs" / "vqa.md").read_text("utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^fairseq-train (.*)$", page, re.M)
    flags = shlex.split(line)
    (tmp_path / "glove.txt").write_text("red 1 2 3 4 5\n")
    changed = {
        "data-bin/vqa3": data,
        "glove.6B.300d.txt": tmp_path / "glove.txt",
        "checkpoints/vqa/hna": tmp_path,
        "12000": 2,
    }
    assert set(changed) < set(flags)
    kept = [changed.get(flag, flag) for flag in flags]
    small = FLAGS[FLAGS.index("--log-format") :]
    done = fairseq("train", *kept, *small, "--cpu", "--num-workers", 0)
    rates = [float(each["lr"]) for each in updates(done.stdout + done.stderr)]
    assert rates == pytest.approx([0.002 + 0.008 * n / 1000 for n in (1, 2)], rel=1e-4)
    assert (tmp_path / "checkpoint_best.pt").is_file()


def test_hydra(data, tmp_path):
    (tmp_path / "mine.yaml").write_text(f"""
common: {{user_dir: {PLUGIN}, cpu: true}}
task: {{_name: vqa, data: {data}, views: "third,second"}}
model: {{_name: vqa_multi_view_dna, encoder_embed_dim: 4, question_hidden_size: 4,
  attention_hidden_size: 4, fusion_hidden_size: 4, answer_image_hidden_size: 4}}
criterion: {{_name: vqa}}
dataset: {{batch_size: 4, num_workers: 0}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
optimization: {{lr: [0.001], max_update: 1}}
checkpoint: {{save_dir: {tmp_path}}}
""")
    args = ["--config-dir", tmp_path, "--config-name", "mine", f"hydra.run.dir={tmp_path}"]
    fairseq("hydra-train", *args)
    saved = read_state(tmp_path / "checkpoint_last.pt")
    assert saved["cfg"]["model"]["multi_view_normaliser"] == "doubly"
    assert saved["task_state"]["views"] == ["third", "second"]


def test_what_a_user_sees_of_a_refusal(data, run, tmp_path):
    """Other attention, other features and a detector too few are refused at the start."""
    shutil.copy(run / "checkpoint_last.pt", tmp_path)
    wide = shutil.copytree(data, tmp_path / "wide")
    for place, view in enumerate(VIEWS):
        for split in ("train", "valid"):
            write_features(wide / f"{split}.{view}", make_boxes(place, width=8))
    cases = [
        (data, ["--arch", "vqa_multi_view_dna"], "other options of multi-view attention than now"),
        (wide, ARCH, "other widths of features than now (6, now 8); go on with the same"),
        (data, [*ARCH, "--views", "first"], "needs two detectors or more, and there is first alo"),
    ]
    for folder, flags, says in cases:
        done = train(folder, tmp_path, arch=flags, check=False)
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith("error: ") and says in last
