"""What a table looks like: columns, primary key, secondary indexes, partitions (pure).

Follows FLIP-188 (DDL) and FLIP-486 (``Index``). A schema is a value: methods return new ones. Computed
columns and the watermark are not stored: rows are written without them, and every read computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, Self

import pyarrow as pa

from upsert import nested, types
from upsert.codec import MAY_BE_MISSING, Jsonable, written_with
from upsert.conditions.evaluate import check_is_condition
from upsert.conditions.expressions import CONDITION, Condition, Const, refs_of
from upsert.errors import ConfigurationError, CorruptTableError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN

MAX_LENGTH: Final = (1 << 31) - 1
"""Characters of a text."""

_RESERVED: Final = f"column name {ROW_KIND_COLUMN!r} is reserved for the kind of a change; choose another"


@dataclass(frozen=True)
class Length(Jsonable):
    """How many characters a text has: at most so many or, where it ``is_padded``, exactly, with blanks.

    >>> str(Length(10)), str(Length(2, is_padded=True))
    ('VARCHAR(10)', 'CHAR(2)')
    """

    characters: int
    is_padded: bool = False

    def __str__(self) -> str:
        return f"{'CHAR' if self.is_padded else 'VARCHAR'}({self.characters})"

    def holds(self, other: Self) -> bool:
        """Whether every text of the other length is one of this length, as Spark's ALTER TABLE has it."""
        return self == other or (not self.is_padded and self.characters >= other.characters)


@dataclass(frozen=True)
class FieldId(Jsonable):
    """What tells a field from others of its struct that had its name, or will have it.

    Attributes:
        path: where it is in its column.
        name: the name that it had when it was added.
        number: never used again in its table; 0 for one that was there when its column was made.
    """

    path: nested.Path
    name: str
    number: int = 0


@dataclass(frozen=True)
class Column(Jsonable):
    """One column: its name, its Arrow type, whether it may hold NULL, and a comment.

    Attributes:
        length: of a STRING column that is ``VARCHAR(n)`` or ``CHAR(n)``; None for others.
        initial: the value that rows have which were stored before the column was added; None for NULL. Not
            compared.
        fields: the ids of those fields of its structs that are not known by their names; not compared.
        interval: the fields of an interval that has others than ``day to second``, as in ``hour to minute``;
            None for all else.
        had_nulls: whether it is NOT NULL since an ALTER TABLE only, and may be NULL in older snapshots.
        default: Spark SQL for the value that statements give the column if they leave it out; None for NULL.
        metadata: the metadata key that the column holds (FLIP-107), None for a physical column.
        virtual: whether a metadata column is only read, never written.
        id: tells the column from all others that its table had or will have, whatever their names; 0 until
            it is in a ``TableSchema``. Not compared.
    """

    name: str
    type: pa.DataType
    nullable: bool = True
    comment: str | None = None
    metadata: str | None = field(default=None, metadata=written_with("metadata"))
    virtual: bool = field(default=False, metadata=written_with("metadata"))
    id: int = field(default=0, compare=False, metadata=MAY_BE_MISSING)
    length: Length | None = field(default=None, metadata=written_with("length"))
    interval: str | None = field(default=None, metadata=written_with("interval"))
    default: str | None = field(default=None, metadata=written_with("default"))
    fields: tuple[FieldId, ...] = field(default=(), compare=False, metadata=written_with("fields"))
    initial: Const | None = field(default=None, compare=False, metadata=written_with("initial"))
    had_nulls: bool = field(default=False, metadata=written_with("had_nulls"))

    @property
    def may_be_null(self) -> bool:
        """Whether readers may find NULL in it, in an older state of the table if not in the present one."""
        return self.nullable or self.had_nulls

    @property
    def form(self) -> nested.Form:
        """The type, and what tells the fields in it apart."""
        return form_of(self.type, self.fields)

    @property
    def sql_type(self) -> str:
        """The type as ``CREATE TABLE`` names it."""
        if self.interval is not None:
            return f"INTERVAL {self.interval.upper()}"
        return types.sql_name(self.type) if self.length is None else str(self.length)

    @property
    def spark_type(self) -> Any:
        """The type in the JSON of Spark's schemas."""
        return types.to_json(self.type) if self.interval is None else f"interval {self.interval}"

    def __str__(self) -> str:
        metadata = f" METADATA FROM '{self.metadata}'" if self.metadata is not None else ""
        return f"{self.name} {self.sql_type}{'' if self.nullable else ' NOT NULL'}{metadata}"

    def in_older_rows(self, rows: int) -> pa.Array:
        """Its values in rows that were stored before it was added.

        >>> Column("n", pa.int64(), initial=Const(0, pa.int64())).in_older_rows(2).to_pylist()
        [0, 0]
        """
        if self.initial is None:
            return pa.nulls(rows, self.type)
        return pa.repeat(pa.scalar(self.initial.value, self.type), rows)

    @property
    def as_data(self) -> Self:
        """The column where metadata is stored, or written, like any other value."""
        return replace(self, metadata=None, virtual=False)


def form_of(type_: pa.DataType, fields: Iterable[FieldId]) -> nested.Form:
    """A type, and what tells the fields in it apart."""
    return nested.Form(type_, {one.path: (one.name, one.number) for one in fields})


def fields_after_rename(fields: Iterable[FieldId], path: nested.Path, new: str) -> tuple[FieldId, ...]:
    """The ids of a column's fields when one of them has another name.

    >>> fields_after_rename([], ("a", "b"), "c")
    (FieldId(path=('a', 'c'), name='b', number=0),)
    """
    own = next((one for one in fields if one.path == path), FieldId(path, path[-1]))
    moved = (*path[:-1], new)
    found = [
        replace(one, path=(*moved, *one.path[len(path) :])) if _is_within(one.path, path) else one
        for one in (*(one for one in fields if one.path != path), own)
    ]
    return tuple(sorted((one for one in found if (one.name, one.number) != (one.path[-1], 0)), key=_path))


def fields_after_drop(fields: Iterable[FieldId], path: nested.Path) -> tuple[FieldId, ...]:
    """The ids of a column's fields when one of them is gone."""
    return tuple(one for one in fields if not _is_within(one.path, path))


def fields_after_add(fields: Iterable[FieldId], path: nested.Path, number: int) -> tuple[FieldId, ...]:
    """The ids of a column's fields when there is one more."""
    return tuple(sorted((*fields, FieldId(path, path[-1], number)), key=_path))


def _is_within(path: nested.Path, outer: nested.Path) -> bool:
    """Whether a part is another one, or in it."""
    return path[: len(outer)] == outer


def _path(one: FieldId) -> nested.Path:
    return one.path


@dataclass(frozen=True)
class Index(Jsonable):
    """A secondary index: a promise that rows can be looked up by these columns (FLIP-486).

    If it is ``unique``, no two rows of the table may be equal in these columns, unless one of the columns is
    NULL; a write that breaks this is refused. One that ``is_late`` was promised after the table had rows,
    so older snapshots may have such rows.
    """

    name: str
    columns: tuple[str, ...]
    unique: bool = field(default=False, metadata=written_with("unique"))
    is_late: bool = field(default=False, compare=False, metadata=written_with("is_late"))

    @classmethod
    def over(cls, columns: Iterable[str], *, unique: bool = False) -> Self:
        """The index of these columns, named ``INDEX_col1_col2`` as FLIP-486 does.

        >>> str(Index.over(["email"], unique=True))
        'UNIQUE INDEX INDEX_email (email)'
        """
        names = listed(columns, "index")
        return cls("_".join(("INDEX", *names)), names, unique)

    def named(self, own: Callable[[str], str]) -> Self:
        """The index of the columns that its names mean; its own name follows if it is made of theirs.

        >>> str(Index.over(["Id"]).named(str.lower))
        'INDEX INDEX_id (id)'
        """
        columns = tuple(map(own, self.columns))
        follows = self.name == Index.over(self.columns).name
        return replace(self, name=Index.over(columns).name if follows else self.name, columns=columns)

    def __str__(self) -> str:
        return f"{'UNIQUE ' if self.unique else ''}INDEX {self.name} ({', '.join(self.columns)})"


@dataclass(frozen=True)
class ComputedColumn(Jsonable):
    """``name AS expression``, or ``name type METADATA [FROM 'key']`` of a managed table.

    Attributes:
        expression: as it was written, in Spark's SQL with a few words of Flink's; of a METADATA column the
            cast of the key's values, which stand under the column's name.
        uses: the table's columns that the expression names.
        place: how many columns of either kind stand before it.
        metadata: the key whose values a METADATA column has; None for others.
        type: of a METADATA column; None for others, whose expression says it.
    """

    name: str
    expression: str
    uses: tuple[str, ...]
    place: int
    comment: str | None = None
    metadata: str | None = field(default=None, metadata=written_with("type"))
    type: pa.DataType | None = field(default=None, metadata=written_with("type"))

    def named(self, own: Callable[[str], str]) -> Self:
        """The same, computed from the columns that the names in its expression mean.

        >>> ComputedColumn("total", "N + n", ("N", "n"), 1).named(str.lower).uses
        ('n',)
        """
        return replace(self, uses=tuple(dict.fromkeys(map(own, self.uses))))

    def __str__(self) -> str:
        return f"{self.name} AS {self.expression}"


@dataclass(frozen=True)
class Check(Jsonable):
    """``CONSTRAINT name CHECK (text)``: a condition that must not be false of any row; NULL passes.

    Attributes:
        text: the condition as it was written.
        condition: what it means: `Ref`s are columns of the table, which has the number 0.
    """

    name: str
    text: str
    condition: Condition = field(metadata=CONDITION)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, sorted."""
        return tuple(sorted(ref.column for ref in refs_of(self.condition)))

    def __str__(self) -> str:
        return f"CONSTRAINT {self.name} CHECK ({self.text})"


def listed(names: Iterable[str], what: str) -> tuple[str, ...]:
    """Names, of which there may be one; a text alone would be a name for each of its letters.

    >>> listed("id", "primary_key")
    Traceback (most recent call last):
        ...
    upsert.errors.SchemaError: primary_key must be a list of names, got 'id'; write ['id']
    >>> listed(None, "primary_key")
    Traceback (most recent call last):
        ...
    upsert.errors.SchemaError: primary_key must be a list of names, got None; write () where there are none
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        remedy = f"[{names!r}]" if isinstance(names, str) else "() where there are none"
        raise SchemaError(f"{what} must be a list of names, got {names!r}; write {remedy}")
    return tuple(names)


def plainly(error: Exception) -> str:
    """What an error says of a condition over the columns of one table, which are named there as ``t0.…``."""
    return str(error).replace("t0.", "")


@dataclass(frozen=True)
class Watermark(Jsonable):
    """``WATERMARK FOR column AS column - INTERVAL …``: how late rows of a stream may come.

    Attributes:
        column: holds the time of each row.
        delay_ms: milliseconds by which a row may be older than the newest one.
    """

    column: str
    delay_ms: int = 0

    def named(self, own: Callable[[str], str]) -> Self:
        """The same of the column that its name means.

        >>> Watermark("TS").named(str.lower).column
        'ts'
        """
        return replace(self, column=own(self.column))

    def refusal(self) -> SchemaError:
        """What is said of a column whose times have no zone."""
        return SchemaError(
            f"WATERMARK: column {self.column!r} must be a TIMESTAMP_LTZ(3) or TIMESTAMP, for Spark has "
            "no others, got TIMESTAMP_NTZ, which TIMESTAMP(3) is too; declare it so, or compute a column, "
            f"rowtime AS CAST({self.column} AS TIMESTAMP)"
        )


__all__ = ["Check", "Column", "Index", "Length", "TableSchema"]


@dataclass(frozen=True)
class TableSchema(Jsonable):
    """Columns of a table and which of them identify, locate and partition its rows.

    Reads of the table add ``computed`` and ``watermark``; rows are stored without them.

    Without a primary key the table is a multiset: two equal rows are two rows.
    Column names are compared as written.

    Raises:
        SchemaError: names repeat or are unknown, a key column is no hashable scalar or holds metadata, or
            the primary key lacks a partition column.

    >>> schema = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])
    >>> schema.index("name")
    TableSchema(id BIGINT NOT NULL, name STRING, PRIMARY KEY (id), INDEX INDEX_name (name))
    """

    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    comment: str | None = None
    computed: tuple[ComputedColumn, ...] = field(default=(), metadata=written_with("computed"))
    watermark: Watermark | None = field(default=None, metadata=written_with("watermark"))
    checks: tuple[Check, ...] = field(default=(), metadata=written_with("checks"))
    _by_name: dict[str, Column] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        """Make key columns NOT NULL and types canonical, number new columns, then check."""
        key = set(self.primary_key)
        unused = count(max((c.id for c in self.columns), default=0) + 1)
        columns = tuple(
            replace(
                c,
                type=types.canonical(c.type, f"column {c.name!r}"),
                nullable=c.nullable and c.name not in key,
                id=c.id or next(unused),
            )
            for c in self.columns
        )
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "_by_name", {c.name: c for c in columns})
        self._check()

    def __repr__(self) -> str:
        of_key = (("PRIMARY KEY", self.primary_key), ("PARTITIONED BY", self.partitioned_by))
        parts = [
            *map(str, (*self.columns, *self.computed)),
            *(f"{what} ({', '.join(names)})" for what, names in of_key if names),
            *map(str, (*self.indexes, *self.checks)),
        ]
        return f"TableSchema({', '.join(parts)})"

    def _check(self) -> None:
        problem = next(self._problems(), None)
        if problem is not None:
            raise SchemaError(problem)

    def _problems(self) -> Iterator[str]:
        """What is wrong with it, in an order in which each problem may count on those before."""
        if not self.columns:
            yield "a table needs at least one column"
        if not self.physical:
            yield "a table needs at least one column that is no METADATA column"
        if repeated := types.first_repeated(c.name for c in self.columns):
            yield f"column {repeated!r} is declared twice"
        if repeated := types.first_repeated(str(c.id) for c in self.columns):
            yield f"columns must have different ids, got {repeated} twice"
        if negative := [c.id for c in self.columns if c.id < 0]:
            yield f"ids of columns must be at least 0, got {negative[0]}"
        if ROW_KIND_COLUMN in self._by_name:
            yield _RESERVED
        for column in self.columns:
            yield from self._problems_of_column(column)
        yield from self._problems_of_checks()
        yield from self._problems_of_indexes()
        yield from self._problems_of_computed()
        missing = [c for c in self.partitioned_by if c not in self.primary_key]
        if self.primary_key and missing:
            yield f"PRIMARY KEY must contain every partition column; it lacks {', '.join(missing)}"

    def _problems_of_column(self, one: Column) -> Iterator[str]:
        is_partition = one.name in self.partitioned_by
        if one.length is not None and one.type != pa.string():
            yield f"column {one.name!r}: {one.length} is a text, got {types.sql_name(one.type)}"
        if one.interval is not None and (one.type != types.INTERVAL or one.interval not in types.INTERVALS):
            yield f"column {one.name!r}: there is no {one.sql_type} of type {types.sql_name(one.type)}"
        if one.type == types.INTERVAL and is_partition:
            yield f"PARTITIONED BY: column {one.name!r} is an interval; make it a BIGINT of a stated unit"
        if one.length is not None and not 1 <= one.length.characters <= MAX_LENGTH:
            yield f"column {one.name!r}: {one.length} must have 1 to {MAX_LENGTH:,} characters"
        if one.length is not None and one.length.is_padded and is_partition:
            yield (
                f"PARTITIONED BY: column {one.name!r} is {one.length}, whose blanks would be part of the "
                "names of partitions; make it VARCHAR"
            )

    def _problems_of_indexes(self) -> Iterator[str]:
        self._check_hashable("PRIMARY KEY", self.primary_key)
        self._check_hashable("PARTITIONED BY", self.partitioned_by)
        for index in self.indexes:
            if not index.columns:
                yield f"index {index.name!r} needs at least one column"
            self._check_hashable(f"index {index.name!r}", index.columns)
            if index.unique and not self.primary_key:
                remedy = "declare one, or leave out UNIQUE"
                yield f"{index} needs a PRIMARY KEY, by which rows are told apart; {remedy}"
        if repeated := types.first_repeated(index.name for index in self.indexes):
            yield f"index {repeated!r} is declared twice; name one of them: INDEX name (columns)"

    def _problems_of_computed(self) -> Iterator[str]:
        computed = tuple(c.name for c in self.computed)
        if repeated := types.first_repeated((*self.names, *computed)):
            yield f"column {repeated!r} is declared twice"
        for column in self.computed:
            if column.name == ROW_KIND_COLUMN:
                yield _RESERVED
            for name in column.uses:
                self.type_of(name, f"column {column.name!r} AS {column.expression}")
        if (watermark := self.watermark) is not None and watermark.column not in computed:
            type_ = self.type_of(watermark.column, "WATERMARK")
            if type_ not in (types.TIMESTAMP, types.TIMESTAMP_NTZ):
                found = types.sql_name(type_)
                yield f"WATERMARK: column {watermark.column!r} must be a TIMESTAMP, got {found}"

    def _problems_of_checks(self) -> Iterator[str]:
        if repeated := types.first_repeated(check.name.lower() for check in self.checks):
            yield f"constraint {repeated!r} is declared twice; name one of them: CONSTRAINT name CHECK (…)"
        for check in self.checks:
            for name in check.columns:
                self.type_of(name, str(check))
            try:
                if Check.from_json(check.to_json()) != check:
                    yield f"{check}: a constant in it cannot be kept; write it otherwise"
                check_is_condition(check.condition, lambda ref: self._by_name[ref.column].type)
            except ConfigurationError as cause:
                yield f"{check}: {plainly(cause)}"

    def _check_hashable(self, what: str, names: Sequence[str]) -> None:
        for name in names:
            if not types.is_scalar(self.type_of(name, what)):
                found = types.sql_name(self._by_name[name].type)
                raise SchemaError(f"{what}: column {name!r} must be of a scalar type, got {found}")
            if self.column(name).metadata is not None:
                raise SchemaError(f"{what}: column {name!r} must be a physical column, got a METADATA column")
        if repeated := types.first_repeated(names):
            raise SchemaError(f"{what} names column {repeated!r} twice")

    @classmethod
    def of(
        cls,
        columns: Mapping[str, pa.DataType] | pa.Schema,
        primary_key: Iterable[str] = (),
        partitioned_by: Iterable[str] = (),
    ) -> Self:
        """A schema from names and Arrow types, or from an Arrow schema."""
        if isinstance(columns, pa.Schema):
            found = tuple(Column(f.name, f.type, f.nullable) for f in columns if f.name != ROW_KIND_COLUMN)
        elif isinstance(columns, Mapping):
            found = tuple(Column(name, type_) for name, type_ in columns.items())
        else:
            raise SchemaError(
                "columns must be a dict of names and Arrow types, or a pyarrow.Schema, got "
                f"{type(columns).__name__}; write {{'id': pa.int64()}}"
            )
        key, partitions = listed(primary_key, "primary_key"), listed(partitioned_by, "partitioned_by")
        return cls(found, key, partitioned_by=partitions)

    def index(self, *columns: str, unique: bool = False, name: str | None = None) -> Self:
        """This schema with one more index, named ``INDEX_col1_col2`` as FLIP-486 does if no name is given."""
        added = Index.over(columns, unique=unique) if name is None else Index(name, columns, unique)
        return replace(self, indexes=(*self.indexes, added))

    def check_watermark(self) -> None:
        """Refuse a watermark that no stream can have; tables that have one stay.

        Raises:
            SchemaError: its column holds times without a zone, and Spark's watermarks are of instants.
        """
        stored = {column.name: column.type for column in self.columns}
        if self.watermark is not None and stored.get(self.watermark.column) == types.TIMESTAMP_NTZ:
            raise self.watermark.refusal()

    def check_new_names(self) -> None:
        """Refuse names that Spark does not tell apart, whatever their case; tables that have them stay.

        Raises:
            SchemaError: two columns, or two fields of a struct, differ in case alone.

        >>> TableSchema.of({"id": pa.int64(), "ID": pa.int64()}).check_new_names()
        Traceback (most recent call last):
            ...
        upsert.errors.SchemaError: columns 'id' and 'ID' differ in case alone, which ...; choose another name
        """
        both = types.differ_in_case([*self.names, *(c.name for c in self.computed)])
        of = "columns"
        for column in () if both else self.columns:
            of, both = f"column {column.name!r}: fields", types.fields_that_differ_in_case(column.type)
            if both:
                break
        if both:
            one, other = map(repr, both)
            raise SchemaError(
                f"{of} {one} and {other} differ in case alone, which Spark does not tell apart; "
                "choose another name"
            )

    def has_columns_of(self, other: Self) -> bool:
        """Whether both have the same columns, which may be NOT NULL in one of them alone."""
        own, theirs = (
            [(c.id, c.name, c.type, c.length, c.interval, c.fields) for c in one.columns]
            for one in (self, other)
        )
        return own == theirs

    @property
    def has_rules(self) -> bool:
        """Whether it says what earlier releases pass over, so that they would write rows that break it."""
        return bool(self.checks) or any(c.length or c.default is not None or c.fields for c in self.columns)

    @property
    def has_values_of_older_rows(self) -> bool:
        """Whether rows that were stored before a column was added have a value in it."""
        return any(c.initial is not None for c in self.columns)

    @property
    def has_late_promises(self) -> bool:
        """Whether rows of older snapshots may have NULL, or several one key, where newer ones may not."""
        return any(c.had_nulls for c in self.columns) or any(index.is_late for index in self.indexes)

    def without_older_rows(self) -> Self:
        """The schema of a new table, in which no row is older than a column or an index."""
        columns = tuple(replace(c, initial=None, had_nulls=False) for c in self.columns)
        return replace(self, columns=columns, indexes=tuple(replace(i, is_late=False) for i in self.indexes))

    @property
    def has_later_types(self) -> bool:
        """Whether a column is of a type that earlier releases do not know."""
        return any(types.is_later(c.type) for c in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns, in order."""
        return tuple(c.name for c in self.columns)

    @property
    def physical(self) -> tuple[Column, ...]:
        """The columns that hold data, in order."""
        return tuple(c for c in self.columns if c.metadata is None)

    @property
    def metadata(self) -> tuple[Column, ...]:
        """The columns that hold metadata of a record (FLIP-107), in order."""
        return tuple(c for c in self.columns if c.metadata is not None)

    def column(self, name: str) -> Column:
        """The column of this name, which must exist."""
        return self._by_name[name]

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the table's rows, without ``_row_kind``."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.may_be_null) for c in self.columns])

    def type_of(self, name: str, what: str = "table") -> pa.DataType:
        """Type of a column.

        Raises:
            SchemaError: there is no such column.
        """
        try:
            return self._by_name[name].type
        except KeyError:
            known = ", ".join(self.names)
            if any(column.name == name for column in self.computed):
                raise SchemaError(
                    f"{what}: column {name!r} must be a stored one, got one that is computed when it "
                    f"is read; stored columns are {known}"
                ) from None
            raise SchemaError(f"{what}: unknown column {name!r}; columns are {known}") from None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The schema of its JSON form.

        Raises:
            CorruptTableError: the value is no schema.
        """
        try:
            return super().from_json(value)
        except (KeyError, TypeError, SchemaError, ConfigurationError) as cause:
            raise CorruptTableError(f"the schema of the table cannot be read: {cause!r}") from cause
