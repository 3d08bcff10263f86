"""Everything is registered, whatever is imported first; each case is a fresh process."""

import os
import subprocess
import sys

import pytest
from cases import slow_but_first
from conftest import PLUGIN, ROOT, fairseq
from labelled import write_examples, write_vocabulary

ASK = """
from fairseq import checkpoint_utils
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
print("transformer_dna" in ARCH_MODEL_REGISTRY, "masked_lm_ag" in CRITERION_REGISTRY,
    "masked_lm_sop" in TASK_REGISTRY, type(checkpoint_utils.torch).__name__)
"""
REGISTERED = "True True True SafeTorch"
USER_DIR = """
from argparse import Namespace
from fairseq.utils import import_user_module
import_user_module(Namespace(user_dir={!r}))
"""


def python(code, *args):
    """The last line that a program prints."""
    done = subprocess.run(
        [sys.executable, *([code] if args else ["-c", code]), *args],
        cwd=ROOT.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip().rpartition("\n")[2]


FIRST = {
    "the registry": "import fairseq_ext.registry",
    "fairseq": "import fairseq; import fairseq_ext",
    "the package": "import fairseq_ext; import fairseq",
    "a command of fairseq": "import fairseq_ext, fairseq_cli.generate",
    "a name that imports fairseq": "from fairseq_ext.attention import Attention",
    "a module of models": "import fairseq_ext.models.transformer",
    "a module that fails": """
try:
    import fairseq_ext.nothing
except ModuleNotFoundError:
    import fairseq
""",
    "the package, then a user directory": "import fairseq_ext" + USER_DIR.format(str(PLUGIN)),
    "another program": "import sys; sys.argv = ['fairseq_ext.cli']; import fairseq_ext, fairseq",
}


@pytest.mark.slow
def test_what_follows_a_seed_is_drawn_the_same_after_an_import():
    seeded = "import torch, fairseq; torch.manual_seed(1); {} print(torch.rand(1).item())"
    assert python(seeded.format("")) == python(seeded.format("import fairseq_ext.registry;"))


@pytest.mark.parametrize("first", slow_but_first(FIRST))
def test_order_of_imports(first):
    assert python(FIRST[first] + "\n" + ASK) == REGISTERED


@pytest.mark.parametrize(
    "line",
    slow_but_first(["import fairseq_ext", "from fairseq_ext.attention import Attention"]),
)
def test_a_users_package_registers_ours(line, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(f"{line}\n")
    assert python(USER_DIR.format(str(tmp_path / "mine")) + ASK) == REGISTERED


def test_without_fairseq_nothing_is_loaded():
    code = "import sys, fairseq_ext.files, fairseq_ext.prepare.tokenise"
    assert python(f"{code}; print({{'fairseq', 'torch'}} & set(sys.modules))") == "set()"


SPAWN = f"""
import multiprocessing


def work(ours, user_dir, answers):
    if user_dir:
        from argparse import Namespace

        from fairseq.utils import import_user_module

        import_user_module(Namespace(user_dir=user_dir))
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    answers.put("transformer_dna" in ARCH_MODEL_REGISTRY and "masked_lm_sop" in TASK_REGISTRY)


if __name__ == "__main__":
    from fairseq_ext.criterions.terms import TrainingStep
    from fairseq_ext.data.rows import Item
    from fairseq_ext.models.task_heads import Linear

    spawn = multiprocessing.get_context("spawn")
    answers = spawn.SimpleQueue()
    for ours, user_dir in [(TrainingStep, None), (Item, {str(PLUGIN)!r}), (Linear(2, 2), None)]:
        worker = spawn.Process(target=work, args=(ours, user_dir, answers))
        worker.start()
        worker.join()
        print(answers.get() if worker.exitcode == 0 else "failed", end=" ")
"""


@pytest.mark.slow
def test_a_spawned_worker_that_unpickles_something_of_ours(tmp_path):
    (tmp_path / "script.py").write_text(SPAWN)
    assert python(str(tmp_path / "script.py"), "--user-dir") == "True True True"


FLAGS = (
    "--task sentence_classification --criterion sentence_classification_ag --cpu --num-workers 0 "
    "--arch roberta_una_tiny --optimizer adam --lr 0.01 --batch-size 4 --max-update 1"
).split()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model whose architecture, task and criterion are ours, trained with --user-dir."""
    folder = write_vocabulary(tmp_path_factory.mktemp("ours"))
    examples = [{"text": "the cat ran", "label": "a"}, {"text": "a dog sat", "label": "b"}]
    for split in ("train", "valid"):
        write_examples(folder / f"{split}.jsonl", examples)
    fairseq("train", folder, "--user-dir", PLUGIN, *FLAGS, "--save-dir", folder)
    return folder / "checkpoint_last.pt"


LOAD = """
from fairseq.checkpoint_utils import load_model_ensemble
models, cfg = load_model_ensemble([{!r}])
print(type(models[0]).__name__, cfg.task._name, cfg.criterion._name)
"""


@pytest.mark.parametrize(
    "first", slow_but_first(["import fairseq_ext", "import fairseq_ext.models.transformer"])
)
def test_a_model_is_loaded_in_a_notebook(checkpoint, first):
    loaded = python(first + LOAD.format(str(checkpoint)))
    assert loaded == "RobertaUnaTiny sentence_classification sentence_classification_ag"
