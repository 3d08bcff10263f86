"""Causal language models: fairseq's own as softmax models, guidance, decoding, what is refused."""

import re
from argparse import ArgumentParser, Namespace

import pytest
import torch
from cases import slow_but_first
from conftest import PLUGIN, fairseq, start
from corpora import builtin
from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from fairseq.options import get_training_parser, parse_args_and_arch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.trainer import Trainer
from hangs import communicate
from invariants import EOS, PAD, batch
from omegaconf import OmegaConf

from fairseq_ext.attention import AttentionRecorder
from fairseq_ext.attention.presets import PRESETS
from fairseq_ext.errors import UsageError
from fairseq_ext.models.architectures import LM_SIZES
from fairseq_ext.models.language_model import WITHOUT_EFFECT
from fairseq_ext.safe_loading import load_checkpoint
from fairseq_ext.testing import check_mechanism, check_model
from fairseq_ext.testing.mechanisms import build_tiny_model

WORDS = Dictionary()
for number in range(40):
    WORDS.add_symbol(f"w{number}", n=50 - number)
TASK = Namespace(source_dictionary=WORDS, target_dictionary=WORDS)
SIZE = {"decoder_layers": 2, "decoder_embed_dim": 32, "decoder_ffn_embed_dim": 32} | {
    "decoder_attention_heads": 4,
    "dropout": 0.0,
    "tokens_per_sample": 64,
    "max_target_positions": 64,
}
TEXT = [[EOS, 5, 6, 7, 8, 9], [EOS, 10, 11], [EOS, 12, 5, 7]]
TOKENS = batch(TEXT)
REAL = TOKENS.ne(PAD)
WIKI = {
    "adaptive_input": True,
    "adaptive_input_cutoff": "10,20",
    "adaptive_softmax_cutoff": "10,20",
    "tie_adaptive_weights": True,
    "tie_adaptive_proj": True,
    "no_decoder_final_norm": True,
    "adaptive_softmax_dropout": 0.0,
}


def build(**options):
    torch.manual_seed(3)
    config = {"_name": "transformer_lm_una_tiny", **SIZE, **options}
    return build_model(OmegaConf.create(config), TASK)


def build_stock(**options):
    torch.manual_seed(4)
    config = {"_name": "transformer_lm", "decoder_normalize_before": True, **SIZE, **options}
    width = {f"decoder_{end}_dim": config["decoder_embed_dim"] for end in ("input", "output")}
    more = {"add_bos_token": False, "tpu": False}
    return build_model(OmegaConf.create({**width, **more, **config}), TASK)


def loss_and_gradients(model):
    model.zero_grad()
    features, _ = model(TOKENS)
    if model.decoder.adaptive_softmax is None:
        loss = features.log_softmax(-1)[REAL][:, 5:9].sum()
    else:
        parts, _ = model.decoder.adaptive_softmax(features[REAL], TOKENS[REAL])
        loss = sum(part.log_softmax(-1)[:, 1:4].sum() for part in parts if part is not None)
    loss.backward()
    return loss, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"share_decoder_input_output_embed": True, "decoder_learned_pos": True},
        {"layernorm_embedding": True, "no_scale_embedding": True, "activation_fn": "gelu"},
        {"decoder_layers_to_keep": "1"},
        {"decoder_normalize_before": False, "no_token_positional_embeddings": True},
        {"decoder_input_dim": 16, "decoder_output_dim": 24},
        {"character_embeddings": True, "character_filters": "[(1, 8), (2, 8)]"},
        WIKI,
    ],
)
def test_softmax_models_are_fairseqs(options):
    """Same parameters under the same names, same losses and gradients; in float64."""
    ours, stock = build(**options), build_stock(**options)
    ours.load_state_dict(stock.state_dict(), strict=True)
    stock.load_state_dict(ours.state_dict(), strict=True)
    for mode in (True, False):
        results = [loss_and_gradients(model.train(mode).double()) for model in (ours, stock)]
        torch.testing.assert_close(*results, atol=5e-6, rtol=1e-6)


def test_an_old_checkpoint_of_fairseqs_is_upgraded():
    """With neither a version nor a norm after the layers, and with fairseq's old names."""
    old = build_stock(no_decoder_final_norm=True).state_dict()
    old.pop("decoder.version")
    for name in [name for name in old if "final_layer_norm" in name]:
        old[name.replace("final_layer_norm", "layer_norms.2")] = old.pop(name)
    pair = [build(), build_stock()]
    for model in pair:
        model.load_state_dict(dict(old), strict=True)
    torch.testing.assert_close(*(model.eval()(TOKENS)[0][REAL] for model in pair))


@pytest.mark.parametrize(
    "size", [size for size in LM_SIZES if not size.endswith("_tiny") and "today" not in size]
)
def test_sizes_are_fairseqs(size):
    args = Namespace()
    ARCH_CONFIG_REGISTRY["transformer_lm" + (size or "_base")](args) if size else (
        ARCH_CONFIG_REGISTRY["transformer_lm_gpt2_tiny"].__globals__["base_lm_architecture"](args)
    )
    for mechanism, preset in PRESETS["transformer_lm"].items():
        cls = ARCH_MODEL_REGISTRY[f"transformer_lm_{mechanism}{size}"]
        ours = OmegaConf.structured(getattr(cls, "__dataclass"))
        expected = {name: value for name, value in vars(args).items() if name in ours}
        assert {name: ours[name] for name in expected} == expected and len(expected) > 25
        assert {name: ours[name] for name in preset} == preset


def test_flags_are_fairseqs_and_those_of_a_decoder():
    flags = []
    for name in ("transformer_lm", "transformer_lm_una"):
        parser = ArgumentParser(allow_abbrev=False)
        ARCH_MODEL_REGISTRY[name].add_args(parser)
        flags.append({flag for action in parser._actions for flag in action.option_strings})
    left_out = {f"--{name.replace('_', '-')}" for name in WITHOUT_EFFECT}
    assert flags[0] - flags[1] == left_out - {"--add-bos-token", "--tpu"}  # the task's, everyone's
    added = flags[1] - flags[0]
    assert {"--decoder-normaliser", "--decoder-positions", "--head-gate", "--sink"} <= added
    one_sided = ("--encoder", "--cross", "--asa", "--hna", "--sinkh", "--sinkf", "--role")
    assert not [flag for flag in added if flag.startswith(one_sided)]


def test_widths_follow_the_embeddings():
    model = build(decoder_embed_dim=16)
    assert model.decoder.project_in_dim is None and model.decoder.project_out_dim is None


@pytest.mark.parametrize("mechanism", slow_but_first(PRESETS["transformer_lm"]))
def test_mechanisms(mechanism):
    """Padding, batches, no look-ahead, and decoding token by token."""
    check_model(f"transformer_lm_{mechanism}_tiny")
    if mechanism == "una":
        check_mechanism(mechanism)


OPTIONS = [
    {"decoder_positions": "alibi", "decoder_gaussian_heads": "2", "head_gate": "input"},
    {"decoder_positions": "t5", "decoder_normaliser": "sink", "head_gate": "static"},
    {"decoder_positions": "rotary", "decoder_normaliser": "sink", "checkpoint_activations": True},
    {"decoder_positions": "none", "head_gate": "l0"},
]


@pytest.mark.parametrize("options", slow_but_first(OPTIONS))
def test_invariants(options):
    check_model("transformer_lm_una_tiny", **options)


def test_gates_are_those_of_the_decoder():
    model = build_tiny_model("transformer_lm_una_tiny", head_gate="static")
    assert all(layer.self_attn.gate.shape == (4,) for layer in model.decoder.layers)


def test_maps_are_recorded():
    model = build().eval()
    recorder = AttentionRecorder(lambda site, layer: [1, 3])
    _, extra = model(TOKENS, recorder=recorder)
    maps = extra["attention_maps"]
    assert [*maps] == [("decoder", 0), ("decoder", 1)]
    assert maps["decoder", 0].shape == (3, 2, 6, 6)
    assert not maps["decoder", 1].triu(1).any()
    torch.testing.assert_close(maps["decoder", 1].sum(-1), torch.ones(3, 2, 6))


@pytest.mark.parametrize("mechanism", slow_but_first(PRESETS["transformer_lm"]))
def test_what_is_generated_has_the_scores_of_teacher_forcing(mechanism):
    """Beam search after given beginnings, token by token."""
    model = build_tiny_model(f"transformer_lm_{mechanism}_tiny", max_target_positions=64)
    generator = SequenceGenerator([model], WORDS, beam_size=3, max_len_b=12, normalize_scores=False)
    prefix = TOKENS[:1, 1:4]
    sample = {"net_input": {"src_tokens": TOKENS[:1], "src_lengths": torch.tensor([6])}}
    found = generator.generate([model], sample, prefix_tokens=prefix, bos_token=EOS)[0]
    assert len(found) == 3
    for each in found:
        tokens = each["tokens"]
        assert tokens[:3].tolist() == prefix[0].tolist()
        read = torch.cat([tokens.new_tensor([EOS]), tokens[:-1]])[None]
        scores = model.get_normalized_probs(model(read), log_probs=True)[0]
        own = scores.gather(1, tokens[:, None])[:, 0]
        torch.testing.assert_close(each["positional_scores"], own, atol=1e-4, rtol=1e-4)


# what a criterion adds


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A binarised corpus of 60 and 20 lines."""
    folder = tmp_path_factory.mktemp("lm")
    for split in ("train", "valid"):
        lines = [english.lower() for english, _ in builtin()[split][:60]]
        (folder / split).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    prefixes = [f"--{split}pref={folder / split}" for split in ("train", "valid")]
    fairseq("preprocess", "--only-source", *prefixes, f"--destdir={folder / 'bin'}")
    return folder / "bin"


LM = (
    "--task language_modeling --cpu --tokens-per-sample 32 --sample-break-mode eos --batch-size 8 "
    "--optimizer adam --lr 1e-3 --num-workers 0 --seed 1 --no-epoch-checkpoints --max-update 2"
).split()


def make(data, flags):
    """Task, model and criterion of a training, which has been checked."""
    given = [str(data), *LM, "--arch", "transformer_lm_una_tiny", "--dropout", "0", *flags.split()]
    cfg = convert_namespace_to_omegaconf(parse_args_and_arch(get_training_parser(), given))
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(1)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    Trainer(cfg, task, model, criterion)
    return task, model.train(), criterion


def sample(*rows):
    tokens = batch([TEXT[row] for row in rows])
    target = batch([TEXT[row][1:] + [EOS] for row in rows])
    inputs = {"src_tokens": tokens, "src_lengths": tokens.ne(PAD).sum(1)}
    counts = {"ntokens": int(tokens.ne(PAD).sum()), "nsentences": len(rows)}
    return {"net_input": inputs, "target": target, **counts}


def naive_guidance(maps, lengths):
    """Head 0 should look one back, head 1 at the first; a mean over rows and columns."""
    total = torch.zeros((), dtype=maps[0].dtype)
    for layer in maps:
        for head in range(2):
            for row, length in enumerate(lengths):
                for i in range(length):
                    for j in range(length):
                        wanted = [float(j == i - 1), float(j == 0)][head]
                        if head == 0 and i == 0:
                            wanted = float(j == 0)  # the only key it sees
                        total = total + (layer[row, head, i, j] - wanted) ** 2 / length**2
    return total


@pytest.mark.parametrize(("flags", "alphas"), [("", [1]), (" --ag-alpha auto", [10, 100])])
def test_the_initial_weight_of_guidance(data, flags, alphas):
    _, model, criterion = make(data, f"--criterion cross_entropy_ag{flags}")
    model.set_num_updates(0)
    _, size, log = criterion(model, sample(0, 1, 2))
    assert log["ag_alpha"] / size in alphas


def test_guidance_of_a_language_model(data):
    """--criterion cross_entropy_ag alone: prev and first, with weights of sentences; a twin."""
    task, model, criterion = make(data, "--criterion cross_entropy_ag --ag-alpha 3")
    model.double()
    guided = criterion.parts[0].guided
    assert str(guided["decoder"]).startswith("heads 0 prev, 1 first, in layers 0, 1, 2, 3")
    assert [*guided] == ["decoder"]
    model.set_num_updates(0)
    gradients, losses = [], []
    for rows in ((0, 1, 2), (0,), (1, 2)):
        model.zero_grad()
        loss, _, log = criterion(model, sample(*rows))
        loss.backward()
        losses.append(loss.detach())
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    torch.testing.assert_close(losses[0].float(), (losses[1] + losses[2]).float())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name] + gradients[2][name])
    model.zero_grad()
    recorder = AttentionRecorder(lambda site, layer: [0, 1])
    output, extra = model(TOKENS, recorder=recorder)
    maps = list(extra["attention_maps"].values())
    weights = [6, 3, 4]
    guidance = sum(
        weight * naive_guidance([layer[row : row + 1] for layer in maps], [weight])
        for row, weight in enumerate(weights)
    )
    target = sample(0, 1, 2)["target"]
    plain = -output.float().log_softmax(-1)[REAL].gather(1, target[REAL][:, None]).sum()
    expected = plain.double() + 3 * guidance
    torch.testing.assert_close(losses[0].float(), expected.detach().float(), rtol=1e-5, atol=1e-5)
    expected.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[0][name], parameter.grad, atol=1e-5, rtol=1e-5)


def test_rdrop_of_a_language_model(data):
    """Without dropout both passes are one: twice the loss, nothing between them."""
    _, model, criterion = make(data, "--criterion cross_entropy_rdrop")
    _, plain, objective = make(data, "--criterion cross_entropy")
    loss, _, log = criterion(model, sample(0, 1, 2))
    torch.testing.assert_close(loss, 2 * objective(plain, sample(0, 1, 2))[0])
    assert abs(log["rdrop_divergence"]) < 1e-6
    _, model, criterion = make(data, "--criterion cross_entropy_rdrop --attention-dropout 0.5")
    assert criterion(model, sample(0, 1, 2))[2]["rdrop_divergence"] > 1e-3


REFUSED = {
    "--criterion cross_entropy_asa": "_asa masks or disturbs what an encoder reads",
    "--criterion cross_entropy_asa --asa-baseline freelb": "this --arch has no encoder",
    "--criterion cross_entropy_ag --ag-fraction .5": "--ag-fraction 0.5 .* has no encoder",
    "--criterion cross_entropy_ag --ag-encoder-heads next:1": "no encoder attention for",
    "--criterion cross_entropy_ag --ag-cross-heads next:1": "no cross attention for",
    "--criterion cross_entropy_ag --ag-decoder-heads next:1": "looks ahead of a decoder",
    "--criterion cross_entropy_ag --decoder-gaussian-heads all": "a layer has 0",
    "--decoder-normaliser doubly": "looks across queries: it lets a token see the future",
    "--decoder-normaliser hybrid": "looks across queries",
    "--decoder-normaliser sinkhorn": "looks across queries",
    "--decoder-normaliser sinkformer": "looks across queries",
    "--gaussian-sigma 2": "--gaussian-sigma 2 has no effect",
    "--sink off-by-one": "--sink off-by-one has no effect",
    "--head-gate l0": "give cross_entropy_l0",
    "--decoder-positions rotary --decoder-attention-heads 128": "has width 1",
    "--tie-adaptive-weights": "ties --adaptive-input, which is not given",
    "--adaptive-input": "needs --adaptive-input-cutoff",
    "--adaptive-input --adaptive-input-cutoff 90000": "is 90000, and the dictionary has",
    "--adaptive-softmax-cutoff 10": "give --criterion adaptive_loss",
    "--criterion adaptive_loss --adaptive-input --adaptive-input-cutoff 10 "
    "--adaptive-softmax-cutoff 20 --tie-adaptive-weights": "20 and --adaptive-input-cutoff 10",
    "--character-embeddings --share-decoder-input-output-embed": "shares one matrix",
    "--character-embeddings --adaptive-input": "both given",
    "--decoder-xformers-att-config {}": "--decoder-xformers-att-config is not supported",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_is_refused(data, flags):
    with pytest.raises(UsageError, match=REFUSED[flags]) as refused:
        make(data, flags)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("mode", "longest", "window", "said"),
    [
        (
            "none",
            8,
            0,
            r"^\d+ of \d+ samples are longer than the 8 tokens .* --tokens-per-sample 8$",
        ),
        ("none", 40, 16, r"tokens that the model takes with 16 of --context-window, and would be"),
        ("eos", 2, 0, r"give --tokens-per-sample 2 with --sample-break-mode none$"),
        ("none", 32, 0, None),
        ("none", 48, 16, None),
    ],
)
def test_a_perplexity_is_that_of_the_whole_text(mode, longest, window, said, data):
    task, *_ = make(data, f"--sample-break-mode {mode}")
    task.load_dataset("valid")
    given = {"dataset": task.dataset("valid"), "max_positions": longest, "context_window": window}
    if said:
        with pytest.raises(UsageError, match=said):
            task.eval_lm_dataloader(**given, batch_size=4)
        return
    batches = [*task.eval_lm_dataloader(**given, batch_size=4, num_workers=0)]
    lines = (data.parent / "valid").read_text("utf-8").splitlines()
    targets = sum(int(each["target"].ne(PAD).sum()) for each in batches)
    assert targets == sum(len(line.split()) + 1 for line in lines)


# commands


def train(data, folder, arch, *flags, check=True):
    command = [data, "--user-dir", PLUGIN, *LM, "--arch", arch, "--save-dir", folder, *flags]
    return fairseq("train", *command, check=check)


def evaluate(data, checkpoint, *flags):
    """The loss of the valid split, and the score of each of its words, by fairseq-eval-lm."""
    common = ["--user-dir", PLUGIN, "--path", checkpoint, "--gen-subset", "valid", "--cpu"]
    common += ["--sample-break-mode", "eos", "--tokens-per-sample", 32, "--output-word-probs"]
    done = fairseq("eval-lm", data, *common, *flags)
    said = done.stdout + done.stderr
    loss = re.search(r"Loss \(base 2\): ([\d.]+)", said)[1]
    return float(loss), re.findall(r"\[(-[\d.]+)\]", said)


def test_train_resume_evaluate_and_write(data, tmp_path):
    """With guidance, positions, a gate and R-Drop at once; resuming takes no other attention."""
    flags = "--criterion cross_entropy_ag_rdrop --ag-alpha 1 --decoder-positions alibi".split()
    flags += ["--head-gate", "input", "--decoder-gaussian-heads", "2"]
    done = train(data, tmp_path, "transformer_lm_sink_tiny", *flags)
    assert "heads 2 prev, 3 first" in done.stdout + done.stderr
    assert "| rdrop_divergence" in done.stdout + done.stderr
    more = train(data, tmp_path, "transformer_lm_sink_tiny", *flags, "--max-update", 3)
    assert "num_updates 3" in more.stdout + more.stderr
    other = ["--max-update", 4, "--criterion", "cross_entropy"]
    refused = train(data, tmp_path, "transformer_lm_una_tiny", *other, check=False)
    assert refused.returncode and "was trained with decoder_normaliser sink" in refused.stderr
    last = tmp_path / "checkpoint_last.pt"
    loss, words = evaluate(data, last)
    assert 1 < loss < 10 and len(words) > 100
    common = [
        "--task",
        "language_modeling",
        "--path",
        last,
        "--beam",
        2,
        "--max-len-b",
        30,
        "--cpu",
    ]
    with (data.parent / "valid").open() as lines:
        command = start("interactive", data, "--user-dir", PLUGIN, *common, stdin=lines)
        out, err = communicate(command)
    assert command.returncode == 0, err
    sources, written = (re.findall(rf"^{kind}\t(.*)", out, re.M) for kind in ("S-0", "H-0"))
    assert written[0].partition("\t")[2].startswith(sources[0])


@pytest.fixture(scope="module")
def stock(data, tmp_path_factory):
    """A checkpoint of fairseq's own language model."""
    folder = tmp_path_factory.mktemp("stock")
    size = [f"--{name.replace('_', '-')}={value}" for name, value in SIZE.items()]
    train(data, folder, "transformer_lm", *size[:4], "--decoder-learned-pos")
    return folder / "checkpoint_last.pt"


def test_a_stock_checkpoint_is_read_strictly(data, stock, tmp_path):
    named = dict.fromkeys(("_name", "arch"), "transformer_lm_una")
    ours = evaluate(data, stock, "--model-overrides", str(named))
    theirs = evaluate(data, stock)
    assert ours[0] == theirs[0] and len(ours[1]) > 100
    assert [*map(float, ours[1])] == pytest.approx([*map(float, theirs[1])], abs=1e-5)


@pytest.mark.slow
def test_hydra_trains_a_size_by_its_name(data, tmp_path):
    """Widths follow that of the embeddings, and positions the task's samples."""
    (tmp_path / "mine.yaml").write_text(f"""
common: {{user_dir: {PLUGIN}, cpu: true}}
task: {{_name: language_modeling, data: {data}, tokens_per_sample: 32}}
model: {{_name: transformer_lm_sink_tiny, decoder_embed_dim: 64}}
criterion: {{_name: cross_entropy_ag, ag_alpha: "1"}}
dataset: {{batch_size: 8, num_workers: 0}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
optimization: {{lr: [0.001], max_update: 1}}
checkpoint: {{save_dir: {tmp_path}}}
""")
    given = ["--config-dir", tmp_path, "--config-name", "mine", f"hydra.run.dir={tmp_path}"]
    fairseq("hydra-train", *given)
    state = load_checkpoint(str(tmp_path / "checkpoint_last.pt"))
    assert state["cfg"]["model"]["decoder_output_dim"] == 64
    assert state["model"]["decoder.output_projection.weight"].size(1) == 64
    assert 1 < evaluate(data, tmp_path / "checkpoint_last.pt")[0] < 10


def test_another_dictionary_is_refused(data, stock, tmp_path):
    """Its checkpoint has fingerprints of the text, like that of every model."""
    train(data, tmp_path / "run", "transformer_lm_una_tiny")
    (tmp_path / "train").write_text("some other words\n" * 9, "utf-8")
    pref = f"--trainpref={tmp_path / 'train'}"
    fairseq("preprocess", "--only-source", pref, f"--destdir={tmp_path / 'bin'}")
    path = tmp_path / "run" / "checkpoint_last.pt"
    common = ["--user-dir", PLUGIN, "--path", path, "--gen-subset", "train", "--cpu"]
    done = fairseq("eval-lm", tmp_path / "bin", *common, check=False)
    assert done.returncode and "was trained with another" in done.stderr


def test_adaptive_loss(data, tmp_path):
    """The options are those of the size for WikiText-103, with fewer words."""
    flags = "--criterion adaptive_loss --adaptive-input --adaptive-input-cutoff 20,40".split()
    flags += [
        "--adaptive-softmax-cutoff",
        "20,40",
        "--tie-adaptive-weights",
        "--ddp-backend=legacy_ddp",
    ]
    train(data, tmp_path, "transformer_lm_sink_tiny", *flags)
    assert 1 < evaluate(data, tmp_path / "checkpoint_last.pt")[0] < 10
