"""Mechanisms of other packages: as a user directory, installed, in a notebook; refusals."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module

import pytest
import torch
from commands import generate, read_hypotheses, read_parameters
from conftest import PLUGIN, ROOT, TRAIN, fairseq
from fairseq import options
from fairseq.options import get_training_parser, parse_args_and_arch

from fairseq_ext import registry, testing
from fairseq_ext.attention.gates import HeadGate
from fairseq_ext.attention.head_mixers import HeadMixer
from fairseq_ext.attention.normalisers import NORMALISERS, Normaliser, Softmax
from fairseq_ext.attention.scorers import Scorer
from fairseq_ext.attention.slots import map_options
from fairseq_ext.criterions.terms import Term
from fairseq_ext.errors import UsageError
from fairseq_ext.models.architectures import FAMILIES
from fairseq_ext.models.origins import check_origins
from fairseq_ext.testing.invariants import assert_decoding_is_teacher_forcing
from fairseq_ext.testing.mechanisms import build_tiny_model

EXAMPLE = ROOT / "examples" / "new_mechanism"
CUBED = EXAMPLE / "cubed"
SMALL = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32".split()
)
SMALL += "--max-update 3 --disable-validation".split()


def run(command, *args, plugin=CUBED, **options):
    """A command of fairseq's with a user directory."""
    return fairseq(command, *args, "--user-dir", plugin, **options)


def flags_without_user_dir():
    at = TRAIN.index("--user-dir")
    return [*TRAIN[:at], *TRAIN[at + 2 :]]


@pytest.fixture(scope="module")
def checkpoint(data_bin, tmp_path_factory):
    """A model of the example, trained with its own option."""
    folder = tmp_path_factory.mktemp("cubed")
    own = ["--arch", "transformer_cubed_tiny", "--cubed-power", 2, *SMALL]
    run("train", data_bin, *flags_without_user_dir(), *own, "--save-dir", folder)
    return folder / "checkpoint_last.pt"


def test_the_example_is_small():
    lines = (CUBED / "__init__.py").read_text("utf-8").splitlines()
    code = [line for line in lines if line.strip() and not line.strip().startswith(('"""', "#"))]
    assert len(code) <= 30


def test_the_page_about_it_has_the_same_code():
    """docs/mechanisms/own.md is whole for those who have no examples/."""
    page = (ROOT / "docs" / "mechanisms" / "own.md").read_text("utf-8")
    assert f"```python\n{(CUBED / '__init__.py').read_text('utf-8')}```" in page
    assert inspect.getsource(naive_cubed) in page


def test_the_page_about_it_names_every_slot():
    """With the base class of each, and the methods that are written for it."""
    page = (ROOT / "docs" / "mechanisms" / "own.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(register_\w+)` \|(.*)$", page, re.M))
    decorators = {name for name in vars(registry) if name.startswith("register_")}
    assert rows.keys() == decorators - {"register_mechanism"}
    for row in rows.values():
        _, base, written = row.split(" | ", 2)
        for module, name in re.findall(r"`([\w.]+)\.([A-Z]\w+)`", base):
            part = getattr(import_module(f"fairseq_ext.{module}"), name)
            for method, given in re.findall(r"`(\w+)\(([\w, ]*)\)`", written):
                names = [*inspect.signature(getattr(part, method)).parameters]
                assert [each for each in names if each != "self"] == given.split(", "), row


def test_it_trains_and_translates(data_bin, checkpoint):
    translated = read_hypotheses(generate(data_bin, checkpoint, plugin=CUBED))
    assert len(translated) == 100
    state = torch.load(checkpoint, weights_only=False)
    assert state["cfg"]["model"]["cubed_power"] == 2.0
    assert state["cfg"]["model"]["encoder_normaliser"] == "cubed"
    assert state["extra_state"]["parts"] == [
        ["_name", "transformer_cubed_tiny", "cubed", ""],
        ["encoder_normaliser", "cubed", "cubed", ""],
    ]


def test_its_option_changes_what_it_computes(data_bin, checkpoint):
    """As softmax, which it is with power 1, it translates as softmax does."""
    scores = {}
    for power in (1, 2, 9):
        found = generate(
            data_bin,
            checkpoint,
            *("--model-overrides", f"{{'cubed_power': {power}}}"),
            plugin=CUBED,
        )
        scores[power] = [score for _, (score, *_) in sorted(read_hypotheses(found).items())]
    name = {"_name": "transformer_una_tiny", "encoder_normaliser": "softmax"}
    una = read_hypotheses(generate(data_bin, checkpoint, "--model-overrides", str(name)))
    softmax = [score for _, (score, *_) in sorted(una.items())]
    assert scores[1] == pytest.approx(softmax) and scores[1] != scores[2] != scores[9]


def test_a_missing_package_is_named(data_bin, checkpoint):
    done = fairseq(
        *("generate", data_bin, "--user-dir", PLUGIN, "--path", checkpoint, "-s", "de", "-t", "en"),
        *("--cpu", "--gen-subset", "valid"),
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("error: ")
    assert "--arch transformer_cubed_tiny" in last and "the package cubed registers" in last
    assert "give --user-dir with the folder cubed, or install it" in last


def test_a_part_that_a_notebook_registered_is_named_without_a_package():
    model = {"_name": "transformer_una_tiny", "encoder_scorer": "far"}
    parts = [["encoder_scorer", "far"], "far", [1, 2, 3, 4]]  # of a checkpoint that is damaged
    state = {"cfg": {"model": model}, "extra_state": {"parts": parts}}
    check_origins("x.pt", state)
    parts.append(["encoder_scorer", "far", "__main__", ""])
    with pytest.raises(UsageError) as refused:
        check_origins("x.pt", state)
    assert str(refused.value) == (
        "x.pt has --encoder-scorer far, which a program or notebook registered and this one does "
        "not; register it here too, before the checkpoint is read"
    )
    model["encoder_scorer"] = "dot"  # which an override has chosen
    check_origins("x.pt", state)


def test_verbs_take_a_user_directory(data_bin, checkpoint, tmp_path):
    verb = ["columns", checkpoint, "--data", data_bin, "--split", "valid", "--out", tmp_path / "c"]
    assert "the package cubed" in fairseq("ext", *verb, check=False).stderr
    fairseq("ext", *verb, "--user-dir", CUBED)
    assert list(tmp_path.iterdir())
    done = fairseq("ext", *verb, "--user-dir", tmp_path / "none", check=False)
    assert "there is no such folder" in done.stderr and "Traceback" not in done.stderr


def test_a_user_directory_that_cannot_be_imported_is_told(data_bin, tmp_path):
    package = tmp_path / "broken"
    package.mkdir()
    (package / "__init__.py").write_text("\nimport nothing_here\n")
    verb = ["columns", "x.pt", "--data", data_bin, "--split", "valid", "--out", tmp_path / "c"]
    for command in (["ext", *verb], ["train", data_bin, "--arch", "transformer_una_tiny"]):
        done = fairseq(*command, "--user-dir", package, check=False)
        assert done.returncode and "Traceback" not in done.stderr
        last = done.stderr.rstrip().split("\n")[-1]
        assert "its package cannot be imported: ModuleNotFoundError" in last
        assert last.endswith(f"({package}/__init__.py, line 2); mend it")
    done = fairseq("ext", *verb, "--user-dir", "", check=False)
    assert done.returncode == 1 and "--user-dir is empty" in done.stderr


def test_help_lists_the_flags_of_an_architecture(capsys):
    with pytest.raises(SystemExit):
        parse_args_and_arch(get_training_parser(), ["--arch", "transformer_una_tiny", "--help"])
    said = capsys.readouterr().out
    assert "--encoder-normaliser" in said and "--encoder-layers" in said


@pytest.mark.parametrize(
    "command", ["training", "generation", "validation", "preprocessing", "eval_lm"]
)
def test_help_needs_no_architecture(command, capsys):
    parser = getattr(options, f"get_{command}_parser")()
    with pytest.raises(SystemExit, match="0"):
        parse_args_and_arch(parser, ["--help"])
    assert "--user-dir" in capsys.readouterr().out


def test_it_is_resumed_and_not_with_another_option(data_bin, checkpoint, tmp_path):
    shutil.copy(checkpoint, tmp_path)
    common = [data_bin, *flags_without_user_dir(), *SMALL, "--save-dir", tmp_path]
    own = ["--arch", "transformer_cubed_tiny", "--max-update", 4]
    done = run("train", *common, *own, check=False)
    assert "cubed_power 2.0 (now 3.0)" in done.stderr
    run("train", *common, *own, "--cubed-power", 2)
    assert torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)["extra_state"]
    said = run(
        "train", *common, *own, "--encoder-normaliser", "softmax", "--cubed-power", 5, check=False
    )
    assert "--cubed-power 5.0 has no effect with --encoder-normaliser softmax" in said.stderr


def test_hydra(data_bin, checkpoint, tmp_path):
    config = {
        "common": {"user_dir": str(CUBED), "cpu": True, "seed": 1},
        "model": {
            "_name": "transformer_cubed_tiny",
            "cubed_power": 2,
            "share_all_embeddings": True,
        },
        "task": {"_name": "translation", "data": str(data_bin)},
        "criterion": {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1},
        "optimizer": {"_name": "adam", "adam_betas": "(0.9, 0.999)"},
        "lr_scheduler": {"_name": "inverse_sqrt", "warmup_updates": 40},
        "optimization": {"lr": [1e-3], "max_update": 3},
        "dataset": {"max_tokens": 600, "num_workers": 0, "disable_validation": True},
        "checkpoint": {"save_dir": str(tmp_path), "no_epoch_checkpoints": True},
    }
    config["model"] |= {"encoder_layers": 1, "decoder_layers": 1, "encoder_embed_dim": 32} | {
        "decoder_embed_dim": 32
    }
    config["task"] |= {"source_lang": "de", "target_lang": "en"}
    (tmp_path / "mine.yaml").write_text(f"# @package _global_\n{json.dumps(config)}", "utf-8")
    args = ["--config-dir", tmp_path, "--config-name", "mine", f"hydra.run.dir={tmp_path}"]
    fairseq("hydra-train", *args, cwd=tmp_path)
    paths = tmp_path / "checkpoint_last.pt", checkpoint
    torch.testing.assert_close(*map(read_parameters, paths))


def fresh(*command, path, cwd):
    """A process that nobody has prepared."""
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": ":".join(map(str, path)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the example as pip would install it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(CUBED, folder / "cubed", ignore=shutil.ignore_patterns("__pycache__"))
    about = folder / "cubed_attention-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: cubed-attention\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fairseq_ext]\ncubed = cubed\n")
    (about / "top_level.txt").write_text("cubed\n")
    (about / "RECORD").write_text("cubed/__init__.py,,\n")
    return folder


LOAD = """
{first}
from fairseq.checkpoint_utils import load_model_ensemble
[model], cfg = load_model_ensemble([{path!r}])
print(type(model).__name__, model.encoder.layers[0].self_attn.groups[0].normaliser.power)
"""


def load(checkpoint, first, path, cwd):
    """What a notebook says of a checkpoint after its first lines."""
    code = LOAD.format(first=first, path=str(checkpoint))
    return fresh(sys.executable, "-c", code, path=path, cwd=cwd)


def test_an_installed_package_needs_no_flag(checkpoint, installed, tmp_path):
    done = load(checkpoint, "import fairseq_ext", [ROOT, installed], tmp_path)
    assert done.stdout.strip() == "TransformerCubedTiny 2.0", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", ["import cubed", "import fairseq, cubed", "import cubed, fairseq"]
)
def test_a_notebook(checkpoint, first, tmp_path):
    done = load(checkpoint, first, [ROOT, EXAMPLE], tmp_path)
    assert done.stdout.strip() == "TransformerCubedTiny 2.0", done.stderr


@pytest.mark.slow
def test_an_installed_package_trains_and_is_named_with_its_version(data_bin, installed, tmp_path):
    train = ["-m", "fairseq_cli.train", data_bin, *TRAIN, *SMALL, "--save-dir", tmp_path]
    own = ["--arch", "transformer_una_tiny", "--encoder-normaliser", "cubed"]
    done = fresh(sys.executable, *train, *own, path=[ROOT, installed], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = load(tmp_path / "checkpoint_last.pt", "import fairseq_ext", [ROOT], tmp_path)
    assert re.search(
        r"--encoder-normaliser cubed, which the package cubed 1\.0 registers", done.stderr
    )


@pytest.mark.slow
def test_a_package_that_cannot_be_imported_is_named(installed, tmp_path):
    shutil.copytree(installed, tmp_path / "site")
    (tmp_path / "site" / "cubed" / "__init__.py").write_text("import nothing_like_it\n")
    done = fresh(
        *(sys.executable, "-c", "import fairseq_ext.registry"),
        path=[ROOT, tmp_path / "site"],
        cwd=tmp_path,
    )
    assert done.returncode == 0
    assert "cubed-attention registers with fairseq_ext, cannot be imported" in done.stderr


SPAWN = """
import torch.multiprocessing as mp

def work(rank, part):
    import fairseq.models
    print(part.power, "transformer_cubed" in fairseq.models.MODEL_REGISTRY)

if __name__ == "__main__":
    import cubed
    mp.spawn(work, (cubed.Cubed(1, 2.0),))
"""


@pytest.mark.slow
def test_a_spawned_worker(tmp_path):
    (tmp_path / "script.py").write_text(SPAWN)
    done = fresh(sys.executable, "script.py", path=[ROOT, EXAMPLE], cwd=tmp_path)
    assert done.stdout.strip() == "2.0 True", done.stderr


def naive_cubed(scores, masked, absent, normaliser, head):
    powers = torch.where(masked, 0, scores.exp()) ** normaliser.power
    return powers / powers.sum(-1, keepdim=True)


CHECK = """
import torch
import cubed
from fairseq_ext.testing import check_mechanism, check_normaliser
from test_extension import naive_cubed
check_normaliser("cubed", naive_cubed, cubed_power=2.0)
check_mechanism("cubed")
print("right")
"""


@pytest.mark.slow
def test_its_own_test(tmp_path):
    path = [ROOT, ROOT / "tests", EXAMPLE]
    done = fresh(sys.executable, "-c", CHECK, path=path, cwd=tmp_path)
    assert done.stdout.strip().endswith("right"), done.stderr


@dataclass
class Documented:
    """Options.

    Attributes:
        hna_init: another one of this name
    """

    hna_init: str = "x"


@dataclass
class Undocumented:
    """Options."""

    own: int = 1


@dataclass
class Required:
    """Options.

    Attributes:
        own: without a default
    """

    own: int


@dataclass
class Seeded:
    """Options.

    Attributes:
        seed: which fairseq's would replace
    """

    seed: int = 7


class Own(Normaliser):
    def __init__(self, heads, other):
        super().__init__(heads)


@pytest.mark.parametrize(
    ("arguments", "options", "part", "said"),
    [
        (("softmax",), {}, Softmax, "there is a normaliser 'softmax' already"),
        (("My-Own",), {}, Softmax, "is 'My-Own'; give small letters, digits and _"),
        (("own",), {"options": Documented}, Softmax, "an option hna_init already, another one"),
        (("own",), {"options": Seeded}, Softmax, "an option seed already, another one"),
        (("own",), {"options": Undocumented}, Softmax, "own of Undocumented lacks a default or"),
        (("own",), {"options": Required}, Softmax, "own of Required lacks a default or a help"),
        (("own",), {"options": dict}, Softmax, "give a class decorated with @dataclass"),
        (("own",), {}, Own, "cannot be built: .*other.*; let it take heads"),
        (("own",), {}, lambda heads: 3, "'own' is a int; register a subclass of"),
    ],
)
def test_normalisers_that_are_refused(arguments, options, part, said):
    before = dict(NORMALISERS)
    with pytest.raises(UsageError, match=said):
        registry.register_normaliser(*arguments, **options)(part)
    assert before == NORMALISERS


class Flat(Scorer):
    """Scores that are all the same."""

    def __init__(self, heads, width=0):
        super().__init__(heads)
        self.sizes = heads, width

    def forward(self, call):
        return call.q.new_zeros(1, 1, call.q.size(2), call.k.size(2))


def build_own_mask(heads):
    def mask_last_key(context):
        return torch.arange(context.keys) == context.keys - 1

    return mask_last_key


class OwnGate(HeadGate):
    def __init__(self, heads, width):
        super().__init__(heads)
        self.sizes = heads, width


class OwnMixer(HeadMixer):
    def __init__(self, heads, width, layer):
        super().__init__(heads)
        self.sizes = heads, width, layer


CHOSEN = {  # flag -> its decorator, a part, and what the second layer of a model says of the part
    "--encoder-scorer": (
        registry.register_scorer,
        Flat,
        lambda attention: attention.groups[0].scorer.sizes == (4, 8),
    ),
    "--encoder-masks": (
        registry.register_mask,
        build_own_mask,
        lambda attention: attention.groups[0].masks[-1].__name__ == "mask_last_key",
    ),
    "--head-gate": (
        registry.register_head_gate,
        OwnGate,
        lambda attention: attention.gate.sizes == (4, 32),
    ),
    "--encoder-head-mixer": (
        registry.register_head_mixer,
        OwnMixer,
        lambda attention: attention.mixer.sizes == (4, 8, 1),
    ),
}


def test_masks_that_count_positions_are_the_same_in_decoding(monkeypatch):
    """Without masks the cache of hard-coded heads is cut to the window that they see."""

    def build_own_mask(heads):
        def mask_even_keys(context):
            keys = torch.arange(context.keys) % 2 == 1
            queries = torch.arange(context.queries) + context.first_query
            return keys[None] & (queries[:, None] > 0)

        return mask_even_keys

    registry.register_mask("own")(build_own_mask)
    table = map_options()["decoder_masks"].parts
    monkeypatch.setitem(table, "own", table.pop("own"))  # until the test ends
    options = {"decoder_gaussian_heads": "all", "decoder_masks": "own"}
    model = build_tiny_model("transformer_una_tiny", **options).eval()
    targets = [[5 + n % 9 for n in range(16)], [6] * 12]
    assert_decoding_is_teacher_forcing(model, [[5, 6], [7]], targets)


@pytest.mark.parametrize("flag", CHOSEN)
def test_other_parts_of_a_package_are_chosen_by_their_flags(flag, monkeypatch):
    """Each is refused before it is registered, and then built with the sizes of a layer."""
    register, part, is_chosen = CHOSEN[flag]
    option = flag[2:].replace("-", "_")
    with pytest.raises(UsageError, match="'own'; (choose from|give none)"):
        build_tiny_model("transformer_una_tiny", **{option: "own"})
    assert register("own")(part) is part
    table = map_options()[option].parts
    monkeypatch.setitem(table, "own", table.pop("own"))  # until the test ends
    assert table["own"].package == "test_extension"
    line = "data --arch transformer_una_tiny --optimizer adam".split()
    parsed = parse_args_and_arch(get_training_parser(), [*line, flag, "own"])
    model = build_tiny_model(parsed.arch, **{option: getattr(parsed, option)})
    assert is_chosen(model.encoder.layers[1].self_attn)


def test_what_else_is_refused():
    with pytest.raises(UsageError, match="there is a mechanism 'dna' already"):
        registry.register_mechanism("dna", encoder_normaliser="doubly")
    with pytest.raises(UsageError, match="presets encoder_normalizer, which no --arch of ours has"):
        registry.register_mechanism("own", encoder_normalizer="doubly")
    with pytest.raises(UsageError, match="there is a regulariser 'ag' already"):
        registry.register_regulariser("ag")(Term)
    with pytest.raises(UsageError, match="register a subclass of"):
        registry.register_regulariser("own")(dict)
    with pytest.raises(UsageError, match="there is a pattern 'next' already"):
        registry.register_pattern("next")(lambda view: view.centre)
    with pytest.raises(UsageError, match="the name of a pattern is 'a:b'"):
        registry.register_pattern("a:b")


@pytest.mark.parametrize("name", ["una_tiny", "align", "base"])
def test_a_mechanism_replaces_no_architecture(name):
    mechanisms = {kind: dict(family.mechanisms) for kind, family in FAMILIES.items()}
    with pytest.raises(UsageError, match="an architecture that is there already"):
        registry.register_mechanism(name, encoder_normaliser="doubly")
    assert mechanisms == {kind: family.mechanisms for kind, family in FAMILIES.items()}


def test_what_fills_the_table_itself_is_a_choice(monkeypatch):
    """As packages did before there were decorators."""
    monkeypatch.setitem(NORMALISERS, "direct", lambda heads, **_: Softmax())
    testing.check_model(encoder_normaliser="direct")
