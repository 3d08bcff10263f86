"""COMET, an optional package: a trained model compares translation, reference and source."""

import importlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.corpus_scorers import SentenceMean

MODEL = "Unbabel/wmt22-comet-da"
PACKAGE = "unbabel-comet"


class Comet(SentenceMean):
    """COMET score x 100, by a checkpoint or by a published model.

    Args:
        model: the path of a .ckpt, or the name of a published model.

    Raises:
        UsageError: COMET is not installed, there is no such model, or its file could run code.
    """

    def __init__(self, model: str = MODEL) -> None:
        from fairseq_ext import safe_loading  # slow, as torch is

        comet = _import_comet()
        checkpoint = _find_checkpoint(comet, model)
        # COMET unpickles the file; a file that passes here holds nothing that runs.
        safe_loading.load(str(checkpoint), map_location="meta")
        self.name = model
        self.model = comet.load_from_checkpoint(str(checkpoint))

    def score_sentences(self, *texts: Sequence[str]) -> Sequence[float]:
        """Return the model's score of each hypothesis, given reference and source."""
        import torch

        samples = [{"mt": mt, "ref": ref, "src": src} for mt, ref, src in zip(*texts, strict=True)]
        gpus = int(torch.cuda.is_available())
        return self.model.predict(samples, batch_size=16, gpus=gpus).scores

    def signature(self) -> str:
        """Return the model and COMET's version."""
        try:
            number = version(PACKAGE)
        except PackageNotFoundError:  # a copy of its source on the path
            number = "unknown"
        return f"nrefs:1|case:mixed|model:{self.name}|scale:100|version:{number}"


def _import_comet() -> ModuleType:
    try:
        return importlib.import_module("comet")
    except ImportError as error:
        raise UsageError(
            f"comet needs the package {PACKAGE}, which cannot be imported ({error}); install it "
            f"with pip install {PACKAGE}, or leave comet out"
        ) from error


def _find_checkpoint(comet: ModuleType, model: str) -> Path:
    if model.endswith(".ckpt"):
        if not Path(model).is_file():
            raise UsageError(f"--comet-model is {model}, and there is no such file; correct it")
        return Path(model)
    try:
        return Path(comet.download_model(model))
    except KeyError as error:
        raise UsageError(
            f"--comet-model is {model}, which is not known to COMET or cannot be downloaded; give "
            f"the name of a model as {MODEL}, or the path of its .ckpt"
        ) from error
