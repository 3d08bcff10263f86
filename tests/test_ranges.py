"""Numbers out of range are refused when a command starts, and all of fairseq's own pass."""

import fnmatch
import math
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import pytest
from conftest import PLUGIN
from conftest import fairseq as run_fairseq
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from numeric_options import (
    list_defaults,
    list_fields,
    list_numbers,
    list_options,
    list_own_parts,
)

from fairseq_ext.attention.options import RANGES, get_facts
from fairseq_ext.commands import configurations, ranges
from fairseq_ext.data.examples import is_number
from fairseq_ext.errors import UsageError
from fairseq_ext.tools.predict import predict

TRAIN = "DATA --user-dir fairseq_ext --max-tokens 100 --arch transformer_dna_tiny".split()
TRAIN += "--optimizer adam --lr-scheduler inverse_sqrt".split()
TRAIN += "--criterion label_smoothed_cross_entropy".split()

NONSENSE = """
--dropout nan -1 2 1                            | --attention-dropout inf
--lr -1 '' 0.1,-1                               | --label-smoothing 2 -1 1
--encoder-layers -1 0 99999999                  | --clip-norm nan -1
--encoder-layerdrop 2 -1                        | --max-update -1
--max-epoch -1                                  | --batch-size 0 -1
--encoder-layers-to-keep x -1                   | --decoder-layers-to-keep ''
--distributed-world-size 0 -1                   | --max-tokens 0 1 3 -1 9223372036854775808
--update-freq 0 -1 '' 1,0                       | --seed -1 2147483648 18446744073709551616
--num-workers -1                                | --warmup-updates -1 9223372036854775808
--max-source-positions 0 -1 1                   | --adam-betas (2,2) (.9,) .9 x (.9,1)
--adam-eps 0                                    | --required-batch-size-multiple 0
--log-interval 0                                | --save-interval 0
--validate-interval 0                           | --keep-interval-updates-pattern 0
--patience -2                                   | --weight-decay nan
--fp16-init-scale 0                             | --decoder-embed-dim 0
--max-tokens-valid x 0                          | --batch-size-valid x 0
--quant-noise-pq inf                            | --stop-min-lr nan
--fixed-validation-seed -1                      | --sinkhorn-sweeps 0
--hna-init 2                                    | --distributed-port 0
--bucket-cap-mb 0                               | --shard-id -1
"""
SENSE = """
--dropout 0 .9     | --lr 0 0.1,0.01            | --label-smoothing 0    | --clip-norm 0
--max-update 0     | --update-freq 1,2          | --seed 0 2147483647    | --num-workers 0
--warmup-init-lr -1| --patience -1              | --adam-betas (0.9,0.98) [0,.5]
--keep-last-epochs -1 0 | --heartbeat-timeout -1| --stop-min-lr -1       | --curriculum 0
--encoder-layers-to-keep 0,2                    | --decoder-embed-dim 64 | --fp16-scale-window 1
--distributed-port -1                           | --max-source-positions 2
"""
NONSENSE_OF_SEARCH = """
--beam 0 -1 | --nbest 0 | --max-len-b -1 | --min-len -1 | --temperature 0 | --lenpen nan
--sampling-topk 0 | --sampling-topp 2 | --diverse-beam-groups 0 | --max-len-a inf | --unkpen nan
--prefix-size -1 | --no-repeat-ngram-size -1 | --shard-id -1 | --num-shards 0
"""


def read(table):
    """Return the cases: a flag and a value."""
    cells = [cell.split() for line in table.strip().splitlines() for cell in line.split("|")]
    return [(flag, value.replace("''", "")) for flag, *values in cells for value in values]


FLAGS = {"training": TRAIN, "validation": ["DATA", "--task", "translation"]}


@cache
def full_parser(command):
    """The parser of a command with all that its architecture, task, ... add to it."""
    parser = getattr(options, f"get_{command}_parser")()
    if command != "preprocessing":
        options.parse_args_and_arch(parser, FLAGS.get(command, ["DATA"]))
    return parser


def parse(command, *flags):
    args = full_parser(command).parse_args([*FLAGS.get(command, ["DATA"]), *flags])
    configurations.check_flags(args)


def test_every_number_has_a_range():
    """A new option of fairseq needs a row in ranges.toml, one of ours a range beside it."""
    assert len(list_numbers()) > 300
    assert not {names for names in list_numbers() if ranges.find_range(*names) is None}


def test_ours_stand_beside_their_options():
    """In ranges.toml is nothing but options of fairseq, some of which ours share names with."""
    parts, theirs, ours = list_own_parts(), set(), set()
    for where, names, number in list_options():
        if where not in parts:
            theirs.update(names)
        elif number:
            ours.add(names[-1])
    assert len(ours) > 80
    assert not ours - theirs - RANGES.keys()
    assert not [name for name in ranges._read() if not fnmatch.filter(theirs, name)]


def test_a_name_has_one_range():
    """Commands know an option by its name."""
    said = [(name, get_facts(field).range) for _, name, field in list_fields()]
    assert not [name for name, accepted in said if accepted not in (None, RANGES.get(name))]


def test_defaults_are_in_range():
    """Those of all commands, architectures, tasks, criterions, optimizers and schedules."""
    checked = 0
    for where, value, names in list_defaults():
        ranges.check_number(where, value, *names)
        checked += isinstance(value, int | float) and ranges.find_range(*names) is not None
    assert checked > 5000


def test_rows_say_what_numbers_mean():
    table = dict(ranges.rows())
    assert len(table) > 250
    assert table["seed"].describe().startswith("a whole number from 0 to 2147483647 (the seed of")
    assert table["label_smoothing"].describe().startswith("a number from 0 to below 1 (")
    assert table["patience"].describe().endswith(", or -1: no limit)")
    assert "from 0 upwards (" in table["max_update"].describe(too_high=False)
    assert table["adam_betas"].describe().startswith("2 numbers from 0 to below 1 (")
    for row in table.values():
        assert row.low < row.high and row.means
        ends = (row.low, row.with_low), (row.high, row.with_high)
        assert all(row.accepts(end) == (accepted or end in row.special) for end, accepted in ends)
        assert all(map(row.accepts, row.special))
        assert not any(map(row.accepts, (math.nan, math.inf, -math.inf)))


@pytest.mark.parametrize(("flag", "value"), read(NONSENSE))
def test_nonsense_is_refused(flag, value):
    """The sentence names flag and value, and what is accepted."""
    with pytest.raises(UsageError) as error:
        parse("training", f"{flag}={value}")
    given, _, accepted = str(error.value).partition("; give ")
    assert given.startswith(f"{flag} is ") and accepted.endswith(")")
    assert value.strip("()[]")[-1:] in given


@pytest.mark.parametrize(("flag", "value"), read(SENSE))
def test_sentinels_and_ends_pass(flag, value):
    parse("training", f"{flag}={value}")


@pytest.mark.parametrize(("flag", "value"), read(NONSENSE_OF_SEARCH))
@pytest.mark.parametrize("command", ["generation", "interactive_generation"])
def test_nonsense_is_refused_in_generation(command, flag, value):
    with pytest.raises(UsageError, match=rf"^{flag} is {value}; give a "):
        parse(command, f"{flag}={value}")


def test_sentinels_pass_in_generation():
    flags = [f"--{flag}=-1" for flag in ("sampling-topk", "sampling-topp", "diverse-beam-groups")]
    parse("generation", *flags, "--max-len-a=0", "--min-len=0", "--unkpen=-5")


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("train", "DATA --arch transformer_dna_tiny --dropout nan"),
        ("generate", "DATA --path X --beam 0"),
        ("interactive", "DATA --path X --buffer-size -1"),
        ("validate", "DATA --task translation --path X --max-tokens 3"),
        ("eval-lm", "DATA --path X --context-window -1"),
        ("preprocess", "--only-source --workers 0"),
    ],
)
def test_each_command_refuses(command, flags):
    """As a user sees it; the data are not looked at."""
    done = run_fairseq(command, *flags.split(), "--user-dir", PLUGIN, check=False)
    *_, flag, value = flags.split()
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: {flag} is {value}; give a ")
    assert "Traceback" not in done.stderr


def test_hydra_train_refuses(tmp_path):
    """By the key of the configuration; in a process that imports the plugin late."""
    (tmp_path / "mine.yaml").write_text(f"""
common: {{user_dir: {PLUGIN}}}
task: {{_name: translation, data: {tmp_path}}}
model: {{_name: transformer_hna_tiny, dropout: 1.5}}
criterion: {{_name: cross_entropy}}
dataset: {{max_tokens: 600}}
""")
    command = [sys.executable, "-m", "fairseq_cli.hydra_train", f"hydra.run.dir={tmp_path}"]
    command += ["--config-dir", str(tmp_path), "--config-name", "mine"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PLUGIN.parent)
    start = "error: model.dropout is 1.5; give a number from 0 to below 1 ("
    assert done.stderr.splitlines()[-1].startswith(start), done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("value", ["nan", "[inf]", "((", "x"])
def test_lists_that_cannot_be_read(value, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse("training", "--lr", value)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"{value!r} cannot be read; give numbers with commas between them")


def test_whole_numbers_that_cannot_be_read(capsys):
    with pytest.raises(SystemExit, match="2"):
        parse("training", "--update-freq", "1e999")
    assert capsys.readouterr().err.endswith("give whole numbers with commas between them\n")


def test_unknown_names():
    with pytest.raises(UsageError, match="^there is no --task; give the one"):
        options.parse_args_and_arch(options.get_validation_parser(), ["DATA"])
    parser = options.get_generation_parser()
    parser.add_argument("--arch")
    with pytest.raises(UsageError, match="^--arch is not given, or the name of no"):
        options.parse_args_and_arch(parser, ["DATA", "--arch", "nope"])


@pytest.mark.parametrize("own", [[], ["--arch", "transformer_una_tiny"]])
def test_generation_has_no_model_that_nobody_asked_for(own):
    """fairseq-generate's parser has one, wav2vec2, which it shows beside the one that it loads."""
    parser = options.get_generation_parser()
    parser.add_argument("--arch", "-a", default="wav2vec2")
    args = options.parse_args_and_arch(parser, ["DATA", "--path", "x", *own])
    model = convert_namespace_to_omegaconf(args).model
    assert (model and model._name) == (own[1] if own else None)
    assert "conv_feature_layers" not in args


@pytest.mark.parametrize("name", ["cosine", "polynomial_decay", "step"])
def test_a_scheduler_where_there_is_no_learning_rate(name):
    """Its --lr is that of fairseq's settings, in commands that have no such flag."""
    parser, words = options.get_generation_parser(), ["DATA", "--path", "x", "--lr-scheduler", name]
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
    assert config.lr_scheduler._name == name
    assert list(config.lr_scheduler.lr) == list(config.optimization.lr) == [0.25]


@pytest.mark.parametrize("error", [KeyError("mine"), RuntimeError("mine")])
def test_other_errors_of_a_parser_stay_what_they_are(error):
    """They may be of a package with a part of its own."""

    def fail(*args):
        raise error

    with pytest.raises(type(error), match="mine"):
        options.parse_args_and_arch(SimpleNamespace(parse_known_args=fail, error=print), ["DATA"])


def test_preprocess_in_python_is_checked():
    with pytest.raises(UsageError, match=r"^--padding-factor is -1; give a whole number from 0"):
        options.get_preprocessing_parser().parse_args(["--padding-factor=-1"])


def test_a_number_of_nobodys_has_to_be_finite():
    """Options of a user's own package, and text that looks like a number."""
    with pytest.raises(UsageError, match="^--mine is nan; give a number from "):
        ranges.check_number("--mine", math.nan, "mine")
    for value in (5, -1e30, True, None, "nan", "1e999", "x", [], ["a"]):
        ranges.check_number("--mine", value, "mine")


def test_text_of_a_pattern_is_not_read():
    """Such as --cross-layers 0,2 and --encoder-gaussian-heads all, beside --encoder-layers."""
    for text in ("0,2", "-1", "all", "nan"):
        ranges.check_number("--my-layers", text, "my_layers")
    with pytest.raises(UsageError):
        ranges.check_number("--my-layers", -1, "my_layers")


def test_numbers_of_examples_are_those_that_a_float_can_be():
    assert all(map(is_number, (0, -1.5, 10**300)))
    assert not any(map(is_number, (10**400, -(10**400), math.inf, -math.inf, math.nan, True)))


def test_the_largest_batch_is_predicted():
    """More lines than Python counts are sorted at once."""
    task = SimpleNamespace(build_rows=lambda: SimpleNamespace(lost=0))
    assert list(predict(None, task, [], sys.maxsize, None)) == []
