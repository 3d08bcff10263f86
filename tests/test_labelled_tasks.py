"""Tasks on labelled text: what a model reads, learns and says, and what is refused."""

import logging
import math
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from labelled import (
    HIDDEN,
    WORDS,
    batch_of,
    build,
    items_of,
    rows_of,
    task_on,
    write_encoder,
    write_examples,
    write_vocabulary,
)
from omegaconf import OmegaConf
from saved_state import save_state

from fairseq_ext import safe_loading
from fairseq_ext.data.examples import Example
from fairseq_ext.data.rows import IGNORED
from fairseq_ext.errors import UsageError
from fairseq_ext.prepare import byte_bpe

SENTENCES = [{"text": "the cats", "label": "b"}, {"text": "", "label": "a"}]
PAIRS = [
    {"text": "the cat", "pair": "a dog", "label": "b"},
    {"text": "ran !", "pair": "", "label": "a"},
]
CHOICES = [
    {"text": "the cat sat", "question": "ran ?", "choices": ["the dog", "a cat"], "label": 1},
    {"text": "a dog", "choices": ["sat", "ran"], "label": 0},
]
TAGGED = [
    {"words": ["cats", HIDDEN, "ran", "the", "dogs"], "tags": "B-x O O B-y I-y".split()},
    {"words": ["sat"], "tags": ["O"]},
]
PASSAGE = "the cat sat . a dog ran !"
ASKED = {
    "text": PASSAGE,
    "question": "the cat ?",
    "answers": [{"text": "dog ran", "start": PASSAGE.index("dog")}, {"text": "the", "start": 0}],
}
SPANS = [ASKED, {"text": "a cat", "question": "ran", "answers": []}]
EVERY = {
    "sentence_classification": SENTENCES,
    "sentence_regression": [
        {"text": "the cat", "pair": "a dog", "label": 1},
        {"text": "ran", "pair": "sat", "label": 2.5},
    ],
    "multiple_choice": CHOICES,
    "sequence_tagging": TAGGED,
    "span_extraction": SPANS,
}


# Sentences and pairs.


def test_sentences(tmp_path):
    task = task_on("sentence_classification", tmp_path, SENTENCES)
    one, other = items_of(task)
    assert task.labels == ["a", "b"] and task.dataset("train").seed == task.cfg.seed == 1
    assert rows_of(task, one) == ["<s> the cat ##s </s>"] and one.target == 1
    assert rows_of(task, other) == ["<s> </s>"] and other.target == 0


@pytest.mark.parametrize(
    "criterion", ["cross_entropy", "masked_lm", "sentence_prediction", "sequence_tagging"]
)
def test_criterions_of_other_tasks_are_refused(tmp_path, criterion):
    task = task_on("sentence_classification", tmp_path, SENTENCES)
    with pytest.raises(UsageError, match=f"--criterion {criterion} is not for --task sentence_cl"):
        task.build_criterion(Namespace(_name=criterion))


def test_pairs(tmp_path):
    task = task_on("sentence_classification", tmp_path, PAIRS)
    one, other = items_of(task)
    assert rows_of(task, one) == ["<s> the cat </s> </s> a dog </s>"]
    assert rows_of(task, other) == ["<s> ran ! </s> </s> </s>"]
    assert "segments" not in batch_of(task)["net_input"]


def test_pairs_for_an_encoder_with_segments(tmp_path):
    path = write_encoder(tmp_path / "bert.pt", segments=2)
    task = task_on("sentence_classification", tmp_path, PAIRS, pretrained=path)
    assert [rows_of(task, item) for item in items_of(task)] == [
        ["<s> the cat </s> a dog </s>"],
        ["<s> ran ! </s> </s>"],
    ]
    segments = batch_of(task)["net_input"]["segments"]
    assert segments.tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 0, 0]]


def test_pairs_apart(tmp_path):
    task = task_on("sentence_classification", tmp_path, PAIRS, pairs="apart")
    assert [rows_of(task, item) for item in items_of(task)] == [
        ["<s> the cat </s>", "<s> a dog </s>"],
        ["<s> ran ! </s>", "<s> </s>"],
    ]
    batch = batch_of(task)
    assert batch["counts"].tolist() == [2, 2] and batch["target"].tolist() == [1, 0]


def test_numbers(tmp_path):
    task = task_on("sentence_regression", tmp_path, EVERY["sentence_regression"])
    assert task.labels == [] and batch_of(task)["target"].tolist() == [1.0, 2.5]
    assert task.read_answers(torch.tensor([[0.5], [-2.0]]), {}) == [{"score": 0.5}, {"score": -2.0}]


def test_what_a_classifier_says(tmp_path):
    task = task_on("sentence_classification", tmp_path, SENTENCES)
    scores = torch.tensor([[0, math.log(3)], [math.log(4), 0]])
    one, other = task.read_answers(scores, batch_of(task))
    assert (one["label"], other["label"]) == ("b", "a")
    assert (one["probability"], other["probability"]) == pytest.approx((0.75, 0.8))
    assert one["probabilities"] == pytest.approx({"a": 0.25, "b": 0.75})


# Choices.


def test_choices(tmp_path):
    task = task_on("multiple_choice", tmp_path, CHOICES)
    one, other = items_of(task)
    start = "<s> the cat sat </s> </s> ran ?"
    assert rows_of(task, one) == [f"{start} the dog </s>", f"{start} a cat </s>"]
    assert rows_of(task, other) == [f"<s> a dog </s> </s> {word} </s>" for word in ("sat", "ran")]
    batch = batch_of(task)
    assert batch["target"].tolist() == [1, 0] and batch["counts"].tolist() == [2, 2]


def test_the_text_loses_its_end_before_a_choice_does(tmp_path):
    train = [{"text": "the cat sat", "choices": ["a dog ran", "a a a a a a"], "label": 0}]
    task = task_on("multiple_choice", tmp_path, train, tokens_per_sample=9)
    (item,) = items_of(task)
    assert rows_of(task, item) == [
        "<s> the cat </s> </s> a dog ran </s>",
        "<s> </s> </s> a a a a a </s>",
    ]


def test_what_a_chooser_says(tmp_path):
    task = task_on("multiple_choice", tmp_path, CHOICES)
    scores = torch.tensor([[0], [math.log(3)], [math.log(4)], [0]])
    one, other = task.read_answers(scores, batch_of(task))
    assert (one["label"], one["choice"]) == (1, "a cat")
    assert one["probabilities"] == pytest.approx([0.25, 0.75])
    assert (other["label"], other["choice"]) == (0, "sat")
    assert other["probability"] == pytest.approx(0.8)


# Tags.


def test_the_first_piece_of_a_word_is_tagged(tmp_path):
    """There is none of the hidden word; pieces that go on with a word have no target."""
    task = task_on("sequence_tagging", tmp_path, TAGGED)
    one, other = items_of(task)
    assert task.labels == ["O", "B-x", "B-y", "I-y"]
    assert rows_of(task, one) == ["<s> cat ##s ran the dog ##s </s>"]
    assert one.extra.tolist() == [1, -1, 3, 4, 5]
    assert one.target[0].tolist() == [IGNORED, 1, IGNORED, 0, 2, 3, IGNORED, IGNORED]
    assert other.target[0].tolist() == [IGNORED, 0, IGNORED]


def test_words_that_are_cut_off_have_no_target(tmp_path):
    words = {"words": "the cat sat . a dogs ran".split(), "tags": ["O"] * 5 + ["B-x", "I-x"]}
    task = task_on("sequence_tagging", tmp_path, [words], tokens_per_sample=8)
    (item,) = items_of(task)
    assert rows_of(task, item) == ["<s> the cat sat . a dog </s>"]
    assert item.extra.tolist() == [1, 2, 3, 4, 5, 6, -1]
    assert item.target[0].tolist() == [IGNORED, 0, 0, 0, 0, 0, 1, IGNORED]


def test_words_with_spaces_or_nothing_in_them(tmp_path):
    words = {"words": ["a cat", "", "dog", HIDDEN], "tags": ["B-x", "O", "B-y", "O"]}
    (item,) = items_of(task_on("sequence_tagging", tmp_path, [words]))
    assert item.extra.tolist() == [1, -1, 3, -1]


def test_what_a_tagger_says(tmp_path):
    task = task_on("sequence_tagging", tmp_path, TAGGED)
    batch = batch_of(task)
    scores = torch.zeros(2, 8, 4)
    scores[:, [0, -1], 2] = 1  # of no word
    best = {(0, 1): 2, (0, 2): 3, (0, 3): 3, (0, 4): 3, (0, 5): 1, (0, 6): 3, (1, 1): 1}
    for (row, place), tag in best.items():
        scores[row, place, tag] = 1
    one, other = task.read_answers(scores, batch)
    assert one["tags"] == ["B-y", "O", "I-y", "I-y", "B-x"] and one["words"] == TAGGED[0]["words"]
    assert one["entities"] == [
        {"kind": "y", "text": "cats", "first": 0},
        {"kind": "y", "text": "ran the", "first": 2},
        {"kind": "x", "text": "dogs", "first": 4},
    ]
    assert other["tags"] == ["B-x"]


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [("iob1", "I-x I-x B-x I-y O"), ("iob2", "B-x I-x B-x B-y O"), ("bioes", "B-x E-x S-x S-y O")],
)
def test_schemes_of_tags(tmp_path, scheme, tags):
    train = [{"words": "the cat sat a dog".split(), "tags": tags.split()}]
    task = task_on("sequence_tagging", tmp_path, train, tag_scheme=scheme)
    assert task.labels == ["O", *sorted(set(tags.split()) - {"O"})]
    for other in {"iob1", "iob2", "bioes"} - {scheme}:
        with pytest.raises(UsageError, match=rf"train\.jsonl:1 has the tag .* {other} has another"):
            build("sequence_tagging", tmp_path, tag_scheme=other)


def test_tags_without_entities(tmp_path):
    """A word without a piece has no tag that could be right."""
    train = [{"words": ["the", HIDDEN, "cat"], "tags": ["DT", "B-x", "NN"]}]
    task = task_on("sequence_tagging", tmp_path, train, tag_scheme="none")
    assert task.labels == ["B-x", "DT", "NN"]
    (item,) = items_of(task)
    batch = task.build_dataset([item.example], task.build_rows()).collater([(0, item)])
    (answer,) = task.read_answers(torch.eye(3).repeat(1, 2, 1)[:, 1:5], batch)
    assert answer == {"words": train[0]["words"], "tags": ["NN", "O", "B-x"]}
    with pytest.raises(UsageError, match=r"train\.jsonl:1 has the tag DT \(word 1\) which marks"):
        build("sequence_tagging", tmp_path)


# Spans.

WINDOWED = {"tokens_per_sample": 13, "stride": 3}  # 9 for question and passage: 3 and 6


def test_windows_of_a_passage(tmp_path):
    """The first answer counts, in the window that has all of it."""
    task = task_on("span_extraction", tmp_path, SPANS, **WINDOWED)
    one, other = items_of(task)
    assert rows_of(task, one) == [
        "<s> the cat ? </s> </s> the cat sat . a dog </s>",
        "<s> the cat ? </s> </s> . a dog ran ! </s>",
    ]
    assert [row.tolist() for row in one.target] == [[IGNORED, IGNORED, 0], [8, 9, 1]]
    assert rows_of(task, other) == ["<s> ran </s> </s> a cat </s>"]
    assert other.target[0].tolist() == [IGNORED, IGNORED, 0]
    batch = batch_of(task)
    assert batch["counts"].tolist() == [2, 1] and batch["target"].shape == (3, 3)


@pytest.mark.parametrize(
    ("answer", "targets"),
    [(". a d", [[9, 11, 1], [6, 8, 1]]), ("sat . a", [[8, 10, 1], [IGNORED, IGNORED, 0]])],
)
def test_an_answer_is_learnt_in_every_window_that_has_all_of_it(tmp_path, answer, targets):
    asked = ASKED | {"answers": [{"text": answer, "start": PASSAGE.index(answer)}]}
    (item,) = items_of(task_on("span_extraction", tmp_path, [asked], **WINDOWED))
    assert [row.tolist() for row in item.target] == targets


def test_a_question_is_cut(tmp_path):
    asked = {"text": PASSAGE, "question": PASSAGE, "answers": []}
    task = task_on("span_extraction", tmp_path, [asked], tokens_per_sample=13, stride=99)
    start = "<s> the cat sat . </s> </s>"  # half of the room
    assert rows_of(task, items_of(task)[0]) == [
        f"{start} the cat sat . a </s>",  # windows overlap
        f"{start} sat . a dog ran </s>",
        f"{start} a dog ran ! </s>",
    ]
    task = build("span_extraction", tmp_path, longest_question=2)
    assert rows_of(task, items_of(task)[0]) == [f"<s> the cat </s> </s> {PASSAGE} </s>"]


def span_scores(batch, spans, answered, peaks):
    """[R, S, 3]: a span of tokens of each row stands out, and more so what is no passage."""
    tokens = batch["net_input"]["src_tokens"]
    scores = torch.zeros(*tokens.shape, 3)
    for row, (first, last) in enumerate(spans):
        scores[row, :3, :2], scores[row, -1, :2] = 50, 50
        scores[row, first, 0] = scores[row, last, 1] = peaks[row]
        scores[row, 0, 2] = answered[row]
    return scores


BEST = [(6, 7), (8, 9), (5, 5)]


def said(task, spans=BEST, answered=(-2, 3, -1), peaks=(20, 20, 20)):
    batch = batch_of(task)
    found = task.read_answers(span_scores(batch, spans, answered, peaks), batch)
    return [(answer["answer"], answer["probability"]) for answer in found]


def share(logit):
    return pytest.approx(1 / (1 + math.exp(-logit)))


def test_the_best_span_of_all_windows(tmp_path):
    task = task_on("span_extraction", tmp_path, SPANS, **WINDOWED)
    assert said(task) == [("dog ran", share(3)), ("", share(1))]
    assert said(task, answered=(2, 1, 1)) == [("the cat", share(2)), ("cat", share(1))]
    assert said(task, answered=(-3, -2, 1))[0] == ("", share(2))


def test_spans_of_windows_compare_by_their_probability(tmp_path):
    """In a window and of there being one, whatever else is added to the scores of a window."""
    task = task_on("span_extraction", tmp_path, [ASKED], **WINDOWED)
    assert said(task, BEST[:2], (-3, 2), (5, 4))[0][0] == "dog ran"
    batch = batch_of(task)
    scores = span_scores(batch, BEST[:2], (0, 0), (5, 4))
    scores[1, :, :2] += 9
    assert task.read_answers(scores, batch)[0]["answer"] == "the cat"


def test_without_questions_that_have_no_answer_there_is_always_one(tmp_path):
    task = task_on("span_extraction", tmp_path, [ASKED], **WINDOWED)
    assert said(task, BEST[:2], (-3, -2)) == [("dog ran", share(-2))]


def test_an_answer_has_no_spaces_around_it(tmp_path):
    """Byte-level pieces have the space before them."""
    text = tmp_path / "text"
    text.mkdir()
    (text / "train").write_text("dog dog dog dog\n")
    byte_bpe.prepare(text, tmp_path / "data/bpe", tmp_path / "data", 259)
    write_examples(tmp_path / "data/train.jsonl", [ASKED])
    task = build("span_extraction", tmp_path / "data")
    (item,) = items_of(task)
    first, last, _ = item.target[0]
    (text, _), place = item.extra, first - item.rows[0].first[1]
    assert PASSAGE[slice(*text.offsets[place])] == " dog"
    assert said(task, [(first, last)], (3,)) == [("dog ran", share(3))]


def test_a_span_is_not_longer_than_the_longest(tmp_path):
    train = [ASKED, SPANS[1]]
    task = task_on("span_extraction", tmp_path, train, longest_answer=2)
    assert said(task, [(7, 8), (5, 5)], (3, 3))[0] == ("cat sat", share(3))
    text, _ = said(task, [(7, 9), (5, 5)], (3, 3))[0]
    assert len(text.split()) <= 2


# Length.

LONG = [{"text": "the cat " * 6, "label": label} for label in "ab"] + [{"text": "a", "label": "a"}]


def test_what_is_shortened_is_counted(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    task = task_on("sentence_classification", tmp_path, LONG, tokens_per_sample=8)
    items = items_of(task)
    assert [len(item.rows[0].tokens) for item in items] == [8, 8, 3] and task.max_positions() == 8
    assert (
        "train: 2 of 3 examples do not fit into 8 tokens and were shortened "
        f"(first {tmp_path}/train.jsonl:1)"
    ) in caplog.text
    caplog.clear()
    build("sentence_classification", tmp_path, tokens_per_sample=14).load_dataset("train")
    assert "shortened" not in caplog.text and "Loaded train with #samples: 3" in caplog.text


def test_strict_refuses_what_would_be_shortened(tmp_path):
    task = task_on("sentence_classification", tmp_path, LONG, tokens_per_sample=8, strict=True)
    with pytest.raises(UsageError, match=r"train\.jsonl:1 has 12 tokens, and a row has room for 6"):
        task.load_dataset("train")


def test_the_length_is_that_of_the_encoder(tmp_path):
    path = write_encoder(tmp_path / "encoder.pt", positions=10)
    task = task_on("sentence_classification", tmp_path, LONG, pretrained=path)
    assert task.room == 10 == len(items_of(task)[0].rows[0].tokens)
    with pytest.raises(UsageError, match="sample is 11 and the encoder has 10 positions; give no"):
        build("sentence_classification", tmp_path, pretrained=path, tokens_per_sample=11)
    assert build("sentence_classification", tmp_path, tokens_per_sample=9999).room == 9999


# Folds.


def test_folds_part_the_training_examples(tmp_path):
    train = [{"text": "a", "label": str(number % 2)} for number in range(10)]
    write_examples(tmp_path / "test.jsonl", SENTENCES[:1] * 3)
    held_out = []
    for fold in range(1, 5):
        task = task_on("sentence_classification", tmp_path, train, folds=4, fold=fold)
        places = [[e.where for e in task.load_examples(split)] for split in ("train", "valid")]
        assert not set(places[0]) & set(places[1]) and len(places[0] + places[1]) == 10
        assert len(task.load_examples("test")) == 3
        held_out += places[1]
    assert len(held_out) == len(set(held_out)) == 10


def test_a_label_may_be_in_one_fold_alone(tmp_path):
    train = [{"text": "a", "label": label} for label in "abababc"]
    for fold in (1, 2, 3):
        task = task_on("sentence_classification", tmp_path, train, folds=3, fold=fold)
        task.load_dataset("valid")
        assert task.labels == ["a", "b", "c"]


def test_without_folds_there_needs_to_be_a_file(tmp_path):
    task = task_on("sentence_classification", tmp_path, SENTENCES)
    said = r"valid\.jsonl is not there; make it with .*hold_out .* --every 10', .*--folds 10 and "
    with pytest.raises(UsageError, match=said):
        task.load_dataset("valid")
    with pytest.raises(
        UsageError, match=r"test\.jsonl is not there; make it with scripts/prepare_ta"
    ):
        task.load_dataset("test")


# Bad input.


@pytest.mark.parametrize(
    ("name", "train", "options", "says"),
    [
        ("sentence_classification", SENTENCES[:1], {}, "has only the label 'b'; give two"),
        (
            "sentence_classification",
            [*SENTENCES, SENTENCES[0] | {"label": "b "}],
            {},
            r"train\.jsonl:\d+: the label 'b ' looks like 'b', which stands before it",
        ),
        (
            "sequence_tagging",
            [
                *TAGGED,
                {"words": ["a"], "tags": ["B-Ca\u0301"]},
                {"words": ["a"], "tags": ["B-C\u00e1"]},
            ],
            {},
            r"the label 'B-C\\xe1' looks like 'B-Ca\\u0301'",
        ),
        (
            "sentence_classification",
            [SENTENCES[0] | {"label": label} for label in ("caf\u00e9", "cafe\u0301")],
            {},
            r"2: the label 'cafe\\u0301' looks like 'caf\\xe9'",
        ),
        (
            "sentence_classification",
            [*PAIRS, PAIRS[0] | {"label": "c"}],
            {"pairs": "apart"},
            "--pairs apart gives one score, for 2 classes, and there are 3; use --pairs joint",
        ),
        (
            "sentence_classification",
            SENTENCES,
            {"pairs": "apart"},
            r"train\.jsonl:1 has no 'pair', and --pairs apart needs two sentences",
        ),
        ("sentence_classification", SENTENCES, {"task_layers": -1}, "--task-layers is -1"),
        ("sentence_classification", SENTENCES, {"task_init": "ones"}, "--task-init is 'ones'"),
        (
            "sentence_classification",
            SENTENCES,
            {"folds": 3},
            r"2 examples for --folds 3; give fewer",
        ),
        ("sentence_classification", SENTENCES, {"fold": 3}, "--fold 3 is given without --folds; g"),
        ("sentence_classification", SENTENCES, {"folds": 1}, "--folds is 1; give a"),
        (
            *("sentence_classification", SENTENCES, {"folds": 2, "fold": 3}),
            "--fold 3 is none of --folds 2; give a whole number from 1 to 2$",
        ),
        (
            *("sentence_classification", SENTENCES, {"folds": 2, "fold": 0}),
            r"--fold is 0; give a whole number from 1 upwards \(a fold, at most --folds\)",
        ),
        (
            *("sentence_classification", SENTENCES, {"folds": 2, "train_subset": "small"}),
            "--train-subset small is given, and --folds 2 are parts of train; leave",
        ),
        ("sentence_classification", SENTENCES, {"tokens_per_sample": 7}, "sample is 7; give 8 or"),
        ("sentence_classification", SENTENCES, {"pretrained": "no.pt"}, "model is no.pt, which is"),
        (
            "sentence_classification",
            SENTENCES,
            {"vocabulary": "nowhere"},
            "nowhere has no dict.txt",
        ),
        ("sentence_regression", SENTENCES, {}, r"train\.jsonl:1 has \"b\" as 'label'"),
        (
            "multiple_choice",
            [CHOICES[0], CHOICES[1] | {"choices": ["a", "b", "c"]}],
            {},
            r"train\.jsonl:2 has 3 choices and .*train\.jsonl:1 2; give all examples as many",
        ),
        (
            "sequence_tagging",
            [TAGGED[1], {"words": ["a", "cat"], "tags": ["O"]}],
            {},
            r"train\.jsonl:2 has 2 words and 1 tags",
        ),
        (
            "sequence_tagging",
            [TAGGED[1], {"words": ["a", "cat"], "tags": ["O", "I-x"]}],
            {},
            r"train\.jsonl:2 has the tag I-x \(word 2\) where iob2 has another; give --tag-scheme",
        ),
        ("span_extraction", SPANS, {"stride": 0}, "--stride is 0; give a whole number from 1"),
        ("span_extraction", SPANS, {"longest_question": -1}, "--longest-question is -1; give"),
        ("span_extraction", SPANS, {"longest_answer": 0}, "--longest-answer is 0; give"),
    ],
)
def test_what_cannot_be_begun_is_refused(tmp_path, name, train, options, says):
    with pytest.raises(UsageError, match=says):
        task_on(name, tmp_path, train, **options)


@pytest.mark.parametrize(
    ("name", "valid", "says"),
    [
        (
            "sentence_classification",
            {"text": "a", "label": "c"},
            "has the label 'c', which train.jsonl does not have; it has a, b",
        ),
        (
            "sequence_tagging",
            {"words": ["a"], "tags": ["B-z"]},
            "has the label 'B-z', which train.jsonl does not have; it has O, B-x",
        ),
        ("sequence_tagging", {"words": ["a"], "tags": []}, "has 1 words and 0 tags"),
        ("sequence_tagging", {"words": ["a"], "tags": ["I-x"]}, "has the tag I-x .word 1."),
        (
            "multiple_choice",
            {"text": "a", "choices": ["b", "c", "d"], "label": 0},
            "has 3 choices, and those of training 2; give as many",
        ),
        *(
            (
                "multiple_choice",
                {"text": "a", "choices": ["b", "c"], "label": label},
                f"has the label {label}, and its choices are 0 to 1",
            )
            for label in (2, -1)
        ),
        *(
            (
                "span_extraction",
                ASKED | {"answers": [{"text": "the", "start": 0}, {"text": text, "start": start}]},
                f"has the answer '{text}', which does not stand at {start} of its text; correct",
            )
            for text, start in [("cat", 5), ("horse", 4), ("", 4), ("!", 999)]
        ),
        (
            "span_extraction",
            ASKED | {"text": f"a {HIDDEN}", "answers": [{"text": HIDDEN, "start": 2}]},
            f"has the answer '{HIDDEN}', which the tokeniser does not see; leave it out",
        ),
        (
            "span_extraction",
            ASKED | {"text": f" {HIDDEN}", "answers": []},
            "has a 'text' without words; give a passage",
        ),
    ],
)
def test_examples_that_do_not_fit_are_named(tmp_path, name, valid, says):
    write_examples(tmp_path / "valid.jsonl", [EVERY[name][0], valid])
    task = task_on(name, tmp_path, EVERY[name])
    with pytest.raises(UsageError, match=rf"valid\.jsonl:2 {says}"):
        task.load_dataset("valid")


@pytest.mark.parametrize(
    ("train", "says"), [([PAIRS[0], SENTENCES[1]], "no"), ([*SENTENCES, PAIRS[0]], "a")]
)
def test_all_examples_have_as_many_sentences(tmp_path, train, says):
    task = task_on("sentence_classification", tmp_path, train)
    with pytest.raises(UsageError, match=rf"train\.jsonl:{len(train)} has {says} 'pair', unlike"):
        task.load_dataset("train")


@pytest.mark.parametrize("known", [True, False])
def test_an_encoder_with_other_words_is_refused(tmp_path, known):
    """Of another number; as many, if the checkpoint knows which."""
    for words in (WORDS, WORDS[:-1], [*WORDS[:-1], "new"]):
        path = write_encoder(tmp_path / f"{len(words)}.pt", words=words, known=known)
        if words == WORDS or (len(words) == len(WORDS) and not known):
            task_on("sentence_classification", tmp_path, SENTENCES, pretrained=path)
            continue
        with pytest.raises(UsageError, match=rf"{path} was trained with another dictionary"):
            task_on("sentence_classification", tmp_path, SENTENCES, pretrained=path)


def test_a_translator_is_no_encoder(tmp_path):
    """It has no positions of its own, from which a task takes the length of rows."""
    path = save_state(tmp_path / "x.pt", {"_name": "transformer_dna"}, {"w": torch.ones(1)})
    with pytest.raises(
        UsageError, match=rf"{path} is a transformer_dna, and no encoder to be fine"
    ):
        task_on("sentence_classification", tmp_path, SENTENCES, pretrained=path)


def test_an_encoder_with_one_segment_is_refused(tmp_path):
    path = write_encoder(tmp_path / "odd.pt", segments=1)
    with pytest.raises(UsageError, match=r"odd\.pt has 1 segment; give an encoder with 0 or 2"):
        task_on("sentence_classification", tmp_path, SENTENCES, pretrained=path)


# Models.


def built(task, **options):
    cls = ARCH_MODEL_REGISTRY["roberta_una_tiny"]
    cfg = OmegaConf.structured(getattr(cls, "__dataclass"))
    cfg.update({"_name": "roberta_una_tiny", "encoder_layers": 1, **options})
    return task.build_model(cfg)


def test_an_encoder_from_scratch_has_the_segments_that_it_was_given(tmp_path):
    task = task_on("sentence_classification", tmp_path, PAIRS)
    model = built(task, segments=2)
    assert rows_of(task, items_of(task)[0]) == ["<s> the cat </s> a dog </s>"]
    model(**batch_of(task)["net_input"], task_head=True)[0].sum().backward()
    assert model.encoder.embed_segments.weight.grad[1].any()
    again = task_on("sentence_classification", tmp_path, PAIRS)
    with pytest.raises(UsageError, match="--segments is 1, and must be 0 or 2"):
        built(again, segments=1)
    path = write_encoder(tmp_path / "bert.pt", segments=2)
    task = task_on("sentence_classification", tmp_path, PAIRS, pretrained=path)
    with pytest.raises(UsageError, match="--segments is 0, and must be .* leave it out"):
        built(task, segments=0)


def test_a_deberta_from_scratch_has_one_separator(tmp_path):
    task = task_on("sentence_classification", tmp_path, PAIRS)
    built(task, encoder_scorer="disentangled")
    assert rows_of(task, items_of(task)[0]) == ["<s> the cat </s> a dog </s>"]


def test_the_options_of_heads_of_two_layers(tmp_path):
    task = task_on("sentence_classification", tmp_path, SENTENCES)
    given = {"pooler_activation_fn": "relu", "spectral_norm_classification_head": True}
    head, x = built(task, **given).task_head.output, torch.randn(3, 128)
    for _ in range(20):
        head(x)  # each is a step of power iteration
    head.eval()
    found = head.out_proj(head.dense(x).relu())
    torch.testing.assert_close(head(x), found, atol=0, rtol=0)
    assert torch.linalg.matrix_norm(head.out_proj.weight.detach(), 2) == pytest.approx(1, abs=0.1)
    task = task_on("sentence_classification", tmp_path, SENTENCES, output="linear")
    for name, value in given.items():
        with pytest.raises(UsageError, match="heads of two layers, and this one has none"):
            built(task, **{name: value})


@pytest.mark.parametrize("kind", ["train", "valid"])
def test_further_files_of_a_split_are_refused(tmp_path, kind):
    task = task_on("sentence_classification", tmp_path, SENTENCES)
    write_examples(tmp_path / f"{kind}.jsonl", SENTENCES)
    write_examples(tmp_path / f"{kind}1.jsonl", SENTENCES)
    task.load_dataset(kind)
    with pytest.raises(UsageError, match=f"{kind}1.jsonl would not be read.*append them to {kind}"):
        task.load_dataset(kind, combine=True)


# Checkpoints.


def saved(task, path):
    torch.save(task.state_dict(), path)
    return safe_loading.load(str(path))


@pytest.mark.parametrize("name", EVERY)
def test_a_task_is_taken_from_a_checkpoint(tmp_path, name):
    """Nothing of its data is needed, and it reads text in the same way."""
    encoder = write_encoder(tmp_path / "encoder.pt", positions=20, segments=2)
    task = task_on(name, tmp_path, EVERY[name], pretrained=encoder)
    again = build(name, tmp_path / "gone", begun=False)
    again.load_state_dict(saved(task, tmp_path / "state.pt"))
    assert again.source_dictionary.count == task.source_dictionary.count
    assert (again.labels, again.room, again.separators, again.segments) == (task.labels, 20, 1, 2)
    train = task.load_examples("train")
    one, other = (t.build_dataset(train, t.build_rows()) for t in (task, again))
    for a, b in zip(one.items, other.items, strict=True):
        assert rows_of(task, a) == rows_of(again, b)
        assert np.array_equal(a.target, b.target)
    assert other.segments and one.sizes.tolist() == other.sizes.tolist()


@pytest.mark.parametrize("name", EVERY)
def test_what_goes_on_has_begun_in_the_same_way(tmp_path, name):
    task = task_on(name, tmp_path, EVERY[name])
    state = saved(task, tmp_path / "state.pt")
    build(name, tmp_path).load_state_dict(state)
    older = {key: x for key, x in state["vocabulary"].items() if key != "counts"}
    build(name, tmp_path).load_state_dict({**state, "vocabulary": older})
    with pytest.raises(UsageError, match="was trained with other --tokens-per-sample than"):
        build(name, tmp_path, tokens_per_sample=16).load_state_dict(state)
    write_vocabulary(tmp_path, [*WORDS, "new"])
    with pytest.raises(UsageError, match="was trained with other vocabulary than .*; go on with"):
        build(name, tmp_path).load_state_dict(state)


@pytest.mark.parametrize("name", EVERY)
def test_what_is_to_be_predicted_may_be_missing(tmp_path, name):
    task = task_on(name, tmp_path, EVERY[name])
    asked = [key for key, field in task.fields.items() if not field.target]
    kept = [{k: v for k, v in each.items() if k in asked} for each in EVERY[name]]
    new = task.build_dataset([Example(values, "new:1") for values in kept], task.build_rows())
    assert "target" not in new.collater([new[0], new[1]])
    for labelled, other in zip(items_of(task), new.items, strict=True):
        assert rows_of(task, labelled) == rows_of(task, other)


def test_other_labels_are_refused(tmp_path):
    task = task_on("sentence_classification", tmp_path, SENTENCES)
    state = saved(task, tmp_path / "state.pt")
    write_examples(tmp_path / "train.jsonl", [*SENTENCES, {"text": "", "label": "c"}])
    with pytest.raises(UsageError, match="was trained with other labels than"):
        build("sentence_classification", tmp_path).load_state_dict(state)


def test_other_folds_are_refused(tmp_path):
    train = [{"text": "a", "label": str(number % 2)} for number in range(6)]
    state = saved(task_on("sentence_classification", tmp_path, train), tmp_path / "state.pt")
    with pytest.raises(UsageError, match="was trained with other --folds and --fold than"):
        build("sentence_classification", tmp_path, folds=2, fold=2).load_state_dict(state)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is not of --task sentence_classification: it has"):
        build("sentence_classification", tmp_path, begun=False).load_state_dict({})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task_layers": 2}, "--task-layers 2 has no effect .* --pooling attention"),
        ({"task_init": "normal:0,1"}, "--task-init normal:0,1 has no effect"),
        ({"task_attention_norm": True}, "--task-attention-norm has no effect .* attention"),
        ({"pooling": "attention", "task_layers": 0}, "--task-layers is 0"),
        ({"pairs": "apart", "output": "linear"}, "--output linear has no effect"),
    ],
)
def test_options_without_effect_are_refused(tmp_path, options, says):
    with pytest.raises(UsageError, match=says):
        task_on("sentence_classification", tmp_path, PAIRS, **options)


def test_answers_that_no_window_has_are_counted(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    whole = {"text": PASSAGE, "question": "a", "answers": [{"text": PASSAGE, "start": 0}]}
    task = task_on("span_extraction", tmp_path, [whole], tokens_per_sample=10)
    assert all(target[2] == 0 for target in items_of(task)[0].target)
    assert "1 of 1 examples do not fit" in caplog.text
    strict = build("span_extraction", tmp_path, tokens_per_sample=10, strict=True)
    with pytest.raises(UsageError, match="has an answer that is in no window"):
        strict.load_dataset("train")


def test_windows_overlap_whatever_the_stride(tmp_path):
    """A short answer is in one of them, wherever it stands."""
    for place in range(8):
        start = len(" ".join(PASSAGE.split()[:place])) + (place > 0)
        answer = {"text": PASSAGE.split()[place], "start": start}
        asked = {"text": PASSAGE, "question": "a", "answers": [answer]}
        task = task_on("span_extraction", tmp_path, [asked], tokens_per_sample=9, stride=128)
        assert any(target[2] for target in items_of(task)[0].target)


def test_a_batch_too_small_for_an_example_is_refused(tmp_path):
    task = task_on("sentence_classification", tmp_path, LONG, tokens_per_sample=14)
    task.load_dataset("train")
    with pytest.raises(UsageError, match=r"train\.jsonl:1 has 14 tokens .* --max-tokens is 13"):
        task.get_batch_iterator(task.dataset("train"), max_tokens=13)
    task.get_batch_iterator(task.dataset("train"), max_tokens=14)
