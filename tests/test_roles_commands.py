"""Roles that need parses, through fairseq's commands."""

import json
import shutil
import subprocess
from argparse import Namespace

import pytest
from conftest import PLUGIN, ROOT, TASK, TRAIN, fairseq, train
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from shell import assert_refused, bash

from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import default_options
from fairseq_ext.prepare import word_vocabulary
from fairseq_ext.tasks.sentences import SentenceClassificationTask, SentenceConfig

ROLES = ["--encoder-roles", "dependency,major,relative"]
PARSED = ["--task", "translation_roles"]
GENERATE = ["--user-dir", PLUGIN, *TASK, "--beam", 2, "--max-tokens", 2000, "--max-len-b", 12]
VALID = ["--gen-subset", "valid"]


def conllu(lines):
    """Every word depends on the one before it; every third one is an object."""
    found = []
    for line in lines:
        for place, word in enumerate(line.split()):
            relation = "root" if not place else "obj" if place % 3 == 2 else "dep"
            found.append(f"{place + 1}\t{word}\t_\t_\t_\t_\t{place}\t{relation}\t_\t_")
        found.append("")
    return "\n".join([*found, ""])


def annotate(data, split, *flags, lang=("--lang", "de")):
    verb = ["python", "-m", "fairseq_ext.cli", "annotate"]
    given = [*verb, data, "--split", split, *lang, *flags]
    return subprocess.run([*map(str, given)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def annotated(data_bin, real_lines, tmp_path_factory):
    """The data with annotations of the source."""
    folder = tmp_path_factory.mktemp("annotated")
    data = shutil.copytree(data_bin, folder / "data-bin")
    for split in ("train", "valid", "test"):
        parses = folder / f"{split}.conllu"
        parses.write_text(conllu((real_lines / f"{split}.de").read_text("utf-8").split("\n")[:-1]))
        done = annotate(data, split, "--conllu", parses)
        assert done.returncode == 0, done.stderr
    return data


@pytest.fixture(scope="module")
def checkpoint(annotated, tmp_path_factory):
    folder = tmp_path_factory.mktemp("roles")
    return train(annotated, "transformer_roles_tiny", folder, 20, *ROLES, *PARSED, "--head-gate")


LABELLED = {
    "train": [("the dog runs .", "a"), ("a cat sees the big dog", "b"), ("dogs run", "a")] * 7,
    "valid": [("the cat runs", "a"), ("a dog sees a cat .", "b"), ("the big cat sees dogs", "b")],
}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Labelled text with a vocabulary of its words and annotations."""
    folder = tmp_path_factory.mktemp("labelled")
    data = folder / "data"
    data.mkdir()
    for split, examples in LABELLED.items():
        lines = [json.dumps({"text": text, "label": label}) for text, label in examples]
        (data / f"{split}.jsonl").write_text("\n".join([*lines, ""]))
    word_vocabulary.main([str(data)])
    for split, examples in LABELLED.items():
        parses = folder / f"{split}.conllu"
        parses.write_text(conllu([text for text, _ in examples]))
        done = annotate(data, split, "--conllu", parses, lang=())
        assert done.returncode == 0, done.stderr
    return data


CLASSIFY = [
    *("--user-dir", PLUGIN, "--task", "sentence_classification", "--cpu", "--seed", 1),
    *("--criterion", "sentence_classification", "--arch", "roberta_roles_tiny", "--num-workers", 0),
    *("--optimizer", "adam", "--lr", 1e-3, "--batch-size", 4, "--max-update", 6),
    *("--encoder-roles", "major,dependency,rare", "--pooling", "mean"),
]


def test_labelled_text_needs_no_other_task(labelled, tmp_path):
    given = [labelled, *CLASSIFY, "--save-dir", tmp_path]
    done = fairseq("train", *given, "--folds", 3, "--fold", 2)
    assert "done training" in done.stdout
    (tmp_path / "checkpoint_last.pt").unlink()
    fairseq("train", *given)
    verb = ["python", "-m", "fairseq_ext.cli", "predict", tmp_path / "checkpoint_last.pt"]
    done = subprocess.run([*map(str, verb)], input="a dog\n", capture_output=True, text=True)
    said = done.stderr.split("\n")[-2]
    assert (
        done.returncode == 1 and "trained with roles that need parses (dependency, major)" in said
    )
    assert "with fairseq-validate" in said and "--model-overrides" not in said
    shutil.rmtree(shutil.copytree(labelled, tmp_path / "bare") / "train.annotations")
    done = fairseq("train", tmp_path / "bare", *given[1:], check=False)
    assert done.returncode == 1 and "fairseq-ext annotate" in done.stderr


def begun(*given):
    """The task of fairseq-train with these arguments, which has built its model."""
    args = options.parse_args_and_arch(options.get_training_parser(), [*map(str, given)])
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    task.build_model(cfg.model)
    return task


def other_vocabulary(folder, data):
    """Words of two examples alone."""
    (folder / "other").mkdir()
    two = (data / "train.jsonl").read_text().split("\n")[:2]
    (folder / "other" / "train.jsonl").write_text("\n".join([*two, ""]))
    word_vocabulary.main([str(folder / "other")])
    return ["--vocabulary", folder / "other"]


@pytest.mark.parametrize("lacking", ["vocabulary", "valid"])
def test_annotations_are_read_for_roles_that_need_them(labelled, tmp_path, lacking):
    """Other encoders train on the same folder, whatever it is annotated for."""
    data = shutil.copytree(labelled, tmp_path / "data")
    given, says = [data, *CLASSIFY[2:]], "valid.annotations"  # the plugin is loaded here
    if lacking == "valid":
        shutil.rmtree(data / "valid.annotations")
    else:
        given, says = [*given, *other_vocabulary(tmp_path, data)], "made with another dictionary"
    for role in ("none", "rare"):
        plain = begun(*given, "--arch", "roberta_una_tiny", "--encoder-roles", role)
        for split in ("train", "valid"):
            plain.load_dataset(split)
            batch = plain.dataset(split).collater([plain.dataset(split)[0]])
            assert "annotations" not in batch["net_input"]
    parsed = begun(*given)
    with pytest.raises(UsageError, match=says):
        for split in ("train", "valid"):
            parsed.load_dataset(split)


def test_a_batch_has_the_annotations_of_its_examples(labelled):
    """In each fold."""
    for fold in (1, 2, 3):
        cfg = Namespace(data=str(labelled), folds=3, fold=fold, vocabulary=None, pretrained=None)
        vars(cfg).update(tokens_per_sample=9, strict=False, seed=1, freeze_encoder=False)
        vars(cfg).update(pooling="mean", train_subset="train")
        vars(cfg).update(default_options(SentenceConfig) | vars(cfg))
        task = SentenceClassificationTask(cfg)
        task.begin()
        for split in ("train", "valid"):
            task.load_dataset(split)
            made = task.dataset(split)
            for place in range(len(made)):
                text = made[place][1].example.values["text"].split()
                found = made.collater([made[place]])["net_input"]["annotations"][0]
                kept = min(len(text), 7)
                assert found[1 : kept + 1, 0].tolist() == list(range(kept))
                assert found[1 : kept + 1, 1].tolist() == list(range(-1, kept - 1))
                assert found[[0, -1]].tolist() == [[-1, -1, 0]] * 2


@pytest.mark.parametrize("lacking", ["binarised", "annotations of all"])
def test_texts_that_have_no_annotations_of_their_own(annotated, tmp_path, lacking):
    says, flags = r"valid.de-en.de.idx is not there, and --task translation_roles", [*PARSED]
    data = shutil.copytree(annotated, tmp_path / "data")
    if lacking == "binarised":
        flags += ["--dataset-impl", "raw"]
        for file in data.glob("valid.*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        for language in ("de", "en"):
            (data / f"valid.de-en.{language}").write_text("a b\n")
    else:
        says = r"valid.de-en.de.annotations is of 100 sentences, and valid has 200 \(fairseq joins"
        flags += ["--upsample-primary", "1"]  # fairseq's default, -1, joins nothing
        for file in data.glob("valid.*.*.*"):
            if file.is_file():
                shutil.copy(file, data / file.name.replace("valid.", "valid1."))
    given = [data, "-s", "de", "-t", "en", *flags]
    args = options.parse_args_and_arch(options.get_generation_parser(), [*map(str, given)])
    task = tasks.setup_task(convert_namespace_to_omegaconf(args).task)
    with pytest.raises(UsageError, match=says):
        task.load_dataset("valid", combine=True)


def scores(done):
    return [line for line in done.stdout.split("\n") if line.startswith("H-")]


@pytest.mark.slow
def test_masks_hold_in_generation_and_can_be_turned_off(checkpoint, annotated):
    """The model is asked about the same sentences with and without what guided it."""
    path = ["--path", checkpoint, *VALID]
    guided = scores(fairseq("generate", annotated, *GENERATE, *path, *PARSED))
    alone = scores(fairseq("generate", annotated, *GENERATE, *path, *PARSED, "--batch-size", 1))
    free = ["--model-overrides", "{'encoder_roles': 'none,none,none'}"]
    unguided = scores(fairseq("generate", annotated, *GENERATE, *path, *free))
    assert len(guided) == len(unguided) == 100
    numbers = [
        {line.split("\t")[0]: float(line.split("\t")[1]) for line in x} for x in (guided, alone)
    ]
    assert numbers[0] == pytest.approx(numbers[1], abs=2e-4)
    assert sorted(guided) != sorted(unguided)


def test_what_has_no_parse_is_refused(checkpoint, annotated, data_bin, tmp_path):
    path = ["--path", checkpoint]
    done = fairseq("generate", annotated, *GENERATE, *path, check=False)
    assert done.returncode == 1 and "--task translation_roles" in done.stderr.split("\n")[-2]
    done = fairseq("generate", data_bin, *GENERATE, *path, *PARSED, check=False)
    assert done.returncode == 1 and "test.de-en.de.annotations" in done.stderr.split("\n")[-2]
    sentences = tmp_path / "sentences"
    sentences.write_text("ein hund läuft .\n")
    typed = ["--input", sentences, *GENERATE, *path]
    done = fairseq("interactive", annotated, *typed, *PARSED, check=False)
    assert done.returncode == 1 and "typed in are not parsed" in done.stderr.split("\n")[-2]
    free = ["--model-overrides", "{'encoder_roles': 'none,none,relative'}"]
    assert len(scores(fairseq("interactive", annotated, *typed, *free))) == 1


def test_a_run_goes_on_only_with_its_roles(checkpoint, annotated):
    common = [*TRAIN, *PARSED, "--arch", "transformer_roles_tiny", "--save-dir", checkpoint.parent]
    for flags, said in [
        (["--encoder-roles", "rare", "--head-gate"], "(now rare)"),
        (ROLES, "head_gate static (now none)"),
    ]:
        done = fairseq("train", annotated, *common, "--max-update", 21, *flags, check=False)
        assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1
    done = fairseq("train", annotated, *common, "--max-update", 21, *ROLES, "--head-gate")
    assert '"encoder3_gate3": ' in done.stdout


def translate(data, out, *more):
    given = ["--data", data, "--out", out, "--seeds", 1, "--updates", 2, *more]
    given += ["--roles", "dependency,relative", "--", "--cpu", "--max-tokens", 600]
    return bash(ROOT / "scripts" / "roles.sh", "translate", *given)


@pytest.mark.recipe
@pytest.mark.slow
def test_the_recipe_of_translation_reads_parses(annotated, real_lines, tmp_path):
    """All of its models are of one task."""
    data = shutil.copytree(annotated, tmp_path / "data")
    (data / "text").mkdir()
    shutil.copy(real_lines / "test.en", data / "text")
    done = translate(data, tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    names = {"transformer", "roles", "training-only"}
    assert {line.split(" ")[0] for line in done.stdout.split("\n")} >= names
    output = {name: tmp_path / "out" / name / "seed-1" / "generate-test.txt" for name in names}
    assert output["roles"].read_text() != output["training-only"].read_text()
    (parses,) = data.glob("test.*.annotations")
    shutil.rmtree(parses)
    done = translate(data, tmp_path / "more")
    assert_refused(done, "'dependency,relative'", "no annotations of its test part")
    assert not (tmp_path / "more").exists()
