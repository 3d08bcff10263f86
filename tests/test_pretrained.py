"""What a model takes over from the checkpoint that it is fine-tuned from, and goes on with."""

from argparse import Namespace

import pytest
import restore
import torch
from restore import make_options as options
from saved_state import save_state

from fairseq_ext.errors import UsageError
from fairseq_ext.models.pretrained import SIZES, adopt_options
from fairseq_ext.testing.mechanisms import build_tiny_model
from fairseq_ext.training.resuming_checks import check_shared


def saved(folder, arch="roberta_una_12", **given):
    """A checkpoint with the options of a model, and no parameters."""
    save_state(folder / "encoder.pt", options(arch, **given))
    return str(folder / "encoder.pt")


def adopted(checkpoint, arch="roberta_una", **given):
    args = Namespace(**options(arch, **given))
    adopt_options(args, checkpoint)
    return args


def test_a_model_without_a_size_is_made_like_its_encoder(tmp_path):
    own = {"encoder_normalize_before": True, "layernorm_embedding": False, "activation_fn": "relu"}
    args = adopted(saved(tmp_path, **own))
    assert own.items() <= vars(args).items()
    assert [getattr(args, name) for name in SIZES] == [12, 768, 3072, 12]
    plain = adopted(saved(tmp_path))
    assert plain.layernorm_embedding and not plain.encoder_normalize_before


def test_a_model_with_a_size_has_to_be_like_its_encoder(tmp_path):
    with pytest.raises(UsageError, match="has --encoder-normalize-before True and the model"):
        adopted(saved(tmp_path, encoder_normalize_before=True), "roberta_una_12")


def test_hybrid_weights_stay_what_they_were(tmp_path):
    """They are stored relative to these options."""
    hybrid = saved(tmp_path, "roberta_hna_12", hna_init=0.1, hna_weight="raw")
    args = adopted(hybrid, "roberta_hna")
    assert (args.hna_init, args.hna_weight) == (0.1, "raw")
    args = adopted(saved(tmp_path), "roberta_hna")
    assert (args.hna_init, args.hna_weight) == (0.5, "sigmoid")
    args = adopted(saved(tmp_path), "roberta_hna", hna_init=0.3)
    assert (args.hna_init, args.hna_weight) == (0.3, "sigmoid")


def test_hybrid_weights_relative_to_something_else_are_refused(tmp_path, caplog):
    """Even to begin from; those of another normaliser are only told of."""
    hybrid = saved(tmp_path, "roberta_hna_12", hna_init=0.1)
    with pytest.raises(UsageError, match="hna_init 0.1 .now 0.5.*give the same --hna-init"):
        restore.check(hybrid, options("roberta_hna_12"), True)
    restore.check(hybrid, options("roberta_hna_12", hna_init=0.1), False)
    fewer = options("roberta_hna_12", hna_init=0.1, encoder_attention_heads=1)
    with pytest.raises(UsageError, match="encoder_attention_heads .*give the same --enc"):
        restore.check(hybrid, fewer, True)
    restore.check(hybrid, options("roberta_una_12"), True)
    assert "encoder_normaliser hybrid (now softmax)" in caplog.text


@pytest.mark.parametrize(
    ("arch", "before", "now"),
    [
        ("roberta_una_12", {}, {"encoder_positions": "none"}),
        ("roberta_una_12", {}, {"encoder_positions": "sinusoidal"}),
        ("transformer_una", {"decoder_positions": "none"}, {"decoder_positions": None}),
        ("transformer_una", {"encoder_positions": "none"}, {"encoder_positions": "sinusoidal"}),
        ("transformer_una", {"encoder_positions": "t5"}, {"t5_distance": 64}),
        ("roberta_una_12", {"encoder_roles": "rare"}, {"role_rare_min_count": 3}),
        ("roberta_una_12", {}, {"pooler_activation_fn": "relu"}),
        ("roberta_una_12", {}, {"untie_weights_roberta": True}),
        ("transformer_una", {"decoder_normalize_before": True}, {"no_decoder_final_norm": True}),
        ("transformer_una", {"no_decoder_final_norm": True}, {"decoder_normalize_before": True}),
        (
            "transformer_una",
            {"encoder_head_mixer": "differential", "encoder_layers": 2},
            {"encoder_layers_to_keep": "2,3"},
        ),
    ],
)
def test_a_model_that_computes_something_else_is_refused(tmp_path, arch, before, now):
    """The names and sizes of its parameters do not tell."""
    path = saved(tmp_path, arch, **before)
    restore.check(path, options(arch, **before), False)
    with pytest.raises(UsageError, match=f"was trained with {next(iter(now))}"):
        restore.check(path, options(arch, **before | now), False)


@pytest.mark.parametrize(
    ("arch", "before", "now"),
    [
        (
            "transformer_una",
            {"share_all_embeddings": True, "share_decoder_input_output_embed": True},
            {"share_decoder_input_output_embed": False},
        ),
        ("transformer_una", {}, {"no_decoder_final_norm": True}),
        ("roberta_una_12", {"encoder_normalize_before": None}, {"encoder_normalize_before": False}),
    ],
)
def test_options_that_change_nothing_are_no_difference(tmp_path, arch, before, now):
    restore.check(saved(tmp_path, arch, **before), options(arch, **before | now), False)
    restore.check(saved(tmp_path, arch, **before | now), options(arch, **before), False)


def test_layers_that_were_kept_are_the_same_by_number(tmp_path):
    """λ of differential attention begins by the number of a layer; nothing else depends on it."""
    mixer = {"encoder_head_mixer": "differential", "encoder_layers": 2}
    path = saved(tmp_path, "transformer_una", encoder_layers_to_keep="1,0", **mixer)
    restore.check(path, options("transformer_una", **mixer), False)
    path = saved(tmp_path, "transformer_una", encoder_layers_to_keep="2,3", encoder_layers=2)
    restore.check(path, options("transformer_una", encoder_layers=2), False)


@pytest.mark.parametrize(
    ("arch", "apart", "shared", "second"),
    [
        (
            "roberta_una_tiny",
            {"untie_weights_roberta": True},
            {},
            "encoder.lm_head.weight",
        ),
        (
            "transformer_una_tiny",
            {},
            {"share_decoder_input_output_embed": True},
            "decoder.output_projection.weight",
        ),
    ],
)
def test_embeddings_of_two_values_are_not_shared(arch, apart, shared, second):
    """The value under the last name would overwrite the others in silence."""
    model, other = build_tiny_model(arch, **shared), build_tiny_model(arch, **apart)
    parameters = other.state_dict()
    said = f"old.pt has other values for .*embed_tokens.weight than for {second}, which this model"
    with pytest.raises(UsageError, match=said):
        check_shared("old.pt", parameters, model)
    check_shared("old.pt", parameters, other)
    for value in (0.5, float("nan")):  # of a training that diverged
        with torch.no_grad():
            next(model.parameters())[0, 0] = value
        check_shared("old.pt", model.state_dict(), model)
    check_shared("old.pt", {n: p for n, p in parameters.items() if n != second}, model)


@pytest.mark.parametrize(
    ("arch", "same"),
    [
        ("roberta_una_12", {"encoder_positions": "learned"}),
        ("transformer_una", {"encoder_positions": "sinusoidal"}),
        ("transformer_una", {"decoder_positions": "learned", "decoder_learned_pos": True}),
        ("transformer_una", {"encoder_positions": "none", "no_token_positional_embeddings": True}),
    ],
)
def test_positions_that_fairseqs_flags_say_too_are_the_same(tmp_path, arch, same):
    [name, *flags] = same
    plain = options(arch, **{flag: same[flag] for flag in flags})
    del plain[name], plain["role_rare_min_count"], plain["t5_distance"]  # an older checkpoint
    save_state(tmp_path / "older.pt", plain)
    restore.check(tmp_path / "older.pt", options(arch, **same), False)


def test_there_is_no_encoder():
    with pytest.raises(UsageError, match="give --finetune-from-model and a --task on labelled"):
        adopted(None)
