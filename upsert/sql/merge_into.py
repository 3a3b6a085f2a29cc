"""``MERGE INTO`` to a statement, which has the query of the rows that it changes (pure).

The statement is Spark's and Delta's::

    MERGE INTO target [[AS] a] USING { source | (query) } [[AS] b] ON condition
    { WHEN MATCHED [AND condition] THEN { UPDATE SET column = expression, … | UPDATE SET * | DELETE }
    | WHEN NOT MATCHED [BY TARGET] [AND condition] THEN { INSERT (columns) VALUES (expressions) | INSERT * }
    | WHEN NOT MATCHED BY SOURCE [AND condition] THEN { UPDATE SET column = expression, … | DELETE } } …

Its text becomes that of a query whose FROM stands first, as Spark allows, so that every expression stays at
its place. The columns ``:clause_0``, … tell which clause a row is for, at most one of them::

    FROM (SELECT *, true AS `:in_target` FROM target) AS a
    FULL OUTER JOIN (SELECT *, true AS `:in_source` FROM source) AS b ON condition
    SELECT STRUCT(a.*) AS `:target`, STRUCT(b.*) AS `:source`,
      CASE WHEN (this row is matched) THEN coalesce((condition), false) ELSE false END AS `:clause_0`,
      CASE WHEN `:clause_0` THEN (expression) END AS `:clause_0_0`, …

So an expression is evaluated for the rows of its clause alone. Where a row has no partner, names without a
table are those of the one row that there is, which ``with_tables`` writes before them when the columns of the
tables are known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from upsert.errors import SchemaError
from upsert.sql import statements as s
from upsert.sql.dialect import END, START, WORD, Edit, expression_tree, position, spelled
from upsert.sql.query import QueryText
from upsert.sql.tokens import Cursor, blanked, dotted, table_name, white, without_hints
from upsert.types import quoted

_CONSTANTS: Final = frozenset(
    {"current_date", "current_path", "current_time", "current_timestamp", "current_user", "localtime"}
    | {"session_user", "user"}
)
"""What Spark takes for a function though no parentheses follow."""

_JOINS: Final = {
    frozenset({s.MergeRows.MATCHED}): "JOIN",
    frozenset({s.MergeRows.MATCHED, s.MergeRows.NOT_MATCHED_BY_SOURCE}): "LEFT OUTER JOIN",
    frozenset({s.MergeRows.NOT_MATCHED_BY_SOURCE}): "LEFT OUTER JOIN",
    frozenset({s.MergeRows.MATCHED, s.MergeRows.NOT_MATCHED}): "RIGHT OUTER JOIN",
    frozenset({s.MergeRows.NOT_MATCHED}): "RIGHT OUTER JOIN",
}
"""The join that has all rows of the clauses; for others it is the full one."""


def merge_into(cursor: Cursor) -> s.Merge:
    """Read what follows ``MERGE INTO``."""
    merge = _Merge(cursor)
    merge.read_tables()
    while not cursor.at_end:
        merge.read_clause()
    return merge.statement()


def with_tables(
    statement: s.Merge, target: Collection[str], source: Callable[[], Collection[str]]
) -> s.Merge:
    """The statement, in which no bare name of a clause for one row can be a column of the other table.

    Args:
        statement: as it was read.
        target: the columns of the target, in lower case.
        source: gives those of the source, which are asked for only where it depends on them.
    """
    edits = []
    for name in statement.names:
        if name.rows is s.MergeRows.NOT_MATCHED:
            is_other = name.name in target
            is_own = is_other and (not name.is_word or name.name in source())
        else:
            is_own = name.name in target
            is_other = is_own or name.is_word or name.name in source()
        if is_own or (is_other and not name.is_word):
            edits.append(Edit(name.start, name.start, f"{quoted(name.table)}."))
        elif is_other:
            edits.append(Edit(name.end, name.end, "()"))
    rows = replace(statement.rows, edits=(*edits, *statement.rows.edits))
    return replace(statement, rows=rows, names=())


def over_given_source(statement: s.Merge) -> QueryText:
    """The query of a statement's rows in which the source is one table, the second of its references.

    It is called as the source is, so names of columns mean the same; what it has is given to Spark.
    """
    rows, source = statement.rows, statement.source
    start, end = source.start, source.end
    # hints, words of Flink and parameters of the source go with its text
    text = rows.statement[:start] + white(rows.statement[start:end]) + rows.statement[end:]
    edits = (*rows.edits, Edit(start, start, _written(source)))
    count = len(source.parameters) if source.is_numbered else 0
    args = rows.args
    if count:  # they are counted by their places, and the target has none
        values = list(args.values())[count:]
        args = dict(zip(QueryText.numbers(len(values)), values, strict=True))
    return replace(rows, statement=text, edits=edits, args=args)


def _written(source: QueryText) -> str:
    """The name of the table that a source is, as columns may be written with it; of others one of its own."""
    rows = source.tree.args["from_"].this
    if not isinstance(rows, exp.Table) or not all(isinstance(one, exp.Identifier) for one in rows.parts):
        return quoted(_GIVEN)
    name = ".".join(quoted(part.name) for part in rows.parts)
    return f"{name} AS {quoted(rows.alias)}" if rows.alias else name


_GIVEN: Final = ":given"


class _Merge:
    """A statement that is being read, and the edits that make a query of it."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._edits = [Edit(cursor.first, cursor.reached, f"FROM (SELECT *, true AS `{s.IN_TARGET}` FROM")]
        self._clauses: list[s.MergeClause] = []
        self._unconditional: set[s.MergeRows] = set()
        self._defaults: set[int] = set()
        self._names: list[s.BareName] = []

    def read_tables(self) -> None:
        """Read up to the first clause."""
        cursor = self._cursor
        self._hints = cursor.hint()
        start = cursor.offset
        self._name = table_name(cursor)
        cursor.subject = f"MERGE INTO {self._name}"
        named = cursor.reached
        self._hints |= cursor.hint()
        self._hints_end = cursor.offset
        self._written = cursor.text[start:named].lower().replace("`", "")
        self._target = self._name.rpartition(".")[2]
        if cursor.skip("AS") or not cursor.ahead("USING"):
            self._target = cursor.name("an alias, or USING")
        self._edits.append(Edit(named, cursor.reached, f") AS {quoted(self._target)}"))
        self._using = cursor.offset, cursor.offset + len("USING")
        cursor.expect("USING")
        start = cursor.offset
        cursor.raw("a table, or a query in parentheses", lambda: cursor.word(0) in ("ON", "WHEN"))
        self._source_rows, self._source = self._rows_of_source(start, cursor.reached)
        if self._source.lower() == self._target.lower():
            raise SchemaError(
                f"{cursor.subject}: target and source must have different names, got {self._source!r} at "
                f"{position(cursor.text, start)} for both; give one of them an alias"
            )
        self._edits.append(Edit(cursor.reached, cursor.reached, f") AS {quoted(self._source)}"))
        cursor.expect("ON")
        start = cursor.offset
        cursor.raw("a condition", self._before("WHEN"))
        self._read_equalities(self._tree(start))
        if not cursor.ahead("WHEN"):
            raise cursor.refusal("expected WHEN [NOT] MATCHED")

    def read_clause(self) -> None:
        """Read one ``WHEN … THEN …``."""
        cursor = self._cursor
        start = cursor.offset
        cursor.expect("WHEN")
        rows = self._rows()
        number = len(self._clauses)
        if rows in self._unconditional:
            raise SchemaError(
                f"{cursor.subject}: of the clauses {rows} only the last may be without AND, found another "
                f"one at {position(cursor.text, start)}; give the one before it a condition"
            )
        applies = [_APPLIES[rows]]
        if earlier := [n for n, clause in enumerate(self._clauses) if clause.rows is rows]:
            applies.append("NOT (" + " OR ".join(f"`{s.CLAUSE.format(n)}`" for n in earlier) + ")")
        own = " AND ".join(applies)
        head = f" SELECT STRUCT({quoted(self._target)}.*) AS `{s.MERGE_TARGET}`, " if not number else ", "
        head += f"STRUCT({quoted(self._source)}.*) AS `{s.MERGE_SOURCE}`, " if not number else ""
        if cursor.skip("AND"):
            self._edits.append(Edit(start, cursor.reached, f"{head}CASE WHEN {own} THEN coalesce(("))
            begins = cursor.offset
            cursor.raw("a condition", self._before("THEN"))
            self._note_names(rows, self._tree(begins))
            opened, start = "), false) ELSE false END", cursor.offset
        else:
            self._unconditional.add(rows)
            opened = f"{head}coalesce({own}, false)"
        cursor.expect("THEN")
        self._clauses.append(self._action(rows, number, start, f"{opened} AS `{s.CLAUSE.format(number)}`"))

    def statement(self) -> s.Merge:
        """What has been read."""
        join = _JOINS.get(frozenset(clause.rows for clause in self._clauses), "FULL OUTER JOIN")
        start, end = self._using
        using = Edit(start, end, f"{join} (SELECT *, true AS `{s.IN_SOURCE}` FROM")
        cursor = self._cursor
        text = without_hints(cursor.text, cursor.subject, until=self._hints_end)
        query = QueryText.of(text, cursor.first, cursor.reached, cursor.subject, [*self._edits, using])
        equal = tuple(self._equal.items())
        return s.Merge(
            self._name,
            tuple(self._clauses),
            query,
            self._source_rows,
            tuple(self._names),
            equal,
            self._only_equal,
            self._hints,
        )

    def _rows(self) -> s.MergeRows:
        cursor = self._cursor
        if cursor.skip("MATCHED"):
            return s.MergeRows.MATCHED
        if not cursor.skip("NOT", "MATCHED"):
            raise cursor.refusal("expected MATCHED or NOT MATCHED")
        if cursor.skip("BY", "SOURCE"):
            return s.MergeRows.NOT_MATCHED_BY_SOURCE
        if cursor.ahead("BY"):
            cursor.expect("BY", "TARGET")
        return s.MergeRows.NOT_MATCHED

    def _action(self, rows: s.MergeRows, number: int, start: int, before: str) -> s.MergeClause:
        """Read an action; what stands ``before`` its values goes where the text from ``start`` was."""
        cursor = self._cursor
        if rows is s.MergeRows.NOT_MATCHED:
            if not cursor.skip("INSERT"):
                raise cursor.refusal(f"expected INSERT after {rows}")
            return self._insert(number, start, before)
        if cursor.skip("DELETE"):
            self._edits.append(Edit(start, cursor.reached, before))
            return s.MergeClause(rows, s.MergeAction.DELETE)
        if not cursor.skip("UPDATE"):
            raise cursor.refusal(f"expected UPDATE or DELETE after {rows}")
        if not cursor.ahead("*"):
            cursor.expect("SET")
        if cursor.skip("*"):
            if rows is not s.MergeRows.MATCHED:
                raise SchemaError(
                    f"{cursor.subject}: UPDATE SET * takes the columns of the source, and {rows} has no row "
                    "of the source; name the columns"
                )
            self._edits.append(Edit(start, cursor.reached, before))
            return s.MergeClause(rows, s.MergeAction.UPDATE)
        columns, values = list[str](), list[str | None]()
        while True:
            columns.append(self._set_column())
            cursor.expect("=")
            self._edits.append(Edit(start, cursor.reached, before + self._case(number)))
            values.append(self._value(rows, number, len(values), self._before("WHEN")))
            start, before = cursor.offset, ""
            if not cursor.skip(","):
                break
        given = tuple(columns), tuple(values), self._defaulted(columns)
        return s.MergeClause(rows, s.MergeAction.UPDATE, *given)

    def _insert(self, number: int, start: int, before: str) -> s.MergeClause:
        cursor, rows = self._cursor, s.MergeRows.NOT_MATCHED
        if cursor.skip("*"):
            self._edits.append(Edit(start, cursor.reached, before))
            return s.MergeClause(rows, s.MergeAction.INSERT)
        columns = tuple(cursor.listed(self._set_column))
        cursor.expect("VALUES")
        values = list[str | None]()
        cursor.expect("(")
        while True:
            self._edits.append(Edit(start, cursor.reached, before + self._case(number)))
            values.append(self._value(rows, number, len(values), lambda: False))
            start, before = cursor.offset, ""
            if not cursor.skip(","):
                break
        if not cursor.skip(")"):
            raise cursor.refusal("expected , or )")
        self._edits.append(Edit(start, cursor.reached, ""))
        if len(values) != len(columns):
            raise SchemaError(
                f"{cursor.subject}: INSERT names {len(columns)} columns ({', '.join(columns)}), and VALUES "
                f"has {len(values)}; give each column one value"
            )
        return s.MergeClause(rows, s.MergeAction.INSERT, columns, tuple(values), self._defaulted(columns))

    def _defaulted(self, columns: Sequence[str]) -> frozenset[str]:
        """The columns of the clause that has been read whose value is DEFAULT."""
        found = frozenset(columns[place] for place in self._defaults if place < len(columns))
        self._defaults.clear()
        return found

    def _case(self, number: int) -> str:
        return f", CASE WHEN `{s.CLAUSE.format(number)}` THEN ("

    def _value(self, rows: s.MergeRows, number: int, place: int, until: Callable[[], bool]) -> str | None:
        """Read an expression; the column of the source that it is, in lower case, or None."""
        cursor = self._cursor
        begins = cursor.offset
        text = cursor.raw("an expression", until)
        tree = self._tree(begins)
        if text.upper() == s.DEFAULT:
            self._defaults.add(place)
            self._edits.append(Edit(begins, cursor.reached, "NULL"))
            tree = exp.Null()
        self._note_names(rows, tree)
        self._edits.append(
            Edit(cursor.reached, cursor.reached, f") END AS `{s.CLAUSE_VALUE.format(number, place)}`")
        )
        if not isinstance(tree, exp.Column):
            return None
        qualifier = _qualifier(tree)
        is_source = qualifier == self._source.lower() or (not qualifier and rows is s.MergeRows.NOT_MATCHED)
        return tree.name.lower() if is_source else None

    def _set_column(self) -> str:
        """Read a column that gets a value, which may have the target's name before it."""
        refusal = self._cursor.refusal(
            f"expected a column of {self._target!r}; a field of a struct gets a value with the whole struct"
        )
        *before, column = dotted(self._cursor, "the name of a column")
        if before and not self._is_target(".".join(before).lower()):
            raise refusal
        return column

    def _before(self, word: str) -> Callable[[], bool]:
        """What is asked at each word outside of brackets: whether ``word`` is next, and not one of CASE."""
        cursor, depth = self._cursor, 0

        def is_next() -> bool:
            nonlocal depth
            if cursor.word(-1) == ".":
                return False  # the name of a column
            if depth == 0 and cursor.ahead(word):
                return True
            if cursor.ahead("CASE"):
                depth += 1
            elif cursor.ahead("END") and depth:
                depth -= 1
            return False

        return is_next

    def _tree(self, start: int) -> exp.Expr:
        cursor = self._cursor
        return expression_tree(blanked(cursor.text, start, cursor.reached), cursor.subject)

    def _rows_of_source(self, start: int, end: int) -> tuple[QueryText, str]:
        """The query of the source, and what it is called."""
        cursor = self._cursor
        edit = Edit(start, start, "SELECT * FROM ")
        query = QueryText.of(cursor.text, start, end, cursor.subject, [edit])
        tree = query.tree
        source = tree.args.get("from_")
        if not isinstance(tree, exp.Select) or source is None or tree.args.get("joins"):
            raise SchemaError(
                f"{cursor.subject}: expected USING a table or a query in parentheses, found "
                f"{cursor.text[start:end]!r} at {position(cursor.text, start)}"
            )
        return query, source.this.alias_or_name or "_merge_source_rows"

    def _read_equalities(self, condition: exp.Expr) -> None:
        """What ON says of single columns: of each of the target's the one of the source that it equals."""
        self._equal: dict[str, str] = {}
        self._only_equal = True
        todo = [condition]
        while todo:
            one = todo.pop().unnest()
            if isinstance(one, exp.And):
                todo += [one.left, one.right]
                continue
            pair = {}
            if isinstance(one, exp.EQ | exp.NullSafeEQ):
                sides = [side.unnest() for side in (one.left, one.right)]
                pair = {_qualifier(side): side.name.lower() for side in sides if isinstance(side, exp.Column)}
            source = pair.get(self._source.lower())
            target = next((name for qualifier, name in pair.items() if self._is_target(qualifier)), None)
            if source is None or target is None or target in self._equal:
                self._only_equal = False
            else:
                self._equal[target] = source

    def _is_target(self, qualifier: str) -> bool:
        return qualifier in (self._target.lower(), self._written)

    def _note_names(self, rows: s.MergeRows, tree: exp.Expr) -> None:
        """Note the names without a table where there is one row only; refuse those of the other row."""
        if rows is s.MergeRows.MATCHED:
            return
        has_source = rows is s.MergeRows.NOT_MATCHED
        table, other = (self._source, self._target) if has_source else (self._target, self._source)
        for node in tree.find_all(exp.Column, exp.Func):
            is_name = isinstance(node, exp.Column) or WORD in node.meta
            if not is_name or node.find_ancestor(exp.Query) is not None or _is_of_lambda(node):
                continue
            if not isinstance(node, exp.Column):
                word, start, end = node.meta[WORD], node.meta[START], node.meta[END]
                self._names.append(s.BareName(rows, word, start, end, table, word in _CONSTANTS))
                continue
            if isinstance(node.this, exp.Star):
                continue
            qualifier, first = _qualifier(node), node.parts[0]
            start, end = first.meta[START], first.meta[END] + 1
            if qualifier == other.lower() or (has_source and self._is_target(qualifier)):
                raise SchemaError(
                    f"{self._cursor.subject}: {rows} has no row of {other!r}, found {spelled(node)!r} "
                    f"at {position(self._cursor.text, start)}; use columns of {table!r}"
                )
            if table.lower() in qualifier.split(".") or (not has_source and self._is_target(qualifier)):
                continue
            name, is_alone = first.name.lower(), not qualifier and not first.args.get("quoted")
            is_word = is_alone and name in _CONSTANTS
            self._names.append(s.BareName(rows, name, start, end, table, is_word))


_APPLIES: Final = {
    s.MergeRows.MATCHED: f"`{s.IN_TARGET}` AND `{s.IN_SOURCE}`",
    s.MergeRows.NOT_MATCHED: f"`{s.IN_SOURCE}` AND `{s.IN_TARGET}` IS NULL",
    s.MergeRows.NOT_MATCHED_BY_SOURCE: f"`{s.IN_TARGET}` AND `{s.IN_SOURCE}` IS NULL",
}
"""Whether a row of the join is one of a clause's."""


def _is_of_lambda(node: exp.Expr) -> bool:
    """Whether a name is that of a lambda's parameter, in any case: sqlglot has others as columns."""
    first = node.parts[0].name if isinstance(node, exp.Column) else node.meta[WORD]
    around = node.parent
    while around is not None:
        if isinstance(around, exp.Lambda) and any(
            first.lower() == one.name.lower() for one in around.expressions
        ):
            return True
        around = around.parent
    return False


def _qualifier(column: exp.Column) -> str:
    return ".".join(part.name for part in column.parts[:-1]).lower()
