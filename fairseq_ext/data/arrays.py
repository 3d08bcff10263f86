"""Files of numpy that are mapped into memory, and the reasons why some cannot be."""

from pathlib import Path

import numpy as np

from fairseq_ext.errors import UsageError, to_line
from fairseq_ext.files import ARRAY_ERRORS


def map_array(path: Path, again: str) -> np.memmap:
    """Return a mapped array.

    Args:
        path: a .npy file.
        again: how to get another one, for messages.

    Raises:
        UsageError: there is none, it is cut short or damaged, or it holds Python objects.
    """
    if not path.is_file():
        raise UsageError(f"{path} is missing; {again}")
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except ARRAY_ERRORS as error:
        if "Python objects" in str(error):
            raise UsageError(
                f"{path} holds a pickled Python object, which is not read since reading could "
                "execute it; save the array alone"
            ) from None
        raise UsageError(f"{path} is cut short or damaged ({reason_of(error)}); {again}") from None


def reason_of(error: Exception) -> str:
    """Return the first line of an error; numpy's next ones advise to execute what a file holds."""
    return to_line(str(error).partition("\n")[0])
