"""Mechanisms together, two at a time and all: from flags, through a step of training, and what must
hold then; what is refused."""

import gc
import weakref
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from itertools import combinations, permutations
from typing import Any, NamedTuple

import pytest
import torch
from conftest import ROOT
from corpora import builtin
from fairseq import checkpoint_utils, tasks
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.options import get_training_parser, parse_args_and_arch
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.trainer import Trainer
from invariants import (
    EOS,
    PAD,
    assert_batches_change_nothing,
    assert_decoding_is_teacher_forcing,
    assert_masked_is_truncated,
    batch,
    run,
)
from mechanism_cases import BIASES
from variants import (
    CASES,
    COVERING,
    MECHANISMS,
    PAIRS,
    PAPER_PAIRS,
    PAPERS,
    in_slot,
)

from fairseq_ext.errors import UsageError

TERMS = ("ag", "asa", "rdrop", "l0")  # of a criterion

SOFTMAX = {"encoder_normaliser": "hybrid", "hna_weight": "raw", "hna_init": 0.0}
SLOTS = {"normaliser": SOFTMAX, "positions": {"encoder_positions": None}}
SLOTS["scorer"] = {"encoder_scorer": "dot"}
NEUTRAL = {  # it is there, or its flag is, and does nothing
    name: neutral
    for name, case in CASES.items()
    if (neutral := SLOTS.get(case.slot) if case.neutral is None else case.neutral) is not None
}
OWN = {name: case.own for name, case in CASES.items() if case.own}
NORMALISERS = in_slot("normaliser")
TWO_WAYS = {*PAIRS} | {pair[::-1] for pair in PAIRS}
SIZE = (
    "--encoder-layers 2 --encoder-embed-dim 32 --encoder-ffn-embed-dim 32 "
    "--encoder-attention-heads 8 "
)
LM = "transformer_lm"
FAMILIES = {
    "transformer": "label_smoothed_cross_entropy --task translation -s de -t en "
    "--arch transformer_una_tiny --decoder-layers 1 --decoder-embed-dim 32 "
    f"--decoder-ffn-embed-dim 32 --label-smoothing .1 {SIZE}",
    "roberta": f"masked_lm --task masked_lm --arch roberta_una_tiny --tokens-per-sample 64 {SIZE}",
    LM: "cross_entropy --task language_modeling --arch transformer_lm_una_tiny "
    f"--tokens-per-sample 64 {SIZE.replace('encoder', 'decoder')}",
}
COMMON = "--cpu --dropout 0 --attention-dropout 0 --optimizer adam --lr .02 --max-update 10"
ENCODER_ALONE = {name for name, case in CASES.items() if case.encoder_only}
"""Mechanisms that a decoder cannot have."""


def possible(family, mechanisms):
    """Return those of the mechanisms that models of a family can have."""
    return tuple(n for n in mechanisms if family != LM or n not in ENCODER_ALONE)


def with_families(sets, families=FAMILIES, marks=()):
    """A family and a set of mechanisms that it can have, once each."""
    every = {(family, possible(family, each)): None for family in families for each in sets}
    return [
        pytest.param(family, chosen, marks=marks, id=f"{family}-{'+'.join(chosen)}")
        for family, chosen in every
        if len(chosen) > 1
    ]


ORDERED = [
    pytest.param(family, *pair, marks=[] if PAPERS.keys() >= {*pair} else [pytest.mark.slow])
    for turn, family in enumerate(FAMILIES)
    for place, pair in enumerate(permutations(MECHANISMS, 2))
    if PAPERS.keys() >= {*pair} or place % len(FAMILIES) == turn
    if pair in TWO_WAYS and pair[0] in NEUTRAL and "l0" not in pair
    if family != LM or not {*pair} & ENCODER_ALONE | {pair[0]} & NORMALISERS
]
SEEN_ALONE = {frozenset(each.values[1:]) for each in ORDERED}
ALONE = [pair for pair in PAIRS if pair in PAPER_PAIRS or frozenset(pair) not in SEEN_ALONE]
"""Pairs of the papers, and those that no test has alone with one of them idle."""

EVERY = pytest.mark.parametrize(
    ("family", "chosen"),
    [
        *with_families(COVERING),
        # each pair is with others in every family; these alone in one of two
        *with_families(ALONE[::2], ["transformer"], pytest.mark.slow),
        *with_families(ALONE[1::2], ["roberta"], pytest.mark.slow),
    ],
)

LINES = builtin()["valid"][:6]
ROWS = range(len(LINES))
WORDS = Dictionary()
TARGETS, SOURCES = (
    [WORDS.encode_line(pair[side], append_eos=True).long() for pair in LINES] for side in (0, 1)
)
WORDS.add_symbol("<mask>", n=0)


def test_covering_sets_hold_every_pair_and_no_other():
    assert {pair for chosen in COVERING for pair in combinations(chosen, 2)} == {*PAIRS}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with dictionaries, which is all that tasks read before there is text."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("dict.txt", "dict.de.txt", "dict.en.txt"):
        WORDS.save(str(folder / name))
    return folder


def of_decoder(text):
    """A flag or an option of an encoder, as that of a decoder."""
    return text.replace("encoder", "decoder").replace("next:1,prev:1", "prev:1,first:1")


def parsed(data, family, mechanisms=(), flags=""):
    """What fairseq reads from the flags of these mechanisms, and others."""
    objective, *own = FAMILIES[family].split()
    criterion = "_".join((objective, *(term for term in TERMS if term in mechanisms)))
    given = [MECHANISMS[name] for name in mechanisms]
    given = [of_decoder(each) if family == LM else each for each in given]
    words = " ".join([COMMON, *given, flags]).split()
    given = [str(data), *own, "--criterion", criterion, *words]
    return parse_args_and_arch(get_training_parser(), given)


@cache
def converted(data, family, criterion):
    """What fairseq makes of them, which takes it half a second: once for each criterion."""
    args = parsed(data, family, flags=f"--criterion {criterion}")
    return vars(args), convert_namespace_to_omegaconf(args)


def configured(data, family, mechanisms=(), flags=""):
    """The configuration of a training."""
    given = vars(parsed(data, family, mechanisms, flags))
    usual, cfg = converted(data, family, given["criterion"])
    cfg = deepcopy(cfg)
    set_options(cfg, {n: value for n, value in given.items() if value != usual.get(n)})
    return cfg


def set_options(cfg, options):
    for name, value in options.items():
        [part] = [part for part in (cfg.criterion, cfg.model) if name in part]
        part[name] = value


class Made(NamedTuple):
    """What a training is made of."""

    cfg: Any
    task: Any
    model: Any
    criterion: Any

    def loss(self, rows=ROWS):
        return self.criterion(self.model, sample(self.task, rows))

    def gradients(self, rows=ROWS):
        self.model.zero_grad()
        torch.manual_seed(3)  # gates that close are sampled
        loss = self.loss(rows)[0]
        loss.backward()
        return loss.detach(), {n: p.grad.clone() for n, p in self.model.named_parameters()}


def make(cfg, **instead):
    """Built as fairseq-train builds it, with some options as they are said here."""
    if cfg.task._name == "language_modeling":
        instead = {of_decoder(name): value for name, value in instead.items()}
    set_options(cfg, instead)
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(1)
    model = task.build_model(cfg.model).train()
    model.set_num_updates(0)
    return Made(cfg, task, model, task.build_criterion(cfg.criterion))


def made_in_float64(cfg, **instead):
    made = make(cfg, **instead)
    made.model.double()
    return made


def sample(task, rows):
    """A batch of some of the lines; to be translated, or with every third word masked."""
    sources, targets = ([lines[row] for row in rows] for lines in (SOURCES, TARGETS))
    words = task.source_dictionary
    if isinstance(task, LanguageModelingTask):
        lines = [line.tolist() for line in sources]
        tokens, target = batch([[EOS, *line[:-1]] for line in lines]), batch(lines)
        inputs = {"src_tokens": tokens, "src_lengths": tokens.ne(PAD).sum(1)}
        counts = {"ntokens": int(tokens.ne(PAD).sum()), "nsentences": len(rows)}
        return {"net_input": inputs, "target": target, **counts}
    if not hasattr(task.cfg, "target_lang"):
        tokens = batch([line.tolist() for line in sources])
        masked = tokens.ne(PAD) & (torch.arange(tokens.size(1)) % 3 == 1)
        inputs = {"src_tokens": tokens.masked_fill(masked, words.index("<mask>"))}
        inputs["src_lengths"] = tokens.ne(PAD).sum(1)
        counts = {"ntokens": int(masked.sum()), "nsentences": len(rows)}
        return {"net_input": inputs, "target": tokens.where(masked, PAD), **counts}
    sizes = [[len(line) for line in lines] for lines in (sources, targets)]
    pairs = LanguagePairDataset(sources, sizes[0], words, targets, sizes[1], words)
    return pairs.collater([pairs[row] for row in range(len(rows))])


def texts(family):
    """Lists of tokens: sources, and what a decoder has written if there is one."""
    sources = [line.tolist() for line in SOURCES]
    written = [[EOS, *line.tolist()[:-1]] for line in TARGETS]
    return (sources, written) if family == "transformer" else (sources,)  # read, too


@contextmanager
def nothing_left_to_collect(model):
    """Check that what a model returned is freed with its graph, before Python collects cycles."""
    returned = []

    def keep(module, args, output):
        returned.append(weakref.ref(output[0]))

    hook = model.register_forward_hook(keep)
    gc.disable()
    try:
        yield
        assert returned and not any(output() is not None for output in returned)
    finally:
        gc.enable()
        hook.remove()


@EVERY
def test_a_step_of_training_and_what_holds_after_it(data, tmp_path, family, chosen):
    """With a checkpoint, read again."""
    made = make(configured(data, family, chosen))
    trainer = Trainer(made.cfg, made.task, made.model, made.criterion)
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    trainer.begin_epoch(1)
    with nothing_left_to_collect(made.model):
        log = trainer.train_step([sample(made.task, ROWS)])
    assert torch.tensor(log["loss"]).isfinite()
    for name, parameter in made.model.named_parameters():
        assert parameter.isfinite().all() and not torch.equal(parameter, before[name]), name
    model, text = made.model.eval(), texts(family)
    for side in ("left", "right"):
        assert_batches_change_nothing(model, *text, side=side, extra=2)
    assert_masked_is_truncated(model, *text)
    if family != "roberta":
        assert_decoding_is_teacher_forcing(model, *text, side="left")
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(tmp_path / "last.pt"), {})
    [again], *_ = checkpoint_utils.load_model_ensemble([str(tmp_path / "last.pt")])
    torch.testing.assert_close(run(again.eval(), *text), run(model, *text), atol=0, rtol=0)


def without_effect(name, chosen, family):
    """A bias that what is normalised first does not see: of keys if rows are, of queries if
    columns are."""
    has_mechanisms = name.startswith("decoder" if family == LM else "encoder")
    ignores, biases = "queries", BIASES
    for case in (CASES[each] for each in chosen if has_mechanisms):
        ignores = case.ignores if case.slot == "normaliser" else ignores
        biases = biases if case.biases is BIASES else case.biases
    return ignores in biases and name.endswith(biases[ignores])


@EVERY
def test_every_parameter_gets_a_gradient_and_a_batch_is_the_sum_of_its_halves(data, family, chosen):
    made = made_in_float64(configured(data, family, chosen))
    loss, gradients = made.gradients()
    assert all(any(OWN[name] in key for key in gradients) for name in OWN if name in chosen)
    for name, gradient in gradients.items():
        assert (gradient.norm() < 1e-10) == without_effect(name, chosen, family), name
    halves = [made.gradients(rows) for rows in ([0, 1, 2], [3, 4, 5])]
    # fairseq's losses are float32, in part
    torch.testing.assert_close(sum(half for half, _ in halves).float(), loss.float())
    for name, gradient in gradients.items():
        parts = sum(half[name] for _, half in halves)
        assert (gradient - parts).norm() <= 1e-6 * gradient.norm() + 1e-8, name


def stir(model, names):
    """No parameter as it begins."""
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if name in names:
            parameter.data.add_(noise, alpha=0.2)


@pytest.mark.parametrize(("family", "one", "other"), ORDERED)
def test_one_that_does_nothing_leaves_the_other(data, family, one, other):
    """And it is not idle: as it is, the loss is another one."""
    pair = tuple(name for name in MECHANISMS if name in (one, other))
    alone = made_in_float64(configured(data, family, (other,)))
    names = dict(alone.model.named_parameters())
    stir(alone.model, names)
    neutral, both = (
        made_in_float64(configured(data, family, pair), **instead) for instead in (NEUTRAL[one], {})
    )
    for made in (neutral, both):
        load_what_fits(made.model, alone.model)
    stir(both.model, dict(both.model.named_parameters()).keys() - names)
    (loss, expected), (found, gradients) = (each.gradients() for each in (alone, neutral))
    torch.testing.assert_close(found.float(), loss.float())  # fairseq's are, in part
    for name, gradient in expected.items():
        assert (gradients[name] - gradient).norm() <= 1e-6 * gradient.norm() + 1e-9, name
    assert (both.loss()[0] - loss).abs() > 1e-5 * loss


def load_what_fits(model, other):
    """The parameters of another model, as far as there are such."""
    ours, theirs = model.state_dict(), other.state_dict()
    fitting = {n: x for n, x in theirs.items() if n in ours and ours[n].shape == x.shape}
    model.load_state_dict(fitting, strict=False)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != LM])
@pytest.mark.parametrize("other", sorted(PAPERS.keys() - NORMALISERS))
def test_hybrid_weights_of_one_are_doubly_normalised(data, family, other):
    one = {"hna_weight": "raw", "hna_init": 1.0}
    pairs = [configured(data, family, (kind, other)) for kind in ("dna", "hna")]
    doubly, hybrid = made_in_float64(pairs[0]), made_in_float64(pairs[1], **one)
    stir(doubly.model, dict(doubly.model.named_parameters()))
    load_what_fits(hybrid.model, doubly.model)
    torch.testing.assert_close(hybrid.loss()[0], doubly.loss()[0])


def test_the_order_of_heads(data):
    """Hard-coded ones, those with roles, and of the others the first ones are guided."""
    made = make(configured(data, "roberta", ("ag", "roles", "gaussian")))
    encoder = made.model.encoder.sentence_encoder
    for layer in encoder.layers:
        assert [group.num_heads for group in layer.self_attn.groups] == [2, 2, 4]
    assert made.criterion.parts[0].guided["encoder"].layers == {0: [4, 5], 1: [4, 5]}


SEVEN = "--encoder-roles rare,relative,rare,relative,rare,relative,rare"
NOT_NORMALISED = ["leaves no head to", "hard-coded heads are not normalised", "softmax"]
NOT_GUIDED = ["that can be guided", "hard-coded heads and those with a role cannot"]
GUIDED = {
    "transformer": "--criterion label_smoothed_cross_entropy_ag",
    "roberta": "--criterion masked_lm_ag",
}
MASKED = "--criterion masked_lm_asa --asa-layers all --asa-empty-rows"


@pytest.mark.parametrize(
    ("family", "flags", "said"),
    [
        ("transformer", f"{GUIDED['transformer']} --encoder-gaussian-heads all", NOT_GUIDED),
        ("transformer", f"{GUIDED['transformer']} {SEVEN}", [*NOT_GUIDED, "2 heads", "has 1"]),
        (
            "transformer",
            f"{GUIDED['transformer']} --ag-decoder-heads prev:1 --decoder-gaussian-heads all",
            [*NOT_GUIDED, "--ag-decoder-heads"],
        ),
        ("roberta", f"{GUIDED['roberta']} --encoder-gaussian-heads all", [*NOT_GUIDED, "has 0"]),
        ("roberta", f"{GUIDED['roberta']} {SEVEN}", [*NOT_GUIDED, "has 1"]),
        ("roberta", "--encoder-normaliser doubly --encoder-gaussian-heads all", NOT_NORMALISED),
        ("roberta", "--encoder-normaliser hybrid --encoder-gaussian-heads 8", NOT_NORMALISED),
        (
            "transformer",
            "--decoder-normaliser sinkhorn --decoder-gaussian-heads all",
            [*NOT_NORMALISED, "--decoder-normaliser sinkhorn"],
        ),
        (
            "roberta",
            "--encoder-roles rare,relative --encoder-gaussian-heads all",
            ["2 roles", "0 of its heads", "hard-coded heads cannot"],
        ),
        (
            "transformer",
            f"{SEVEN} --encoder-gaussian-heads 2",
            ["7 roles", "6 of its heads", "fewer --encoder-gaussian-heads"],
        ),
        ("roberta", f"{MASKED} uniform --encoder-roles rare", ["--encoder-roles", "softmax"]),
        ("roberta", f"{MASKED} scores --encoder-gaussian-heads 2", ["is not normalised"]),
        ("roberta", f"{MASKED} uniform --encoder-normaliser doubly", ["--encoder-normaliser"]),
        ("roberta", f"{MASKED} scores --encoder-normaliser hybrid", ["--encoder-normaliser"]),
        ("roberta", f"{MASKED} scores --encoder-head-mixer talking", ["--encoder-head-mixer"]),
        (
            "roberta",
            "--criterion masked_lm_asa --asa-baseline magnitude --encoder-head-mixer talking",
            ["--asa-baseline magnitude masks a unit in one head", "none or differential"],
        ),
        (
            "transformer",
            "--encoder-head-mixer talking --encoder-roles rare",
            ["mixes the maps of all heads", "--encoder-roles"],
        ),
    ],
)
def test_what_would_have_no_meaning_is_refused_before_training(data, family, flags, said):
    with pytest.raises(UsageError) as refused:
        made = make(configured(data, family, flags=flags))
        Trainer(made.cfg, made.task, made.model, made.criterion)
    assert all(part in str(refused.value) for part in said)
    assert "\n" not in str(refused.value)


def test_the_page_names_the_pair_that_does_not_go_together():
    page = (ROOT / "docs" / "mechanisms" / "index.md").read_text("utf-8")
    apart = {*map(frozenset, combinations(PAPERS, 2))} - {*map(frozenset, PAPER_PAIRS)}
    assert apart == {frozenset(("dna", "hna"))}
    assert "All mechanisms of the papers go together but DNA and HNA" in page
