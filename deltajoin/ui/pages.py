"""An overview as HTML: pages of a server, or one file with all of them (pure).

The templates in ``pages.html`` are Jinja2's with autoescape: what names, errors and rows say can only be
text. Pictures are SVG whose places are computed here. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from deltajoin.observe.measures import PHASES, levels_of, phases_of, sides_of, table_lookups
from deltajoin.observe.overview import Overview, QueryInfo, TableInfo, shown
from upsert.catalog.query_records import MicroBatch
from upsert.show.values import rows_of, text_of

Href = Callable[[str, str], str]
"""The link to a page: of its kind (``tables``, ``pipelines``, ``table``, ``query``), and a name or an id."""

_LONGEST_CELL: Final = 200
_BOX: Final = (184, 42)
_GAP: Final = (48, 14)
_BAR: Final = (12, 3)
_BARS_HEIGHT: Final = 120
_BARS_TOP: Final = 16


class Sample(NamedTuple):
    """Some rows of a table: names of the columns, and the values of each row."""

    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, rows: pa.Table) -> Sample:
        """The rows of an Arrow table."""
        return cls(tuple(rows.column_names), tuple(rows_of(rows)))


class Box(NamedTuple):
    """What a box of the graph stands for."""

    kind: str
    name: str
    note: str = ""
    state: str = ""
    href: str = ""


class Node(NamedTuple):
    """A box of the graph, with its upper left corner."""

    kind: str
    name: str
    note: str
    state: str
    href: str
    x: int
    y: int


class Graph(NamedTuple):
    """Boxes and the paths between them, in an SVG of this size."""

    nodes: tuple[Node, ...]
    edges: tuple[str, ...]
    width: int
    height: int
    box_width: int = _BOX[0]
    box_height: int = _BOX[1]


class Part(NamedTuple):
    """A phase's part of a bar: ``phase`` is its number among those of the bars."""

    phase: int
    ms: int
    y: float
    height: float


class Bar(NamedTuple):
    """One micro-batch."""

    id: int
    x: int
    took_ms: int
    parts: tuple[Part, ...]


class Bars(NamedTuple):
    """Micro-batches as stacked bars, in an SVG of this size."""

    phases: tuple[str, ...]
    bars: tuple[Bar, ...]
    longest_ms: int
    width: int
    height: int
    bar_width: int = _BAR[0]


def bars_of(batches: Sequence[MicroBatch]) -> Bars | None:
    """The micro-batches as bars; None if there is none."""
    split = [phases_of(batch) for batch in batches]
    longest = max((sum(parts.values()) for parts in split), default=0)
    if not longest:
        return None
    height = _BARS_HEIGHT - _BARS_TOP
    bars = []
    for number, (batch, parts) in enumerate(zip(batches, split, strict=True)):
        drawn, y = [], float(_BARS_HEIGHT)
        for phase, ms in parts.items():
            part = ms * height / longest
            y -= part
            drawn.append(Part(PHASES.index(phase), ms, round(y, 2), round(part, 2)))
        bars.append(Bar(batch.id, number * sum(_BAR), sum(parts.values()), tuple(drawn)))
    return Bars(PHASES, tuple(bars), longest, max(120, len(bars) * sum(_BAR)), _BARS_HEIGHT)


def graph_of(overview: Overview, href: Href, only: QueryInfo | None = None) -> Graph | None:
    """Tables, hidden ones too, and queries, each to the right of what it reads; None if nothing is read.

    ``href`` makes the links. With ``only`` this query is drawn alone, with what it reads and writes.
    """
    boxes: dict[str, Box] = {}
    arrows: list[tuple[str, str]] = []
    tables = {table.name: table for table in overview.tables}

    def table(name: str) -> str:
        found = tables.get(name)
        count = "" if found is None or found.rows is None else rows(found.rows)
        kind = "table" if found is None or found.view is None else "view"
        boxes.setdefault(f"t {name}", Box(kind, name, count, href=href("table", name)))
        return f"t {name}"

    for query in overview.queries if only is None else (only,):
        if not (query.reads or query.topics or query.sources or query.writes):
            continue
        id = f"q {query.record.id}"
        last = f", {milliseconds(query.record.batches[-1].took_ms)}" if query.record.batches else ""
        note = f"{query.state}{last}"
        boxes[id] = Box("query", query.name, note, query.state, href("query", query.record.id))
        for source in (*(f"topic {name}" for name in query.topics), *query.sources):
            boxes.setdefault(f"s {source}", Box("source", source))
            arrows.append((f"s {source}", id))
        arrows += [(table(lag.table), id) for lag in query.reads if lag.table is not None]
        arrows += [(id, table(name)) for name in query.writes]
    views = overview.tables if only is None else [tables[name] for name in only.writes if name in tables]
    for view in views:
        arrows += _arrows_of_view(
            view,
            overview,
            boxes,
            table,
            has_query=only is not None or any(view.name in query.writes for query in overview.queries),
        )
    return _placed(boxes, list(dict.fromkeys(arrows))) if arrows else None


def _arrows_of_view(
    view: TableInfo,
    overview: Overview,
    boxes: dict[str, Box],
    table: Callable[[str], str],
    *,
    has_query: bool,
) -> Iterable[tuple[str, str]]:
    """From the tables of a view through its hidden ones to itself."""
    if view.view is None:
        return
    names = {one.uuid: one.name for one in overview.tables if one.uuid}
    hidden = {one.uuid: f"h {one.uuid}" for one in view.view.hidden}
    for one in view.view.hidden:
        boxes[hidden[one.uuid]] = Box("hidden", one.name, f"hidden table, {rows(one.rows)}")
        for uuid in one.reads:
            if uuid in hidden:
                yield hidden[uuid], hidden[one.uuid]
            elif uuid in names:
                yield table(names[uuid]), hidden[one.uuid]
    read = {uuid for one in view.view.hidden for uuid in one.reads}
    for uuid, id in hidden.items():
        if uuid not in read:
            yield id, table(view.name)
    if not has_query:
        for lag in view.view.lags:
            if lag.table is not None and lag.uuid not in read:
                yield table(lag.table), table(view.name)


def _placed(boxes: Mapping[str, Box], arrows: Sequence[tuple[str, str]]) -> Graph:
    columns = layers(list(boxes), arrows)
    used: dict[int, int] = {}
    at: dict[str, tuple[int, int]] = {}
    for id in boxes:
        column = columns[id]
        row = used[column] = used.get(column, -1) + 1
        at[id] = (2 + column * (_BOX[0] + _GAP[0]), 2 + row * (_BOX[1] + _GAP[1]))
    edges = []
    for start, end in arrows:
        x, y = at[start][0] + _BOX[0], at[start][1] + _BOX[1] // 2
        to_x, to_y = at[end][0], at[end][1] + _BOX[1] // 2
        bend = max(28, abs(to_x - x) // 2)
        edges.append(f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}")
    width = 4 + max(x for x, _ in at.values()) + _BOX[0]
    height = 4 + max(y for _, y in at.values()) + _BOX[1]
    return Graph(tuple(Node(*box, *at[id]) for id, box in boxes.items()), tuple(edges), width, height)


def layers(nodes: Sequence[str], arrows: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The column of each node: the length of the longest way to it, arrows that close a circle left out.

    >>> layers(["a", "b", "c"], [("a", "b"), ("b", "c"), ("a", "c"), ("c", "a")])
    {'a': 0, 'b': 1, 'c': 2}
    """
    after: dict[str, list[str]] = {node: [] for node in nodes}
    for start, end in arrows:
        after[start].append(end)
    done: list[str] = []
    state: dict[str, int] = {}
    closing: set[tuple[str, str]] = set()
    for root in nodes:
        stack = [] if root in state else [(root, iter(after[root]))]
        state.setdefault(root, 1)
        while stack:
            node, following = stack[-1]
            for one in following:
                if state.get(one) == 1:
                    closing.add((node, one))
                elif one not in state:
                    state[one] = 1
                    stack.append((one, iter(after[one])))
                    break
            else:
                stack.pop()
                state[node] = 2
                done.append(node)
    found = dict.fromkeys(nodes, 0)
    for node in reversed(done):
        for one in after[node]:
            if (node, one) not in closing:
                found[one] = max(found[one], found[node] + 1)
    return found


def number(value: float | None) -> str:
    """A count with its thousands apart; "–" where it is not known."""
    return "–" if value is None else f"{value:,.0f}".replace(",", " ")


def rows(count: int) -> str:
    """A number of rows.

    >>> rows(1), rows(2000)
    ('1 row', '2 000 rows')
    """
    return f"{number(count)} row{'s' * (count != 1)}"


def size(value: int) -> str:
    """Bytes as people read them.

    >>> size(1536), size(0)
    ('1.5 KiB', '0 B')
    """
    units, found = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], float(value)
    while found >= 1024 and len(units) > 1:
        found /= 1024
        units.pop(0)
    return f"{value} B" if units[0] == "B" else f"{found:.1f} {units[0]}"


def seconds(value: float | None) -> str:
    """A time span as people read it.

    >>> seconds(0.25), seconds(75.0), seconds(7300), seconds(None)
    ('0.2 s', '1 min 15 s', '2 h 1 min', '–')
    """
    if value is None:
        return "–"
    if value < 60:
        return f"{value:.1f} s" if value < 10 and value % 1 else f"{value:.0f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    if value < 86_400:
        return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"
    return f"{int(value // 86_400)} d {int(value % 86_400 // 3600)} h"


def milliseconds(value: int | None) -> str:
    """Milliseconds, or seconds where they are many."""
    if value is None:
        return "–"
    return f"{value} ms" if value < 1000 else f"{value / 1000:.1f} s"


def time(value: int | None) -> str:
    """A moment in UTC."""
    if value is None:
        return "–"
    try:
        return f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):  # no clock says such a time
        return f"{value} ms"


def ago(value: int | None, now_ms: int) -> str:
    """How long ago a moment was."""
    return "–" if value is None else f"{seconds(max(0, (now_ms - value) // 1000))} ago"


class Remedy(NamedTuple):
    """An error in two parts."""

    what: str
    do: str


def remedy(error: str) -> Remedy:
    """What an error says is wrong, and what to do about it: the part behind the last semicolon.

    >>> remedy("table 'a': column 'b' is gone; add it")
    Remedy(what="table 'a': column 'b' is gone", do='add it')
    """
    what, sign, do = error.rpartition("; ")
    return Remedy(what, do) if sign else Remedy(error, "")


def cell(value: Any) -> str:
    """A value of a row as text.

    >>> cell(None), cell({"raw": b"a"}), cell("x" * 300)[-3:]
    ('NULL', '{"raw": "61"}', 'xx…')
    """
    return "NULL" if value is None else shortened(text_of(value), _LONGEST_CELL)


def shortened(text: str, longest: int) -> str:
    """A text, cut if it is longer."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def growth_points(table: TableInfo) -> str:
    """The stored rows of the newest snapshots as points of a line in a box of 120 × 28."""
    points = table.snapshots
    if len(points) < 2:
        return ""
    start, end = points[0].time_ms, points[-1].time_ms
    most = max(point.rows for point in points) or 1
    span = max(1, end - start)
    found = (
        f"{2 + 116 * (one.time_ms - start) / span:.1f},{26 - 24 * one.rows / most:.1f}" for one in points
    )
    return " ".join(found)


def versions(batch: MicroBatch, overview: Overview) -> list[tuple[str, str]]:
    """Names of the tables that a micro-batch read, and where it was in each afterwards."""
    names = {table.uuid: table.name for table in overview.tables if table.uuid}
    return [
        (names.get(uuid, uuid[:8]), shown(at)) for one in batch.inputs for uuid, at in one.versions.items()
    ]


class LookupRow(NamedTuple):
    """What the lookups of one side have cost in all micro-batches, and what the cache and the queue hold."""

    side: str
    keys: int
    requests: int
    mean_ms: int | None
    retries: int
    failed_keys: int
    waiting: int
    hits: int
    misses: int
    evictions: int
    cached_keys: int
    cached_bytes: int


def lookups(query: QueryInfo) -> list[LookupRow]:
    """A row for each side of a query that looks rows up outside of managed tables."""
    totals = query.record.totals.lookups or {}
    levels = levels_of(query.record.batches)

    def row(side: str) -> LookupRow:
        counts = {name: totals.get(f"{side}_{name}", 0) for name in _LOOKUP_COUNTS}
        held = {name: levels.get(f"{side}_{name}", 0) for name in _LOOKUP_LEVELS}
        taken_us, requests = totals.get(f"{side}_lookup_us", 0), counts["requests"]
        mean_ms = round(taken_us / requests / 1000) if requests else None
        return LookupRow(side=side, mean_ms=mean_ms, **counts, **held)

    return [] if query.record.totals.lookups is None else [row(side) for side in sides_of(totals)]


_LOOKUP_COUNTS: Final = ("keys", "requests", "retries", "failed_keys", "hits", "misses", "evictions")
_LOOKUP_LEVELS: Final = ("waiting", "cached_keys", "cached_bytes")

_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("deltajoin.ui", "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=False,
)
_ENVIRONMENT.filters |= {
    "ago": ago,
    "cell": cell,
    "growth_points": growth_points,
    "rows": rows,
    "lookups": lookups,
    "table_lookups": table_lookups,
    "milliseconds": milliseconds,
    "number": number,
    "remedy": remedy,
    "seconds": seconds,
    "shortened": shortened,
    "size": size,
    "time": time,
    "versions": versions,
}

SCRIPT: Final = """
setInterval(async () => {
  if (document.hidden || document.querySelector("details[open]") || String(getSelection())) return;
  const answer = await fetch(location.href).catch(() => null);
  if (!answer || !answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.querySelector("main").replaceChildren(...page.querySelector("main").childNodes);
}, 5000);
"""
"""Puts the newest content in the place of the old, unless a detail is open or text is selected."""


def of_server(kind: str, name: str) -> str:
    """The path of a page on the server."""
    paths = {"pipelines": "/", "tables": "/tables", "table": "/tables/", "query": "/queries/"}
    return paths[kind] + quote(name, safe="")


def _in_file(kind: str, name: str) -> str:
    return f"#{kind}-{quote(name, safe='')}" if name else f"#{kind}"


def _macro(name: str, *given: Any) -> Markup:
    macros: Any = _ENVIRONMENT.get_template("pages.html").module
    return Markup(getattr(macros, name)(*given))  # a macro has escaped all that it was given


def _document(title: str, overview: Overview, body: Markup, script: str, href: Href) -> str:
    code = Markup(script)  # a constant of this file
    return str(_macro("document", title, overview.warehouse, overview.now_ms, body, code, href))


def tables_page(overview: Overview) -> str:
    """The page of all tables."""
    body = _macro("tables_page", overview, of_server)
    return _document("Tables", overview, body, SCRIPT, of_server)


def table_page(overview: Overview, table: TableInfo, sample: Sample | None = None) -> str:
    """The page of one table, maybe with some of its rows."""
    can_sample = table.kind in ("table", "view") and sample is None
    link = f"{of_server('table', table.name)}?rows=1" if can_sample else ""
    body = _macro("table_page", table, overview, of_server, sample, link)
    return _document(table.name, overview, body, SCRIPT, of_server)


def pipelines_page(overview: Overview) -> str:
    """The page of all queries and views."""
    body = _macro("pipelines_page", overview, of_server, graph_of(overview, of_server))
    return _document("Pipelines", overview, body, SCRIPT, of_server)


def query_page(overview: Overview, query: QueryInfo) -> str:
    """The page of one query."""
    drawn = graph_of(overview, of_server, query)
    body = _macro("query_page", query, overview, of_server, bars_of(query.record.batches), drawn)
    return _document(query.name, overview, body, SCRIPT, of_server)


def missing_page(overview: Overview, what: str) -> str:
    """The page that says that there is no such table, or no such query."""
    return _document("Not found", overview, _macro("missing_page", what), "", of_server)


def snapshot_file(overview: Overview) -> str:
    """All pages in one HTML file that needs nothing else: no server, no script."""
    parts = [
        ("pipelines", _macro("pipelines_page", overview, _in_file, graph_of(overview, _in_file))),
        ("tables", _macro("tables_page", overview, _in_file)),
    ]
    for query in overview.queries:
        drawn = graph_of(overview, _in_file, query)
        page = _macro("query_page", query, overview, _in_file, bars_of(query.record.batches), drawn)
        parts.append((_in_file("query", query.record.id)[1:], page))
    for table in overview.tables:
        page = _macro("table_page", table, overview, _in_file, None, "")
        parts.append((_in_file("table", table.name)[1:], page))
    section = Markup('<section class="page" id="{}">{}</section>\n')
    body = Markup("").join(section.format(id, page) for id, page in parts)
    return _document("Snapshot", overview, body, "", _in_file)


def as_json(value: Any) -> str:
    """Values of an overview as JSON: attributes by their names."""
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, QueryInfo):
        own = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return {"name": value.name, **own}
    if hasattr(value, "to_json"):
        return value.to_json()
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return str(value)
