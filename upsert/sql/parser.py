"""SQL text to a statement object (pure).

One statement a text: of two, the second could fail after the first was executed; `upsert.catalog.script`
splits a file into statements. What follows CREATE and ALTER of tables and views is read in modules of their
own, queries in `upsert.sql.query`. docs/sql.md lists all statements.

``DELETE FROM`` and ``UPDATE`` have the query of the rows that they change, in the statement's own text: a few
words of it are exchanged, so that Spark reads the user's expressions, and errors have their places::

    DELETE FROM t WHERE c                SELECT * FROM t WHERE c
    UPDATE t SET a = x, b = y WHERE c    SELECT *, x AS `_new_value_0`, y AS `_new_value_1` FROM t WHERE c

That of ``MERGE INTO`` is made in `upsert.sql.merge_into`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, Literal

from sqlglot.tokenizer_core import TokenType

from upsert.errors import SchemaError
from upsert.sql import statements as s
from upsert.sql.dialect import Edit, expression_tree, position, refusal, tokens_of, too_deep
from upsert.sql.merge_into import merge_into
from upsert.sql.query import QueryText, query_at
from upsert.sql.statements import Statement
from upsert.sql.table_statements import (
    alter_table,
    alter_view,
    create_plain_view,
    create_table,
    create_view,
)
from upsert.sql.tokens import (
    NAME,
    NAME_RULE,
    Cursor,
    blanked,
    dotted,
    head_of_set,
    literal,
    names,
    options,
    partition,
    table_name,
    without_hints,
    written_partition,
)
from upsert.types import quoted


def _create_catalog(cursor: Cursor) -> s.CreateCatalog:
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    name = _catalog(cursor)
    cursor.subject = f"CREATE CATALOG {name}"
    cursor.expect("WITH")
    return s.CreateCatalog(name, options(cursor), if_not_exists)


def _create_database(cursor: Cursor) -> s.CreateDatabase:
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    return s.CreateDatabase(_database(cursor), if_not_exists)


def _drop_database(cursor: Cursor) -> s.DropDatabase:
    if_exists = cursor.skip("IF", "EXISTS")
    name = _database(cursor)
    cascade = cursor.skip("CASCADE")
    if not cascade:
        cursor.skip("RESTRICT")
    return s.DropDatabase(name, if_exists, cascade)


def _drop(
    statement: Callable[[str, bool], Statement], read_name: Callable[[Cursor], str]
) -> Callable[[Cursor], Statement]:
    """What reads ``[IF EXISTS] name``."""

    def read(cursor: Cursor) -> Statement:
        if_exists = cursor.skip("IF", "EXISTS")
        return statement(read_name(cursor), if_exists)

    return read


def _use(cursor: Cursor) -> s.UseCatalog | s.UseDatabase:
    if cursor.is_name(1):
        if cursor.skip("CATALOG"):
            return s.UseCatalog(_catalog(cursor))
        cursor.skip("DATABASE")
    return s.UseDatabase(_database(cursor))


def _show_databases(cursor: Cursor) -> s.ShowDatabases:
    has_catalog = cursor.skip("FROM") or cursor.skip("IN")
    return s.ShowDatabases(catalog=_catalog(cursor) if has_catalog else None)


def _shown_of(cursor: Cursor) -> tuple[str | None, str | None]:
    """The database and the pattern of SHOW TABLES."""
    has_database = cursor.skip("FROM") or cursor.skip("IN")
    database = _database(cursor) if has_database else None
    return database, cursor.string("a pattern in quotes") if cursor.skip("LIKE") else None


def _catalog(cursor: Cursor) -> str:
    return cursor.name("the name of a catalog")


def _database(cursor: Cursor) -> str:
    first = cursor.name("the name of a database")
    return f"{first}.{cursor.name('the name of a database')}" if cursor.skip(".") else first


def _delete(cursor: Cursor) -> s.Delete:
    head = Edit(cursor.first, cursor.reached, "SELECT * FROM")
    hints, name, _ = _target(cursor, "DELETE FROM")
    if cursor.at_end:
        return s.Delete(name, None, hints)
    if cursor.ahead("USING"):
        raise cursor.refusal("the condition is of the row alone; use WHERE … IN (SELECT …), or MERGE INTO")
    refusal = cursor.refusal("expected WHERE")
    alias = _alias(cursor, "WHERE")
    if not cursor.skip("WHERE"):
        raise refusal  # also after an alias: all rows go only if nothing else was written
    start = cursor.offset
    cursor.raw("a condition", lambda: False)
    tree = expression_tree(blanked(cursor.text, start, cursor.reached), cursor.subject)
    return s.Delete(name, tree, hints, _query_of_rows(cursor, [head], start), alias)


def _truncate(cursor: Cursor) -> s.TruncateTable:
    hints, name, _ = _target(cursor, "TRUNCATE TABLE")
    spec = partition(cursor) if cursor.skip("PARTITION") else None
    return s.TruncateTable(name, spec, hints | cursor.hint())


def _update(cursor: Cursor) -> s.Update:
    hints, name, table = _target(cursor, "UPDATE")
    if alias := _alias(cursor, "SET"):
        table = f"{table} AS {quoted(alias)}"
    named = cursor.offset
    cursor.expect("SET")
    edits, columns = [Edit(cursor.first, cursor.reached, "SELECT *,")], list[str]()
    defaults = set[str]()
    while True:
        start = cursor.offset
        columns.append(_set_column(cursor, alias or name))
        cursor.expect("=")
        edits.append(Edit(start, cursor.reached, ""))
        begins = cursor.offset
        if cursor.raw("an expression", lambda: _ends_value(cursor)).upper() == s.DEFAULT:
            defaults.add(columns[-1])
            edits.append(Edit(begins, cursor.reached, "NULL"))
        expression_tree(blanked(cursor.text, begins, cursor.reached), cursor.subject)
        value = s.NEW_VALUE.format(len(columns) - 1)
        source = "" if cursor.ahead(",") else f" FROM {table} "
        edits.append(Edit(cursor.reached, cursor.reached, f" AS `{value}`{source}"))
        if not cursor.skip(","):
            break
    if cursor.ahead("FROM"):
        raise cursor.refusal("the values are of the row alone; MERGE INTO takes those of another table")
    if not cursor.at_end:
        cursor.expect("WHERE")
        cursor.raw("a condition", lambda: False)
    return s.Update(name, tuple(columns), _query_of_rows(cursor, edits, named), hints, frozenset(defaults))


def _target(cursor: Cursor, what: str) -> tuple[dict[str, str], str, str]:
    """Options of the hint, the table's name, and the name as it is written."""
    before = cursor.hint()
    start = cursor.offset
    name = table_name(cursor)
    written = cursor.text[start : cursor.reached]
    cursor.subject = f"{what} {name}"
    return before | cursor.hint(), name, written


def _alias(cursor: Cursor, before: str) -> str:
    """The alias of the table of a statement, empty for none; ``before`` is the word that comes next."""
    has_word = cursor.skip("AS")
    is_alias = has_word or (cursor.is_name(0) and not cursor.ahead(before))
    return cursor.name("an alias") if is_alias else ""


def _ends_value(cursor: Cursor) -> bool:
    return cursor.ahead("WHERE") or (cursor.ahead("FROM") and cursor.word(-1) not in ("DISTINCT", ":"))


def _set_column(cursor: Cursor, table: str) -> str:
    """The column that gets a value, which may have the table's name or alias before it."""
    refusal = cursor.refusal("expected a column; a field of a struct gets a value with the whole struct")
    *before, column = dotted(cursor, "the name of a column")
    if before and not f".{table}".lower().endswith("." + ".".join(before).lower()):
        raise refusal
    return column


def _query_of_rows(cursor: Cursor, edits: list[Edit], named: int) -> QueryText:
    """The query of a statement whose table has been ``named``, with hints that are those of the write."""
    text = without_hints(cursor.text, cursor.subject, until=named)
    return QueryText.of(text, cursor.first, cursor.reached, cursor.subject, edits)


_OF_JAVA: Final = ("JAVA", "SCALA")


def _create_function(cursor: Cursor, *, replaces: bool = False) -> s.CreateFunction:
    """Read what follows ``CREATE [OR REPLACE] TEMPORARY [SYSTEM] FUNCTION``."""
    before = cursor.refusal("either OR REPLACE or IF NOT EXISTS, not both")
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    if replaces and if_not_exists:
        raise before
    name = _function(cursor)
    cursor.subject = f"function {name!r}"
    if cursor.ahead("("):
        start, end = cursor.rest()
        return s.CreateFunction(name, cursor.text[start:end].rstrip(), False, if_not_exists, replaces)
    start = cursor.offset
    if not (cursor.skip("AS") and cursor.is_string(0)):
        raise cursor.refusal(
            "expected (name type, …) RETURNS type RETURN expression, or AS 'module.function' LANGUAGE PYTHON"
        )
    path = cursor.string("what defines the function, in quotes")
    body = cursor.text[start : cursor.reached]
    if cursor.skip("LANGUAGE"):
        if cursor.skip("PYTHON"):
            return s.CreateFunction(name, path, True, if_not_exists, replaces)
        if not any(cursor.skip(language) for language in _OF_JAVA):
            raise cursor.refusal(f"expected one of PYTHON, {', '.join(_OF_JAVA)}")
    start, end = cursor.rest()
    body = f"{body} {cursor.text[start:end]}".rstrip()
    return s.CreateFunction(name, body, False, if_not_exists, replaces)


def _function(cursor: Cursor) -> str:
    wrong = cursor.refusal(f"expected the name of a function, {NAME_RULE}")
    name = cursor.name("the name of a function")
    if not NAME.fullmatch(name):
        raise wrong
    return name


def _show_functions(cursor: Cursor, kind: Literal["USER", "SYSTEM", "ALL"] = "ALL") -> s.ShowFunctions:
    return s.ShowFunctions(kind, cursor.string("a pattern in quotes") if cursor.skip("LIKE") else None)


def _change_variable(cursor: Cursor) -> s.ChangeVariable:
    what = cursor.subject
    cursor.rest()
    return s.ChangeVariable(what, cursor.text[cursor.first : cursor.reached])


_BLANK: Final = r"(?:[\s\ufeff]++|--[^\n]*+\n|/\*(?:[^*]|\*(?!/))*+\*/)*+"
"""White, the mark that begins a file, comments; possessive: what was read as one is nothing else."""

_ASSIGNMENT_HEAD: Final = re.compile(rf"{_BLANK}(SET|RESET)\b\s*+", re.IGNORECASE)

_OF_VARIABLE: Final = re.compile(rf"{_BLANK}VAR(?:IABLE)?\b{_BLANK}[\w`(]", re.IGNORECASE)

_ZONE: Final = re.compile(rf"TIME{_BLANK}ZONE\b", re.IGNORECASE)
_OF_ZONE: Final = "; a time zone is set by SET spark.sql.session.timeZone = 'UTC'"

_SET_HEAD: Final = re.compile(rf"{_BLANK}(?:EXPLAIN|EXECUTE|BEGIN)\b", re.IGNORECASE)

_ASSIGNMENT: Final = re.compile(
    r"(?:'(?P<quoted>(?:[^']|'')*)'|(?P<key>[\w.\-]+))\s*(?:=\s*(?P<value>'(?:[^']|'')*'|[^'].*)?)?",
    re.DOTALL,
)

_DATABASE_WORDS: Final = ("DATABASE", "SCHEMA")

_QUERY_WORDS: Final = ("SELECT", "WITH", "VALUES", "FROM", "TABLE", "(")
"""The first word of a query, which is a part of it."""


def parse(text: str) -> Statement:
    """The one statement of a text.

    Raises:
        SchemaError: it is none, or one that is not supported; the message has the position.

    >>> statement = parse("CREATE TABLE t (id BIGINT, v STRING, PRIMARY KEY (id) NOT ENFORCED, INDEX (v))")
    >>> statement.name, statement.schema.primary_key, str(statement.schema.indexes[0])
    ('t', ('id',), 'INDEX INDEX_v (v)')
    >>> parse("DROP TABLE IF EXISTS t")
    DropTable(name='t', if_exists=True, must_be_temporary=False)
    >>> parse("SET table-storage.bucket = 10").key
    'table-storage.bucket'
    """
    _check_letters(text)
    if (assignment := _assignment(text)) is not None:
        return assignment
    try:
        if _SET_HEAD.match(text) and (found := _statement_set(text)) is not None:
            return found
        cursor = Cursor(text)
        statement = _at(cursor)
    except RecursionError:
        raise too_deep("statement") from None
    if not cursor.at_end:
        raise cursor.refusal("expected the end of the statement")
    return statement


def _check_letters(text: str) -> None:
    """Refuse what Python makes of bytes that are not UTF-8: neither files nor Spark take it."""
    try:
        text.encode()
    except UnicodeEncodeError as cause:
        raise SchemaError(
            f"statement: must be a text of UTF-8, found {text[cause.start]!r} at "
            f"{position(text, cause.start)}; write it in UTF-8"
        ) from None


def _at(cursor: Cursor) -> Statement:
    """Read the statement that comes next."""
    for words, read in _STATEMENTS.items():
        if cursor.ahead(*words):
            cursor.subject = " ".join(words)
            if words[0] not in _QUERY_WORDS:
                cursor.skip(*words)
            return read(cursor)
    head = cursor.head(_HEAD_WORDS)
    if not head.replace(" ", "").isalpha():
        raise cursor.refusal(f"expected a statement, one of {_NAMES}")
    first, *more = head.split()
    for count in range(len(more), -1, -1):  # the last words may be a name
        if (instead := _INSTEAD.get(called := " ".join((first, *more[:count])))) is not None:
            raise SchemaError(f"{called} is not supported; {instead}")
    if first in (begins := {words[0] for words in _STATEMENTS}):
        written = head if more else f"{head} {cursor.word(1)}".strip()
        two = {" ".join(words[:2]) for words in _STATEMENTS if words[1:2] != ("OR",)}
        close = get_close_matches(written, two, n=1, cutoff=0.8) if " " in written else []
    else:
        written, close = first, get_close_matches(first, begins, n=1, cutoff=0.7)
    if close and close[0] != written:
        raise SchemaError(f"{written} is no statement; did you mean {close[0]}?")
    if longer := [name for name in map(" ".join, _STATEMENTS) if name.startswith(f"{head} ")]:
        raise SchemaError(f"{head} is no whole statement; there are {', '.join(longer)}")
    raise SchemaError(f"{head} is not supported: statements are {_NAMES}")


def _assignment(text: str) -> Statement | None:
    """``SET …`` and ``RESET …``, whose keys and values need no quotes."""
    match = _ASSIGNMENT_HEAD.match(text)
    if match is None:
        return None
    word = match[1].upper()
    rest = text[match.end() :].rstrip().removesuffix(";").rstrip()
    if word == "SET" and _OF_VARIABLE.match(rest):
        return None
    if not rest:
        return s.ShowOptions() if word == "SET" else s.ResetOption()
    found = _ASSIGNMENT.fullmatch(rest)
    if found is None:
        hint = _OF_ZONE if _ZONE.match(rest) else ""
        raise SchemaError(f"{word}: expected 'key' = 'value', found {_start_of(rest)!r}{hint}")
    key = found["key"] or found["quoted"].replace("''", "'")
    if word == "RESET":
        if "=" in rest:
            raise SchemaError(f"RESET: expected a key alone, found {_start_of(rest)!r}")
        return s.ResetOption(key)
    if found["value"] is None:
        if "=" in rest:
            raise SchemaError(f"SET: expected a value of {key!r}; RESET {key} gives it its default back")
        return s.ShowOptions(key)
    value = found["value"].strip()
    is_quoted = value.startswith("'") and len(value) > 1
    return s.SetOption(key, value[1:-1].replace("''", "'") if is_quoted else value)


def _start_of(text: str) -> str:
    """What a message may show of an option: never its value."""
    return text.partition("=")[0][:60].strip()


def _show_partitions(cursor: Cursor) -> s.ShowPartitions:
    name = table_name(cursor)
    return s.ShowPartitions(name, partition(cursor) if cursor.skip("PARTITION") else {})


def _describe(cursor: Cursor) -> s.DescribeTable | s.DescribeJob | s.DescribeFunction:
    if cursor.ahead("JOB") and cursor.is_string(1):
        cursor.expect("JOB")
        return s.DescribeJob(cursor.string("the id or the name of a job in quotes"))
    if cursor.ahead("FUNCTION") and cursor.is_name(1):
        cursor.expect("FUNCTION")
        is_extended = cursor.is_name(1) and cursor.skip("EXTENDED")
        return s.DescribeFunction(cursor.name("the name of a function"), is_extended)
    if cursor.ahead("HISTORY") and cursor.is_name(1):
        raise SchemaError("DESCRIBE HISTORY is not supported; write SELECT * FROM t$snapshots")
    is_extended = cursor.skip("DETAIL")
    if cursor.is_name(1):
        cursor.skip("TABLE")
    if cursor.is_name(1):
        is_extended = cursor.skip("EXTENDED") or cursor.skip("FORMATTED") or is_extended
    name = table_name(cursor)
    return s.DescribeTable(name, is_extended, partition(cursor) if cursor.skip("PARTITION") else None)


def _insert(cursor: Cursor) -> s.Insert:
    begins = cursor.first
    overwrite = cursor.skip("OVERWRITE")
    if not overwrite:
        cursor.expect("INTO")
    hints = cursor.hint()
    if cursor.is_name(1):
        cursor.skip("TABLE")
    head, start = Edit(begins, cursor.reached, "SELECT * FROM"), cursor.offset
    name = table_name(cursor)
    written = cursor.text[start : cursor.reached]
    cursor.subject = f"INSERT {'OVERWRITE' if overwrite else 'INTO'} {name}"
    hints |= cursor.hint()
    named, by_name = cursor.reached, cursor.ahead("BY", "NAME", "REPLACE") and cursor.skip("BY", "NAME")
    if cursor.ahead("REPLACE"):
        hints |= cursor.hint()
        replaced = _replaced(cursor, head, written, named, overwrite=overwrite)
        hints |= cursor.hint()
        return s.Insert(name, query_at(cursor), None, {}, hints, by_name=by_name, replaced=replaced)
    values, dynamic = written_partition(cursor) if cursor.skip("PARTITION") else ({}, ())
    by_name = cursor.skip("BY", "NAME")
    columns = names(cursor) if not by_name and _columns_ahead(cursor) else None
    hints |= cursor.hint()
    return s.Insert(name, query_at(cursor), columns, values, hints, overwrite, dynamic, by_name)


def _replaced(cursor: Cursor, head: Edit, table: str, named: int, *, overwrite: bool) -> s.Replaced:
    """Read ``REPLACE WHERE condition``, of a statement whose table has been ``named``."""
    if overwrite or not cursor.ahead("REPLACE", "WHERE"):
        raise cursor.refusal("REPLACE is supported as INSERT INTO t REPLACE WHERE condition query alone")
    word = cursor.offset
    cursor.expect("REPLACE")
    begins = cursor.offset
    cursor.expect("WHERE")
    condition = cursor.raw("a condition", lambda: _begins_query(cursor))
    rows = _query_of_rows(cursor, [head, Edit(named, begins, " ")], word)
    tested = Edit(head.start, cursor.reached, f"SELECT *, ({condition}) AS `{s.FITS}` FROM {table}")
    if len(rows.references) > 1 or rows.parameters or rows.is_numbered:
        raise SchemaError(
            f"{cursor.subject}: the condition of REPLACE WHERE must be of the row alone, without subqueries "
            "and parameters; use MERGE INTO"
        )
    return s.Replaced(rows, _query_of_rows(cursor, [tested], word))


def _begins_query(cursor: Cursor) -> bool:
    if cursor.ahead("TABLE"):
        return cursor.is_name(1)
    is_compared = cursor.ahead("FROM") and cursor.word(-1) == "DISTINCT"
    return not is_compared and any(map(cursor.ahead, ("SELECT", "WITH", "VALUES", "FROM")))


def _statement_set(text: str) -> s.StatementSet | s.Explain | None:
    """The statement set of a text, or its EXPLAIN; None if it begins as another statement."""
    subject = "EXECUTE STATEMENT SET"
    tokens = tokens_of(text, subject)
    if not (head := head_of_set(tokens)):
        return None
    expected = "expected INSERT … and a semicolon, or END after the last one"
    found: list[s.Insert] = []
    first = head + (len(tokens) > head and tokens[head].token_type is TokenType.SEMICOLON)
    for number in range(first, len(tokens)):
        if tokens[number].token_type is TokenType.SEMICOLON and tokens[first].text.upper() != "END":
            if tokens[first].text.upper() != "INSERT":
                raise refusal(subject, expected, text, tokens[first])
            # all around it is white, so errors have their places in the whole text
            cursor = Cursor(blanked(text, tokens[first].start, tokens[number].start), subject)
            cursor.expect("INSERT")
            found.append(_insert(cursor))
            first = number + 1
    last = [one.text.upper() for one in tokens[first:]]
    if last[:1] != ["END"] or not found:
        raise refusal(subject, expected, text, tokens[first] if last else None)
    if any(word != ";" for word in last[1:]):
        raise refusal(subject, "expected the end of the statement", text, tokens[first + 1])
    words = [token.text.upper() for token in tokens[:head]]
    whole = s.StatementSet(tuple(found))
    return s.Explain(whole, "JSON" in words) if words[0] == "EXPLAIN" else whole


def _columns_ahead(cursor: Cursor) -> bool:
    """``(a, b) SELECT …``; but ``(SELECT …)`` is a query."""
    is_query = cursor.word(1) in _QUERY_WORDS and cursor.word(2) not in (",", ")")
    return cursor.ahead("(") and cursor.is_name(1) and not is_query


def _select(cursor: Cursor) -> s.Select:
    cursor.subject = "query"
    return s.Select(query_at(cursor))


def _explain(cursor: Cursor) -> s.Explain | s.ExplainView:
    """``EXPLAIN`` of a statement with a query, or of a view."""
    cursor.skip("PLAN", "FOR")
    is_json = False
    if cursor.skip("FORMAT"):
        cursor.skip("=")
        is_json = cursor.skip("JSON")
        if not is_json and not cursor.skip("TEXT"):
            raise cursor.refusal("expected TEXT or JSON")
    if cursor.skip("MATERIALIZED", "VIEW"):
        return s.ExplainView(table_name(cursor), is_json)
    if cursor.word(0) in _DETAILS:
        raise cursor.refusal("there is one form, and FORMAT JSON; leave the word out")
    head = "" if cursor.at_end else cursor.head(_HEAD_WORDS)
    if cursor.at_end or cursor.word(0) in {words[0] for words in _STATEMENTS}:
        match explained := _at(cursor):
            case s.CreateView():
                return s.ExplainView(explained, is_json)
            case s.Select() | s.Insert() | s.Merge() | s.CreateTableAs():
                return s.Explain(explained, is_json)
    raise SchemaError(
        "EXPLAIN: the statement must be SELECT, INSERT, MERGE, [CREATE] MATERIALIZED VIEW or "
        f"CREATE TABLE … AS, or a statement set, got {head}; SHOW and DESCRIBE show what tables are"
    )


_DETAILS: Final = (
    *("ANALYZE", "CODEGEN", "COST", "EXTENDED", "FORMATTED"),  # Spark's
    *("CHANGELOG_MODE", "ESTIMATED_COST", "JSON_EXECUTION_PLAN", "PLAN_ADVICE"),  # Flink's
)

_SYSTEM: Final = ("SYS", "SYSTEM")
"""Paimon's and Iceberg's database of procedures, which may stand before a name."""


def _call(cursor: Cursor) -> s.Call:
    if cursor.word(0) in _SYSTEM and cursor.word(1) == ".":
        cursor.skip(cursor.word(0), ".")
    procedure = cursor.name("the name of a procedure").lower()
    cursor.subject = f"CALL {procedure}"
    if cursor.skip("(", ")"):
        return s.Call(procedure)

    def read() -> s.Argument:
        name = None
        if cursor.is_name(0) and cursor.word(1) == "=>":
            name = cursor.name("the name of an argument").lower()
            cursor.skip("=>")
        elif any(one.name is not None for one in found):
            raise cursor.refusal("expected name => value, for an argument before it has a name")
        found.append(s.Argument(name, _argument(cursor)))
        return found[-1]

    found: list[s.Argument] = []
    return s.Call(procedure, tuple(cursor.listed(read)))


def _argument(cursor: Cursor) -> Any:
    """A literal, or the name of a table."""
    if cursor.ahead("TIMESTAMP") and cursor.is_string(1):
        cursor.skip("TIMESTAMP")
        return cursor.string("a time")
    is_literal = cursor.word(0) in ("TRUE", "FALSE", "NULL") or (cursor.ahead("DATE") and cursor.is_string(1))
    return table_name(cursor) if cursor.is_name(0) and not is_literal else literal(cursor)


def _show_procedures(cursor: Cursor) -> s.ShowProcedures:
    return s.ShowProcedures(cursor.string("a pattern in quotes") if cursor.skip("LIKE") else None)


_TEMPORARY: Final = ("TEMPORARY", "TEMP")
_VARIABLE: Final = ("VARIABLE", "VAR")
_OF_SESSION: Final = (("TEMPORARY",), ("TEMP",), ("TEMPORARY", "SYSTEM"))
"""Spark's words for a function without a database, and Flink's."""


def _stop_job(cursor: Cursor) -> s.StopJob:
    id = cursor.string("the id of a job in quotes, see SHOW JOBS")
    if cursor.ahead("WITH"):
        raise cursor.refusal("a job has its checkpoint, from which it continues; leave WITH … out")
    return s.StopJob(id)


_STATEMENTS: Final[Mapping[tuple[str, ...], Callable[[Cursor], Statement]]] = {
    ("CREATE", "OR", "REPLACE", "TABLE"): lambda cursor: create_table(cursor, replaces=True),
    ("CREATE", "TABLE"): create_table,
    ("CREATE", "OR", "REPLACE", "MATERIALIZED", "VIEW"): lambda cursor: create_view(cursor, replaces=True),
    ("CREATE", "MATERIALIZED", "VIEW"): create_view,
    ("EXPLAIN",): _explain,
    ("ALTER", "MATERIALIZED", "VIEW"): alter_view,
    ("REFRESH", "MATERIALIZED", "VIEW"): lambda cursor: s.RefreshView(table_name(cursor)),
    ("DROP", "MATERIALIZED", "VIEW"): _drop(s.DropView, table_name),
    ("SHOW", "MATERIALIZED", "VIEWS"): lambda cursor: s.ShowViews(*_shown_of(cursor)),
    ("CREATE", "VIEW"): create_plain_view,
    ("CREATE", "OR", "REPLACE", "VIEW"): partial(create_plain_view, replaces=True),
    **{("CREATE", word, "VIEW"): partial(create_plain_view, is_temporary=True) for word in _TEMPORARY},
    **{
        ("CREATE", "OR", "REPLACE", word, "VIEW"): partial(
            create_plain_view, replaces=True, is_temporary=True
        )
        for word in _TEMPORARY
    },
    ("DROP", "VIEW"): _drop(s.DropPlainView, table_name),
    **{
        ("DROP", word, "VIEW"): _drop(partial(s.DropPlainView, must_be_temporary=True), table_name)
        for word in _TEMPORARY
    },
    ("SHOW", "VIEWS"): lambda cursor: s.ShowPlainViews(*_shown_of(cursor)),
    ("SHOW", "CREATE", "VIEW"): lambda cursor: s.ShowCreateTable(table_name(cursor), must_be_view=True),
    ("CREATE", "CATALOG"): _create_catalog,
    ("DROP", "CATALOG"): _drop(s.DropCatalog, _catalog),
    **{("CREATE", word): _create_database for word in _DATABASE_WORDS},
    **{("DROP", word): _drop_database for word in _DATABASE_WORDS},
    **{
        ("CREATE", word, "TABLE"): lambda cursor: s.CreateTemporaryTable(create_table(cursor))
        for word in _TEMPORARY
    },
    **{
        ("DROP", word, "TABLE"): _drop(partial(s.DropTable, must_be_temporary=True), table_name)
        for word in _TEMPORARY
    },
    ("DROP", "TABLE"): _drop(s.DropTable, table_name),
    ("ALTER", "TABLE"): alter_table,
    ("USE",): _use,
    ("SHOW", "CATALOGS"): lambda _: s.ShowCatalogs(),
    ("SHOW", "CURRENT", "CATALOG"): lambda _: s.ShowCatalogs(only_current=True),
    **{("SHOW", f"{word}S"): _show_databases for word in _DATABASE_WORDS},
    **{("SHOW", "CURRENT", word): lambda _: s.ShowDatabases(only_current=True) for word in _DATABASE_WORDS},
    ("SHOW", "CREATE", "TABLE"): lambda cursor: s.ShowCreateTable(table_name(cursor)),
    ("SHOW", "TABLES"): lambda cursor: s.ShowTables(*_shown_of(cursor)),
    ("SHOW", "PARTITIONS"): _show_partitions,
    ("SHOW", "PROCEDURES"): _show_procedures,
    **{("CREATE", *words, "FUNCTION"): _create_function for words in _OF_SESSION},
    **{
        ("CREATE", "OR", "REPLACE", *words, "FUNCTION"): partial(_create_function, replaces=True)
        for words in _OF_SESSION
    },
    **{("DROP", *words, "FUNCTION"): _drop(s.DropFunction, _function) for words in _OF_SESSION},
    ("SHOW", "FUNCTIONS"): _show_functions,
    ("SHOW", "USER", "FUNCTIONS"): partial(_show_functions, kind="USER"),
    ("SHOW", "SYSTEM", "FUNCTIONS"): partial(_show_functions, kind="SYSTEM"),
    ("SHOW", "ALL", "FUNCTIONS"): partial(_show_functions, kind="ALL"),
    ("DECLARE",): _change_variable,
    **{("SET", word): _change_variable for word in _VARIABLE},
    **{("DROP", temporary, word): _change_variable for temporary in _TEMPORARY for word in _VARIABLE},
    ("SHOW", "JOBS"): lambda _: s.ShowJobs(),
    ("STOP", "JOB"): _stop_job,
    ("CALL",): _call,
    ("DESCRIBE",): _describe,
    ("DESC",): _describe,
    ("INSERT",): _insert,
    ("DELETE", "FROM"): _delete,
    ("TRUNCATE", "TABLE"): _truncate,
    ("UPDATE",): _update,
    ("MERGE", "INTO"): merge_into,
    **{(word,): _select for word in _QUERY_WORDS},
}
"""The first words of each statement, and what reads the rest of it."""

_NAMES: Final = (
    "CREATE TABLE, DROP TABLE, ALTER TABLE, CREATE VIEW, DROP VIEW, CREATE MATERIALIZED VIEW, "
    "REFRESH MATERIALIZED VIEW, EXPLAIN, "
    "CREATE CATALOG, DROP CATALOG, CREATE DATABASE, DROP DATABASE, USE, SHOW, DESCRIBE, INSERT, DELETE FROM, "
    "EXECUTE STATEMENT SET, UPDATE, TRUNCATE TABLE, MERGE INTO, SELECT, STOP JOB, CALL, SET, RESET"
)

_HEAD_WORDS: Final = frozenset(
    {"OR", "REPLACE", "GLOBAL", "TEMPORARY", "TEMP", "EXTERNAL", "MATERIALIZED", "STREAMING", "CURRENT"}
    | {"TABLE", "VIEW", "DATABASE", "SCHEMA", "CATALOG", "CATALOGS", "FUNCTION", "FUNCTIONS", "INDEX", "INTO"}
    | {"COLUMNS", "DATA", "DYNAMIC", "INDEXES", "JOB", "LIVE", "REFRESH", "SYSTEM", "TBLPROPERTIES"}
    | {"TRANSACTION"}
)
_REPLACING: Final = "write INSERT INTO t: a row replaces the earlier one of its key"
_COPYING: Final = "write INSERT INTO t SELECT * FROM parquet.`folder`, or csv, json, orc"
_COMMITTED: Final = "each statement is one commit; CALL rollback_to('t', snapshot) takes commits back"
_KEPT_FRESH: Final = "write CREATE MATERIALIZED VIEW; REFRESH in streaming mode keeps it fresh"
_STREAMED: Final = "write SET 'execution.runtime-mode' = 'streaming', then CREATE TABLE t AS"
_RIGHTS: Final = "rights are those of the file system or the object store"
_OF_A_SESSION: Final = "TEMPORARY FUNCTION: a function is one of the session"
_INSTEAD: Final = {
    "ADD": "libraries come with the session: --conf spark.jars.packages=… of the command",
    "ANALYZE TABLE": "leave it out: files have their counts and bounds",
    "APPLY": "write MERGE INTO, or a streaming INSERT INTO t: a row replaces the earlier one of its key",
    "BEGIN": _COMMITTED,
    "BEGIN TRANSACTION": _COMMITTED,
    "CANCEL JOB": "write STOP JOB 'id'",
    "COMMENT": "write ALTER TABLE t COMMENT 'text', or ALTER TABLE t ALTER COLUMN c COMMENT 'text'",
    "COMMIT": _COMMITTED,
    "CONVERT": "write CREATE TABLE t (PRIMARY KEY (id) NOT ENFORCED) AS SELECT * FROM parquet.`folder`",
    "COPY": _COPYING,
    "COPY INTO": _COPYING,
    "CREATE EXTERNAL TABLE": "write CREATE TABLE t (…) WITH ('connector' = 'parquet', 'path' = '…')",
    **dict.fromkeys(("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"), f"write CREATE {_OF_A_SESSION}"),
    "DROP FUNCTION": f"write DROP {_OF_A_SESSION}",
    "ALTER MATERIALIZED TABLE": "write ALTER MATERIALIZED VIEW",
    "ALTER VIEW": "write CREATE OR REPLACE VIEW v AS query",
    **{
        f"CREATE {again}{kind} TABLE": _KEPT_FRESH
        for again in ("", "OR REFRESH ", "OR REPLACE ")
        for kind in ("DYNAMIC", "LIVE", "MATERIALIZED")
    },
    "DROP MATERIALIZED TABLE": "write DROP MATERIALIZED VIEW",
    "CREATE INDEX": "write ALTER TABLE t ADD INDEX (column)",
    **dict.fromkeys(("CREATE STREAMING TABLE", "CREATE OR REFRESH STREAMING TABLE"), _STREAMED),
    "CREATE OR REFRESH MATERIALIZED VIEW": "write CREATE OR REPLACE MATERIALIZED VIEW",
    "DELETE": "write DELETE FROM t",
    "DROP INDEX": "write ALTER TABLE t DROP INDEX name",
    "FSCK": "write CALL check('t')",
    "GRANT": _RIGHTS,
    "LOAD DATA": _COPYING,
    "MSCK": "leave it out: a table knows its partitions",
    "OPTIMIZE": "write CALL compact('t')",
    "REFRESH": "write REFRESH MATERIALIZED VIEW v",
    "REFRESH VIEW": "write REFRESH MATERIALIZED VIEW v",
    "REFRESH TABLE": "leave it out: each query reads the newest snapshot",
    "REORG TABLE": "write CALL compact('t')",
    "REPLACE INTO": _REPLACING,
    "REPLACE TABLE": "write CREATE OR REPLACE TABLE t AS SELECT …",
    "RESTORE": "write CALL rollback_to('t', snapshot); t$snapshots lists them with their times",
    "RESTORE TABLE": "write CALL rollback_to('t', snapshot); t$snapshots lists them with their times",
    "REVOKE": _RIGHTS,
    "ROLLBACK": _COMMITTED,
    "SHOW COLUMNS": "write DESCRIBE t",
    "SHOW INDEX": "write SELECT * FROM t$indexes",
    "SHOW INDEXES": "write SELECT * FROM t$indexes",
    "SHOW TBLPROPERTIES": "write SHOW CREATE TABLE t, or SELECT * FROM t$options",
    "START TRANSACTION": _COMMITTED,
    "TRUNCATE": "write TRUNCATE TABLE t",
    "UNDROP": "DROP TABLE has deleted the rows; restore a copy of the table's folder",
    "UNDROP TABLE": "DROP TABLE has deleted the rows; restore a copy of the table's folder",
    "UPSERT INTO": _REPLACING,
    "VACUUM": "write CALL expire_snapshots('t')",
}
"""What other systems call statements that are here by another name."""
