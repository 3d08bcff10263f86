"""What all pictures share: their types of file, colours, and how they are written."""

import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.layout import records_as_csv
from fairseq_ext.files import atomic_writer, check_writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq sets everyone to DEBUG

# Okabe and Ito: told apart with every kind of colour vision, on white.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]

DPI = 150

POWER = r"$\mathdefault"  # how matplotlib writes numbers on logarithmic axes


def colours(names: Iterable[str]) -> dict[str, Any]:
    """One for each name; of more than there are `COLOURS`, from a scale."""
    each = list(dict.fromkeys(names))
    if len(each) <= len(COLOURS):
        return dict(zip(each, COLOURS, strict=False))
    from matplotlib import colormaps

    scale = colormaps["nipy_spectral"]
    return {name: scale(number / len(each)) for number, name in enumerate(each)}


def check_picture(out: Path) -> None:
    """Raise UsageError unless a picture can be written there."""
    from matplotlib.backend_bases import FigureCanvasBase

    accepted = sorted(FigureCanvasBase.get_supported_filetypes())
    if out.suffix.removeprefix(".").lower() not in accepted:
        raise UsageError(f"{out} is no picture; end its name with one of .{', .'.join(accepted)}")
    check_writable(out.parent, 0)


def save(figure: "Figure", out: Path) -> None:
    """Write a figure; the type follows from the name."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.part")
    try:
        part.write_bytes(drawn(figure, out.suffix.removeprefix(".").lower()))
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"{out} cannot be written ({error.strerror}); give another") from error


def save_numbers(records: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write what a picture shows beside it, as CSV."""
    with atomic_writer(out.with_suffix(".csv")) as file:
        file.write(records_as_csv(records))


def drawn(figure: "Figure", kind: str) -> bytes:
    """The file of a picture. Names of runs and tokens are no formulas, whatever is in them."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    file = io.BytesIO()
    with rc_context({"text.parse_math": False}):
        for text in figure.findobj(Text):
            text.set_parse_math(False)
        figure.draw_without_rendering()  # only now do axes have their numbers
        for text in figure.findobj(Text):
            text.set_parse_math(text.get_text().startswith(POWER))
        figure.savefig(file, format=kind, dpi=DPI, bbox_inches="tight")
    return file.getvalue()
