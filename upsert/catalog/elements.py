"""What stands between the parentheses of CREATE TABLE: columns, the primary key, indexes (pure)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa

from upsert.catalog.tokens import Cursor
from upsert.catalog.type_names import read_type
from upsert.errors import SchemaError
from upsert.schema import Column, Index

_COLUMN_REFUSALS: Final = {
    "AS": "computed columns are not supported yet",
    "GENERATED": "computed columns are not supported yet",
    "VIRTUAL": "VIRTUAL belongs to METADATA; write METADATA [FROM 'key'] VIRTUAL",
    "DEFAULT": "DEFAULT values are not supported yet",
    "COLLATE": "collations are not supported: strings are compared by their bytes",
    "UNIQUE": "a column is not UNIQUE by itself; add UNIQUE INDEX (column)",
    "CHECK": "CHECK is not supported: rows are not checked against conditions",
    "REFERENCES": "foreign keys are not supported",
}
_CONSTRAINT_REFUSALS: Final = {
    "UNIQUE": "UNIQUE belongs to an index; write UNIQUE INDEX (column, …)",
    "CHECK": "CHECK is not supported: rows are not checked against conditions",
    "FOREIGN": "foreign keys are not supported",
}


class Elements:
    """Columns, the primary key and indexes, gathered one at a time by ``read``."""

    def __init__(self, cursor: Cursor) -> None:
        self.columns: list[Column] = []
        self.indexes: list[Index] = []
        self.primary_key: tuple[str, ...] = ()
        self._cursor = cursor

    def read(self) -> None:
        """Read one element."""
        cursor = self._cursor
        self._refuse_constraints()
        if cursor.ahead("CONSTRAINT") and cursor.word(2) == "PRIMARY" and cursor.word(4) == "(":
            self._constraint()
        elif cursor.skip("PRIMARY", "KEY"):
            self._table_key()
        elif self._index_ahead():
            self._index()
        elif cursor.ahead("WATERMARK", "FOR"):
            raise cursor.refusal("WATERMARK is not supported yet; use withWatermark() on the DataFrame")
        else:
            self._column()

    def _refuse_constraints(self) -> None:
        cursor = self._cursor
        is_named = cursor.ahead("CONSTRAINT")
        word, next_word = cursor.word(2 if is_named else 0), cursor.word(3 if is_named else 1)
        if word in _CONSTRAINT_REFUSALS and next_word in ("(", "KEY"):
            raise cursor.refusal(_CONSTRAINT_REFUSALS[word])

    def _constraint(self) -> None:
        cursor = self._cursor
        cursor.expect("CONSTRAINT")
        cursor.name("the name of a constraint")
        cursor.expect("PRIMARY", "KEY")
        self._table_key()

    def _table_key(self) -> None:
        columns = names(self._cursor)
        self._not_enforced(f"PRIMARY KEY ({', '.join(columns)})")
        self._set_key(columns)

    def _not_enforced(self, what: str) -> None:
        if not self._cursor.skip("NOT", "ENFORCED"):
            raise self._cursor.refusal(
                "a primary key is not checked: a row replaces the one with its key; "
                f"expected {what} NOT ENFORCED"
            )

    def _set_key(self, columns: tuple[str, ...]) -> None:
        if self.primary_key:
            raise SchemaError(
                f"{self._cursor.subject}: PRIMARY KEY is declared twice; "
                f"for a key of several columns write PRIMARY KEY (column, …) NOT ENFORCED"
            )
        self.primary_key = columns

    def _index_ahead(self) -> bool:
        """``[UNIQUE] INDEX (a)`` or ``[UNIQUE] INDEX n (a)``; but ``index DECIMAL(10)`` is a column."""
        cursor = self._cursor
        if cursor.ahead("INDEX", "(") or cursor.ahead("UNIQUE", "INDEX"):
            return True
        return cursor.ahead("INDEX") and cursor.is_name(1) and cursor.word(2) == "(" and cursor.is_name(3)

    def _index(self) -> None:
        cursor = self._cursor
        unique = cursor.skip("UNIQUE")
        cursor.expect("INDEX")
        name = None if cursor.ahead("(") else cursor.name("the name of an index")
        columns = names(cursor)
        index = Index.over(columns, unique=unique)
        self.indexes.append(index if name is None else replace(index, name=name))

    def _column(self) -> None:
        cursor = self._cursor
        column = Column(cursor.name("a column, PRIMARY KEY or INDEX"), self._type())
        while not (cursor.at_end or cursor.ahead(",") or cursor.ahead(")")):
            if cursor.skip("NOT", "NULL"):
                column = replace(column, nullable=False)
            elif column.comment is None and cursor.skip("COMMENT"):
                column = replace(column, comment=cursor.string("a comment in quotes"))
            elif column.metadata is None and cursor.skip("METADATA"):
                column = self._metadata(column)
            else:
                self._column_key(column.name)
        self.columns.append(column)

    def _type(self) -> pa.DataType:
        self._refuse_column_features()
        return read_type(self._cursor)

    def _metadata(self, column: Column) -> Column:
        """``METADATA [FROM 'key'] [VIRTUAL]``: the key is the column's name unless it is given."""
        cursor = self._cursor
        key = cursor.string("a metadata key in quotes") if cursor.skip("FROM") else column.name
        return replace(column, metadata=key, virtual=cursor.skip("VIRTUAL"))

    def _column_key(self, name: str) -> None:
        cursor = self._cursor
        if cursor.skip("CONSTRAINT"):
            cursor.name("the name of a constraint")
        if not cursor.skip("PRIMARY", "KEY"):
            self._refuse_column_features()
            raise cursor.refusal(
                "expected NOT NULL, METADATA [FROM 'key'] [VIRTUAL], PRIMARY KEY NOT ENFORCED, COMMENT, or "
                "the next column"
            )
        self._not_enforced("PRIMARY KEY")
        self._set_key((name,))

    def _refuse_column_features(self) -> None:
        for word, reason in _COLUMN_REFUSALS.items():
            if self._cursor.ahead(word):
                raise self._cursor.refusal(reason)


def names(cursor: Cursor) -> tuple[str, ...]:
    """Read the names of columns, separated by commas, in parentheses."""
    return tuple(cursor.listed(lambda: cursor.name("the name of a column")))
