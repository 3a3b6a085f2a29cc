"""Random queries in SQL that join random tables in every way, for comparing streams with batch."""

from dataclasses import dataclass, replace
from itertools import count, product

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from upsert.schema import TableSchema

_INT, _LONG, _TEXT = pa.int32(), pa.int64(), pa.string()
_TYPES = {
    "v": pa.float64(),
    "e": pa.decimal128(9, 2),
    "d": pa.date32(),
    "t": pa.timestamp("us", "UTC"),
    "y": pa.binary(),
    "o": pa.bool_(),
}


def _schema(columns: dict[str, pa.DataType], others: str, *keys: str, primary_key: str = "") -> TableSchema:
    """Columns, and others by their letters, with an index for each of the keys."""
    columns |= {name: _TYPES[name] for name in others}
    schema = TableSchema.of(columns, [primary_key] if primary_key else [])
    for key in keys:
        schema = schema.index(key)
    return schema


SCHEMAS = {
    "a": _schema({"id": _LONG, "k": _INT, "s": _TEXT}, "vedt", "k", "v", "e", "d", "t", primary_key="id"),
    "b": _schema({"k": _INT, "n": _LONG, "s": _TEXT}, "veyt", "n", "v", "e", "y", "t", primary_key="k"),
    "c": _schema({"k": _LONG, "n": _LONG, "s": _TEXT}, "dyo", "k", "n", "d", "y", "o", "s"),
}
"""`c` has no primary key: a multiset. Keys are of different widths."""

_KINDS = {
    _INT: "integer",
    _LONG: "integer",
    _TEXT: "text",
    **dict(zip(_TYPES.values(), ("number", "decimal", "date", "time", "bytes", "flag"), strict=True)),
}
_KEYS = ("id", "k", "n", "v", "e", "d", "t", "y", "o")

KINDS = (
    "JOIN",
    "JOIN",
    "LEFT JOIN",
    "LEFT JOIN",
    "RIGHT JOIN",
    "FULL JOIN",
    "LEFT SEMI JOIN",
    "LEFT ANTI JOIN",
)


@dataclass(frozen=True)
class Column:
    """A column of a relation; `is_key` where it is a plain one that an index finds."""

    name: str
    kind: str
    is_key: bool = False


@dataclass(frozen=True)
class Relation:
    """Something to select from, in SQL, with the columns that it has."""

    sql: str
    columns: tuple[Column, ...]

    def of(self, *kinds: str) -> list[str]:
        return [column.name for column in self.columns if column.kind in kinds]


@dataclass
class _Names:
    """Names that no other part of the query has."""

    numbers: count
    unions: bool = False
    subqueries: bool = False

    def next(self, prefix: str) -> str:
        return f"{prefix}{next(self.numbers)}"


@st.composite
def queries(draw: DrawFn, most_tables: int = 4) -> str:
    """A query over `SCHEMAS`: joins of two tables and more, with filters and projections anywhere."""
    names = _Names(count(), subqueries=draw(st.integers(0, 2)) == 0)
    relation = draw(_relation(names, draw(st.integers(2, most_tables))))
    chosen = draw(st.lists(st.sampled_from(relation.columns), min_size=1, max_size=6, unique=True))
    renamed = draw(st.booleans())
    outputs = [
        f"{column.name} AS same" if renamed and i < 2 else column.name for i, column in enumerate(chosen)
    ]
    where = draw(st.one_of(st.just(""), _condition(relation).map(lambda found: f" WHERE {found}")))
    return f"SELECT {', '.join(outputs)} FROM {relation.sql}{where}"


@st.composite
def queries_with_unions(draw: DrawFn, most_tables: int = 4) -> str:
    """A query with UNION ALL below and above joins, one table in several places, perhaps grouped."""
    names = _Names(count(), unions=True)
    relation = draw(_relation(names, draw(st.integers(2, most_tables))))
    if draw(st.booleans()):
        return draw(_grouped(relation))
    chosen = draw(st.lists(st.sampled_from(relation.columns), min_size=1, max_size=6, unique=True))
    distinct = draw(st.sampled_from(["", "", "", "DISTINCT "]))
    return f"SELECT {distinct}{', '.join(column.name for column in chosen)} FROM {relation.sql}"


@st.composite
def _grouped(draw: DrawFn, relation: Relation) -> str:
    """Sums of a relation by some of its columns; `g0`, `g1` … are the groups."""
    groups = draw(st.lists(st.sampled_from(relation.columns), max_size=2, unique=True))
    text, integer = (draw(st.sampled_from(relation.of(kind))) for kind in ("text", "integer"))
    functions = [
        "count(*)",
        f"count({text})",
        f"count({groups[0].name if groups else integer})",
        f"sum({integer})",
        f"bool_and({text} = 'x')",
        f"bool_or({integer} > 2)",
        f"count_if({integer} IS NULL)",
        f"sum({integer}) FILTER (WHERE {text} IS NOT NULL)",
    ]
    chosen = draw(st.lists(st.sampled_from(functions), min_size=1, max_size=4, unique=True))
    by = [f"{column.name} AS g{number}" for number, column in enumerate(groups)]
    made = [f"{function} AS x{number}" for number, function in enumerate(chosen)]
    group_by = f" GROUP BY {', '.join(column.name for column in groups)}" if groups else ""
    return f"SELECT {', '.join([*by, *made])} FROM {relation.sql}{group_by}"


@st.composite
def _relation(draw: DrawFn, names: _Names, tables: int) -> Relation:
    if tables == 1:
        return draw(_table(names))
    is_union = names.unions and draw(st.integers(0, 2)) == 0
    return draw(_union(names, tables) if is_union else _join(names, tables))


@st.composite
def _union(draw: DrawFn, names: _Names, tables: int) -> Relation:
    """All rows of two relations, with columns of one kind side by side; no index finds them."""
    left_tables = draw(st.integers(1, tables - 1))
    sides = [draw(_relation(names, number)) for number in (left_tables, tables - left_tables)]
    kinds = [
        *("text", "integer", "integer"),
        *(kind for kind in ("number", "flag") if all(side.of(kind) for side in sides)),
    ]
    pairs = [[draw(st.sampled_from(side.of(kind))) for side in sides] for kind in kinds]
    columns = tuple(Column(names.next("u"), kind) for kind in kinds)
    parts = [
        draw(_part(side, tuple(zip((pair[place] for pair in pairs), columns, strict=True))))
        for place, side in enumerate(sides)
    ]
    both = " UNION ALL ".join(parts)
    return Relation(f"({both}) {names.next('q')}", columns)


@st.composite
def _part(draw: DrawFn, side: Relation, outputs: tuple[tuple[str, Column], ...]) -> str:
    """A side of a union: rows of a relation as they are, each once, or one for each of its texts."""
    form = draw(st.sampled_from(["rows", "rows", "rows", "distinct", "groups"]))
    if form != "groups":
        chosen = ", ".join(f"{value} AS {column.name}" for value, column in outputs)
        return f"SELECT {'DISTINCT ' if form == 'distinct' else ''}{chosen} FROM {side.sql}"
    functions = {
        "integer": ("sum", "max", "count"),
        "number": ("sum", "min"),
        "flag": ("bool_and", "bool_or"),
    }
    (text, group), *others = outputs
    made = [f"{text} AS {group.name}"]
    for value, column in others:
        made.append(f"{draw(st.sampled_from(functions[column.kind]))}({value}) AS {column.name}")
    return f"SELECT {', '.join(made)} FROM {side.sql} GROUP BY {text}"


@st.composite
def _table(draw: DrawFn, names: _Names) -> Relation:
    table = draw(st.sampled_from(sorted(SCHEMAS)))
    others = draw(st.sets(st.sampled_from(sorted(_TYPES)), max_size=3))
    columns = [
        Column(c.name, _KINDS[c.type], c.name in _KEYS)
        for c in SCHEMAS[table].columns
        if c.name in others or c.name not in _TYPES
    ]
    if names.unions and draw(st.booleans()):  # with the column ids of its other places in the query
        name = names.next("t")
        named = (replace(column, name=f"{name}.{column.name}") for column in columns)
        return Relation(f"{table} {name}", tuple(named))
    return draw(_wrapped(names, Relation(table, tuple(columns))))


@st.composite
def _join(draw: DrawFn, names: _Names, tables: int) -> Relation:
    left_tables = draw(st.integers(1, tables - 1))
    left, right = draw(_relation(names, left_tables)), draw(_relation(names, tables - left_tables))
    kind = draw(st.sampled_from(KINDS))
    pairs = [
        (one.name, other.name)
        for one, other in product(left.columns, right.columns)
        if one.kind == other.kind
        and ((one.is_key and other.is_key) or (names.unions and one.kind == "integer"))
    ]
    if not pairs:
        return left
    keys = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=2, unique=True))
    on = " AND ".join(f"{one} = {other}" for one, other in keys)
    if draw(st.integers(0, 3)) == 0:
        compared = draw(_compared(left, right))
        on = compared if draw(st.integers(0, 4)) == 0 else f"{on} AND {compared}"
    both = Relation("", (*left.columns, *right.columns))
    if draw(st.integers(0, 2)) == 0:
        on += f" AND {draw(_condition(both))}"
    columns = left.columns if "SEMI" in kind or "ANTI" in kind else both.columns
    return draw(_wrapped(names, Relation(f"({left.sql} {kind} {right.sql} ON {on})", columns)))


@st.composite
def _compared(draw: DrawFn, left: Relation, right: Relation) -> str:
    """A comparison of two relations that no index finds: of what is computed, of NULLs, or by an order."""
    one, other = draw(st.sampled_from([(left, right), (right, left)]))
    kinds = sorted({column.kind for column in one.columns} & {column.kind for column in other.columns})
    a, b = (
        draw(st.sampled_from(side.of(kind)))
        for kind in [draw(st.sampled_from(kinds))]
        for side in (one, other)
    )
    integer, other_integer = (draw(st.sampled_from(side.of("integer"))) for side in (one, other))
    text, other_text = (draw(st.sampled_from(side.of("text"))) for side in (one, other))
    of_casts = [
        *(f"CAST({integer} AS DECIMAL(11, 1)) = {name}" for name in other.of("decimal")[:1]),
        *(f"CAST({integer} AS DOUBLE) = {name}" for name in other.of("number")[:1]),
        *(f"CAST({name} AS DATE) = {day}" for name in one.of("time")[:1] for day in other.of("date")[:1]),
        *(
            f"CAST({name} AS TIMESTAMP) <=> {at}"
            for name in one.of("date")[:1]
            for at in other.of("time")[:1]
        ),
    ]
    return draw(
        st.sampled_from(
            [
                *of_casts,
                f"{a} <=> {b}",
                f"{a} = {b}",
                f"{a} <= {b}",
                f"{integer} + 1 = {other_integer}",
                f"coalesce({integer}, 0) = coalesce({other_integer}, 0)",
                f"{text} COLLATE UTF8_LCASE = {other_text} COLLATE UTF8_LCASE",
                f"concat({text}, 'y') = {other_text}",
            ]
        )
    )


@st.composite
def _subquery(draw: DrawFn, names: _Names, relation: Relation) -> str:
    """A condition on the rows of a relation that other rows fulfil or not: EXISTS or IN."""
    other = draw(_relation(replace(names, subqueries=False), draw(st.integers(1, 2))))
    pairs = [
        (one.name, found.name)
        for one, found in product(relation.columns, other.columns)
        if one.kind == found.kind and one.is_key and found.is_key
    ]
    if not pairs:
        return "true"
    own, key = draw(st.sampled_from(pairs))
    also = draw(st.one_of(st.just("true"), _condition(other), _compared(relation, other)))
    negated = draw(st.sampled_from(["", "NOT "]))
    if draw(st.integers(0, 2)) == 0:
        negated = draw(st.sampled_from(["", "", "", negated]))  # few keys are never NULL, as NOT IN wants
        return f"{own} {negated}IN (SELECT {key} FROM {other.sql} WHERE {also})"
    return f"{negated}EXISTS (SELECT 1 FROM {other.sql} WHERE {key} = {own} AND {also})"


@st.composite
def _wrapped(draw: DrawFn, names: _Names, relation: Relation) -> Relation:
    """The relation as a subquery with names of its own, some computed columns, and perhaps a filter."""
    outputs, columns = [], []
    kept = {relation.of("text")[0], relation.of("integer")[0]}
    for column in relation.columns:
        if column.name not in kept and draw(st.integers(0, 3)) == 0:
            continue
        own = replace(column, name=names.next(column.name[0]))
        outputs.append(f"{column.name} AS {own.name}")
        columns.append(own)
    for _ in range(draw(st.integers(0, 2))):
        value, kind = draw(_computed(relation))
        own = Column(names.next("x"), kind)
        outputs.append(f"{value} AS {own.name}")
        columns.append(own)
    conditions = [draw(_condition(relation))] if draw(st.integers(0, 2)) == 0 else []
    if names.subqueries and draw(st.integers(0, 2)) == 0:
        conditions.append(draw(_subquery(names, relation)))
    how = draw(st.sampled_from([*[" AND "] * 5, " OR "]))
    where = f" WHERE {how.join(conditions)}" if conditions else ""
    sql = f"(SELECT {', '.join(outputs)} FROM {relation.sql}{where}) {names.next('q')}"
    return Relation(sql, tuple(columns))


@st.composite
def _computed(draw: DrawFn, relation: Relation) -> tuple[str, str]:
    text, integer = (draw(st.sampled_from(found)) for found in (relation.of("text"), relation.of("integer")))
    return draw(
        st.sampled_from(
            [
                ("1", "integer"),
                (f"coalesce({text}, '?')", "text"),
                (f"concat({text}, '!')", "text"),
                (f"{integer} + 1", "integer"),
                (f"CASE WHEN {integer} > 2 THEN 'high' ELSE 'low' END", "text"),
                (f"coalesce({integer}, 7)", "integer"),
                (f"{text} IS NULL", "flag"),
            ]
        )
    )


@st.composite
def _condition(draw: DrawFn, relation: Relation) -> str:
    text, integer = (draw(st.sampled_from(found)) for found in (relation.of("text"), relation.of("integer")))
    other = draw(st.sampled_from(relation.of("integer")))
    number = draw(st.integers(0, 4))
    of_doubles = [
        condition
        for name in relation.of("number")[:2]
        for condition in (
            f"{name} > {number}.5",
            f"{name} = 0.0D",
            f"isnan({name})",
            f"{name} <=> CAST({integer} AS DOUBLE)",
            f"NOT ({name} < {number})",
        )
    ]
    return draw(
        st.sampled_from(
            [
                *of_doubles,
                f"{integer} > {number}",
                f"{integer} <> {other}",
                f"{integer} IS NULL",
                f"{integer} BETWEEN 1 AND {number}",
                f"{text} = 'x'",
                f"{text} IN ('x', 'yy')",
                f"{text} LIKE 'y%'",
                f"({text} IS NULL OR {integer} <= {other})",
                f"coalesce({integer}, 0) + 1 < {number + 2}",
                f"NOT ({text} <=> 'z')",
            ]
        )
    )


@dataclass(frozen=True)
class GroupedQuery:
    """An aggregate in SQL, and how many of its first columns are its groups."""

    sql: str
    groups: int


@st.composite
def grouped_queries(draw: DrawFn, most_tables: int = 3) -> GroupedQuery:
    """An aggregate over a table, a join or a union of both of its kinds, perhaps with a HAVING."""
    names = _Names(count())
    relation = draw(_relation(names, draw(st.integers(1, most_tables))))
    if draw(st.integers(0, 2)) == 0:
        relation = draw(_with_table(names, relation))
    keys = draw(
        st.lists(
            st.sampled_from(relation.columns).map(lambda one: one.name), min_size=1, max_size=2, unique=True
        )
    )
    if draw(st.integers(0, 4)) == 0:
        return GroupedQuery(f"SELECT DISTINCT {', '.join(keys)} FROM {relation.sql}", len(keys))
    measures = draw(st.lists(_measure(relation), min_size=1, max_size=4))
    groups = [f"{key} AS g{number}" for number, key in enumerate(keys)]
    outputs = [f"{measure} AS m{number}" for number, measure in enumerate(measures)]
    having = draw(st.sampled_from(["", "", " HAVING count(*) > 1"]))
    sql = f"SELECT {', '.join(groups + outputs)} FROM {relation.sql} GROUP BY {', '.join(keys)}{having}"
    return GroupedQuery(sql, len(keys))


@st.composite
def _with_table(draw: DrawFn, names: _Names, relation: Relation) -> Relation:
    """UNION ALL of one text and one integer of a relation, and those of a table."""
    other = draw(_table(names))
    own = (Column(names.next("s"), "text"), Column(names.next("n"), "integer"))
    sides = [
        f"SELECT {draw(st.sampled_from(side.of('text')))} AS {own[0].name}, "
        f"CAST({draw(st.sampled_from(side.of('integer')))} AS BIGINT) AS {own[1].name} FROM {side.sql}"
        for side in (relation, other)
    ]
    return Relation(f"({' UNION ALL '.join(sides)}) {names.next('u')}", own)


@st.composite
def _measure(draw: DrawFn, relation: Relation) -> str:
    text, integer = (draw(st.sampled_from(found)) for found in (relation.of("text"), relation.of("integer")))
    condition = draw(_condition(relation))
    return draw(
        st.sampled_from(
            [
                "count(*)",
                f"count({text})",
                f"count({integer})",
                f"sum({integer})",
                f"avg({integer})",
                f"sum({integer}) FILTER (WHERE {condition})",
                f"count_if({condition})",
                f"bool_or({condition})",
                f"max({integer})",
                f"min({text})",
                f"count(DISTINCT {integer})",
            ]
        )
    )
