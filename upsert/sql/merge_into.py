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
table are those of the one row that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from upsert.errors import SchemaError
from upsert.sql import statements as s
from upsert.sql.dialect import START, Edit, expression_tree, position
from upsert.sql.query import QueryText
from upsert.sql.tokens import Cursor, blanked, names, table_name, without_hints
from upsert.types import quoted

_CONSTANTS: Final = frozenset(
    {"current_catalog", "current_database", "current_date", "current_schema", "current_time"}
    | {"current_timestamp", "current_user", "localtimestamp", "session_user", "user"}
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


class _Merge:
    """A statement that is being read, and the edits that make a query of it."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._edits = [Edit(cursor.first, cursor.reached, f"FROM (SELECT *, true AS `{s.IN_TARGET}` FROM")]
        self._clauses: list[s.MergeClause] = []
        self._unconditional: set[s.MergeRows] = set()
        self._defaults: set[int] = set()

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
        self._source = self._alias(start, cursor.reached)
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
            self._qualify(rows, self._tree(begins))
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
        return s.Merge(self._name, tuple(self._clauses), query, equal, self._only_equal, self._hints)

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
                    "of it; name the columns"
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
        columns = names(cursor)
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
        self._qualify(rows, tree)
        self._edits.append(
            Edit(cursor.reached, cursor.reached, f") END AS `{s.CLAUSE_VALUE.format(number, place)}`")
        )
        if not isinstance(tree, exp.Column):
            return None
        qualifier = _qualifier(tree)
        is_source = qualifier == self._source.lower() or (not qualifier and rows is s.MergeRows.NOT_MATCHED)
        return tree.name.lower() if is_source else None

    def _set_column(self) -> str:
        """Read the column of an assignment, which may have the target's name before it."""
        cursor = self._cursor
        refusal = cursor.refusal(f"expected the name of a column of {self._target!r}")
        parts = [cursor.name("the name of a column")]
        while cursor.skip("."):
            parts.append(cursor.name("the name of a column"))
        if len(parts) > 1 and not self._is_target(".".join(parts[:-1]).lower()):
            raise refusal
        return parts[-1]

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

    def _alias(self, start: int, end: int) -> str:
        """What the source is called."""
        cursor = self._cursor
        edit = Edit(start, start, "SELECT * FROM ")
        tree = QueryText.of(cursor.text, start, end, cursor.subject, [edit]).tree
        source = tree.args.get("from_")
        if not isinstance(tree, exp.Select) or source is None or tree.args.get("joins"):
            raise SchemaError(
                f"{cursor.subject}: expected USING a table or a query in parentheses, found "
                f"{cursor.text[start:end]!r} at {position(cursor.text, start)}"
            )
        return source.this.alias_or_name or "_merge_source_rows"

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

    def _qualify(self, rows: s.MergeRows, tree: exp.Expr) -> None:
        """Where there is one row only, its table goes before the columns that name none."""
        if rows is s.MergeRows.MATCHED:
            return
        has_source = rows is s.MergeRows.NOT_MATCHED
        table, other = (self._source, self._target) if has_source else (self._target, self._source)
        for column in tree.find_all(exp.Column):
            if column.find_ancestor(exp.Query) is not None or isinstance(column.this, exp.Star):
                continue
            qualifier, first = _qualifier(column), column.parts[0]
            at = first.meta[START]
            if qualifier == table.lower() or _is_of_lambda(column):
                continue
            is_other = qualifier == other.lower() or (has_source and self._is_target(qualifier))
            if is_other:
                raise SchemaError(
                    f"{self._cursor.subject}: {rows} has no row of {other!r}, found {column.sql('spark')!r} "
                    f"at {position(self._cursor.text, at)}; use columns of {table!r}"
                )
            is_constant = not qualifier and not first.args.get("quoted") and column.name.lower() in _CONSTANTS
            is_table = table.lower() in qualifier.split(".") or (
                not has_source and self._is_target(qualifier)
            )
            if not is_constant and not is_table:
                self._edits.append(Edit(at, at, f"{quoted(table)}."))


_APPLIES: Final = {
    s.MergeRows.MATCHED: f"`{s.IN_TARGET}` AND `{s.IN_SOURCE}`",
    s.MergeRows.NOT_MATCHED: f"`{s.IN_SOURCE}` AND `{s.IN_TARGET}` IS NULL",
    s.MergeRows.NOT_MATCHED_BY_SOURCE: f"`{s.IN_TARGET}` AND `{s.IN_SOURCE}` IS NULL",
}
"""Whether a row of the join is one of a clause's."""


def _is_of_lambda(column: exp.Column) -> bool:
    """Whether a name is that of a lambda's parameter, in any case: sqlglot has others as columns."""
    name, node = column.parts[0].name.lower(), column.parent
    while node is not None:
        if isinstance(node, exp.Lambda) and any(name == one.name.lower() for one in node.expressions):
            return True
        node = node.parent
    return False


def _qualifier(column: exp.Column) -> str:
    return ".".join(part.name for part in column.parts[:-1]).lower()
