"""Objectives of pre-training: what they read and what they lose."""

import math
from argparse import Namespace
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions import build_criterion
from fairseq.data import Dictionary, ListDataset, MaskTokensDataset
from fairseq.models import build_model
from fairseq.tasks.fairseq_task import StatefulContainer
from omegaconf import OmegaConf
from variants import PRETRAINING

from fairseq_ext.criterions.objectives import OBJECTIVES
from fairseq_ext.data.sampled import PairDataset, ReplacedDataset, cut, unigram
from fairseq_ext.errors import UsageError
from fairseq_ext.tasks import plain_text

BOS, PAD, EOS = 0, 1, 2


def lines_of(*documents):
    """Lines of words, numbered from 10 on, ended by </s>; an empty one after each document."""
    word, lines = 10, []
    for lengths in documents:
        for length in lengths:
            lines.append(torch.tensor([*range(word, word + length), EOS]))
            word += length
        lines.append(torch.tensor([EOS]))
    return ListDataset(lines, np.array(list(map(len, lines))))


def pairs(lines, kind="sop", room=13, seed=1):
    return PairDataset(lines, kind=kind, room=room, bos=BOS, eos=EOS, seed=seed, name="train")


# Pairs.


def test_chunks_are_filled_line_by_line_within_a_document():
    """Room for 10: a line of more than 5 is cut; a new document begins a new chunk."""
    text = cut(np.array([4, 5, 1, 13, 3, 1, 2, 1]), 10)
    whole, parts = [[0, 0, 3], [1, 0, 4]], [[3, 0, 5], [3, 5, 5], [3, 10, 2]]
    assert text.pieces.tolist() == [*whole, *parts, [4, 0, 2], [6, 0, 1]]
    assert text.documents.tolist() == [0, 0, 1, 1, 1, 1, 2]
    assert text.chunks.tolist() == [[0, 2], [2, 4], [4, 6]]  # not the last: one token is no pair


def test_a_pair_as_the_model_reads_it():
    dataset = pairs(lines_of([3, 4], [9, 9]))
    for epoch in range(1, 20):
        dataset.set_epoch(epoch)
        first, second = ([10, 11, 12], [13, 14, 15, 16])
        if label := dataset.item(0).label:
            first, second = second, first
        assert dataset[0].tolist() == [BOS, *first, EOS, *second, EOS]
        assert dataset.part("segments")[0].tolist() == [0] * (len(first) + 2) + [1] * (
            len(second) + 1
        )
        assert dataset.part("label")[0] == label
        assert dataset.sizes[0] == len(dataset[0]) == 10


@pytest.mark.parametrize("kind", ["sop", "nsp"])
def test_half_of_the_pairs_are_wrong(kind):
    dataset = pairs(lines_of(*[[4, 3, 6, 5, 2]] * 60), kind, room=16)
    labels = [dataset.item(i).label for i in range(len(dataset))]
    assert 0.35 < np.mean(labels) < 0.65 and len(labels) > 100
    dataset.set_epoch(2)
    assert labels != [dataset.item(i).label for i in range(len(dataset))]


def test_sentence_order_keeps_every_token_once():
    dataset = pairs(lines_of([4, 30, 6, 5, 2], [7, 8]), room=16)
    words = [w for i in range(len(dataset)) for w in dataset[i].tolist() if w > EOS]
    assert sorted(words) == list(range(10, 10 + 62))


def test_wrong_next_sentences_are_from_another_document():
    documents = [[4, 3, 6, 5], [2, 9, 1], [12]]
    dataset = pairs(lines_of(*documents), "nsp", room=14)
    ends = np.cumsum([10, *map(sum, documents)])
    seen = Counter()
    for epoch in range(200):
        dataset.set_epoch(epoch)
        for i in range(len(dataset)):
            tokens, segments, label = dataset.item(i)
            assert len(tokens) <= 14 and tokens[0] == BOS and tokens.eq(EOS).sum() == 2
            parts = [tokens[(segments == part) & (tokens > EOS)] for part in (0, 1)]
            first, second = ({np.searchsorted(ends, w, "right") for w in p} for p in parts)
            assert len(first) == len(second) == 1 and (first == second) == (not label)
            for part in parts:  # consecutive
                assert part.tolist() == list(range(part[0], part[0] + len(part)))
            seen[first.pop(), second.pop()] += 1
    assert len(seen) == 9


def test_the_same_pairs_after_a_resume():
    text = lines_of(*[[4, 3, 6, 5, 2]] * 9)
    for kind in ("sop", "nsp"):
        a, b = pairs(text, kind), pairs(text, kind)
        a.set_epoch(1)
        _ = [a[i] for i in range(len(a))]
        for dataset in (a, b):
            dataset.set_epoch(3)
        assert all(torch.equal(a[i], b[i]) for i in reversed(range(len(a))))
        assert any(not torch.equal(a[i], pairs(text, kind, seed=2)[i]) for i in range(len(a)))


@pytest.mark.parametrize(
    ("documents", "options", "says"),
    [
        ([[5, 6], []], {"kind": "nsp"}, "train is one document, .* part documents by empty lines"),
        ([[]], {}, "train has no text"),
        ([[1]], {}, "train has no text"),
        ([[5, 6]], {"room": 4}, "--tokens-per-sample is 4; pairs need 5 or more"),
    ],
)
def test_texts_without_pairs_are_refused(documents, options, says):
    with pytest.raises(UsageError, match=says):
        pairs(lines_of(*documents), **options)


def test_masks_are_new_in_every_epoch():
    """fairseq gives the last items of an epoch again in the next, unless told otherwise."""
    words, dataset = dictionary(), pairs(lines_of([8, 8]), room=19)
    options = {"pad_idx": PAD, "mask_idx": words.index("<mask>"), "mask_prob": 0.5}
    masked, targets = MaskTokensDataset.apply_mask(dataset, words, **options)
    seen = set()
    for epoch in range(1, 9):
        for part in (masked, targets):
            part.set_epoch(epoch)
        hidden = targets[0].ne(PAD)
        assert torch.equal(targets[0][hidden], dataset[0][hidden])
        assert torch.equal(masked[0][~hidden], dataset[0][~hidden])
        seen.add(tuple(hidden.tolist()))
    assert len(seen) == 8


# Replaced tokens.


def dictionary(*counts):
    words = Dictionary()
    for i, count in enumerate(counts or [1] * 30):
        words.add_symbol(f"w{i}", n=count)
    words.add_symbol("<mask>", n=0)
    return words


def replaced(counts=(), share=0.15, blocks=40, length=50):
    words, random = dictionary(*counts), np.random.default_rng(0)
    text = random.integers(words.nspecial, len(words) - 1, (blocks, length))
    items = [torch.tensor([BOS, *row, EOS]) for row in text]
    return items, ReplacedDataset(
        ListDataset(items, np.full(blocks, length + 2)), words, share=share, seed=1
    )


def test_replaced_tokens_are_marked_and_special_symbols_stay():
    items, dataset = replaced()
    for i, original in enumerate(items):
        tokens, labels = dataset.item(i)
        assert torch.equal(labels, tokens.ne(original).long())
        assert tokens[0] == BOS and tokens[-1] == EOS
    share = np.mean([dataset.item(i).labels[1:-1].float().mean() for i in range(len(items))])
    assert share == pytest.approx(0.15 * 29 / 30, abs=0.02)  # 1 of 30 is drawn as it was


def test_a_replacement_equal_to_the_original_is_original():
    items, dataset = replaced(counts=[7], share=1.0)
    assert all(not dataset.item(i).labels.any() for i in range(len(items)))


def test_replacements_are_drawn_from_the_unigram_distribution():
    counts = [600, 300, 90, 10, 0]
    items, dataset = replaced(counts, share=1.0, blocks=100, length=100)
    drawn = Counter(w for i in range(len(items)) for w in dataset[i].tolist()[1:-1])
    nspecial = Dictionary().nspecial
    for word, count in enumerate(counts):
        assert drawn[nspecial + word] / 10_000 == pytest.approx(count / 1000, abs=0.02)
    assert sum(drawn.values()) == 10_000 and drawn[nspecial + 4] == 0
    np.testing.assert_allclose(unigram(dictionary(*counts))[nspecial:-1], np.array(counts) / 1000)


def test_a_dictionary_without_counts_is_refused():
    with pytest.raises(UsageError, match="has no counts"):
        unigram(dictionary(0, 0))


def test_other_tokens_are_replaced_in_other_epochs():
    items, dataset = replaced()
    before = [dataset[i].clone() for i in range(len(items))]
    dataset.set_epoch(2)
    assert any(not torch.equal(a, dataset[i]) for i, a in enumerate(before))
    dataset.set_epoch(1)
    assert all(torch.equal(a, dataset[i]) for i, a in enumerate(before))


# Losses.

SENTENCES = [
    [BOS, 10, 11, 12, EOS, 13, 14, EOS],
    [BOS, 15, EOS, 16, EOS],
    [BOS, 17, 18, EOS, 19, EOS],
]
MASKED = [[1, 5], [3], [1, 2, 4]]
LABELS = torch.tensor([0, 1, 1])


class Task:
    """What a criterion and a model ask of a task."""

    def __init__(self, objective):
        self.source_dictionary = self.target_dictionary = dictionary()
        self.state, self.segments = StatefulContainer(), 2
        self.cfg = OmegaConf.create({"replace_prob": 0.15} if "replaced" in objective else {})
        self.kind = objective.split("_")[-1]
        self.max_positions = lambda: 16


def setup(name, arch="roberta_una_tiny", **options):
    task = Task(name.removesuffix("_ag").removesuffix("_rdrop").removesuffix("_asa"))
    torch.manual_seed(1)
    config = {"_name": arch, "dropout": 0.0, "attention_dropout": 0.0}
    model = build_model(OmegaConf.create(config), task)
    model.register_classification_head(plain_text.PAIRS, num_classes=2)
    model.register_token_head(plain_text.REPLACED, 1)
    usual = {"_name": name}
    if name.startswith("masked"):
        usual["tpu"] = False
    if name.endswith("_ag"):
        usual |= {"ag_alpha": "10", "max_update": 100}
    criterion = build_criterion(OmegaConf.create(usual | options), task)
    model.train()
    model.set_num_updates(0)
    return model, criterion


def padded(rows):
    return torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), True, PAD)


def sample(name, rows=(0, 1, 2)):
    tokens = padded([SENTENCES[b] for b in rows])
    target = torch.full_like(tokens, 0 if "replaced" in name else PAD)
    for row, b in enumerate(rows):
        target[row, MASKED[b]] = 1 if "replaced" in name else tokens[row, MASKED[b]]
    inputs = {"src_tokens": tokens, "src_lengths": None}
    if "replaced" not in name:
        inputs["segments"] = (tokens.eq(EOS).cumsum(1) - tokens.eq(EOS).long() > 0).long()
    counts = {"ntokens": int(tokens.ne(PAD).sum()), "nsentences": len(rows)}
    return {"net_input": inputs, "target": target, "pair": LABELS[list(rows)], **counts}


@pytest.mark.parametrize("name", ["masked_lm_ag", "masked_lm_nsp_ag", "masked_lm_sop_ag"])
def test_the_initial_weight_of_guidance_is_of_the_paper_s_rule(name):
    chosen = []
    for given in (None, "auto"):
        model, criterion = setup(name, ag_alpha=given, ag_layers="0")
        _, size, log = criterion(model, sample(name))
        chosen.append(log["ag_alpha"] / size)
    assert chosen[0] == chosen[1] > 1


@pytest.mark.parametrize("name", PRETRAINING)
def test_a_batch_is_the_sum_of_its_sentences(name):
    """So that batching, --update-freq and the number of processes change nothing."""
    model, criterion = setup(name)
    loss, size, log = criterion(model, sample(name))
    alone = [criterion(model, sample(name, [b])) for b in range(3)]
    assert size == sum(each[1] for each in alone) == (19 if "replaced" in name else 6)
    torch.testing.assert_close(loss, sum(each[0] for each in alone))
    for key in log:
        total = torch.as_tensor(sum(each[2][key] for each in alone))
        torch.testing.assert_close(torch.as_tensor(log[key]), total, check_dtype=False)


@pytest.mark.parametrize("kind", ["nsp", "sop"])
def test_the_loss_of_pairs_beside_that_of_masked_tokens(kind):
    name = f"masked_lm_{kind}"
    model, criterion = setup(name)
    plain = setup("masked_lm_ag")[1].base
    given = sample(name)
    loss, size, log = criterion(model, given)
    masked = plain(model, given)[0]
    scores = model.classification_heads[plain_text.PAIRS](
        model(**given["net_input"], features_only=True)[0]
    )
    each = F.cross_entropy(scores, LABELS, reduction="none")
    torch.testing.assert_close(loss, masked + 2 * each[0] + 1 * each[1] + 3 * each[2])
    torch.testing.assert_close(log["loss"], masked.detach())
    assert log[f"{kind}_correct"] == scores.argmax(1).eq(LABELS).sum()


@pytest.mark.parametrize("kind", ["nsp", "sop"])
def test_r_drop_has_the_loss_of_pairs_in_both_passes(kind):
    name = f"masked_lm_{kind}"
    model, criterion = setup(f"{name}_rdrop", rdrop_alpha=0.0)
    once = setup(name)[1](model, sample(name))[0]
    torch.testing.assert_close(criterion(model, sample(name))[0], 2 * once)


def record(monkeypatch, owner, name, seen):
    """Keep the losses that a method returns."""
    original = getattr(owner, name)

    def recorded(*args):
        result = original(*args)
        seen.append(result[0])
        return result

    monkeypatch.setattr(owner, name, recorded)


def test_freelb_has_the_loss_of_pairs_in_all_passes(monkeypatch):
    noise = {"asa_baseline": "freelb", "asa_steps": 3, "asa_radius": 2.0, "asa_step_size": 1.0}
    model, criterion = setup("masked_lm_sop_asa", **noise)
    [pairs] = (part for part in criterion.parts if part.in_evaluation)
    words, orders = [], []
    record(monkeypatch, criterion.base, "forward", words)
    record(monkeypatch, pairs, "loss", orders)
    loss = criterion(model, sample("masked_lm_sop"))[0]
    again, *orders = orders  # the term of the criterion itself, of the first pass too
    assert again == orders[0] and len(words) == len({x.item() for x in orders}) == 3
    torch.testing.assert_close(loss, (torch.stack(words) + torch.stack(orders)).mean())


def test_the_logistic_loss_over_all_real_tokens():
    model, criterion = setup("replaced_token_detection")
    given = sample("replaced_token_detection")
    loss, size, log = criterion(model, given)
    scores = model(**given["net_input"], classification_head_name=plain_text.REPLACED)[0]
    expected, correct = 0.0, 0
    for b, sentence in enumerate(SENTENCES):
        for position in range(len(sentence)):
            p = 1 / (1 + math.exp(-scores[b, position, 0].item()))
            expected -= math.log(p if position in MASKED[b] else 1 - p)
            correct += (p > 0.5) == (position in MASKED[b])
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert (log["correct"], log["replaced"], size) == (correct, 6, 19)
    assert criterion.logging_outputs_can_be_summed()
    assert all(torch.as_tensor(value).ndim == 0 for value in log.values())


def test_a_divergence_of_replacements_is_of_two_classes():
    name = "replaced_token_detection"
    (model, criterion), given = setup(name), sample(name)
    output = model(**given["net_input"], classification_head_name=plain_text.REPLACED)
    [found] = OBJECTIVES[name].select_predictions(criterion, given, output)
    real = given["net_input"]["src_tokens"].ne(PAD)
    torch.testing.assert_close(found.weights, real.flatten())
    expected = output[0].squeeze(-1).flatten().sigmoid()
    torch.testing.assert_close(found.scores.softmax(-1)[:, 1], expected)


@pytest.mark.parametrize("name", PRETRAINING)
def test_evaluation_knows_nothing_of_guidance(name):
    model, criterion = setup(name)
    model.eval()
    with torch.no_grad():
        loss, size, log = criterion(model, sample(name))
        base = criterion.base if hasattr(criterion, "base") else criterion
        plain, _, logged = base(model, sample(name))
    assert not [key for key in log if key.startswith("ag")]
    torch.testing.assert_close(log["loss"], logged["loss"])
    if "sop" in name or "nsp" in name:
        assert loss > plain and log[f"{criterion.terms[0]}_loss"] > 0
    else:
        torch.testing.assert_close(loss, plain)


def test_the_default_is_the_paper_s_half_of_the_heads():
    _, criterion = setup("masked_lm_ag")
    (guide,) = [part.guided["encoder"] for part in criterion.parts]
    heads = {pattern: stop - start for pattern, start, stop in guide.patterns}
    assert heads == {"next": 1, "prev": 1, "first": 2}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("masked_lm_nsp", "needs --task masked_lm_nsp"),
        ("masked_lm_sop_ag", "needs --task masked_lm_sop"),
        ("replaced_token_detection", "needs the text of --task replaced_token_detection"),
    ],
)
def test_an_objective_with_another_task_is_refused(name, says):
    options = {"_name": name}
    options |= {"tpu": False} if name.startswith("masked") else {}
    options |= {"ag_alpha": "1", "max_update": 1} if "_ag" in name else {}
    with pytest.raises(UsageError, match=says):
        build_criterion(OmegaConf.create(options), Task("masked_lm"))


def test_data_without_a_dictionary_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"dict.txt is not there; give a folder that fairseq-prep"):
        plain_text.ReplacedTokenDetectionTask.load_dict(Namespace(data=str(tmp_path)))
