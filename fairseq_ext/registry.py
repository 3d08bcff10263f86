"""Registration of everything with fairseq, when this module is imported; and of parts of yours.

A package that registers parts imports this module. It is given as `--user-dir`, or is installed and
names its module in the entry point group "fairseq_ext", or is a notebook:

    from fairseq_ext.attention.normalisers import Normaliser
    from fairseq_ext.registry import register_mechanism, register_normaliser

    @register_normaliser("cubed")
    class Cubed(Normaliser):
        def weights(self, scores, bias, query_padding, heads):
            …

    register_mechanism("cubed", encoder_normaliser="cubed")

Then `--encoder-normaliser cubed` works with every architecture, and `--arch transformer_cubed`,
`roberta_cubed_tiny`, … are there. `fairseq_ext.testing` proves that a part does what it should.
"""

from fairseq_ext import commands, patches
from fairseq_ext.errors import is_command

if is_command():
    commands.set_up()
patches.apply()

import logging  # noqa: E402
from collections.abc import Callable  # noqa: E402
from importlib import import_module, metadata  # noqa: E402
from importlib.machinery import PathFinder  # noqa: E402
from typing import Any, TypeVar  # noqa: E402

from fairseq_ext import criterions, models, tasks  # noqa: E402, F401
from fairseq_ext.attention import GATES, MASKS, MIXERS, NORMALISERS, SCORERS  # noqa: E402
from fairseq_ext.attention.gates import HeadGate  # noqa: E402
from fairseq_ext.attention.head_mixers import HeadMixer  # noqa: E402
from fairseq_ext.attention.masks import MaskFunction  # noqa: E402
from fairseq_ext.attention.normalisers import Normaliser  # noqa: E402
from fairseq_ext.attention.options import read_options  # noqa: E402
from fairseq_ext.attention.parts import Parts, check_name, find_package  # noqa: E402
from fairseq_ext.attention.scorers import Scorer  # noqa: E402
from fairseq_ext.criterions import composite  # noqa: E402
from fairseq_ext.criterions.terms import Term  # noqa: E402
from fairseq_ext.data import wordpiece_bpe  # noqa: E402, F401
from fairseq_ext.evaluation import rouge_scorer  # noqa: E402, F401
from fairseq_ext.mechanisms.guidance.patterns import PATTERNS, View, pattern  # noqa: E402
from fairseq_ext.models import architectures, options, origins  # noqa: E402

logger = logging.getLogger(__name__)

MakeNormaliser = TypeVar("MakeNormaliser", bound=Callable[..., Normaliser])
MakeScorer = TypeVar("MakeScorer", bound=Callable[..., Scorer])
MakeMask = TypeVar("MakeMask", bound=Callable[..., MaskFunction])
MakeGate = TypeVar("MakeGate", bound=Callable[..., HeadGate])
MakeMixer = TypeVar("MakeMixer", bound=Callable[..., HeadMixer])
Rows = TypeVar("Rows", bound=Callable[[View], Any])
TermClass = TypeVar("TermClass", bound=type[Term])

ENTRY_POINTS = "fairseq_ext"
"""The group of entry points whose modules are imported with this one."""


def register_normaliser(
    name: str, *, options: type | None = None
) -> Callable[[MakeNormaliser], MakeNormaliser]:
    """Return a decorator that registers a normaliser: `--encoder-normaliser NAME`, and so on.

    Decorated is a subclass of `fairseq_ext.attention.normalisers.Normaliser`, or a function that
    makes one. It is called with the number of heads of a group and, by name, its options.

    Args:
        name: small letters, digits and _.
        options: a dataclass of options that all architectures get. Each field has a default, and a
            help in the docstring of the class, under "Attributes:".

    Raises:
        UsageError: the name or an option is taken, or what is decorated is not as described.
    """
    return _register(NORMALISERS, name, options)


def register_scorer(
    name: str, *, options: type | None = None
) -> Callable[[MakeScorer], MakeScorer]:
    """Return a decorator that registers a scorer: `--encoder-scorer NAME`, and so on.

    Decorated is a subclass of `fairseq_ext.attention.scorers.Scorer`, or a function that makes one,
    called like a normaliser (see `register_normaliser`). If it takes `width`, it is given the width
    D of a head. A scorer is called with a `fairseq_ext.attention.context.HeadCall` and returns
    scores that can be broadcast to [B, h, T, S]; `call.context` has the positions: `first_query`,
    `distances`. Its attributes say where it can stand, and what it reads.
    """
    return _register(SCORERS, name, options)


def register_mask(name: str, *, options: type | None = None) -> Callable[[MakeMask], MakeMask]:
    """Return a decorator that registers a mask: `--encoder-masks NAME`, and so on.

    A mask is called with a `fairseq_ext.attention.context.AttentionContext` and returns a bool that
    can be broadcast to [B, h, T, S], True where a key may not be attended to, or None. What is
    decorated is called like a normaliser (see `register_normaliser`) and makes a mask.
    """
    return _register(MASKS, name, options)


def register_head_gate(name: str, *, options: type | None = None) -> Callable[[MakeGate], MakeGate]:
    """Return a decorator that registers a gate of heads: `--head-gate NAME`.

    Decorated is a subclass of `fairseq_ext.attention.gates.HeadGate`, or a function that makes one.
    It is called with the number of heads, `width`, the width of the layer, and its options.
    """
    return _register(GATES, name, options)


def register_head_mixer(
    name: str, *, options: type | None = None
) -> Callable[[MakeMixer], MakeMixer]:
    """Return a decorator that registers a mixer of heads' maps: `--encoder-head-mixer NAME`, ….

    Decorated is a subclass of `fairseq_ext.attention.head_mixers.HeadMixer`, or a function that
    makes one. It is called with the number of heads, `width`, that of a head, `layer`, its index,
    and its options.
    """
    return _register(MIXERS, name, options)


def register_pattern(
    name: str, *, symbols: tuple[str, ...] = (), looks_ahead: bool = True
) -> Callable[[Rows], Rows]:
    """Return a decorator that registers a pattern of guidance: `--ag-encoder-heads NAME:1`.

    Decorated is a function of a `fairseq_ext.mechanisms.guidance.patterns.View`; see that module.

    Args:
        symbols: of the dictionary, whose occurrences are `View.marked`.
        looks_ahead: a row may have to look at keys after it, which a decoder refuses.
    """
    check_name("pattern", name, PATTERNS)
    return pattern(name, symbols=symbols, looks_ahead=looks_ahead)  # type: ignore[return-value]


def register_regulariser(name: str) -> Callable[[TermClass], TermClass]:
    """Return a decorator that registers a regulariser: `--criterion <objective>_NAME`.

    Decorated is a subclass of `fairseq_ext.criterions.terms.Term`. Every objective has it, alone
    and, under a longer name, together with the other regularisers.
    """

    def decorate(term: TermClass) -> TermClass:
        composite.add_regulariser(name, term)
        return term

    return decorate


def register_mechanism(name: str, **preset: Any) -> None:
    """Register architectures `FAMILY_NAME…` in all sizes, with options that they preset.

    Args:
        name: small letters, digits and _.
        preset: values of options, as in `encoder_normaliser="cubed"`.

    Raises:
        UsageError: the name is taken or none, or an option is not known.
    """
    package = find_package()
    names = architectures.add_mechanism(name, preset)
    origins.ARCHITECTURES |= dict.fromkeys(names, package)


def _register(table: Parts, name: str, config: type | None) -> Callable[[Any], Any]:
    register = table.register(name, config, find_package(3))

    def decorate(make: Any) -> Any:
        options.check_part_options(read_options(config))
        register(make)
        if config is not None:
            options.update()
            architectures.update()
        return make

    return decorate


def load_installed_packages() -> None:
    """Import the modules that installed packages name in the entry point group."""
    for point in metadata.entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:
            logger.warning(
                "%s, which the installed package %s registers with fairseq_ext, cannot be imported "
                "(%s: %s); its parts are missing",
                *(point.value, point.dist and point.dist.name, type(error).__name__, error),
            )


def load_vqa() -> None:
    """Import what questions about pictures register, if the folder is there."""
    package = import_module("fairseq_ext")  # an editable install may know another checkout's
    if (spec := PathFinder.find_spec("fairseq_ext.vqa", package.__path__)) and spec.origin:
        import_module("fairseq_ext.vqa.registration")


load_vqa()
load_installed_packages()
