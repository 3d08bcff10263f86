"""Tables of the parts that can stand in a slot, with the options of each part.

A part is registered by a decorator, ours as well as those of other packages, and built for a group
of heads from a value for each of its options.
"""

import re
import sys
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from fairseq_ext.attention.options import Option, check_rules, read_options
from fairseq_ext.errors import UsageError

T = TypeVar("T")

OWN = __name__.partition(".")[0]
"""The name of this package."""

SEED_STEP = 1_000_003
"""Between the seeds of what layers draw apart; more than between the seeds of trainings."""


def find_package(depth: int = 2) -> str:
    """Return the name of the package, or else the module, whose code called the caller."""
    return sys._getframe(depth).f_globals.get("__name__", "__main__").partition(".")[0]


def check_name(noun: str, name: Any, registered: Mapping[str, Any]) -> None:
    """Raise UsageError if a part cannot have this name."""
    if not (isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_]*", name)):
        raise UsageError(
            f"the name of a {noun} is {name!r}; give small letters, digits and _, as in "
            f"'my_{noun.replace(' ', '_')}'"
        )
    if name in registered:
        raise UsageError(f"there is a {noun} {name!r} already; choose another name")


class Part(NamedTuple, Generic[T]):
    """A registered part.

    Attributes:
        name: in options.
        make: returns the part for a number of heads and a value for each option.
        options: its options.
        package: the package that registered it.
        sizes: further keywords it is built with, such as the width of a layer.
        summary: what it is, in a few words, for the help of options that name it.
    """

    name: str
    make: Callable[..., T]
    options: Mapping[str, Option]
    package: str
    sizes: tuple[str, ...] = ()
    summary: str = ""

    def __call__(self, heads: int, **values: Any) -> T:
        """Build the part for `heads` heads; options that are not its own are ignored.

        Raises:
            UsageError: its options exclude each other.
        """
        own = (*self.options, *self.sizes)
        check_rules(values, {name: each.facts.excludes for name, each in self.options.items()})
        return self.make(heads, **{name: values[name] for name in own if name in values})

    def default(self) -> T:
        """Build the part for one head of width 8, with the default value of each option."""
        defaults = {name: option.default for name, option in self.options.items()}
        with torch.random.fork_rng(devices=[]):  # an import may follow a seed
            return self(1, **defaults, **dict.fromkeys(self.sizes, 8))


class Parts(dict[str, Callable[..., T]]):
    """The parts that can stand in one slot, by name.

    Args:
        noun: what a part is called in errors.
        kind: the class of all parts, which is checked; None: functions of any kind.
        sizes: keywords, beside options, that all parts are built with.
        optional: further such keywords, for parts that take them.
    """

    def __init__(
        self, noun: str, kind: type | None, *sizes: str, optional: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.noun, self.kind, self.sizes, self.optional = noun, kind, sizes, optional

    def register(
        self,
        name: str,
        options: type | None = None,
        package: str | None = None,
        summary: str = "",
    ) -> Callable[[Any], Any]:
        """Return a decorator that registers a class or a function as the part `name`.

        It is called with a number of heads and, by name, a value for each option.

        Args:
            name: small letters, digits and _.
            options: a dataclass; each field has a default, and a help in the docstring.
            package: who registers it; by default whose code calls this.
            summary: what it is, in a few words, for helps.

        Raises:
            UsageError: the name is taken or none, options are not as described, or the part cannot
                be built from them.
        """
        package = package or find_package()

        def decorate(make: Any) -> Any:
            check_name(self.noun, name, self)
            more = [size for size in self.optional if size in signature(make).parameters]
            sizes = (*self.sizes, *more)
            part: Part[T] = Part(name, make, read_options(options), package, sizes, summary)
            if package != OWN:
                self._check(part)
            self[name] = part  # type: ignore[assignment]
            return make

        return decorate

    def _check(self, part: Part) -> None:
        try:
            built = part.default()
        except TypeError as error:
            names = ", ".join(["heads", *self.sizes, *part.options])
            raise UsageError(
                f"the {self.noun} {part.name!r} cannot be built: {error}; let it take {names}"
            ) from error
        if self.kind and not isinstance(built, self.kind):
            raise UsageError(
                f"the {self.noun} {part.name!r} is a {type(built).__name__}; register a subclass "
                f"of {self.kind.__module__}.{self.kind.__qualname__}, or a function that makes one"
            )

    def build(self, name: str, heads: int, **values: Any) -> T:
        """Build the part `name` for a group of `heads` heads; others' options are ignored.

        Raises:
            UsageError: the name is unknown or an option has no meaning.
        """
        if name not in self:
            raise UsageError(f"{self.noun} is {name!r}; choose from {', '.join(self)}.")
        return self[name](heads, **values)

    def parts(self) -> dict[str, Part]:
        """Return the parts that were registered by decorators, by name."""
        return {name: part for name, part in self.items() if isinstance(part, Part)}
