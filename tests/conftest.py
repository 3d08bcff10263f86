"""Fixtures shared by the tests: fairseq's commands as a user runs them, on real lines."""

import gzip
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import failures
import pytest
import torch
import warm
from corpora import builtin
from triton_cases import compile_for, device, drawn_seeds  # noqa: F401 - fixtures

import fairseq_ext.registry  # noqa: F401
from fairseq_ext import commands as process
from fairseq_ext.attention import normalisers as softmax
from fairseq_ext.mechanisms.kernels import doubly_cpu, guided
from fairseq_ext.prepare import byte_bpe

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "fairseq_ext"

# of the script that runs the tests, and not of the checkouts that tests make
for name in ("FAIRSEQ_EXT_PLACE", "FAIRSEQ_EXT_CALLER"):
    os.environ.pop(name, None)
# a file of tests runs on each core: more threads would wait for each other, at five times the cost
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun by `&` in a script
    signal.signal(signal.SIGINT, signal.default_int_handler)
warm.activate()
process.set_up()  # tests call the functions of commands
pytest.register_assert_rewrite("adversarial", "fairseq_bpe", "hf_encoders", "shell")


MARKED_BY_FIXTURE = {"corpora": "corpora", "quickstart": "recipe", "device": "gpu", "kernel": "gpu"}


def pytest_collection_modifyitems(items):
    """Mark tests by their fixtures, and begin with the files that take longest.

    FAIRSEQ_EXT_SHUFFLE is the seed of another order, of files and of the tests in each.
    """
    for item in items:
        for fixture in MARKED_BY_FIXTURE.keys() & {*item.fixturenames}:
            item.add_marker(MARKED_BY_FIXTURE[fixture])
    kinds = {"recipe", "processes", "slow"}
    long = {item.path for item in items if kinds & {mark.name for mark in item.iter_markers()}}
    items.sort(key=lambda item: item.path not in long)
    if seed := os.environ.get("FAIRSEQ_EXT_SHUFFLE"):
        random.Random(seed).shuffle(items)


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(failures.NamedAtOnce(config))


def pytest_runtest_logstart(nodeid):
    warm.say_what_is_covered(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Remove a module's folders when its tests have passed: all of a run's would take 2 GB."""
    if fixturedef.scope != "module":
        return (yield)
    folder, session = request.getfixturevalue("tmp_path_factory").getbasetemp(), request.session
    there, failures = {*folder.iterdir()}, session.testsfailed
    result = yield
    made = {*folder.iterdir()} - there

    def remove():
        if session.testsfailed == failures:
            for path in made:
                shutil.rmtree(path, ignore_errors=True)

    fixturedef.addfinalizer(remove)
    return result


ON_ERROR = sys.excepthook


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call():
    """Take back what a process group of torch does to errors: it writes the rank before them."""
    sys.excepthook = ON_ERROR


@pytest.fixture(autouse=True)
def _precision_stays():
    """Take back that a wide model chose the library which multiplies."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(params=["as chosen", "fused"])
def every_form(request, monkeypatch):
    """Normalisers as they are used on inputs of this size, and their kernels."""
    if request.param == "fused":
        monkeypatch.setattr(softmax, "MIN_SCORES", 0)
        monkeypatch.setattr(doubly_cpu, "MIN_SCORES", 0)
        monkeypatch.setattr(guided, "MIN_SCORES", 0)


def fairseq(command: str, *args: object, check: bool = True, cwd: Path = ROOT):
    """Run `fairseq-<command>`; stdout and stderr as text."""
    done = warm.run(f"fairseq-{command}", [str(argument) for argument in args], cwd)
    if check and done.returncode:
        raise AssertionError(f"{done.args} exited {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def start(command: str, *args: object, cwd: Path = ROOT, stdin=None):
    """`fairseq-<command>`, started."""
    return subprocess.Popen(
        [warm.activate() / f"fairseq-{command}", *map(str, args)],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def small_files():
    """No file grows beyond 2,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def forked(monkeypatch):
    """Let commands that this process starts by `sys.executable` be forked."""
    monkeypatch.setattr(sys, "executable", str(warm.activate() / "python"))


def train_in_two_processes(data: Path, *flags: object) -> None:
    """`fairseq-train` in two processes on the CPU."""
    launch = ["python", "-m", "fairseq_ext.cli", "launch", "--cpu-processes", "2", "--"]
    done = subprocess.run(
        [*launch, *map(str, ["fairseq-train", data, *flags])],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


TASK = "--task translation -s de -t en --cpu --num-workers 0 --seed 1".split()
TRAIN = [
    *("--user-dir", str(PLUGIN), *TASK),
    *"--max-tokens 600 --share-all-embeddings --optimizer adam --lr 1e-3".split(),
    *"--lr-scheduler inverse_sqrt --warmup-updates 40".split(),
    *"--criterion label_smoothed_cross_entropy --label-smoothing 0.1".split(),
    *"--log-format json --log-interval 1 --no-epoch-checkpoints".split(),
]


def train(data: Path, arch: str, folder: Path, updates: int, *args: object, **options):
    """`fairseq-train` for some updates; the path of the last checkpoint."""
    common = [*TRAIN, "--arch", arch, "--max-update", updates, "--save-dir", folder]
    fairseq("train", data, *common, *args, **options)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of real corpora."""
    folder = os.environ.get("FAIRSEQ_EXT_CORPORA")
    if not folder:
        pytest.skip("FAIRSEQ_EXT_CORPORA does not name a folder of real corpora")
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def letters(tmp_path_factory) -> Path:
    """A binarised corpus of forty lines of one to eight letters, the same in "de" and "en"."""
    folder = tmp_path_factory.mktemp("letters")
    lines = "".join(" ".join("abcdefgh"[: i % 8 + 1]) + "\n" for i in range(40))
    for name in "train.de", "train.en", "valid.de", "valid.en":
        (folder / name).write_text(lines)
    prefixes = [f"--{split}pref={folder / split}" for split in ("train", "valid")]
    fairseq("preprocess", "-s", "de", "-t", "en", *prefixes, f"--destdir={folder / 'bin'}")
    return folder / "bin"


@pytest.fixture(scope="session")
def real_lines(corpora, tmp_path_factory) -> Path:
    """400 / 100 / 200 lower-cased pairs of Multi30k: {train,valid,test}.{de,en}."""
    folder = tmp_path_factory.mktemp("text")
    for split, name, lines in [
        ("train", "train", 400),
        ("valid", "val", 100),
        ("test", "val", 200),
    ]:
        for language in ("de", "en"):
            source = corpora / "multi30k-en-de" / f"{name}.{language}.gz"
            with gzip.open(source, "rt", encoding="utf-8", newline="\n") as text:
                kept = [line.lower().replace(".", " .") for line in text][:lines]
            (folder / f"{split}.{language}").write_text("".join(kept), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def data_bin(real_lines, tmp_path_factory) -> Path:
    """The same, binarised."""
    folder = tmp_path_factory.mktemp("data-bin")
    prefixes = [part for s in ("train", "valid", "test") for part in (f"--{s}pref", real_lines / s)]
    fairseq(
        "preprocess", "-s", "de", "-t", "en", *prefixes, "--destdir", folder, "--joined-dictionary"
    )
    return folder


@pytest.fixture(scope="session")
def english() -> list[str]:
    return [f"{english} It's {number}." for number, (english, _) in enumerate(builtin()["valid"])]


@pytest.fixture(scope="session")
def hybrid_run(data_bin, tmp_path_factory) -> Path:
    """A run of `transformer_hna_tiny` with its log; the sides differ in layers and heads."""
    folder = tmp_path_factory.mktemp("hybrid") / "hna" / "seed-1"
    shapes = ["--decoder-layers", 3, "--decoder-attention-heads", 2, "--head-gate"]
    done = fairseq(
        *("train", data_bin, *TRAIN, "--arch", "transformer_hna_tiny", "--max-update", 3),
        *("--save-dir", folder, *shapes),
    )
    (folder / "train.log").write_text(done.stdout + done.stderr, "utf-8")
    return folder


@pytest.fixture(scope="session")
def encoder_data(tmp_path_factory) -> Path:
    """English of the built-in corpus with a byte-level BPE of 400 tokens, binarised."""
    folder = tmp_path_factory.mktemp("english")
    (folder / "text").mkdir()
    for split in ("train", "valid"):
        lines = [english for english, _ in builtin()[split][:400]]
        (folder / "text" / split).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    byte_bpe.prepare(folder / "text", folder / "bin" / "bpe", folder / "encoded", 400)
    fairseq(
        *("preprocess", "--only-source", "--srcdict", folder / "encoded" / "dict.txt"),
        *("--trainpref", folder / "encoded" / "train", "--validpref", folder / "encoded" / "valid"),
        *("--destdir", folder / "bin"),
    )
    return folder / "bin"


def train_encoder(data: Path, arch: str, folder: Path, *args: object) -> Path:
    """A masked language model after one update; its last checkpoint."""
    fairseq(
        *("train", data, "--user-dir", PLUGIN, "--task", "masked_lm", "--criterion", "masked_lm"),
        *("--arch", arch, "--save-dir", folder, "--max-update", 1, "--batch-size", 4, *args),
        *"--cpu --num-workers 0 --seed 1 --tokens-per-sample 64 --optimizer adam --lr 1e-3".split(),
        *"--no-epoch-checkpoints --disable-validation".split(),
    )
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def hugging_face():
    """Classes of transformers, which would import torchaudio: that may need libraries of a GPU."""
    before, empty = sys.modules.get("torchaudio"), ModuleType("torchaudio")
    empty.__spec__, empty.__version__ = ModuleSpec("torchaudio", None), "0"
    sys.modules["torchaudio"] = empty
    transformers = pytest.importorskip("transformers")
    kinds = ("Bert", "Roberta", "Deberta", "DebertaV2", "Camembert", "XLMRoberta")
    names = ["AutoModel", "AutoModelForMaskedLM", "AutoTokenizer"]
    names += ["LlamaConfig", "LlamaForCausalLM", "Qwen3Config", "Qwen3ForCausalLM"]
    heads = ("SequenceClassification", "TokenClassification", "MultipleChoice", "QuestionAnswering")
    names += [f"AutoModelFor{head}" for head in ("Seq2SeqLM", "CausalLM", *heads)]
    names += [f"{kind}{part}" for kind in kinds for part in ("Config", "ForMaskedLM")]
    names += [f"{kind}Tokenizer" for kind in kinds[2:]]
    yield SimpleNamespace(**{name: getattr(transformers, name) for name in names})
    sys.modules.pop("torchaudio")
    if before is not None:
        sys.modules["torchaudio"] = before


@pytest.fixture(scope="module")
def library(hugging_face, tmp_path_factory):
    """Transformers, which copies code of exported folders into a folder of this test."""
    import transformers

    modules = transformers.dynamic_module_utils
    before, path = modules.HF_MODULES_CACHE, list(sys.path)
    modules.HF_MODULES_CACHE = str(tmp_path_factory.mktemp("modules"))
    yield transformers
    modules.HF_MODULES_CACHE, sys.path[:] = before, path
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]
