"""Notes about the checkpoints of which results of runs are."""

import re
from collections.abc import Sequence

from fairseq_ext.evaluation.runs import Run


def name_checkpoints(name: str, runs: Sequence[Run]) -> str:
    """Return of which checkpoints a file of results is, as the sweep that made it has noted."""
    found: dict[str, list[str]] = {}
    for run in runs:
        stamp = (run.folder / name).with_suffix(".done")
        match = re.search(r"\$RUN/(\S+\.pt)\b", stamp.read_text("utf-8") if stamp.is_file() else "")
        found.setdefault(match[1] if match else "an unknown checkpoint", []).append(str(run.folder))
    folders = found if len(found) == 1 else [f"{x} ({', '.join(y)})" for x, y in found.items()]
    return f"{name}: of {' and of '.join(folders)}"
