"""ELECTRA with a learned generator: twin of loss and gradients, trainings, what is refused."""

import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import PLUGIN, fairseq
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.data import Dictionary
from fairseq.models import build_model
from omegaconf import OmegaConf

from fairseq_ext.attention import Attention
from fairseq_ext.criterions.tokens_and_spans import ReplacedTokenDetection
from fairseq_ext.errors import UsageError
from fairseq_ext.interchange import export_hf
from fairseq_ext.models.generator import Generator
from fairseq_ext.safe_loading import load_checkpoint
from fairseq_ext.tasks.plain_text import REPLACED
from fairseq_ext.training.training_checks import check_criterion

PAD, MASK = 1, 24


class Task:
    """Stand-in for a task whose generator has half of the heads."""

    def __init__(self, size=0.5):
        self.source_dictionary = self.target_dictionary = Dictionary()
        for n in range(20):
            self.source_dictionary.add_symbol(f"w{n}", n=30 - n)
        assert self.source_dictionary.add_symbol("<mask>") == MASK
        self.segments = 0
        self.cfg = OmegaConf.create({"replace_prob": 0.15, "generator_size": size})
        self.max_positions = lambda: 16


def test_a_generator_that_would_not_know_where_words_stand_is_refused():
    """Its model has their order from its scores, which the generator does not have."""
    options = {"encoder_positions": "none", "encoder_scorer": "dense", "synthesizer_length": 16}
    setup(0, **options)
    with pytest.raises(UsageError, match="--encoder-positions none and .* order of words"):
        setup(**options)


def setup(size=0.5, seed=1, **options):
    task = Task(size)
    torch.manual_seed(seed)
    sizes = {"encoder_layers": 2, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24}
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    config = {
        "_name": "roberta_una_tiny",
        "encoder_attention_heads": 4,
        **sizes,
        **rates,
        **options,
    }
    model = build_model(OmegaConf.create(config), task)
    model.register_token_head(REPLACED, 1)
    model.encoder.freeze_lm_head()
    if size:
        model.register_generator(size)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return model.double(), ReplacedTokenDetection(task)


@pytest.mark.parametrize("options", [{}, {"encoder_positions": "t5"}])
def test_a_generator_is_added_to_a_model_without_one(options):
    """The new generator keeps its initial parameters."""
    plain, model = setup(0.0, **options)[0], setup(seed=2, **options)[0]
    before = {key: x.clone() for key, x in model.generator.state_dict().items()}
    model.load_state_dict(plain.state_dict())
    torch.testing.assert_close(model.generator.state_dict(), before, rtol=0, atol=0)
    torch.testing.assert_close(model.encoder.state_dict(), plain.encoder.state_dict())


def batch():
    """Two sentences, the second one shorter; three masks, of which none hides padding."""
    tokens = torch.tensor([[0, 5, MASK, 7, MASK, 2], [0, MASK, 9, 2, PAD, PAD]])
    hidden = torch.full_like(tokens, PAD)
    hidden[0, 2], hidden[0, 4], hidden[1, 1] = 6, 8, 10
    inputs = {"src_tokens": tokens, "src_lengths": None}
    return {"net_input": inputs, "target": hidden, "ntokens": 10, "nsentences": 2}


def naive(model, sample, sampled, weight):
    """Both losses sentence by sentence, given what was sampled."""
    tokens, hidden = sample["net_input"]["src_tokens"], sample["target"]
    generator, encoder = model.generator, model.encoder.sentence_encoder
    total, places = 0.0, 0
    for b in range(len(tokens)):
        real = int(tokens[b].ne(PAD).sum())
        words = tokens[b, :real]
        x = encoder.embed_scale * encoder.embed_tokens(words)
        x = x + encoder.embed_positions(words[None])[0]
        x = generator.project(encoder.layernorm_embedding(x))[:, None]
        for layer in generator.layers:
            x = layer(x, None)
        x = x if generator.layer_norm is None else generator.layer_norm(x)
        replaced = words.clone()
        for t in range(real):
            if hidden[b, t] == PAD:
                continue
            state = generator.head_norm(F.gelu(generator.dense(x[t, 0])))
            scores = encoder.embed_tokens.weight @ state + generator.bias
            total = total - (scores[hidden[b, t]] - scores.logsumexp(0))
            replaced[t] = sampled[places]
            places += 1
        scores = model(replaced[None], classification_head_name=REPLACED)[0][0, :, 0]
        for t in range(real):
            wrong = hidden[b, t] != PAD and replaced[t] != hidden[b, t]
            p = torch.sigmoid(scores[t])
            total = total - weight * torch.log(p if wrong else 1 - p)
    return total


@pytest.mark.parametrize("first", [False, True])
def test_twin_of_loss_and_gradients(first):
    """Samples have no gradient, and a sample that is the original counts as original."""
    model, criterion = setup(encoder_normalize_before=first)
    assert (model.generator.layer_norm is not None) == first
    sample = batch()
    sampled = torch.tensor([6, 11, 12])  # the first one is what the mask hides
    model.generator.sample = lambda scores, excluded: sampled
    model.train()
    loss, size, log = criterion(model, sample)
    other = copy.deepcopy(model)
    loss.backward()
    expected = naive(other, sample, sampled, 50.0)
    expected.backward()
    near = {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}  # losses are in float32
    torch.testing.assert_close(loss, expected, **near)
    assert size == 10 and log["masked"] == 3 and log["replaced"] == 2
    ours, theirs = (dict(m.named_parameters()) for m in (model, other))
    for name, parameter in ours.items():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, theirs[name].grad, **near)
            assert parameter.grad.abs().sum() > 0 or name.endswith("k_proj.bias"), name
    torch.testing.assert_close(loss.detach(), log["generator_loss"] + 50 * log["loss"], **near)


def test_samples():
    """They have the probabilities that the generator gives, and are neither padding nor masks."""
    model, _ = setup()
    generator = model.generator.train()
    torch.manual_seed(2)
    scores = torch.randn(1, 25).double()
    samples = torch.cat([generator.sample(scores, [PAD, MASK]) for _ in range(4000)])
    allowed = scores.clone()
    allowed[0, [PAD, MASK]] = -torch.inf
    share = torch.bincount(samples, minlength=25) / 4000
    torch.testing.assert_close(share.double(), allowed.softmax(-1)[0], atol=0.03, rtol=0)
    assert share[PAD] == share[MASK] == 0
    generator.eval()
    first, second = (generator.sample(scores.expand(9, -1), []) for _ in range(2))
    assert torch.equal(first, second)


def test_what_the_model_sees():
    """Masks are gone, other tokens stay, and padding changes nothing."""
    model, criterion = setup()
    model.eval()
    sample = batch()
    _, extra = model(
        **sample["net_input"], hidden=sample["target"], classification_head_name=REPLACED
    )
    tokens, masked = sample["net_input"]["src_tokens"], sample["target"].ne(PAD)
    assert torch.equal(extra["replaced"][~masked], tokens[~masked])
    assert not extra["replaced"].eq(MASK).any() and extra["generator"].shape == (3, 25)
    losses = [criterion(model, sample)[2]["generator_loss"]]
    for b, length in enumerate((6, 4)):
        alone = {k: v for k, v in sample.items() if k != "net_input"}
        alone["net_input"] = {"src_tokens": tokens[b : b + 1, :length], "src_lengths": None}
        alone["target"] = sample["target"][b : b + 1, :length]
        losses.append(criterion(model, alone)[2]["generator_loss"])
    torch.testing.assert_close(losses[0], losses[1] + losses[2])


def test_a_batch_without_masks_has_gradients_for_all():
    model, criterion = setup()
    sample = batch()
    sample["net_input"]["src_tokens"][sample["target"].ne(PAD)] = 5
    sample["target"].fill_(PAD)
    criterion(model.train(), sample)[0].backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_the_generator_is_small_and_plain():
    model, _ = setup(
        0.25, encoder_normaliser="hybrid", encoder_positions="rotary", asa_layers="all"
    )
    parts = [m for m in model.generator.modules() if isinstance(m, Attention)]
    assert [(m.num_heads, m.embed_dim, m.adversary) for m in parts] == [(1, 4, None)] * 2
    assert {type(group.normaliser).__name__ for m in parts for group in m.groups} == {"Softmax"}
    assert {type(group.positions).__name__ for m in parts for group in m.groups} == {"Rotary"}
    assert model.generator.layers[0].fc1.out_features == 6
    plain, _ = setup(0)
    names = {name for name, _ in plain.named_parameters()}
    own = {name for name, _ in model.named_parameters() if name.startswith("generator.")}
    assert not [name for name in names if "generator" in name] and own
    with pytest.raises(UsageError, match="--generator-size is 2; give a share above 0, up to 1"):
        Generator(None, 2.0, 25)


def test_models_without_generator_leave_it_out_and_others_keep_theirs():
    full, _ = setup(0.5, seed=1)
    plain, _ = setup(0, seed=2)
    plain.load_state_dict(full.state_dict())
    torch.testing.assert_close(
        plain.encoder.state_dict(), full.encoder.state_dict(), atol=0, rtol=0
    )
    again, _ = setup(0.5, seed=3)
    before = again.generator.bias.clone()
    again.load_state_dict(plain.state_dict())
    assert torch.equal(again.generator.bias, before)
    again.load_state_dict(full.state_dict())
    assert torch.equal(again.generator.bias, full.generator.bias)
    assert "generator." in export_hf.FINE_TUNED


def build_composite(name, **options):
    (model, _), task = setup(), Task()
    task.model_report = model.report
    config = CRITERION_DATACLASS_REGISTRY[name](max_update=100, **options)
    return model, CRITERION_REGISTRY[name].build_criterion(config, task)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (f"{REPLACED}_rdrop", {}),
        (f"{REPLACED}_ag_rdrop", {}),
        (f"{REPLACED}_asa", {"asa_baseline": "freelb"}),
        (f"{REPLACED}_asa", {"asa_baseline": "smart"}),
    ],
)
def test_objectives_that_sample_again_are_refused(name, options):
    model, criterion = build_composite(name, **options)
    with pytest.raises(UsageError, match=r"computes the objective again.*--generator-size"):
        check_criterion(model, criterion, name, clip_norm=0.0)


def test_guidance_sees_what_the_discriminator_reads():
    """Patterns see the sampled words, and no mask."""
    model, criterion = build_composite(f"{REPLACED}_ag")
    sample, part = batch(), criterion.parts[0]
    inputs = {**sample["net_input"], "hidden": sample["target"]}
    recorder = part.keywords(0)["recorder"]
    _, extra = model(**inputs, classification_head_name=REPLACED, recorder=recorder)
    view = part._build_views(recorder.inputs)["encoder"]
    assert torch.equal(view.tokens, extra["replaced"]) and not view.tokens.eq(MASK).any()


def test_options_that_have_no_effect():
    with pytest.raises(UsageError, match="--discriminator-weight 7.0 has no effect with --gen"):
        ReplacedTokenDetection(Task(0.0), 7.0)


FLAGS = [
    *("--user-dir", str(PLUGIN), "--task", REPLACED, "--arch", "roberta_una_tiny"),
    *"--cpu --num-workers 0 --seed 1 --tokens-per-sample 64 --batch-size 4 --lr 1e-3".split(),
    *"--optimizer adam --log-format json --log-interval 1 --no-epoch-checkpoints".split(),
    *"--encoder-layers 2 --generator-size 0.25".split(),
]


def run(data, folder, updates, *options, check=True):
    return fairseq(
        *("train", data, *FLAGS, "--criterion", f"{REPLACED}_ag", "--ag-alpha", 1),
        *("--ag-decay-updates", 12),
        *("--max-update", updates, "--save-dir", folder, *options),
        check=check,
    )


def test_the_command_line(encoder_data, tmp_path):
    """Both losses are logged."""
    done = run(encoder_data, tmp_path / "run", 1)
    for name in ("generator_loss", "generator_accuracy", "f1", "ag_loss"):
        assert f'"{name}"' in done.stdout + done.stderr, name
    refused = run(encoder_data, tmp_path / "no", 1, "--replace-prob", 1, check=False)
    assert "--replace-prob 1.0 masks all; give less" in refused.stderr


@pytest.mark.slow
def test_resuming_is_exact_and_a_fine_tuning_has_no_generator(encoder_data, tmp_path):
    run(encoder_data, tmp_path / "whole", 3)
    for updates in (1, 3):
        run(encoder_data, tmp_path / "cut", updates)
    paths = [tmp_path / name / "checkpoint_last.pt" for name in ("whole", "cut")]
    one, other = (load_checkpoint(str(path))["model"] for path in paths)
    torch.testing.assert_close(one, other, atol=0, rtol=0)
    assert any(name.startswith("generator.") for name in one)
    own = ["--task", "masked_lm", "--criterion", "masked_lm", "--finetune-from-model", paths[0]]
    flags = [flag for flag in FLAGS if flag not in ("--generator-size", "0.25")]
    tuned = tmp_path / "tuned"
    fairseq(*("train", encoder_data, *flags, *own, "--max-update", 1, "--save-dir", tuned))
    state = load_checkpoint(str(tuned / "checkpoint_last.pt"))["model"]
    assert not any(name.startswith("generator.") for name in state)
