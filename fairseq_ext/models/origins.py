"""The packages that registered the parts of a model, which its checkpoint names and needs."""

from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any, NamedTuple

from fairseq.models import MODEL_REGISTRY

from fairseq_ext.attention.options import flag
from fairseq_ext.attention.parts import OWN
from fairseq_ext.attention.slots import map_options
from fairseq_ext.errors import UsageError

KEY = "parts"  # in the extra state of a checkpoint

ARCHITECTURES: dict[str, str] = {}
"""Architecture -> the other package that registered it."""


class Origin(NamedTuple):
    """A part of a model and where it comes from.

    Attributes:
        option: that names the part; "_name" for an architecture.
        value: the name of the part.
        package: the package that registered it.
        version: of that package, or "" if it is not installed.
    """

    option: str
    value: str
    package: str
    version: str


def find_origins(model: Mapping[str, Any]) -> list[list[str]]:
    """Return the `Origin`, as a list, of each part that is not ours, from options of a model."""
    return [list(origin) for origin in _find(model)]


def _find(model: Mapping[str, Any]) -> Iterator[Origin]:
    architecture = str(model.get("_name"))
    if package := ARCHITECTURES.get(architecture):
        yield Origin("_name", architecture, package, _find_version(package))
    for option, slot in map_options().items():
        for name in str(model.get(option)).split(","):  # no name has a comma
            part = slot.parts.parts().get(name)
            if part is not None and part.package != OWN:
                yield Origin(option, name, part.package, _find_version(part.package))


def read_options(model: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Return the slot, option and value of each option of parts that are not ours."""
    slots = map_options()
    return [
        (origin.option, name, model.get(name))
        for origin in _find(model)
        if origin.option in slots
        for name in slots[origin.option].parts.parts()[origin.value].options
    ]


def _find_version(package: str) -> str:
    names = metadata.packages_distributions().get(package, [])
    return metadata.version(names[0]) if names else ""


def check_origins(filename: str, state: Mapping[str, Any]) -> None:
    """Raise UsageError if the model of a checkpoint needs a part that is not registered.

    A part that an override has replaced is not needed.
    """
    saved = (state.get("extra_state") or {}).get(KEY)
    configuration = state.get("cfg") or {}
    model = configuration.get("model") or {}
    for origin in saved if isinstance(saved, list) else []:
        if not (isinstance(origin, list) and [type(word) for word in origin] == [str] * 4):
            continue
        option, value, package, version = origin
        slot = map_options().get(option)
        known = MODEL_REGISTRY if option == "_name" else slot.parts if slot else {}
        if value not in str(model.get(option)).split(",") or value in known:
            continue
        user_dir = (configuration.get("common") or {}).get("user_dir")
        raise UsageError(_describe(filename, Origin(*origin), user_dir))


def _describe(filename: str, origin: Origin, user_dir: Any) -> str:
    part = f"--arch {origin.value}" if origin.option == "_name" else flag(*origin[:2])
    if origin.package == "__main__":
        return (
            f"{filename} has {part}, which a program or notebook registered and this one does not; "
            "register it here too, before the checkpoint is read"
        )
    named = f"{origin.package} {origin.version}".strip()
    where = f" (it was trained with --user-dir {user_dir})" if user_dir else ""
    return (
        f"{filename} has {part}, which the package {named} registers and which is not loaded; give "
        f"--user-dir with the folder {origin.package}, or install it{where}"
    )
