"""Architectures: parity with fairseq's own, options, checkpointing, LayerDrop, data parallelism."""

import copy
import re
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass, field, fields

import pytest
import torch
import torch.distributed as dist
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    build_model,
)
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer import TransformerEncoderBase as Stock
from fairseq.sequence_generator import SequenceGenerator
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairseq_ext.attention import Attention, AttentionRecorder
from fairseq_ext.attention.presets import PRESETS
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.doubly import Hybrid
from fairseq_ext.models.architectures import _TINY, SIZES
from fairseq_ext.models.config import check_requirements, joined_config, to_transformer_config
from fairseq_ext.models.layers import Checkpointed
from fairseq_ext.models.mixins import SIDES
from fairseq_ext.models.options import DEFAULTS, OPTION_REQUIREMENTS
from fairseq_ext.testing.mechanisms import build_tiny_model

TINY = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in _TINY.items()}


def task(**options):
    words = Dictionary()
    for i in range(30):
        words.add_symbol(f"w{i}" if i else ",", n=50 - i)
    return Namespace(source_dictionary=words, target_dictionary=words, cfg=Namespace(**options))


def build(name="transformer_una_tiny", task_options=None, **options):
    """A model of ours; dropout is 0 unless asked for."""
    torch.manual_seed(3)
    config = OmegaConf.create({"_name": name, "dropout": 0.0, **options})
    return build_model(config, task(**task_options or {}))


def build_stock(**options):
    torch.manual_seed(4)
    return build_model(Namespace(arch="transformer", dropout=0.0, **{**TINY, **options}), task())


SOURCE = torch.tensor([[1, 1, 5, 6, 7, 2], [8, 9, 10, 11, 12, 2]])
PREVIOUS = torch.tensor([[2, 5, 6, 1, 1], [2, 7, 8, 9, 10]])
REAL = PREVIOUS.ne(1)
BATCH = {"src_tokens": SOURCE, "src_lengths": None, "prev_output_tokens": PREVIOUS}


def loss_and_gradients(model):
    model.zero_grad()
    loss = model(**BATCH)[0].log_softmax(-1)[REAL][:, 5:9].sum()
    loss.backward()
    return loss, {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"share_all_embeddings": True, "layernorm_embedding": True, "encoder_learned_pos": True},
        {"encoder_normalize_before": True, "decoder_normalize_before": True},
        {
            "no_token_positional_embeddings": True,
            "activation_fn": "gelu",
            "no_scale_embedding": True,
        },
        {"decoder_output_dim": 64, "decoder_embed_dim": 96, "encoder_embed_dim": 64},
        {"no_cross_attention": True},
    ],
)
def test_softmax_models_are_fairseqs(options):
    """Same parameters under the same names, same losses and gradients, same alignments.

    In float64, where what is left is fairseq's cross-attention softmax in float32.
    """
    ours, stock = build(**options).double(), build_stock(**options).double()
    ours.load_state_dict(stock.state_dict(), strict=True)
    stock.load_state_dict(ours.state_dict(), strict=True)
    for mode in (True, False):
        results = [loss_and_gradients(model.train(mode)) for model in (ours, stock)]
        torch.testing.assert_close(*results, atol=5e-6, rtol=1e-6)
    (_, ours_extra), (_, stock_extra) = (model(**BATCH) for model in (ours, stock))
    if not options.get("no_cross_attention"):
        pair = [extra["attn"][0][REAL] for extra in (ours_extra, stock_extra)]
        torch.testing.assert_close(*pair, atol=5e-6, rtol=1e-6)


OWN_SIZES = ("_tiny", "_gigaword", "_today_tiny", "_today_base")  # which fairseq has not


@pytest.mark.parametrize("mechanism", PRESETS["transformer"])
@pytest.mark.parametrize("size", [size for size in SIZES if size not in OWN_SIZES])
def test_every_size_is_the_stock_preset(mechanism, size):
    args = Namespace()
    ARCH_CONFIG_REGISTRY[f"transformer{size}"](args)
    stock = asdict(TransformerConfig.from_namespace(args))
    cls = ARCH_MODEL_REGISTRY[f"transformer_{mechanism}{size}"]
    ours = to_transformer_config(OmegaConf.structured(getattr(cls, "__dataclass")))
    assert {name: getattr(ours, name) for name in PRESETS["transformer"][mechanism]} == PRESETS[
        "transformer"
    ][mechanism]
    assert {name: asdict(ours)[name] for name in stock} == stock


def test_hydra_gets_a_node_of_its_own_each_time():
    one, other = (ConfigStore.instance().load("model/transformer_dna_tiny.yaml").node for _ in "ab")
    assert one._name == "transformer_dna_tiny" and one.encoder_normaliser == "doubly"
    one.encoder_layers = 9
    assert other.encoder_layers == 4
    with pytest.raises(ConfigAttributeError):
        one.encoder_normalizer = "softmax"


def test_every_stock_option_is_there():
    flags = []
    for name in ("transformer", "transformer_dna"):
        parser = ArgumentParser(allow_abbrev=False)
        ARCH_MODEL_REGISTRY[name].add_args(parser)
        flags.append({flag for action in parser._actions for flag in action.option_strings})
    assert flags[0] - flags[1] == set()
    assert {"--encoder-normaliser", "--hna-init", "--sinkhorn-sweeps"} <= flags[1] - flags[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cross_self_attention": True}, "--cross-self-attention is not supported"),
        ({"encoder_xformers_att_config": "{}"}, "--encoder-xformers-att-config is not supported"),
        ({"base_layers": 1}, "--base-layers is not supported"),
        (
            {"tie_adaptive_weights": True, "adaptive_softmax_cutoff": [10]},
            "--tie-adaptive-weights is for language models",
        ),
        ({"decoder_normaliser": "doubly"}, "see the future"),
        ({"cross_normaliser": "hybrid"}, "needs all queries"),
        ({"encoder_attention_heads": 3}, "^--encoder-attention-heads is 3, and 3 heads do not"),
        ({"encoder_normaliser": "hybrid", "hna_init": 2.0}, "--hna-init is 2;"),
        ({"encoder_normaliser": "hybrid", "hna_init": 1.0}, "raw or clamp"),
        ({"encoder_normaliser": "sinkhorn", "sinkhorn_sweeps": 0}, "--sinkhorn-sweeps is 0"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(options, said):
    with pytest.raises(UsageError, match=said):
        build(**options)


def test_checkpoints_may_have_options_without_effect():
    """A training refuses them, which was not always so."""
    build(
        adaptive_input=True,
        encoder_normaliser="sinkformer",
        sinkformer_iterations=1,
        sinkformer_detach=True,
    )


def test_options_whose_defaults_are_lists_have_one_each():
    """A regulariser of another package may have such defaults."""

    @dataclass
    class Own(FairseqDataclass):
        layers: list[int] = field(default_factory=lambda: [1])

    joined = joined_config("Joined", [Own])
    one, other = joined(), joined(layers=[2])
    one.layers.append(3)
    assert (one.layers, other.layers, joined().layers) == ([1, 3], [2], [1])


def test_a_flag_that_is_on_by_default_stays_on_when_it_is_given():
    parser = ArgumentParser()
    ARCH_MODEL_REGISTRY["transformer_dna_gigaword"].add_args(parser)
    assert parser.parse_args(["--share-all-embeddings"]).share_all_embeddings is True
    assert parser.parse_args(["--head-gate"]).head_gate == "static"
    parser = ArgumentParser()
    ARCH_MODEL_REGISTRY["roberta_una_12"].add_args(parser)
    assert parser.parse_args(["--layernorm-embedding"]).layernorm_embedding is True


def test_an_unknown_normaliser_is_refused_with_the_choices(capsys):
    parser = ArgumentParser()
    ARCH_MODEL_REGISTRY["transformer_dna"].add_args(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--encoder-normaliser", "double"])
    assert "doubly" in capsys.readouterr().err


def test_a_configuration_from_before_a_flag_existed_still_builds():
    cls = ARCH_MODEL_REGISTRY["transformer_hna_tiny"]
    config = OmegaConf.structured(getattr(cls, "__dataclass"))
    old = {
        k: v
        for k, v in OmegaConf.to_container(config).items()
        if not k.startswith(("hna", "cross"))
    }
    model = build("transformer_hna_tiny", **{k: v for k, v in old.items() if k != "_name"})
    assert model.encoder.layers[0].self_attn.groups[0].normaliser.init == 0.5


def everything(site, layer):
    return [0, 2]


def guided(model, **options):
    """Loss on the attention maps alone, and its gradients."""
    model.zero_grad()
    recorder = AttentionRecorder(everything)
    _, extra = model(**BATCH, recorder=recorder, **options)
    assert extra["attention_maps"] is recorder.maps
    maps = recorder.maps
    loss = sum((m.square().sum() for m in maps.values()), torch.zeros(()))
    loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return maps.keys(), loss, grads


@pytest.mark.parametrize("name", ["transformer_una_tiny", "transformer_hna_tiny"])
@pytest.mark.parametrize("how", ["checkpoint_activations", "offload_activations"])
def test_checkpointed_activations_keep_values_and_gradients(name, how):
    plain, saved = build(name), build(name, **{how: True})
    torch.testing.assert_close(loss_and_gradients(saved), loss_and_gradients(plain))
    expected, heard = guided(plain), guided(saved)
    assert len(heard[0]) == 12 and heard[0] == expected[0]
    torch.testing.assert_close(heard[1:], expected[1:])
    assert expected[2]["encoder.layers.0.self_attn.q_proj.weight"].abs().max() > 0


@pytest.mark.parametrize(
    "name", ["roberta_una_tiny", "deberta_una_tiny", "transformer_lm_una_tiny"]
)
def test_offloading_checkpoints_layers_of_every_model(name):
    """Fairseq's builder sees to it in translation models alone."""
    model = build_tiny_model(name, offload_activations=True)
    layers = [module for module in model.modules() if isinstance(module, Checkpointed)]
    assert layers and all(layer.checkpointed and layer.offloaded for layer in layers)


def test_dropout_is_replayed_by_activation_checkpointing():
    plain, saved = (build(dropout=0.3, checkpoint_activations=on) for on in (False, True))
    results = []
    for model in (plain, saved):
        torch.manual_seed(5)
        results.append(loss_and_gradients(model))
    torch.testing.assert_close(*results)


def test_layerdrop_keeps_the_indices_of_layers():
    model = build("transformer_dna_tiny", encoder_layerdrop=0.5, decoder_layerdrop=0.5).train()
    heard, calls = set(), set()
    for index, layer in model.encoder.layers._modules.items():
        layer.register_forward_hook(lambda *_, i=int(index): calls.add(i))
    for _ in range(8):
        calls.clear()
        keys, *_ = guided(model)
        encoder = {layer for site, layer in keys if site == "encoder"}
        assert encoder == calls
        heard.add(len(encoder))
    assert len(heard) > 1


def test_the_alignment_layer_is_one_that_layerdrop_left():
    model = build(task_options={"load_alignments": True}, decoder_layerdrop=0.5).train()
    made = []
    for layer in model.decoder.layers._modules.values():
        layer.register_forward_hook(
            lambda _, args, given, out: made.append(out[1]), with_kwargs=True
        )
    for _ in range(12):
        made.clear()
        [attention] = model(**BATCH)[1]["attn"]
        assert (attention is None) == (not made)
        assert all(weights is None for weights in made[:-1])


def test_all_dropouts_stay_on():
    """Relative embeddings and DeBERTa's convolution have dropouts that fairseq can retain."""
    model = build(dropout=0.3, encoder_scorer="disentangled")
    other = build_tiny_model("deberta_una_tiny", dropout=0.3, encoder_conv_kernel=3)
    for each in (model, other):
        each.make_generation_fast_(retain_dropout=True, retain_dropout_modules=None)
        dropouts = [m for m in each.modules() if type(m).__name__.endswith("Dropout")]
        assert dropouts and all(m.apply_during_inference for m in dropouts)


@pytest.mark.parametrize("layer", ["Encoder", "Decoder"])
def test_dropout_that_is_to_stay_is_known_by_fairseqs_names(layer):
    model = build(dropout=0.3)
    names = [f"Transformer{layer}LayerBase"]
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=names)
    kept = {
        type(module).__name__
        for module in model.modules()
        if getattr(getattr(module, "dropout_module", None), "apply_during_inference", False)
    }
    assert kept == {f"{layer}Layer"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"encoder_normaliser": "hybrid", "head_gate": True}),
        ({"encoder_normaliser": "hybrid", "head_gate": True}, {}),
    ],
)
def test_what_a_mechanism_adds_is_not_needed_and_not_in_the_way(before, after):
    old, new = build(**before), build(**after)
    for name, parameter in old.named_parameters():
        if name.endswith(("offset", "gate")):
            nn.init.normal_(parameter)
    own = {name: x.clone() for name, x in new.named_parameters() if name.endswith("offset")}
    new.load_state_dict(old.state_dict(), strict=True)
    theirs = dict(old.named_parameters())
    for name, parameter in new.named_parameters():
        taken = name in theirs and theirs[name].shape == parameter.shape
        torch.testing.assert_close(parameter, theirs[name] if taken else own.get(name, parameter))


def test_what_changes_nothing_is_refused():
    preset = {
        field.name: field.default for field in fields(MODEL_DATACLASS_REGISTRY["transformer_una"])
    }
    check_requirements(preset, preset, DEFAULTS, OPTION_REQUIREMENTS)
    for changed, said in [
        ({"sinkhorn_sweeps": 3}, "--sinkhorn-sweeps 3 has no effect with --encoder-norm"),
        ({"hna_init": 0.2}, "leave it out, or give --encoder-normaliser hybrid"),
        ({"encoder_gaussian_offsets": "-1"}, "leave it out, or give --encoder-gaussian-heads"),
        ({"asa_per_head": True}, "--asa-layers none; leave it out"),
        ({"role_definitions": "code"}, "or give --encoder-roles"),
        ({"gaussian_sigma": "-1"}, "--decoder-gaussian-heads 0 and --cross-gaussian-heads 0;"),
        *(
            ({name: value, "no_cross_attention": True}, "out, or leave out --no-cross-attention")
            for name, value in {
                "cross_gaussian_heads": "all",
                "cross_layers": "0",
                "cross_attention_heads": 2,
                "cross_normaliser": "doubly",
            }.items()
        ),
    ]:
        with pytest.raises(UsageError, match=re.escape(said)):
            check_requirements({**preset, **changed}, preset, DEFAULTS, OPTION_REQUIREMENTS)
    used = {"encoder_normaliser": "sinkhorn", "sinkhorn_sweeps": 3, "encoder_gaussian_heads": "2"}
    used |= {"encoder_gaussian_offsets": "-1", "gaussian_sigma": "2", "cross_layers": "last"}
    check_requirements({**preset, **used}, preset, DEFAULTS, OPTION_REQUIREMENTS)
    headlines = {**preset, "hna_init": 0.1}  # of the preset
    check_requirements(headlines, headlines, DEFAULTS, OPTION_REQUIREMENTS)


def test_stock_layer_pruning_works():
    full = build("transformer_dna_tiny")
    kept = {"encoder_layers_to_keep": "0,2", "decoder_layers_to_keep": "1"}  # fairseq needs both
    pruned = build("transformer_dna_tiny", **kept)
    pruned.load_state_dict(full.state_dict(), model_cfg=Namespace(arch="any", **kept))
    torch.testing.assert_close(
        pruned.encoder.layers[1].fc1.weight, full.encoder.layers[2].fc1.weight, atol=0, rtol=0
    )


def test_layers_that_remain_have_the_lambda_they_were_trained_with():
    options = {"encoder_head_mixer": "differential", "encoder_layers": 4}
    kept = {"encoder_layers_to_keep": "3,1", "decoder_layers_to_keep": "0,1"}
    full, pruned = build(**options), build(**options, **kept)
    first = [layer.self_attn.mixer.first for layer in full.encoder.layers]
    assert [layer.self_attn.mixer.first for layer in pruned.encoder.layers] == [first[1], first[3]]


@pytest.mark.parametrize(
    "name", ["transformer_una_tiny", "roberta_una_tiny", "transformer_lm_una_tiny"]
)
def test_a_checkpoint_of_the_layers_that_remain_says_which_they_were(name):
    """It is read, or trained on, with the lambdas of their numbers, and is not pruned again."""
    sides = ["decoder"] if "lm" in name else ["encoder"] if "roberta" in name else SIDES
    options = {f"{side}_layers": 4 for side in sides} | {f"{sides[0]}_head_mixer": "differential"}
    kept = {f"{side}_layers_to_keep": "1,3" for side in sides}
    full, pruned = build_tiny_model(name, **options), build_tiny_model(name, **options, **kept)
    config = OmegaConf.create({**options, **kept, "_name": name})
    pruned.load_state_dict(full.state_dict(), model_cfg=config)
    saved = {**config, **pruned.adopted_options()}  # fairseq sets what it pruned by to None
    assert all(saved[f"{side}_layers"] == 2 for side in sides)
    again = build_tiny_model(name, **{n: saved[n] for n in (*options, *kept)})
    again.load_state_dict(pruned.state_dict(), model_cfg=OmegaConf.create({**saved, "_name": name}))
    assert again.state_dict().keys() == pruned.state_dict().keys()
    torch.testing.assert_close(again.state_dict(), pruned.state_dict(), atol=0, rtol=0)
    firsts = [
        [m.mixer.first for m in model.modules() if isinstance(m, Attention) and m.mixer is not None]
        for model in (full, pruned, again)
    ]
    assert firsts[1] == firsts[2] == firsts[0][1::2]


def test_roles_by_layer_are_those_of_the_layers_that_remain():
    kept = {"encoder_layers_to_keep": "0,2", "decoder_layers_to_keep": "1"}
    model = build("transformer_roles_tiny", encoder_roles="relative/separator", **kept)
    assert len(model.encoder.layers) == 2
    with pytest.raises(UsageError, match="has roles for 2 layers, and the encoder has 3"):
        build("transformer_roles_tiny", encoder_roles="relative/separator", encoder_layers=3)


@pytest.mark.parametrize("asa_layers", ["upper", "none"])
def test_layers_that_remain_keep_their_adversaries_or_lose_them(asa_layers):
    full = build("transformer_asa_tiny", encoder_layers=4)
    kept = {"encoder_layers_to_keep": "1,3", "decoder_layers_to_keep": "0,1"}
    pruned = build("transformer_asa_tiny", asa_layers=asa_layers, **kept)
    pruned.load_state_dict(full.state_dict(), model_cfg=Namespace(arch="any", **kept))
    layers = {i for i in range(2) if pruned.encoder.layers[i].self_attn.adversary is not None}
    assert layers == ({1} if asa_layers == "upper" else set())
    for i in layers:
        found, given = (model.encoder.layers[n] for model, n in ((pruned, i), (full, 3)))
        pair = found.self_attn.adversary.state_dict(), given.self_attn.adversary.state_dict()
        torch.testing.assert_close(*pair, atol=0, rtol=0)


def test_layers_that_remain_keep_their_own_parameters():
    """Layers keep them where another one of their number had other groups of heads, too."""
    own = {"encoder_layers": 3, "encoder_normaliser": "hybrid", "asa_layers": "1"}
    full = build("transformer_una_tiny", **own, encoder_roles="none/none/rare")
    for module in full.modules():
        if isinstance(module, Hybrid):
            module.offset.data.normal_()
    kept = {"encoder_layers_to_keep": "1,2", "decoder_layers_to_keep": "0,1"}
    given = own | {"encoder_roles": "none/rare", "asa_layers": "0"} | kept
    pruned = build("transformer_una_tiny", **given)
    pruned.load_state_dict(full.state_dict(), model_cfg=Namespace(arch="any", **kept))
    for n in range(2):
        pair = pruned.encoder.layers[n].state_dict(), full.encoder.layers[n + 1].state_dict()
        torch.testing.assert_close(*pair, atol=0, rtol=0)
    assert pruned.adopted_options() == {"encoder_layers": 2, "decoder_layers": 2, **kept}


@pytest.mark.parametrize(
    "part",
    [{"encoder_normaliser": "hybrid"}, {"encoder_normaliser": "sink"}, {"encoder_positions": "t5"}],
)
@pytest.mark.parametrize("roles", [("rare,relative", "none"), ("none", "rare")])
def test_heads_keep_their_parameters_where_roles_come_and_go(part, roles):
    one, other = (build("transformer_una_tiny", **part, encoder_roles=name) for name in roles)
    for parameter in one.parameters():
        parameter.data.normal_()
    other.load_state_dict(one.state_dict())
    for mine, its in zip(one.encoder.layers, other.encoder.layers, strict=True):
        values = [
            torch.cat([x for g in layer.self_attn.groups for x in _of_heads(g)])
            for layer in (mine, its)
        ]
        assert len(values[0]) and values[0].equal(values[1])


def _of_heads(group):
    """Return the parameters of a group, a row for each of its heads."""
    if group.positions is not None:
        return [group.positions.table[:, group.positions.own].T]
    return [x.view(group.num_heads, -1) for x in group.parameters()]


def test_alignments_are_made_only_when_somebody_reads_them():
    model = build()
    assert model.train()(**BATCH)[1]["attn"] == [None]
    assert model(**BATCH, alignment_layer=1, alignment_heads=2)[1]["attn"][0].shape == (2, 5, 6)
    assert model.eval()(**BATCH)[1]["attn"][0].shape == (2, 5, 6)
    supervised = build(task_options={"load_alignments": True}).train()
    assert supervised(**BATCH)[1]["attn"][0].shape == (2, 5, 6)


def test_a_copy_of_a_model_is_independent():
    """fairseq's EMA deep-copies the model."""
    model = build("transformer_hna_tiny", checkpoint_activations=True)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model.encoder.layers[0].fc2.weight.mul_(9)
    (a, _), (b, _) = model(**BATCH), twin(**BATCH)
    assert (a - b).abs().max() > 1e-3


def test_a_loss_on_maps_alone_works_under_data_parallelism(tmp_path):
    """Parameters count as unused, and fail, unless the maps are in the output of the model."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = build("transformer_hna_tiny")
        _, _, expected = guided(model)
        expected = {name: grad.clone() for name, grad in expected.items()}
        parallel = DistributedDataParallel(model, find_unused_parameters=True)
        for _ in range(2):
            model.zero_grad()
            _, extra = parallel(**BATCH, recorder=AttentionRecorder(everything))
            sum(m.square().sum() for m in extra["attention_maps"].values()).backward()
        for name, grad in expected.items():
            torch.testing.assert_close(dict(model.named_parameters())[name].grad, grad)
    finally:
        dist.destroy_process_group()


def test_a_listener_hears_the_last_forward_pass():
    model, recorder = build(), AttentionRecorder(everything)
    model(**BATCH, recorder=recorder)
    shorter = {**BATCH, "src_tokens": SOURCE[:, 2:]}
    maps = model(**shorter, recorder=recorder)[1]["attention_maps"]
    assert maps["encoder", 0].shape == (2, 2, 4, 4)


@pytest.mark.parametrize("size", ["", "_wmt_en_de", "_wmt_en_de_big", "_iwslt_de_en"])
def test_the_decoder_follows_the_encoder_where_it_does_in_fairseq(size):
    widths = {"encoder_embed_dim": 96, "encoder_ffn_embed_dim": 48}
    args = Namespace(**widths)
    ARCH_CONFIG_REGISTRY[f"transformer{size}"](args)
    cls = ARCH_MODEL_REGISTRY[f"transformer_dna{size}"]
    ours = OmegaConf.merge(OmegaConf.structured(getattr(cls, "__dataclass")), widths)
    for name in ("embed_dim", "ffn_embed_dim", "input_dim", "output_dim"):
        ours_is = getattr(to_transformer_config(ours).decoder, name)
        assert ours_is == getattr(args, f"decoder_{name}"), name


def test_a_namespace_builds_as_well():
    torch.manual_seed(3)
    args = Namespace(arch="transformer_una_tiny", dropout=0.0)
    (ours, _), (expected, _) = (m(**BATCH) for m in (build_model(args, task()), build()))
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("name", ["una", "hna"])
def test_hypotheses_of_a_sentence_share_its_keys_in_beam_search(name, beam, monkeypatch):
    """Same translations as with a copy for each hypothesis."""
    model = build(f"transformer_{name}_tiny").double().eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    seen = []

    def generate():
        search = SequenceGenerator([model], model.decoder.dictionary, beam_size=beam, max_len_b=9)
        sample = {"net_input": {"src_tokens": SOURCE, "src_lengths": None}}
        return [[h["tokens"].tolist() for h in s] for s in search.generate([model], sample)]

    def see(module, args, kwargs):
        seen.append((kwargs["query"].size(1), kwargs["key"].size(1)))

    model.decoder.layers[0].encoder_attn.register_forward_pre_hook(see, with_kwargs=True)
    shared = generate()
    assert seen[0][0] == seen[0][1], "one row for each sentence, as the search begins"
    assert seen[1:] and all(queries == keys * beam for queries, keys in seen[1:])
    monkeypatch.setattr(type(model.encoder), "reorder_encoder_out", Stock.reorder_encoder_out)
    assert generate() == shared


CASES = ["equal", "other tokens", "dropout", "dropout of heads", "training", "one by one"]


@pytest.mark.parametrize("case", CASES)
def test_equal_hypotheses_are_computed_once_as_the_search_begins(case):
    """Output, map and what the next step finds in the caches are those of rows of their own."""
    model, beam, rows = build("transformer_una_tiny").double().eval(), 3, []
    if case.startswith("dropout"):
        modules = ["MultiheadAttention"] if case.endswith("heads") else None
        model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=modules)
    model.train(case == "training")
    layer = model.decoder.layers[0]
    layer.register_forward_pre_hook(lambda _, args: rows.append(args[0].size(1)))
    sentences = len(SOURCE)
    order = torch.arange(sentences).repeat_interleave(1 if case == "one by one" else beam)
    with torch.no_grad():
        encoded = model.encoder(SOURCE)
        shared = model.encoder.reorder_encoder_out(encoded, order)
        whole = {name: parts for name, parts in shared.items() if name != "beam"}
        whole |= Stock.reorder_encoder_out(model.encoder, encoded, order)
        first = torch.full((len(order), 1), 2)
        if case == "other tokens":
            first[1] = 5
        results = []
        for given in (shared, whole):
            state = {}
            for tokens in (first, torch.cat([first, torch.arange(4, 4 + len(order))[:, None]], 1)):
                logits, extra = model.decoder(tokens, given, state)
                results.append((logits, extra["attn"], extra["inner_states"]))
    saved = case == "equal"
    assert rows == [sentences if saved else len(order), *[len(order)] * 3]
    if case not in ("dropout", "dropout of heads", "training"):
        for ours, expected in zip(results[:2], results[2:], strict=True):
            torch.testing.assert_close(ours, expected)


def test_mechanisms_are_listed_by_rank():
    """Files are imported by name; --arch lists plain attention first, then by rank."""
    first = ["una", "dna", "hna", "sinkformer", "entmax", "sink", "talking", "differential"]
    assert [*PRESETS["transformer"]][:8] == first
    assert [*PRESETS["transformer_lm"]][:2] == ["una", "gaussian"]
