"""How rows of one key become one: the options ``merge-engine``, ``sequence.field`` and ``fields.…`` (pure).

The names and functions are those of Paimon, FLIP-188's successor; what they do here is described in
docs/merge-engines.md. With ``partial-update``, ``fields.<columns>.sequence-group`` declares columns that come
from one row together: the one that is highest in ``<columns>`` gives all columns of the group, NULL too; a
row in which all of ``<columns>`` are NULL says nothing about the group. A function of a group's column takes
the values of all other rows, in the order of ``<columns>``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from upsert import options, types
from upsert.errors import ConfigurationError
from upsert.options import Option
from upsert.schema import TableSchema
from upsert.store.rows.aggregate_functions import DEFAULT_FUNCTION, FUNCTIONS, Aggregate


@dataclass(frozen=True)
class SequenceGroup:
    """Columns that order the rows of a key for some others, and these others."""

    sequence: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def option(self) -> str:
        """The name of the option that declares it."""
        return f"fields.{','.join(self.sequence)}.sequence-group"


def _sequence_group(owner: str, sequence: str, columns: str) -> SequenceGroup:
    try:
        return SequenceGroup(options.names(sequence), options.names(columns))
    except ValueError as cause:
        raise ConfigurationError(
            f"{owner}: option 'fields.{sequence}.sequence-group' must be {cause}, got {columns!r}"
        ) from None


def _check_groups(owner: str, rules: MergeRules, schema: TableSchema) -> None:
    taken = {*schema.primary_key, *rules.sequence}
    free = {column.name for column in schema.physical} - taken
    seen: dict[str, str] = {}
    for group in rules.groups:
        for name in (*group.sequence, *group.columns):
            if name not in free:
                raise ConfigurationError(
                    f"{owner}: option {group.option!r} must name columns outside of the primary key and of "
                    f"'sequence.field', got {name!r}"
                )
            if name in seen:
                raise ConfigurationError(
                    f"{owner}: option {group.option!r} must name columns of no other group, got {name!r}, "
                    f"which {seen[name]!r} has; leave it out of one"
                )
            seen[name] = group.option
        for name in group.sequence:
            if not types.is_scalar(schema.type_of(name)):
                raise ConfigurationError(
                    f"{owner}: option {group.option!r} must order by columns of scalar types, got {name!r} "
                    f"of type {types.sql_name(schema.type_of(name))}"
                )


DEDUPLICATE: Final = "deduplicate"
FIRST_ROW: Final = "first-row"
PARTIAL_UPDATE: Final = "partial-update"
AGGREGATION: Final = "aggregation"

DEFAULT_OPTION: Final = "fields.default-aggregate-function"

MERGE_OPTIONS: Final = (
    Option(
        "merge-engine",
        options.one_of(DEDUPLICATE, FIRST_ROW, PARTIAL_UPDATE, AGGREGATION),
        "how the rows of a key are merged: deduplicate = the last one, first-row = the first one, "
        "partial-update = the last value of each column that is not NULL, aggregation = by a function of "
        "each column",
        DEDUPLICATE,
    ),
    Option(
        "sequence.field",
        options.names,
        "columns that order the rows of a key: the highest is the last one, NULL is lowest; default: arrival",
        (),
    ),
    Option(
        "ignore-delete",
        options.boolean,
        "ignore rows of kind -U and -D, which engines other than deduplicate refuse",
        False,
    ),
    Option(
        DEFAULT_OPTION,
        options.one_of(*FUNCTIONS),
        "the function of columns that declare none, with 'merge-engine' = 'aggregation' (else "
        f"{DEFAULT_FUNCTION}) or 'partial-update' (else none)",
        None,
    ),
)
"""The options that have one name; ``fields.<column>.…`` are taken by ``split``."""

_OF_FIELDS: Final = ("aggregate-function", "list-agg-delimiter", "distinct", "sequence-group")
_FIELD: Final = re.compile(rf"fields\.(?P<column>.+)\.(?P<what>{'|'.join(_OF_FIELDS)})")

_GROUP: Final = "sequence-group"

_TOLD: Final[Mapping[str, tuple[str, str, Callable[[str], Any]]]] = {
    "list-agg-delimiter": ("listagg", "delimiter", str),
    "distinct": ("collect", "distinct", options.boolean),
}
"""Option of a column -> the function that it is for, an attribute of its ``Aggregate``, its converter."""


@dataclass(frozen=True)
class MergeRules:
    """How rows of one key become one.

    ``sequence`` are the columns that order the rows of a key, empty for their order of arrival;
    ``ignores_deletes`` says whether rows of kind ``-U`` and ``-D`` are passed over; ``default_function`` is
    that of columns without one in ``aggregates``.
    """

    engine: str = DEDUPLICATE
    sequence: tuple[str, ...] = ()
    ignores_deletes: bool = False
    aggregates: tuple[Aggregate, ...] = ()
    groups: tuple[SequenceGroup, ...] = ()
    default_function: str | None = None

    @property
    def needs_present_rows(self) -> bool:
        """Whether a commit must look at the table's rows to know what it stores."""
        return self.engine != DEDUPLICATE or bool(self.sequence)

    @property
    def combines(self) -> bool:
        """Whether a stored row may have values of several written ones."""
        return self.engine in (PARTIAL_UPDATE, AGGREGATION)

    @property
    def keeps_deletions(self) -> bool:
        """Whether a deleted key must be remembered: a row that comes late must not bring it back."""
        return self.engine == DEDUPLICATE and bool(self.sequence)

    def aggregate(self, column: str) -> Aggregate:
        """The function of a column that is neither in the key nor in the sequence."""
        declared = (aggregate for aggregate in self.aggregates if aggregate.column == column)
        return next(declared, Aggregate(column, self.default_function or DEFAULT_FUNCTION))

    @property
    def has_later_functions(self) -> bool:
        """Whether there are functions that earlier releases do not know: they had those of 'aggregation'."""
        return self.default_function is not None or (self.engine == PARTIAL_UPDATE and bool(self.aggregates))

    @property
    def orders(self) -> frozenset[str]:
        """The columns that order rows: they hold the highest sequence."""
        return frozenset((*self.sequence, *(name for group in self.groups for name in group.sequence)))

    def has_function(self, column: str) -> bool:
        """Whether a column is said to have a function."""
        return self.default_function is not None or any(one.column == column for one in self.aggregates)


PLAIN: Final = MergeRules()
"""The last row to arrive replaces the one of its key."""


def split(
    owner: str, given: Mapping[str, str]
) -> tuple[dict[str, str], tuple[Aggregate, ...], tuple[SequenceGroup, ...]]:
    """The options without those of single fields, and what these declare: functions and groups.

    >>> split("t", {"bucket": "2", "fields.n.aggregate-function": "sum"})
    ({'bucket': '2'}, (Aggregate(column='n', function='sum', delimiter=',', distinct=False),), ())
    """
    others: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}
    groups: list[SequenceGroup] = []
    for key, value in given.items():
        match = _FIELD.fullmatch(key)
        if match is None and key.startswith("fields.") and key.lower() != DEFAULT_OPTION:
            raise ConfigurationError(
                f"{owner}: unknown option {key!r}; of a column there are {', '.join(_OF_FIELDS)}, of all "
                f"columns {DEFAULT_OPTION!r}"
            )
        if match is None:
            others[key] = value
        elif match["what"] == _GROUP:
            groups.append(_sequence_group(owner, match["column"], value))
        else:
            found.setdefault(match["column"], {})[match["what"]] = value
    return others, tuple(_aggregate(owner, column, said) for column, said in found.items()), tuple(groups)


def _aggregate(owner: str, column: str, said: Mapping[str, str]) -> Aggregate:
    function = said.get("aggregate-function", "").lower()
    if function not in FUNCTIONS:
        raise ConfigurationError(
            f"{owner}: option 'fields.{column}.aggregate-function' must be one of {', '.join(FUNCTIONS)}, "
            f"got {function!r}"
        )
    told: dict[str, Any] = {}
    for option, (its, attribute, convert) in _TOLD.items():
        if option not in said:
            continue
        if function != its:
            raise ConfigurationError(
                f"{owner}: option 'fields.{column}.{option}' needs the function {its!r}, got {function!r}; "
                "leave it out"
            )
        try:
            told[attribute] = convert(said[option])
        except ValueError as cause:
            raise ConfigurationError(
                f"{owner}: option 'fields.{column}.{option}' must be {cause}, got {said[option]!r}"
            ) from None
    return Aggregate(column, function, **told)


def is_of_field(key: str) -> bool:
    """Whether an option is one of a single field."""
    return _FIELD.fullmatch(key) is not None


def check(owner: str, rules: MergeRules, schema: TableSchema) -> None:
    """Refuse rules that a table of this schema cannot have."""
    if rules.needs_present_rows and not schema.primary_key:
        option = "sequence.field" if rules.sequence else "merge-engine"
        raise ConfigurationError(
            f"{owner}: option {option!r} needs a PRIMARY KEY, by which rows are the same; declare one, or "
            "leave the option out"
        )
    if rules.engine == FIRST_ROW and rules.sequence:
        raise ConfigurationError(
            f"{owner}: option 'sequence.field' goes with every 'merge-engine' but 'first-row', whose first "
            "row is the first to arrive; leave one of them out"
        )
    if rules.ignores_deletes and rules.engine == DEDUPLICATE:
        raise ConfigurationError(
            f"{owner}: option 'ignore-delete' needs another 'merge-engine' than 'deduplicate', which deletes "
            "rows; leave it out, and filter the rows"
        )
    for column in rules.sequence:
        _check_column(owner, "sequence.field", column, schema)
        if not types.is_scalar(schema.type_of(column)):
            raise _misfit(owner, "sequence.field", column, schema, "of a scalar type")
    for aggregate in rules.aggregates:
        _check_aggregate(owner, rules, aggregate, schema)
    _check_default(owner, rules, schema)
    if rules.groups and rules.engine != PARTIAL_UPDATE:
        raise ConfigurationError(
            f"{owner}: option {rules.groups[0].option!r} needs 'merge-engine' = 'partial-update', got "
            f"{rules.engine!r}"
        )
    _check_groups(owner, rules, schema)


def _check_aggregate(owner: str, rules: MergeRules, aggregate: Aggregate, schema: TableSchema) -> None:
    option = f"fields.{aggregate.column}.aggregate-function"
    _check_engine(owner, option, rules)
    _check_column(owner, option, aggregate.column, schema)
    if aggregate.column in rules.orders:
        raise ConfigurationError(
            f"{owner}: option {option!r} must be of another column than those of 'sequence.field' and of a "
            "sequence group, which hold the highest sequence; leave one of them out"
        )
    function = FUNCTIONS[aggregate.function]
    if not function.fits(schema.type_of(aggregate.column)):
        raise _misfit(owner, option, aggregate.column, schema, function.columns)


def _check_default(owner: str, rules: MergeRules, schema: TableSchema) -> None:
    if rules.default_function is None:
        return
    _check_engine(owner, DEFAULT_OPTION, rules)
    function = FUNCTIONS[rules.default_function]
    others = {*schema.primary_key, *rules.orders, *(one.column for one in rules.aggregates)}
    for column in schema.physical:
        if column.name not in others and not function.fits(column.type):
            raise ConfigurationError(
                f"{owner}: option {DEFAULT_OPTION!r} = {rules.default_function!r} needs columns that are "
                f"{function.columns}, got {column.name!r} of type {types.sql_name(column.type)}; give it a "
                f"function of its own, 'fields.{column.name}.aggregate-function'"
            )


def _check_engine(owner: str, option: str, rules: MergeRules) -> None:
    if not rules.combines:
        raise ConfigurationError(
            f"{owner}: option {option!r} needs 'merge-engine' = 'aggregation' or 'partial-update', got "
            f"{rules.engine!r}"
        )


def _check_column(owner: str, option: str, column: str, schema: TableSchema) -> None:
    names = [c.name for c in schema.physical if c.name not in schema.primary_key]
    if column not in names:
        raise ConfigurationError(
            f"{owner}: option {option!r} must name a column outside of the primary key "
            f"({', '.join(names)}), got {column!r}"
        )


def _misfit(owner: str, option: str, column: str, schema: TableSchema, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"{owner}: option {option!r} must name a column that is {expected}, got {column!r} of type "
        f"{types.sql_name(schema.type_of(column))}"
    )


def renamed(given: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    """The options of a table whose column ``old`` is called ``new``.

    >>> renamed({"sequence.field": "a,b", "fields.a.aggregate-function": "sum"}, "a", "x")
    {'sequence.field': 'x,b', 'fields.x.aggregate-function': 'sum'}
    """
    return with_names(given, lambda name: new if name == old else name)


_LISTED: Final = re.compile(r"[^\s,;](?:[^,;]*[^\s,;])?")
"""A name in a list of columns, see `options.names`."""

_LISTS: Final = ("sequence.field", "bucket-key", "key.fields")
"""Options that list columns; the last one is of topics."""


def with_names(given: Mapping[str, str], own: Callable[[str], str]) -> dict[str, str]:
    """The options with other names of columns.

    >>> with_names({"sequence.field": "A, b", "fields.A.aggregate-function": "sum"}, str.lower)
    {'sequence.field': 'a, b', 'fields.a.aggregate-function': 'sum'}
    """

    def follow(columns: str) -> str:
        return _LISTED.sub(lambda name: own(name[0]), columns)

    found = {}
    for key, value in given.items():
        match = _FIELD.fullmatch(key)
        if match is not None and match["what"] == _GROUP:
            key, value = f"fields.{follow(match['column'])}.{_GROUP}", follow(value)
        elif match is not None:
            key = f"fields.{own(match['column'])}.{match['what']}"
        elif key.lower() in _LISTS:
            value = follow(value)
        found[key] = value
    return found


def without(given: Mapping[str, str], column: str) -> dict[str, str]:
    """The options without those of one field, and without it in groups; one that has no other goes too."""
    left: dict[str, str] = {}
    groups: dict[str, str] = {}
    for key, value in given.items():
        match = _FIELD.fullmatch(key)
        if match is not None and match["what"] == _GROUP:
            if others := [name for name in options.names(value) if name != column]:
                groups[key] = ",".join(others)
        elif match is None or match["column"] != column:
            left[key] = value
    return left | groups
