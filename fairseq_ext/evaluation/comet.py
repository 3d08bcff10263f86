"""COMET, if it is installed: a trained model compares translation, reference and source."""

import importlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fairseq_ext.errors import UsageError

MODEL = "Unbabel/wmt22-comet-da"
PACKAGE = "unbabel-comet"


class Comet:
    """100 times the mean of the sentences' scores, of a checkpoint or of a published model.

    Raises:
        UsageError: COMET is not installed, the model is not there, or its file could run code.
    """

    def __init__(self, model: str = MODEL) -> None:
        from fairseq_ext import safe_loading  # slow, as torch is

        comet = _library()
        checkpoint = _checkpoint(comet, model)
        # COMET unpickles what it is given; whatever passes here holds nothing that runs.
        safe_loading.load(str(checkpoint), map_location="meta")
        self.name = model
        self.model = comet.load_from_checkpoint(str(checkpoint))

    def statistics(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> np.ndarray:
        import torch

        rows = zip(hypotheses, references, sources, strict=True)
        samples = [{"mt": mt, "ref": ref, "src": src} for mt, ref, src in rows]
        found: Any = self.model.predict(samples, batch_size=16, gpus=int(torch.cuda.is_available()))
        return np.array([(score, 1.0) for score in found.scores])

    def value(self, sums: np.ndarray) -> float:
        return float(100 * sums[0] / sums[1])

    def signature(self) -> str:
        try:
            number = version(PACKAGE)
        except PackageNotFoundError:  # a copy of its source on the path
            number = "unknown"
        return f"nrefs:1|case:mixed|model:{self.name}|scale:100|version:{number}"


def _library() -> ModuleType:
    try:
        return importlib.import_module("comet")
    except ImportError as error:
        raise UsageError(
            f"comet needs the package {PACKAGE}, which cannot be imported ({error}); install it "
            f"with pip install {PACKAGE}, or leave comet out"
        ) from error


def _checkpoint(comet: ModuleType, model: str) -> Path:
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
