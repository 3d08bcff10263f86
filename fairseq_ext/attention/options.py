"""Options: what each says of itself, beside its default, in the dataclass where it stands.

An option is a field whose help stands in the docstring of its class, under "Attributes:". `option`
adds further facts: the range of a number, and what the option has to do with other options.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import getdoc
from math import isfinite
from typing import Any, NamedTuple

from fairseq_ext.errors import UsageError

FAR = 1e9
"""Upper ends from here on only keep out what no number of its kind can be."""

RANGES: dict[str, "Range"] = {}
"""Option -> the range of its number, of all dataclasses that were read."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Range of a number: an interval and further values, with what the number means.

    Attributes:
        means: what the number is.
        low: lower end.
        high: upper end.
        with_low: the lower end is accepted.
        with_high: the upper end is accepted.
        whole: the number is whole.
        special: further values that are accepted -> what they do.
        length: how many such numbers the option has; None: one, or a list of any length.
    """

    means: str
    low: float
    high: float
    with_low: bool
    with_high: bool
    whole: bool
    special: Mapping[float, str] = dataclasses.field(default_factory=dict, hash=False)
    length: int | None = None

    def accepts(self, number: float) -> bool:
        """Tell whether one number is accepted."""
        above = self.low < number or (self.with_low and number == self.low)
        below = number < self.high or (self.with_high and number == self.high)
        inside = above and below and (not self.whole or number == int(number))
        return inside or number in self.special

    def describe(self, too_high: bool = True) -> str:
        """Return what is accepted, as in "a number from 0 to below 1 (a share)".

        Args:
            too_high: name an upper end that is far away.
        """
        kind = "whole number" if self.whole else "number"
        kind = f"a {kind}" if self.length is None else f"{self.length} {kind}s"
        low = f"{'from' if self.with_low else 'above'} {write_number(self.low)}"
        high = f"{'to' if self.with_high else 'to below'} {write_number(self.high)}"
        if self.high >= FAR and not too_high:
            high = "upwards"
        further = (f", or {write_number(value)}: {what}" for value, what in self.special.items())
        return f"{kind} {low} {high} ({self.means}{''.join(further)})"

    def check(self, given: str, value: Any, numbers: Sequence[float]) -> None:
        """Raise UsageError unless all numbers of a value are accepted.

        Args:
            given: how the option was given, as in "--dropout" or "model.dropout".
            value: as it was given.
        """
        right_length = bool(numbers) if self.length is None else len(numbers) == self.length
        if not right_length or not all(map(self.accepts, numbers)):
            too_high = any(number > self.high for number in numbers)
            shown = write_number(value) if isinstance(value, int | float) else f"'{value}'"[:80]
            raise UsageError(f"{given} is {shown}; give {self.describe(too_high)}")


def read_range(
    interval: str,
    means: str,
    whole: bool,
    special: Mapping[float, str] | None = None,
    length: int | None = None,
) -> Range:
    """Return the range that an interval such as "[0, 1)" writes; see `Range`."""
    low, high = map(int if whole else float, interval[1:-1].split(","))
    ends = interval[0] == "[", interval[-1] == "]"
    return Range(means, low, high, *ends, whole, special or {}, length)


def real(interval: str, means: str, **more: Any) -> Range:
    """Return a range of real numbers, as in `real("[0, 1]", "a share")`."""
    return read_range(interval, means, False, **more)


def whole(interval: str, means: str, **more: Any) -> Range:
    """Return a range of whole numbers, as in `whole("[1, 9]", "a number of heads")`."""
    return read_range(interval, means, True, **more)


HEADS = whole("[1, 10000]", "a number of heads")
LAYERS = whole("[1, 10000]", "a number of layers")
SHARE = real("[0, 1]", "a share or probability")
WEIGHT = real("[0, 1e9]", "a weight")
WIDTH = whole("[1, 1000000]", "a size of a model")


def write_number(number: float) -> str:
    """Return a number without a point where it is whole."""
    return str(int(number)) if isfinite(number) and number == int(number) else f"{number:g}"


OFF = (None, False, "", "none")
"""Values that switch an option off; 0 is one, too."""


def are_on(*values: Any) -> bool:
    """Tell whether none of these values switches its option off."""
    return not any(value in OFF for value in values)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule for an option and others, which exclude each other with some of their values.

    Attributes:
        others: names of the others, separated by spaces.
        error: a sentence with places for `{one}` and `{other}`, as the options are given, for one
            of several others by its name, or for a value alone, as `{values[NAME]}`.
        broken: tells it of the values, that of the option first; by default, if all are on.
        idle: the option has no effect then, and a model that was trained so can still be loaded.
    """

    others: str
    error: str
    broken: Callable[..., Any] = are_on
    idle: bool = False


Rules = Mapping[str, Rule | Sequence[Rule]]
"""Option -> its rules, or the only one."""


class Facts(NamedTuple):
    """Facts of an option.

    Attributes:
        range: of its number, or of each of its numbers.
        needs: options of which one must not be switched off, or it has no effect.
        values: with which of these options' values it has an effect; none: with all others.
        relative: parameters are stored relative to it, so that these mean something else with
            another value; or the name of the option that must be on for that.
        alike: a training that resumes must have it alike, where it has an effect and the parts of
            attention do not show it.
        sites: where it has a meaning; none: as its name begins, or everywhere.
        excludes: rules for it and other options.
    """

    range: Range | None = None
    needs: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    relative: bool | str = False
    alike: bool = False
    sites: tuple[str, ...] = ()
    excludes: Rule | Sequence[Rule] = ()


class Option(NamedTuple):
    """An option: its type, default value, help and facts."""

    type: Any
    default: Any
    help: str
    facts: Facts = Facts()


def option(default: Any, range: Range | None = None, **facts: Any) -> Any:
    """Return the field of an option in a dataclass, with `Facts` of it.

    A fact of another name is metadata for fairseq, such as `argparse_const`.
    """
    known = {name: facts.pop(name) for name in Facts._fields if name in facts}
    return dataclasses.field(default=default, metadata={"facts": Facts(range, **known), **facts})


def get_facts(field: dataclasses.Field) -> Facts:
    """Return the facts of an option."""
    return field.metadata.get("facts") or Facts()


def check_range(config: type, name: str, value: float | None) -> None:
    """Raise UsageError if the value of an option in a dataclass is a number out of its range."""
    accepted = get_facts(config.__dataclass_fields__[name]).range  # type: ignore[attr-defined]
    if accepted and value is not None:
        accepted.check(flag(name), value, [value])


def check_ranges(config: type, options: Any) -> None:
    """Raise UsageError if an option in a dataclass has a number out of its range in `options`."""
    for field in dataclasses.fields(config):
        if get_facts(field).range:
            check_range(config, field.name, getattr(options, field.name))


def read_help(config: type) -> dict[str, str]:
    """Return attribute -> help, from the list of attributes in the docstring of a class.

    Further lines of a help are indented further.
    """
    entries = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", getdoc(config) or "", re.M)
    return {name: " ".join(text.split()) for name, text in entries}


def read_options(config: type | None) -> dict[str, Option]:
    """Return the options of a dataclass, or none of None.

    Raises:
        UsageError: it is no dataclass, or an option lacks a default or a help.
    """
    if config is None:
        return {}
    if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise UsageError(f"options are {config!r}; give a class decorated with @dataclass")
    helps: dict[str, str] = {}
    for each in reversed(config.__mro__):
        helps |= read_help(each)
    options = {}
    for field in dataclasses.fields(config):
        text = field.metadata.get("help") or helps.get(field.name)
        if field.default is dataclasses.MISSING or not text:
            raise UsageError(
                f"the option {field.name} of {config.__name__} lacks a default or a help; give it "
                f"a value, and in the docstring, under 'Attributes:', a line '{field.name}: …'"
            )
        options[field.name] = Option(field.type, field.default, text, get_facts(field))
    record_ranges({field.name: field for field in dataclasses.fields(config)})
    return options


def record_ranges(members: Mapping[str, Any]) -> None:
    """Put the ranges that fields have, among the members of a class, into the table `RANGES`."""
    for name, field in members.items():
        if isinstance(field, dataclasses.Field) and (accepted := get_facts(field).range):
            RANGES[name] = accepted


def flag(name: str, value: Any = True) -> str:
    """Return how an option is given on a command line, with a value if it takes one."""
    name = f"--{name.replace('_', '-')}"
    return name if value is True or value == "True" else f"{name} {value}"


def read_rules(config: Any) -> Rules:
    """Return the rules of the options of a dataclass, or none of None."""
    fields = dataclasses.fields(config) if config else ()
    return {field.name: get_facts(field).excludes for field in fields}


def check_values(config: type, **values: Any) -> None:
    """Raise UsageError if options of a dataclass are out of range, or exclude each other."""
    for name, value in values.items():
        check_range(config, name, value)
    check_rules(values, read_rules(config))


def check_rules(
    values: Mapping[str, Any],
    rules: Rules,
    show: Callable[[str, Any], str] = flag,
    training: bool = False,
) -> None:
    """Raise UsageError if options exclude each other, of which all have a value.

    Args:
        values: option -> value; None is one.
        rules: those to check.
        show: returns how an option with a value is given.
        training: refuse what has no effect, too.
    """
    pairs = ((name, [own] if isinstance(own, Rule) else own) for name, own in rules.items())
    for name, rule in ((name, rule) for name, own in pairs for rule in own):
        names = name, *rule.others.split()
        if (rule.idle and not training) or not values.keys() >= {*names}:
            continue
        given = [values[each] for each in names]
        if rule.broken(*given):
            one, *others = shown = [*map(show, names, given)]
            places = dict(zip(names, shown, strict=True), one=one, other=" and ".join(others))
            raise UsageError(rule.error.format(**places, values=values))
