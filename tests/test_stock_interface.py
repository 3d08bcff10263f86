"""Names that fairseq looks for on attention are there, though it is no class of fairseq's."""

from enum import Enum
from functools import partial

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.modules import MultiheadAttention
from fairseq.modules.quant_noise import quant_noise
from fairseq.sequence_generator import SequenceGenerator

from fairseq_ext.attention import Attention
from fairseq_ext.testing.mechanisms import build_tiny_model

C, H = 16, 4
SITES = {"encoder": {"self_attention": True}, "cross": {"encoder_decoder_attention": True}}


def pair(site="encoder", p=0.0, **widths):
    """Ours and fairseq's, with the parameters of one seed."""
    torch.manual_seed(2)
    ours = Attention(C, H, site=site, wrap=partial(quant_noise, p=p, block_size=4), **widths)
    torch.manual_seed(2)
    return ours, MultiheadAttention(C, H, q_noise=p, qn_block_size=4, **SITES[site], **widths)


@pytest.mark.parametrize("widths", [{}, {"kdim": 8, "vdim": 8}], ids=["one width", "another width"])
def test_one_seed_gives_the_parameters_of_fairseqs(widths):
    ours, stock = pair("cross" if widths else "encoder", **widths)
    mine, theirs = ours.state_dict(), stock.state_dict()
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_quantisation_noise_is_that_of_fairseqs():
    """In training, in the same projections: the noise stays in the weights."""
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        x, weights = torch.randn(3, 2, C), []
        for module in pair(p=0.5):
            projection = getattr(module, name)
            projection.eval()(x)
            assert not projection.weight.eq(0).any()
            torch.manual_seed(3)
            projection.train()(x)
            weights.append(projection.weight.detach())
        torch.testing.assert_close(*weights)
        assert weights[0].eq(0).any()


RETAINED = {"retain_dropout": True, "retain_dropout_modules": ["MultiheadAttention"]}


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({}, False),
        ({"retain_dropout": True}, True),
        (RETAINED, True),
        (RETAINED | {"retain_dropout_modules": ["TransformerEncoderLayerBase"]}, False),
    ],
)
def test_dropout_that_is_retained(asked, kept):
    for module in pair():
        module.eval().dropout_module.make_generation_fast_("encoder.attention", **asked)
        assert module.dropout_module.apply_during_inference is kept


def test_projections_of_early_checkpoints():
    ours, stock = pair()
    joint = {
        "layer.in_proj_weight": torch.randn(3 * C, C),
        "layer.in_proj_bias": torch.randn(3 * C),
        "layer.out_proj.weight": torch.randn(C, C),
    }
    mine, theirs = dict(joint), dict(joint)
    ours.upgrade_state_dict_named(mine, "layer")
    stock.upgrade_state_dict_named(theirs, "layer")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("padded", ["never", "first", "later", "both"])
@pytest.mark.parametrize("site", SITES)
def test_steps_with_a_cache_are_those_of_fairseqs(site, padded):
    """Padding may be said of cached keys, of new ones, or of both; rows are reordered between."""
    ours, stock = (module.eval() for module in pair(site))
    steps = torch.randn(3, 1, 4, C)
    memory = torch.randn(5, 4, C)
    answers = []
    for module in (ours, stock):
        state, rows = {}, []
        for number, x in enumerate(steps):
            keys = memory if site == "cross" else x
            said = {"never": (), "first": (0,), "later": (1, 2), "both": (0, 1, 2)}[padded]
            padding = None
            if number in said:
                padding = torch.zeros(4, len(keys), dtype=torch.bool)
                padding[0, 0] = site == "cross" or number == 0
            out, _ = module(x, keys, keys, padding, state, static_kv=site == "cross")
            rows.append(out[:, 1:] if site == "encoder" else out)
            if site == "encoder":
                module.reorder_incremental_state(state, torch.tensor([0, 2, 2, 1]))
        answers.append(torch.cat(rows))
    torch.testing.assert_close(*answers)


@pytest.mark.parametrize(
    "options", [{}, {"decoder_gaussian_heads": "all"}], ids=["una", "gaussian"]
)
def test_a_prefix_is_kept_and_scored_as_in_training(options):
    """Beam search gets such a prefix from --prefix-size."""
    model = build_tiny_model("transformer_una_tiny", **options)
    words = Dictionary()
    for n in range(40):
        words.add_symbol(f"w{n}" if n else ",")
    search = SequenceGenerator([model], words, beam_size=3, max_len_b=8)
    tokens, prefix = torch.randint(5, 40, (2, 6)), torch.randint(5, 40, (2, 2))
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([6, 6])}}
    found = search.generate([model], sample, prefix_tokens=prefix)
    for row, best in enumerate(hypotheses[0] for hypotheses in found):
        assert best["tokens"][:2].tolist() == prefix[row].tolist()
        inputs = torch.cat([torch.tensor([words.eos()]), best["tokens"][:-1]])[None]
        output = model(tokens[row : row + 1], torch.tensor([6]), inputs)
        scores = model.get_normalized_probs(output, log_probs=True)[0]
        expected = scores.gather(1, best["tokens"][:, None])[:, 0]
        torch.testing.assert_close(best["positional_scores"], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "architecture", ["roberta_hna_tiny", "deberta_una_tiny", "roberta_sink_tiny"]
)
def test_arguments_hold_no_enumerations(architecture):
    """Checkpoints and their readers know none."""
    args = vars(build_tiny_model(architecture).args)
    assert args["hna_weight"] == "sigmoid"
    assert not [name for name, value in args.items() if isinstance(value, Enum)]
