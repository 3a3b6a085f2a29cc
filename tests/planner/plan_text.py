"""Plans from the text that `planner.plan.trees.tree` prints, so that tests read as plans."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from deltajoin.expressions import Call as Compare
from deltajoin.expressions import Condition, Const, Field, Ref, conjunction
from deltajoin.filters import Predicate
from deltajoin.tree import Inner, Leaf, Node, Outer, Where
from planner.plan.expressions import Aggregation, Call, Cast, Column, Expr, Literal
from planner.plan.nodes import (
    Aggregate,
    Changelog,
    DeltaJoin,
    Distinct,
    Enriched,
    Filter,
    Generate,
    GroupBy,
    Join,
    JoinTable,
    LookupChanges,
    LookupRows,
    Normalized,
    Opaque,
    Output,
    Plan,
    Project,
    RegularJoin,
    Relation,
    TableRows,
    Union,
    Upserts,
    VersionRows,
    Watermark,
    WindowKind,
    Wrapper,
)
from planner.plan.sources import KafkaTopic, ManagedTable, Mode, RecordRange
from planner.plan.trees import tree, with_children
from tests.planner.lookup_sides import LOOKUP_STREAMS, lookup_joined
from upsert import types
from upsert.lookups.http import HttpTable
from upsert.postgres.table import PostgresTable
from upsert.schema import Column as Declared
from upsert.schema import TableSchema
from upsert.stream_keys import UpsertKey

_LONG, _TEXT = pa.int64(), pa.string()
_SCHEMAS = {
    "orders": TableSchema.of(
        {"order_id": _LONG, "product_id": _LONG, "amount": pa.float64(), "note": _TEXT}, ["order_id"]
    ).index("product_id"),
    "products": TableSchema.of({"id": pa.int32(), "name": _TEXT, "price": pa.float64()}, ["id"]),
    "visits": TableSchema.of({"shop": _LONG, "day": pa.date32(), "guest": _LONG}, ["shop", "day", "guest"]),
    "events": TableSchema.of({"of": _LONG, "what": _TEXT}).index("of"),
    "stock": TableSchema.of({"item": _LONG, "shop": _LONG, "left": _LONG}, ["item"]),
    "members": TableSchema.of({"id": _LONG, "region": _TEXT}, ["id"]).index("region"),
    "readings": TableSchema.of({"id": _LONG, "v": _LONG}, ["id"]),
}
_CHANGING = {"readings": frozenset({"version"})}
TABLES = {
    name: ManagedTable(name, f"/warehouse/{name}", schema, changing=_CHANGING.get(name, frozenset()))
    for name, schema in _SCHEMAS.items()
}
"""Tables that the plans of these tests may read; only `orders` has a secondary index."""

_RATES = TableSchema.of({"cur": _TEXT, "day": pa.int32(), "rate": pa.float64()}, ["cur", "day"])
LOOKUPS = {
    "rates": LookupRows(HttpTable.of("rates", _RATES, {"url": "http://example.com/rates"})),
    "places": LookupRows(
        PostgresTable.of("places", _RATES, {"url": "postgresql://example.com/db", "table-name": "places"})
    ),
}
"""Tables of which rows are only looked up."""
VERSIONS = VersionRows("rates", ("cur",), "user", "since", has_deletes=True)

_METADATA = {
    "part": (pa.int32(), "partition"),
    "place": (_LONG, "offset"),
    "at": (types.TIMESTAMP, "timestamp"),
    "millis": (_LONG, "timestamp"),
    "local": (types.TIMESTAMP_NTZ, "timestamp"),
    "text_place": (_TEXT, "offset"),
    "schema": (_TEXT, "value.schema"),
}


def _topic(key: Sequence[str], *columns: Declared) -> TableSchema:
    metadata = tuple(Declared(name, type_, True, None, of, True) for name, (type_, of) in _METADATA.items())
    return TableSchema((*columns, *metadata), tuple(key))


TOPICS = {
    "words": _topic(["word"], Declared("word", _TEXT), Declared("n", _LONG), Declared("d", _TEXT)),
    "stateless": _topic(["word"], Declared("word", _TEXT), Declared("n", _LONG)),
    "strict": _topic(["word"], Declared("word", _TEXT), Declared("n", _LONG, nullable=False)),
    "renames": _topic(["word"], Declared("word", _TEXT), Declared("n", _LONG)),
    "seats": _topic(["row", "seat"], *(Declared(name, _LONG) for name in ("row", "seat", "guest"))),
    "members": _topic(["id"], Declared("id", _LONG), Declared("region", _TEXT)),
    "clicks": _topic([], Declared("user", _LONG), Declared("url", _TEXT)),
}
"""Topics that the plans of these tests may read, all with the same METADATA columns; a leaf may lack some."""

LEAVES = {
    "<words>": "Changelog topic words all [word#41: string, n#42: bigint, d#43: string, "
    "_row_kind#44: string]",
    "<words as upserts>": "Changelog topic words upsert [word#41: string, n#42: bigint, d#43: string, "
    "_row_kind#44: string]",
    "<seats>": "Changelog topic seats all [row#51: bigint, seat#52: bigint, guest#53: bigint, "
    "_row_kind#54: string]",
    "<seats as upserts>": "Changelog topic seats upsert [row#51: bigint, seat#52: bigint, guest#53: bigint, "
    "_row_kind#54: string]",
    "<members' topic>": "Changelog topic members all [id#61: bigint, region#62: string, "
    "_row_kind#63: string]",
    "<member rows>": "Relation table members [id#64: bigint, region#65: string]",
    "<views>": "Stream views [view#66: bigint, user#67: int, page#68: string]",
    "<rate versions>": "Stream versions of rates by since as of user [cur#101: string, rate#102: int]",
    "<rates>": "Relation lookup table rates (http) [cur#91: string, day#92: int, rate#93: double]",
    "<places>": "Relation lookup table places (postgres) [cur#91: string, day#92: int, rate#93: double]",
    "<members>": "Changelog members [id#61: bigint, region#62: string, _row_kind#63: string]",
    "<orders>": "Changelog orders [order_id#1: bigint, product_id#2: bigint, amount#3: double, "
    "note#4: string, _row_kind#5: string]",
    "<products>": "Changelog products [id#6: int, name#7: string, price#8: double, _row_kind#9: string]",
    "<orders again>": "Changelog orders [order_id#11: bigint, product_id#12: bigint, amount#13: double, "
    "note#14: string, _row_kind#15: string]",
    "<visits>": "Changelog visits [shop#21: bigint, day#22: date, guest#23: bigint, _row_kind#24: string]",
    "<orders with lookups>": "Changelog orders with lookups by (order_id) [order_id#71: bigint, "
    "product_id#72: bigint, amount#73: double, note#74: string, _row_kind#75: string]",
    "<items with lookups>": "Changelog items with lookups by (id) [id#76: bigint, name#77: string, "
    "price#78: double, _row_kind#79: string]",
    "<events>": "Changelog events [of#61: bigint, what#62: string, _row_kind#63: string]",
    "<readings>": "Changelog readings [id#81: bigint, v#82: bigint, version#83: bigint, bucket#84: int, "
    "_row_kind#85: string]",
    "<stock>": "Changelog stock [item#31: bigint, shop#32: bigint, left#33: bigint, _row_kind#34: string]",
}
"""Short names of the leaves that most plans have."""

_OPERATORS = {"=": "EqualTo", "<=>": "EqualNullSafe", ">": "GreaterThan", ">=": "GreaterThanOrEqual"}
_OPERATORS |= {
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    "AND": "And",
    "OR": "Or",
    "+": "Add",
    "*": "Multiply",
}
_UNSTABLE = {"Rand", "Uuid"}
_AGGREGATES = {"AnyValue", "Average", "CollectSet", "Count", "CountIf", "First", "Last", "ListAgg", "Max"}
_AGGREGATES |= {"Median", "Min", "MinBy", "Sum"}
_TOKEN = re.compile(r"\s*([A-Za-z_]\w*#-?\d+|[A-Za-z_]\w*|\d+\.\d+|-?\d+|'[^']*'|<=>|>=|<=|[-()=<>+*,])")
_TYPED = re.compile(r"(\w+)#(-?\d+): (\w+)")


def parse_plan(text: str) -> Plan:
    """The plan that prints as this text, leaves by their short names."""
    for short, leaf in LEAVES.items():
        text = text.replace(short, leaf)
    lines = [line for line in text.splitlines() if line.strip()]
    types = {int(number): type_ for _, number, type_ in _TYPED.findall(text)}
    plan, rest = _node(lines, 0, types)
    assert not rest, f"lines after the plan: {rest}"
    return plan


def print_plan(plan: Plan) -> str:
    """The plan as text, leaves by their short names."""
    text = tree(plan)
    for short, leaf in LEAVES.items():
        text = text.replace(leaf, short)
    return text


def _node(lines: Sequence[str], depth: int, types: dict[int, str]) -> tuple[Plan, Sequence[str]]:
    line, rest = lines[0].strip(), lines[1:]
    inputs: list[Plan] = []
    if line.startswith("DeltaJoin"):
        return _delta_join(line, rest, types)
    while rest and len(rest[0]) - len(rest[0].lstrip()) == 2 * (depth + 1):
        child, rest = _node(rest, depth + 1, types)
        inputs.append(child)
    return _make(line, inputs, types), rest


def _make(line: str, inputs: Sequence[Plan], types: dict[int, str]) -> Plan:
    word, _, rest = line.partition(" ")
    match word:
        case "Changelog":
            return _changelog(rest, inputs, types)
        case "Relation" | "Stream":
            if rest.startswith("topic "):
                return Relation("kafka-changelog", _columns(rest, types), True, _topic_read(rest))
            if rest.startswith("versions of rates"):
                return Relation("Project", _columns(rest, types), True, lookups=VERSIONS)
            if found := re.match(r"lookup table (\w+)", rest):
                return Relation("lookup-table", _columns(rest, types), lookups=LOOKUPS[found[1]])
            if found := re.match(r"table (\w+)(?: at snapshot (\d+))?", rest):
                rows = TableRows(TABLES[found[1]], None if found[2] is None else int(found[2]))
                return Relation("DataSourceV2Relation", _columns(rest, types), rows=rows)
            return Relation(rest.split(" ")[0], _columns(rest, types), word == "Stream")
        case "Project":
            return Project(inputs[0], _Parser(rest[1:-1], types).outputs())
        case "Filter":
            return Filter(inputs[0], _Parser(rest, types).expr())
        case "Watermark":
            return Watermark(inputs[0], _Parser(rest, types).column())
        case "Join":
            kind, _, condition = rest.partition(" ON ")
            on = _Parser(condition, types).expr() if condition else None
            join = Join(inputs[0], inputs[1], kind, on, ())
            return with_children(join, [replace(inputs[0]), inputs[1]])
        case "Enriched":
            return _enriched(rest, inputs[0], types)
        case "RegularJoin":
            row_kind, _, on = rest.partition(" ON ")
            columns = _Parser(row_kind, types).column(), _Parser(on, types).expr()
            return RegularJoin(inputs[0], inputs[1], columns[1], columns[0], "", "")
        case "Union":
            return Union(tuple(inputs))
        case "Generate":
            generator, _, made = rest.rpartition(" AS ")
            return Generate(inputs[0], _Parser(generator, types).expr(), _columns(made, types))
        case "Distinct":
            return Distinct(inputs[0], _columns(rest, types))
        case "Aggregate":
            by, _, outputs = rest.removeprefix("by (").partition(") [")
            parser = _Parser(outputs[:-1], types)
            return Aggregate(inputs[0], _groups(by, types), parser.outputs())
        case "Opaque":
            return Opaque(rest.split(" ")[0], tuple(inputs), _columns(rest, types))
        case _:
            return Wrapper(inputs[0], word, _columns(rest, types) if rest else ())


def _changelog(rest: str, inputs: Sequence[Plan], types: dict[int, str]) -> Plan:
    columns = _columns(rest, types)
    if rest.startswith("topic "):
        topic = _topic_read(rest)
        return Changelog(topic.name, columns, topic)
    if found := re.match(r"(\w+) with lookups", rest):
        return Changelog(found[0], columns, LOOKUP_STREAMS[found[1]])
    if found := re.match(r"a lookup join \((\w+)\) of orders with lookups with items with lookups(,)?", rest):
        sides = parse_plan("<orders with lookups>"), parse_plan("<items with lookups>")
        joined = lookup_joined(*sides, found[1])
        return Changelog("a lookup join", columns, LookupChanges.of(joined, "") if found[2] else joined)
    if found := re.match(r"(an? [\w ]+?) by \((.*?)\)", rest):
        keys = tuple(tuple(names.split("|")) for names in found[2].split(", "))
        return Changelog(found[1], columns, Upserts(UpsertKey(keys, of=found[1])))
    if found := re.match(r"(normalize) by \((.*?)\)", rest):
        given = {column.name for column in inputs[0].columns}
        order = ("place",) if "place" in given else ("n",)  # n is NULL in deletes
        return Changelog(found[1], columns, Normalized(tuple(found[2].split(", ")), inputs[0], order))
    *mode, name = rest.split(" [")[0].split()
    table = TABLES.get(name)
    return Changelog(name, columns, table and replace(table, scan_mode=mode[0] if mode else "full"))


def _enriched(rest: str, child: Plan, types: dict[int, str]) -> Plan:
    table = r"(?:lookup )?table (\w+)(?: at snapshot (\d+)| \(\w+\))?"
    found = re.fullmatch(rf"(\w+) by {table} (\[.*?\]) on \((.*)\)", rest)
    assert found, rest
    how, name, snapshot, added, on = found.groups()
    pairs = (pair.split(" = ") for pair in on.split(", "))
    keys = tuple((_Parser(column, types).column(), of) for column, of in pairs)
    rows = LOOKUPS.get(name) or TableRows(TABLES[name], None if snapshot is None else int(snapshot))
    return Enriched(child, rows, _columns(added, types), keys, how)


def _groups(text: str, types: dict[int, str]) -> tuple[GroupBy, ...]:
    parser = _Parser(text, types)
    groups = []
    while parser.tokens:
        windows = {kind.value: kind for kind in WindowKind}
        window = windows[parser.take()] if parser.tokens[0] in windows else None
        groups.append(GroupBy(parser.expr(), window))
        if parser.tokens:
            parser.take(",")
    return tuple(groups)


def _topic_read(rest: str) -> KafkaTopic:
    _, name, mode, *_ = rest.split()
    range_ = RecordRange()
    for part in rest.split(" [")[0].partition(" where ")[2].split(" and "):
        match part.split(" ", 2):
            case "partition", "in", numbers:
                range_ &= RecordRange(partitions=tuple(map(int, numbers.strip("()").split(", "))))
            case "offset", ">=", number:
                range_ &= RecordRange(offset_from=int(number))
            case "offset", "<", number:
                range_ &= RecordRange(offset_until=int(number))
            case "timestamp", ">=", number:
                range_ &= RecordRange(timestamp_from=int(number))
    options = {} if name == "stateless" else {"state.path": "/state"}
    if " without -U" in rest:
        options["scan.updates-before"] = "false"
    topic = KafkaTopic(name, TOPICS[name], Mode(mode), range_, mirror=TABLES.get(name), options=options)
    return replace(topic, splits_key_changes=name != "renames")


def _delta_join(line: str, rest: Sequence[str], types: dict[int, str]) -> tuple[Plan, Sequence[str]]:
    kind, *flags = (_Parser(word, types).column() for word in line.split()[1:])
    is_table = [re.match(r" *t\d+ \w", below) is not None for below in rest[1:]]
    count = is_table.index(False) if False in is_table else len(is_table)
    tables = tuple(_table(below.strip(), types) for below in rest[1 : 1 + count])
    numbers = (int(flag.name.removeprefix("present_")) for flag in flags)
    present = tuple(
        (number, replace(flag, type="boolean")) for number, flag in zip(numbers, flags, strict=True)
    )
    text = rest[0].strip().removesuffix(" not consolidated")
    node, _, keep = text.partition(" keeping ")
    condition = _condition(keep) if keep else None
    is_net = rest[0].strip() == text
    return DeltaJoin(tables, parse_tree(node), kind, present, condition, is_net), rest[1 + count :]


def _table(line: str, types: dict[int, str]) -> JoinTable:
    found = re.fullmatch(r"t\d+ (\w+) (\[.*?\])(?: comparing (\[.*?\]))?(?: where (.*))?", line)
    assert found, line
    name, emitted, compared, where = found.groups()
    predicates = tuple(_predicate(part) for part in where.split(" and ")) if where else ()
    rest = _columns(compared, types) if compared else ()
    return JoinTable(TABLES[name], (*_columns(emitted, types), *rest), predicates, frozenset(rest))


def parse_tree(text: str) -> Node:
    """The join tree of its text; its conditions compare columns with each other and with numbers."""
    if found := re.fullmatch(r"t(\d+)", text):
        return Leaf(int(found[1]))
    kind, inside = text[:-1].split("(", 1)
    children, tail = _inputs(inside)
    on = tuple(_pair(part) for part in tail if not part.startswith("("))
    where = conjunction(*(_condition(part) for part in tail if part.startswith("(")))
    match kind:
        case "inner":
            return Inner(children, on, where)
        case "where":
            assert where is not None
            return Where(children[0], where)
        case _:
            return Outer(kind, children[0], children[1], on, where)


def _inputs(text: str) -> tuple[tuple[Node, ...], list[str]]:
    parts, depth, start = [], 0, 0
    for i, char in enumerate(f"{text},"):
        depth += (char == "(") - (char == ")")
        if depth == 0 and char in ",:":
            parts.append(text[start:i].strip())
            start = i + 1
            if char == ":":
                return tuple(map(parse_tree, parts)), text[start:].strip().split(" and ")
    return tuple(map(parse_tree, parts)), []


def _pair(text: str) -> tuple[Ref, Ref]:
    one, other = (_ref(part) for part in text.split(" = "))
    return one, other


def _ref(text: str) -> Ref:
    table, column = text.split(".")
    return Ref(int(table[1:]), column)


def _condition(text: str) -> Condition:
    one, operator, other = text.strip("()").split(" ")
    right = Field(_ref(other)) if other.startswith("t") else Const(float(other), pa.float64())
    return Compare(operator, (Field(_ref(one)), right))


def _predicate(text: str) -> Predicate:
    column, operator, value = text.split(" ", 2)
    return column, operator, value.strip("'") if value.startswith("'") else int(value)


def _columns(text: str, types: dict[int, str]) -> tuple[Column, ...]:
    named = re.findall(r"(\w+)#(-?\d+)", text[text.index("[") :])
    return tuple(Column(int(number), name, types.get(int(number), "unknown")) for name, number in named)


class _Parser:
    def __init__(self, text: str, types: dict[int, str]) -> None:
        self.tokens = _TOKEN.findall(text)
        self.types = types

    def take(self, *expected: str) -> str:
        token: str = self.tokens.pop(0)
        assert not expected or token in expected, f"expected {expected}, got {token!r} before {self.tokens}"
        return token

    def column(self) -> Column:
        name, number = self.take().split("#")
        return Column(int(number), name, self.types.get(int(number), "unknown"))

    def outputs(self) -> tuple[Output, ...]:
        outputs = []
        while self.tokens:
            value = self.expr()
            if self.tokens and self.tokens[0] == "AS":
                self.take("AS")
                outputs.append(Output(self.column(), value))
            else:
                assert isinstance(value, Column)
                outputs.append(Output(value, value))
            if self.tokens:
                self.take(",")
        return tuple(outputs)

    def expr(self) -> Expr:
        token = self.tokens[0]
        if "#" in token:
            return self.column()
        self.take()
        if token == "(":
            left, operator, right = self.expr(), self.take(*_OPERATORS), self.expr()
            self.take(")")
            return Call(_OPERATORS[operator], (left, right))
        if token[0] == "'":
            return Literal(token[1:-1], "string")
        if token == "NULL":
            return Literal(None, "void")
        if token[0].isdigit() or token[0] == "-":
            return Literal(float(token), "double") if "." in token else Literal(int(token), "int")
        self.take("(")
        if token == "cast":
            value = self.expr()
            self.take("AS")
            type_ = self.take()
            self.take(")")
            return Cast(value, type_)
        if is_distinct := token in _AGGREGATES and self.tokens[0] == "DISTINCT":
            self.take()
        args: list[Expr] = []
        while self.tokens[0] != ")":
            args.append(self.expr())
            if self.tokens[0] == ",":
                self.take(",")
        self.take(")")
        if token in _AGGREGATES:
            return self.aggregation(token, args, is_distinct)
        return Call(token, tuple(args), token not in _UNSTABLE, token.startswith("Current"))

    def aggregation(self, name: str, args: list[Expr], is_distinct: bool) -> Aggregation:
        condition = None
        if self.tokens[:1] == ["FILTER"]:
            for word in ("FILTER", "(", "WHERE"):
                self.take(word)
            condition = self.expr()
            self.take(")")
        types = tuple(arg.type if isinstance(arg, Column | Literal) else "double" for arg in args)
        told = (("evalContext", "ANSI"),) if name in ("Sum", "Average") else ()
        return Aggregation(name, tuple(args), types, condition, is_distinct, told)
