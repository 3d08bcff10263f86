"""Visual question answering: questions, batches, loss, accuracy, and what is refused."""

import json
import math
import pickle

import numpy as np
import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.logging import metrics
from labelled import build
from omegaconf import OmegaConf
from pictures_asked import (
    ANSWERS,
    PICTURES,
    QUESTIONS,
    VIEWS,
    WIDTH,
    make_boxes,
    make_questions,
    model_options,
    write_data,
    write_features,
    write_lines,
)

from fairseq_ext.errors import UsageError
from fairseq_ext.vqa.picture_features import PictureFeatures


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path / "data")


def new_task(folder, arch="vqa_multi_view_dna", **options):
    """A task with its model, as a training makes them."""
    task = build("vqa", folder, **options)
    task.model = task.build_model(model_options(arch))
    return task


def read(folder, split="train", **options):
    task = new_task(folder, **options)
    task.load_dataset(split)
    return task, task.dataset(split)


def test_a_batch_holds_what_the_files_say(data):
    task, dataset = read(data, "valid")
    batch = dataset.collater([dataset[5], dataset[1]])
    inputs, lines = batch["net_input"], make_questions(6)
    for row, number in enumerate((5, 1)):
        text, kind, answers = QUESTIONS[number]
        words = text.split()
        tokens = inputs["src_tokens"][row]
        assert [task.dictionary[int(token)] for token in tokens[: len(words)]] == words
        assert (tokens[len(words) :] == task.dictionary.pad()).all()
        expected = [answers.get(answer, 0.0) for answer in ANSWERS]
        assert batch["target"][row].tolist() == expected
        assert batch["kinds"][row] == kind
        assert batch["question_ids"][row] == lines[number]["question_id"]
        for place in range(len(VIEWS)):
            boxes = make_boxes(10 + place)[lines[number]["image_id"]]
            found, padding = inputs["boxes"][place][row], inputs["paddings"][place][row]
            assert torch.equal(found[~padding], torch.from_numpy(boxes))
            assert not found[padding].any() and padding.sum() == len(padding) - len(boxes)
    assert inputs["boxes"][0].dtype == torch.float16
    assert batch["target"].dtype == torch.float64
    assert (batch["nsentences"], batch["ntokens"]) == (2, int(dataset.sizes[[5, 1]].sum()))


def test_sizes_are_boxes_of_all_views(data):
    """--max-tokens counts boxes, and --max-boxes cuts each view."""
    _, dataset = read(data)
    numbers = [1 + n % PICTURES for n in range(len(dataset))]
    views = [make_boxes(place) for place in range(len(VIEWS))]
    assert dataset.sizes.tolist() == [sum(len(v[number]) for v in views) for number in numbers]
    assert [dataset.size(n) for n in range(len(dataset))] == dataset.sizes.tolist()
    _, cut = read(data, max_boxes=2)
    assert set(cut.sizes) == {6}
    batch = cut.collater([0, 1])
    for place, boxes in enumerate(batch["net_input"]["boxes"]):  # the first ones
        assert np.array_equal(boxes[0], make_boxes(place)[1][:2])
    _, one = read(data, arch="vqa_pythia")
    assert one.sizes.tolist() == [len(views[0][number]) for number in numbers]
    assert len(one.collater([0])["net_input"]["boxes"]) == 1


def test_batches_of_at_most_so_many_boxes(data):
    task, dataset = read(data)
    most = int(dataset.sizes.max())
    batches = list(task.get_batch_iterator(dataset, max_tokens=2 * most).batch_sampler)
    assert sorted(index for batch in batches for index in batch) == [*range(len(dataset))]
    assert any(len(batch) > 1 for batch in batches)
    for batch in batches:
        assert len(batch) * dataset.sizes[batch].max() <= 2 * most
    with pytest.raises(UsageError, match=f"--max-tokens is {most - 1}, and a picture of .* has"):
        task.get_batch_iterator(dataset, max_tokens=most - 1)


def test_the_order_is_new_in_every_epoch(data):
    _, dataset = read(data)
    orders = [tuple(dataset.ordered_indices())]
    for epoch in (2, 1):
        dataset.set_epoch(epoch)
        orders.append(tuple(dataset.ordered_indices()))
    assert orders[0] != orders[1] and orders[0] == orders[2]
    assert sorted(orders[1]) == [*range(len(dataset))]


def test_features_are_not_copied(data):
    """Not when they are opened, and not when a worker gets the data set."""
    _, dataset = read(data)
    assert not any(view[1].flags.owndata or view[1].flags.writeable for view in dataset.views)
    assert len(pickle.dumps(dataset.views)) < 1000


def test_long_questions_lose_their_end(data, caplog):
    caplog.set_level("INFO")
    task, dataset = read(data, max_words=2)
    words = dataset.collater([2])["net_input"]["src_tokens"][0]
    assert [task.dictionary[int(word)] for word in words] == ["what", "colour"]
    assert "10 of 12 questions (83.3%) have more than 2 words and lose their end" in caplog.text
    assert "2 of 12 questions (16.7%) have no answer that a model may give" in caplog.text


def run_criterion(task, dataset, batches, training=False):
    """The loss and logs of some batches."""
    criterion = task.build_criterion(OmegaConf.create({"_name": "vqa"}))
    task.model.train(training)
    losses, logs = [], []
    for batch in batches:
        loss, size, log = criterion(task.model, dataset.collater(batch))
        losses.append(loss)
        logs.append(log)
        assert size == len(batch)
    with metrics.aggregate(new_root=True) as logged:
        criterion.reduce_metrics(logs)
    return torch.stack(losses), logged.get_smoothed_values()


def test_loss_and_accuracy_are_the_written_out_formulas(data):
    """Over all questions and by kind, however they are divided into batches."""
    task, dataset = read(data, "valid")
    task.model.double()
    everything = dataset.collater([*range(6)])
    scores = task.model(**everything["net_input"])[0].tolist()
    loss, right = 0.0, {}
    for row, (_, kind, answers) in zip(scores, QUESTIONS, strict=True):
        for score, name in zip(row, ANSWERS, strict=True):
            p, share = 1 / (1 + math.exp(-score)), answers.get(name, 0.0)
            loss -= share * math.log(p) + (1 - share) * math.log(1 - p)
        best = max(range(len(row)), key=row.__getitem__)
        right.setdefault(kind, []).append(answers.get(ANSWERS[best], 0.0))
    expected = {
        f"accuracy_{kind.replace('/', '_')}": 100 * sum(x) / len(x) for kind, x in right.items()
    }
    expected |= {"accuracy": 100 * sum(map(sum, right.values())) / 6, "loss": loss / 6}
    for batches in ([[*range(6)]], [[0, 3], [1], [5, 2, 4]]):
        losses, logged = run_criterion(task, dataset, batches)
        assert losses.sum().item() == pytest.approx(loss, abs=1e-4)
        assert logged == pytest.approx(expected, abs=0.01)
    _, logged = run_criterion(task, dataset, [[0, 1]], training=True)
    assert {*logged} == {"loss", "accuracy"}


def test_accuracy_is_the_share_of_the_answer_given(data):
    """The accuracy of each answer in turn is found, by scores that prefer it."""
    task, dataset = read(data, "valid")
    for number, answer in enumerate(ANSWERS):
        with torch.no_grad():
            task.model.classifier.image_output.bias.fill_(-100)[number] = 100
        expected = 100 * sum(answers.get(answer, 0) for *_, answers in QUESTIONS) / len(QUESTIONS)
        assert run_criterion(task, dataset, [[*range(6)]])[1]["accuracy"] == round(expected, 2)


def test_a_question_without_a_kind_counts_in_all(data):
    lines = make_questions(6)
    for line in lines[1:]:
        del line["answer_type"]
    write_lines(data / "valid.jsonl", lines)
    _, logged = run_criterion(*read(data, "valid"), [[*range(6)]])
    assert {*logged} == {"loss", "accuracy", "accuracy_yes_no"}


def test_a_split_without_answers(data):
    """It can be answered, but not trained on."""
    task = new_task(data)
    batch = task.read_split("test", annotated=False).collater([0, 1])
    assert "target" not in batch and batch["kinds"] == ["", ""]
    with pytest.raises(UsageError, match=r"test.jsonl:1 has no 'answers', which training and"):
        task.load_dataset("test")
    with pytest.raises(UsageError, match="these questions have no answers; give a split that"):
        CRITERION_REGISTRY["vqa"](task)(task.model, batch)


def test_a_task_from_a_checkpoint_reads_no_data(data, tmp_path):
    task = new_task(data)
    state = json.loads(json.dumps(task.state_dict()))  # of plain types
    again = build("vqa", tmp_path / "nowhere", begun=False)
    again.load_state_dict(state)
    assert again.state_dict() == task.state_dict()
    with pytest.raises(UsageError, match="there is no folder .*nowhere; give the data by --data"):
        again.load_dataset("valid")


def change_lines(path, change):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    write_lines(path, lines)


LINES = {
    "a question twice": (lambda x: x.append(x[0]), "train.jsonl has question 100 twice"),
    "no words": (lambda x: x[1].update(question=" "), "train.jsonl:2 has .* as 'question'; give"),
    "no picture": (lambda x: x[1].pop("image_id"), "train.jsonl:2 has no 'image_id'"),
    "a share above 1": (
        lambda x: x[2].update(answers={"red": 2}),
        "train.jsonl:3 has {\"red\": 2} as 'answers'; give answers with their accuracy",
    ),
    "another picture set": (
        lambda x: x[0].update(image_id=77),
        r"train.jsonl asks about picture 77, which .*train.first.npy does not have "
        r"\(1 of 5 pictures",
    ),
    "no line": (lambda x: x.clear(), "train.jsonl is empty"),
    "257 kinds": (
        lambda x: x.extend(
            {**x[0], "question_id": 1000 + n, "answer_type": f"kind {n}"} for n in range(257)
        ),
        r"train.jsonl:\d+ has the 257th 'answer_type'; give 256 at most",
    ),
    "answers of another vocabulary": (
        lambda x: [line.update(answers={"x": 1.0}) for line in x],
        "no question of .*train.jsonl has an answer of answers.txt",
    ),
}


@pytest.mark.parametrize("case", LINES)
def test_questions_that_are_refused(data, case):
    change, says = LINES[case]
    change_lines(data / "train.jsonl", change)
    with pytest.raises(UsageError, match=says):
        read(data)


def remove(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def widen(folder):
    write_features(folder / "train.second", make_boxes(1, width=WIDTH + 2))


def damage(path):
    path.write_bytes(path.read_bytes().replace(b"}", b"{", 1))


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


FOLDERS = {
    "no answers": (remove("answers.txt"), {}, "answers.txt is not there; prepare the data with"),
    "no words": (remove("dict.txt"), {}, "dict.txt is missing"),
    "no views": (remove("views.txt"), {}, "views.txt is not there"),
    "an answer twice": (write("answers.txt", "no\nyes\nno\n"), {}, "has 'no' 2 times"),
    "empty views": (write("views.txt", ""), {}, "views.txt is empty"),
    "a detector missing": (remove("train.third.npy"), {}, "train.third.npy is missing"),
    "boxes of another width": (
        widen,
        {},
        r"different widths \(first has 6, second has 8, third has 6\), .*; give --views of one",
    ),
    "cut short": (write("train.first.npy", "x"), {}, "train.first.npy is cut short or damaged"),
    "a damaged header": (
        lambda folder: damage(folder / "train.first.pictures.npy"),
        {},
        "train.first.pictures.npy is cut short or damaged",
    ),
    "an unknown view": (
        lambda folder: None,
        {"views": "first,fourth"},
        "--views is first,fourth; give .* which has first, second, third",
    ),
    "a view twice": (lambda folder: None, {"views": "first,first"}, "--views is first,first"),
    "one view": (
        lambda folder: None,
        {"views": "second"},
        "--arch vqa_multi_view_dna needs two detectors or more, and there is second alone",
    ),
    "two views for a model of one": (
        lambda folder: None,
        {"views": "first,second", "arch": "vqa_pythia"},
        "--arch vqa_pythia reads one detector, and --views is first,second; give one",
    ),
    "no boxes": (lambda folder: None, {"max_boxes": 0}, "--max-boxes is 0; give a"),
    "vectors of a file that is not there": (
        lambda folder: None,
        {"word_vectors": "nowhere/glove.txt", "save_dir": ".", "restore_file": "none"},
        "there is no folder nowhere",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders_that_are_refused(data, case):
    change, options, says = FOLDERS[case]
    change(data)
    with pytest.raises(UsageError, match=says):
        read(data, **options)


def test_views_are_read_in_the_order_given(data):
    task, dataset = read(data, views="third,first")
    assert task.views == ["third", "first"]
    assert [view.prefix.name for view in dataset.views] == ["train.third", "train.first"]


def test_features_unlike_the_model_s(data):
    """Another width in one split, and other words or answers than those it was trained with."""
    task = new_task(data)
    write_features(data / "valid.first", make_boxes(1, width=WIDTH + 1))
    with pytest.raises(UsageError, match="valid.first.npy has boxes of 7 features, and the model"):
        task.load_dataset("valid")
    for name, what in (("answers.txt", "answers"), ("dict.txt", "words")):
        with (data / name).open("a") as file:
            file.write("green 1\n")
        with pytest.raises(UsageError, match=f"has other {what} .* than the data that the model"):
            task.load_dataset("train")
        write_data(data)


STATES = {
    "answers": (["no"], "other answers .answers.txt. than now .yes, now nothing"),
    "views": (["first", "x"], r"other detectors .*\(x, now second\)"),
    "width": (7, r"other widths of features than now \(6, now 7\)"),
    "model_options": ({"multi_view_normaliser": "softmax"}, r"multi-view .*doubly, now softmax"),
    "max_boxes": (9, r"other --max-boxes than now \(100, now 9\)"),
}


@pytest.mark.parametrize("name", STATES)
def test_a_training_is_not_continued_with_something_else(data, name):
    task = new_task(data)
    state, (value, says) = task.state_dict(), STATES[name]
    if name == "model_options":
        value = {**task.model_options, **value}
    if name == "views":
        state, value = {**state, "views": ["first", "x", "third"]}, task.views
    setattr(task, name, value)
    with pytest.raises(UsageError, match=says):
        task.load_state_dict(state)


def test_other_models_and_criterions(data):
    task = new_task(data)
    with pytest.raises(UsageError, match="--arch roberta_una_tiny does not answer questions"):
        task.build_model(OmegaConf.create({"_name": "roberta_una_tiny"}))
    with pytest.raises(UsageError, match="--criterion cross_entropy is not for --task vqa"):
        task.build_criterion(OmegaConf.create({"_name": "cross_entropy"}))
    other = OmegaConf.create({"cfg": {"_name": "translation"}})
    with pytest.raises(UsageError, match="--criterion vqa needs --task vqa, not translation"):
        CRITERION_REGISTRY["vqa"](other)
    with pytest.raises(UsageError, match="--arch vqa_pythia answers questions on pictures; give"):
        type(task.model).build_model(OmegaConf.create({"_name": "vqa_pythia"}), other)


def test_word_vectors(data, tmp_path):
    (tmp_path / "glove.txt").write_text("red 1 2 3 4 5\nelephant 0 0 0 0 0\n")
    files = {"save_dir": str(tmp_path), "restore_file": "checkpoint_last.pt"}
    task = new_task(data, word_vectors=str(tmp_path / "glove.txt"), **files)
    row = task.model.question.embed_tokens.weight[task.dictionary.index("red")]
    assert row.tolist() == [1, 2, 3, 4, 5]


def test_half_of_the_pictures_is_enough(data):
    """Features of pictures that no question is about do no harm."""
    write_features(data / "train.first", make_boxes(0, pictures=2 * PICTURES))
    _, dataset = read(data)
    assert len(PictureFeatures(data / "train.first")) == 2 * PICTURES
    assert np.array_equal(dataset.collater([0])["net_input"]["boxes"][0][0], make_boxes(0)[1])
