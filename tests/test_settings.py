"""Settings that mean nothing, alone or together, are refused when a command starts."""

from argparse import Namespace
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import List  # noqa: UP035

import pytest
from conftest import PLUGIN, fairseq
from fairseq import options
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass import utils as dataclass_utils
from fairseq.models import build_model
from omegaconf import OmegaConf

from fairseq_ext.commands import option_pairs
from fairseq_ext.commands.configurations import check_configuration, check_flags
from fairseq_ext.commands.overrides import TEXTS, check_overrides
from fairseq_ext.errors import UsageError

OVERRIDES = "--model-overrides"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", " is ''; give a dict of settings, as in {'dropout': 0.1}"),
        ("{bad", " is '{bad'; give a dict"),
        ("[1]", " is '[1]'; give a dict"),
        ("1+1", " is '1+1'; give a dict"),
        ("__import__('os').system('true')", "; give a dict"),
        ("(" * 500, "; give a dict"),
        ("{1: 2}", " has 1, which is no setting; give names, as in {'dropout': 0.1}"),
        ("{'dropuot': 0.1}", " has 'dropuot', which is no setting; did you mean dropout"),
        ("{'dropout': 5}", ": dropout is 5; give a number from 0 to below 1 ("),
        ("{'dropout': 'x'}", ": dropout is 'x'; give a number from 0 to below 1 ("),
        ("{'encoder_embed_dim': 'x'}", ": encoder_embed_dim is 'x'; give a whole number from 1"),
        ("{'encoder_embed_dim': True}", ": encoder_embed_dim is True; give a whole number from"),
        ("{'model': {'dropout': 9}}", ": model: dropout is 9; give a number"),
        (
            "{'task': 'nope'}",
            " has 'task': 'nope', for a section as a whole, which changes nothing",
        ),
        ("{'criterion': 3}", " has 'criterion': 3, for a section as a whole"),
        ("{'zero_sharding': 'nope'}", ": zero_sharding is 'nope'; choose from none, os"),
    ],
)
def test_overrides_that_mean_nothing(text, said):
    with pytest.raises(UsageError) as error:
        check_overrides(OVERRIDES, text)
    assert str(error.value).startswith(OVERRIDES) and said in str(error.value)


def test_overrides_that_mean_something():
    for settings in (
        {"dropout": 0.1, "encoder_normaliser": "softmax", "data": "x", "arch": "transformer"},
        {"encoder_layers_to_keep": "0,2", "hna_init": 0.1, "bpe": "gpt2", "model": {"dropout": 0}},
        {"activation_fn": "gelu", "max_positions": None, "zero_sharding": "os"},
        {},
    ):
        check_overrides(OVERRIDES, str(settings))
    check_overrides("--optimizer-overrides", "{'lr': [0.1], 'weight_decay': 0, 'betas': (0, .9)}")


@dataclass
class Own(FairseqDataclass):
    numbers: List[int] = field(default_factory=list)  # noqa: UP006


def test_texts_of_a_setting_that_are_read_and_then_refused_by_fairseq():
    """The refusal is fairseq's: what a text says is right, and no number."""
    override = dataclass_utils._override_attr
    assert override("own", Own, Namespace(numbers="[1, 2.0]")) == ["own.numbers=[1, 2]"]
    with pytest.raises(
        UsageError, match=r"^--numbers is '\[1,', which cannot be read; give a value"
    ):
        override("own", Own, Namespace(numbers="[1,"))
    with pytest.raises(ValueError, match="invalid literal for int"):
        override("own", Own, Namespace(numbers="['a']"))


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        (
            "optimizer_overrides",
            "{'lrr': 1}",
            "has 'lrr', which is no setting; did you mean lr",
        ),
        ("optimizer_overrides", "{'lr': 'x'}", ": lr is 'x'; give a number, or numbers"),
        ("optimizer_overrides", "{'lr': -1}", ": lr is -1; give a number from 0"),
        ("update2lr", "{1: -1}", ": 1 is -1; give a number from 0 to 10000 (a learning rate)"),
        ("epoch2lr", "{bad", " is '{bad'; give a dict"),
        ("eval_bleu_args", "{bad", " is '{bad'; give a dict of settings, as in {\"beam\": 3}"),
        ("eval_bleu_args", '{"beam": 0}', ": beam is 0; give a whole number from 1"),
        ("eval_bleu_args", '{"beem": 2}', " has 'beem', which is no setting; did you mean beam?"),
        ("eval_bleu_args", '{"dropout": 0}', " has 'dropout', which is no setting; did you"),
        ("eval_bleu_detok_args", "[1]", " is '[1]'; give a dict"),
        (
            "eval_bleu_detok_args",
            '{"target_lnag": "de"}',
            "no setting; did you mean target_lang?",
        ),
    ],
)
def test_other_dicts(option, text, said):
    flag = f"--{option.replace('_', '-')}"
    with pytest.raises(UsageError) as error:
        TEXTS[option](flag, text)
    assert str(error.value).startswith(flag) and said in str(error.value)


TRAIN = "DATA --arch transformer --max-tokens 100 --optimizer adam --max-update 3".split()


def parse(command, flags):
    parser = getattr(options, f"get_{command}_parser")()
    check_flags(options.parse_args_and_arch(parser, flags))


@pytest.mark.parametrize(
    ("command", "flags", "said"),
    [
        ("training", "--encoder-attention-heads 7", "--encoder-embed-dim is 512; give heads that"),
        ("training", "--lr-scheduler inverse_sqrt --warmup-updates 0", "1 update or more"),
        ("training", "--lr-scheduler tri_stage", "--decay-steps is 0; give --decay-steps, or"),
        ("training", "--lr-scheduler tri_stage --phase-ratio .5,.5", "give 3 numbers from 0 to 1"),
        ("training", "--lr-scheduler cosine --warmup-updates 3", "give a --max-update above"),
        ("training", "--distributed-rank 3", "--distributed-world-size is 1; ranks are numbered"),
        ("training", "--decoder-layers-to-keep 0,6", "is [0, 6] and --decoder-layers is 6; layers"),
        ("training", "--task translation --best-checkpoint-metric bleu", "with --eval-bleu alone"),
        ("training", "--task masked_lm --mask-whole-words", "--mask-whole-words is True; fairseq"),
        ("interactive_generation", "--print-alignment soft", "hard, or run fairseq-generate"),
        ("generation", "--nbest 6", "--nbest is 6 and --beam is 5; give no more than --beam"),
        ("generation", "--min-len 5 --max-len-b 4", "--min-len is 5 and --max-len-b is 4 and"),
        ("generation", "--print-step", "--print-step is True; only models that refine"),
        ("generation", "--num-shards 2 --shard-id 2", "--shard-id is 2 and --num-shards is 2; sh"),
    ],
)
def test_numbers_that_do_not_suit_each_other(command, flags, said):
    start = TRAIN if command == "training" else ["DATA"]
    with pytest.raises(UsageError) as error:
        parse(command, [*start, *flags.split()])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            "--arch transformer_dna_tinny",
            "'transformer_dna_tinny', .* transformer_dna_tiny",
        ),
        ("--criterion cross_entrop", "--criterion is 'cross_entrop', .* mean cross_entropy"),
        (
            "--optimizer adamw",
            "--optimizer is 'adamw', which nothing has registered; did you mean adam",
        ),
        ("--encoder-normalizer doubly", "did you mean --encoder-normaliser, --"),
        ("--ddp-backend c10", r"^--ddp-backend is 'c10', .* did you mean c10d, no_c10d\?$"),
        ("--bpe sentencepiece", "^--bpe sentencepiece needs --sentencepiece-model; give it too$"),
        ("--label-smooth=.1", "^--label-smooth is no flag .* mean --label-smoothing"),
        ("--qqq 3", "^--qqq is no flag of this command, its --task, --arch …; leave it out$"),
    ],
)
def test_unknown_names_are_told_the_nearest(flags, said):
    given = "DATA --arch transformer_una_tiny --criterion label_smoothed_cross_entropy".split()
    with pytest.raises(UsageError, match=said):
        parse("training", [*given, *flags.split()])


def test_buckets_need_an_older_numpy(monkeypatch):
    for version, refused in {"1.26.4": False, "2.3.5": False, "2.4.0": True, "3.0.1": True}.items():
        monkeypatch.setattr(option_pairs, "version", lambda name, found=version: found)
        option_pairs.check_pairs({"num_batch_buckets": ("--num-batch-buckets", 0)})
        with pytest.raises(UsageError, match="install numpy 2.3$") if refused else nullcontext():
            option_pairs.check_pairs({"num_batch_buckets": ("--num-batch-buckets", 2)})


def test_parts_that_have_the_same_flag():
    flags = "DATA --task text_to_speech --arch transformer_una_tiny --optimizer adam".split()
    with pytest.raises(UsageError, match="have the flag --max-source-positions each, so that they"):
        parse("training", flags)


def test_numbers_that_suit_each_other():
    parse("training", TRAIN)
    parse("training", [*TRAIN, *"--lr-scheduler tri_stage --phase-ratio .2,.4,.4".split()])
    parse("training", [*TRAIN, *"--best-checkpoint-metric bleu --eval-bleu".split()])
    parse("training", [*TRAIN, "--encoder-layers-to-keep", "0,5"])
    parse("training", [*TRAIN, *"--lr-scheduler cosine --warmup-updates 2".split()])
    parse("generation", "DATA --print-step --task translation_lev".split())
    parse("generation", "DATA --nbest 5 --min-len 5 --max-len-b 4 --max-len-a 1".split())


def test_a_width_that_is_text_until_it_has_been_parsed():
    """Such as that of --arch transformer, where it follows the encoder's."""
    heads = {"decoder_attention_heads": ("--decoder-attention-heads", 2)}
    option_pairs.check_pairs(heads | {"decoder_embed_dim": ("--decoder-embed-dim", "4")})
    with pytest.raises(UsageError, match="--decoder-embed-dim is 5; give heads that divide"):
        option_pairs.check_pairs(heads | {"decoder_embed_dim": ("--decoder-embed-dim", "5")})


def test_layers_to_keep_as_text():
    """What fairseq splits at commas has no brackets."""
    layers = {"encoder_layers": ("--encoder-layers", 2)}
    option_pairs.check_pairs({"encoder_layers_to_keep": ("--keep", "0, 1"), **layers})
    with pytest.raises(
        UsageError, match=r"^--keep is \(0,\) and --encoder-layers is 2; layers are"
    ):
        option_pairs.check_pairs({"encoder_layers_to_keep": ("--keep", "(0,)"), **layers})


@pytest.mark.parametrize("arch", ["transformer_una_tiny", "roberta_una_tiny", "transformer"])
def test_noise_of_quantisation_needs_a_copy_of_the_weights(arch):
    """fairseq writes the noise over the weights, which 16 bits' optimizer alone gives back."""
    given = f"DATA --arch {arch} --optimizer adam --quant-noise-pq "
    parse("training", f"{given} 0.1 --bf16".split())
    parse("training", f"{given} 0".split())
    for flags in ("", "--memory-efficient-fp16", "--bf16 --memory-efficient-bf16", "--amp"):
        with pytest.raises(
            UsageError, match="^--quant-noise-pq is 0.1 and .* stays in the weights"
        ):
            parse("training", f"{given} 0.1 {flags}".split())


def test_shares_of_masked_tokens():
    rates = {name: (name, 0.6) for name in ("random_token_prob", "leave_unmasked_prob")}
    with pytest.raises(UsageError, match="^random_token_prob is 0.6 and leave_unmasked_prob is"):
        option_pairs.check_pairs(rates)


def configuration(**parts):
    """A configuration of a training, as hydra composes it."""
    cfg = OmegaConf.create(
        {
            "task": {"_name": "translation", "data": "x"},
            "model": {"_name": "transformer_dna_tiny", "dropout": 0.1},
            "criterion": {"_name": "cross_entropy"},
            "optimizer": {"_name": "adam"},
            "lr_scheduler": {"_name": "fixed"},
            "dataset": {"max_tokens": 100},
            "checkpoint": {"save_dir": "x", "restore_file": "checkpoint_last.pt"},
        }
    )
    return OmegaConf.merge(cfg, parts)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        *(
            ({part: {"_name": "nope"}}, rf"^{part}._name is 'nope', which nothing has registered")
            for part in ("model", "task", "criterion", "optimizer", "lr_scheduler")
        ),
        (
            {"model": {"_name": "transformer_dna_tny"}},
            "registered; did you mean transformer_dna_tiny",
        ),
        ({"dataset": {"max_tokns": 5}}, "^a key of dataset is 'max_tokns', .* mean max_tokens"),
        ({"task": {"data": None}}, "^task.data is not given; give"),
        ({"dataset": {"max_tokens": 3}}, "is 3; give a whole number from 8 upwards"),
    ],
)
def test_configurations_that_mean_nothing(parts, said):
    check_configuration(configuration())
    with pytest.raises(UsageError, match=said):
        check_configuration(configuration(**parts))


@pytest.mark.parametrize("name", ["restore_file", "continue_once"])
def test_checkpoints_that_are_not_there(tmp_path, name):
    """A dangling link is not there either; links and remote paths pass."""
    (tmp_path / "link.pt").symlink_to(tmp_path / "nowhere.pt")
    for path, problem in [("no.pt", "is not there"), (".", "is a folder"), ("link.pt", "is not")]:
        part = {"checkpoint": {name: str(tmp_path / path)}}
        with pytest.raises(UsageError, match=f"^--{name.replace('_', '-')} is .*, which {problem}"):
            check_configuration(configuration(**part))
    (tmp_path / "nowhere.pt").touch()
    for path in (tmp_path / "link.pt", "s3://bucket/x.pt"):
        part = {"checkpoint": {name: str(path)}}
        if "s3" not in str(path):
            check_configuration(configuration(**part))


def test_what_was_continued_once_may_be_gone(tmp_path):
    (tmp_path / "checkpoint_last.pt").touch()
    part = {"save_dir": str(tmp_path), "continue_once": str(tmp_path / "gone.pt")}
    check_configuration(configuration(checkpoint=part))


def test_an_architecture_that_nobody_registered():
    with pytest.raises(UsageError, match="^the architecture is 'nope', which nothing has"):
        build_model(OmegaConf.create({"_name": "nope", "arch": "nope"}), None)


def test_restore_file_ends_a_training_at_once(tmp_path):
    """As a user sees it; the data are not looked at."""
    flags = "--arch transformer_dna_tiny --max-tokens 100 --optimizer adam --restore-file x.pt"
    folders = [tmp_path, "--save-dir", tmp_path / "run"]
    done = fairseq("train", *folders, "--user-dir", PLUGIN, *flags.split(), check=False)
    assert done.returncode == 1 and not (tmp_path / "run").exists()
    assert done.stderr.splitlines()[-1].startswith("error: --restore-file is x.pt, which is not")


def test_overrides_are_refused_by_commands():
    for command, *flags in (["generate"], ["interactive"], ["validate", "--task", "translation"]):
        given = ["DATA", "--path", "X", "--user-dir", PLUGIN, OVERRIDES, "{bad", *flags]
        done = fairseq(command, *given, check=False)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("error: --model-overrides is '{bad'; give")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("dataset.max_tokens=abc", "Error merging override dataset.max_tokens=abc Value 'abc' of"),
        ("dataset.max_tokns=5", "Could not override 'dataset.max_tokns'. To append"),
        ("+dataset.max_tokns=5", "a key of dataset is 'max_tokns', which nothing"),
        ("dataset.max_tokens", "Error parsing override 'dataset.max_tokens' missing EQUAL"),
        ("+model.dropuot=1", "Key 'dropuot' not in 'TransformerHnaTinyConfig'; correct that key"),
        ("+model.encoder_layers=x", "encoder_layers: Value 'x' of type 'str' could not be"),
        ("model.hna_init=2", "model.hna_init is 2; give a number from 0 to 1 ("),
        ("criterion=null", "Config group override must be a string or a list. Got NoneType; cor"),
    ],
)
def test_values_of_hydra(tmp_path, override, said):
    (tmp_path / "mine.yaml").write_text(f"""
common: {{user_dir: {PLUGIN}}}
task: {{_name: translation, data: {tmp_path}}}
model: {{_name: transformer_hna_tiny, hna_init: 0.5}}
criterion: {{_name: cross_entropy}}
dataset: {{max_tokens: 600}}
""")
    flags = ["--config-dir", tmp_path, "--config-name", "mine", f"hydra.run.dir={tmp_path}"]
    done = fairseq("hydra-train", *flags, override, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: {said}")
