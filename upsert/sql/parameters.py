"""Parameters of a statement: ``:name`` and ``?`` in its expressions, and the values for them (pure).

They are Spark's: a value reaches Spark as a literal of its type, beside the text and never in it, so no value
can change what the statement says. sqlglot's tree has literals for those that it can write, so that
conditions on them are evaluated on files, as conditions on literals are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from math import isfinite
from typing import Any, Final, TypeAlias, cast

import numpy as np

from upsert.errors import ConfigurationError, SchemaError
from upsert.sql import statements as s
from upsert.sql.query import QueryText
from upsert.sql.tokens import Cursor, literal

_ZEROS: Final = re.compile(r"-?0\d")

Args: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""Values by name, or in the order of their ``?``."""

_Explained: TypeAlias = s.Select | s.Insert | s.Merge | s.CreateTableAs | s.StatementSet


def bound(statement: s.Statement, args: Args | None) -> s.Statement:
    """The statement with values for its parameters.

    Raises:
        SchemaError: a parameter has no value, or stands where none may be.
        ConfigurationError: a value has no parameter.

    >>> from upsert.sql.parser import parse
    >>> bound(parse("SELECT a FROM t WHERE b > :least"), {"least": 3}).query.args
    {'least': 3}
    >>> bound(parse("SELECT a FROM t WHERE b > ?"), [])
    Traceback (most recent call last):
        ...
    upsert.errors.SchemaError: query: the 1 parameters ? must have a value each, args has 0; ...
    """
    if args is not None and (isinstance(args, str | bytes) or not isinstance(args, Mapping | Sequence)):
        raise ConfigurationError(
            f"args must be a dict of values by name, or a list for each ?, got {type(args).__name__}"
        )
    match statement:
        case s.Explain():
            explained = bound(statement.statement, args)
            return replace(statement, statement=cast("_Explained", explained))
        case s.CreateTemporaryTable(table=s.CreateTableAs() as table):
            return s.CreateTemporaryTable(cast("s.CreateTableAs", bound(table, args)))
        case s.StatementSet(inserts=inserts):
            return replace(statement, inserts=_bound_set(inserts, args))
        case s.Select() | s.Insert() | s.CreateTableAs():
            return replace(statement, query=_valued(statement.query, args))
        case s.Update() | s.Merge():
            return replace(statement, rows=_valued(statement.rows, args))
        case s.Delete() if statement.rows is not None:
            rows = _valued(statement.rows, args)
            condition = rows.tree.args["where"].this if rows.args else statement.condition
            return replace(statement, rows=rows, condition=condition)
        case (
            s.CreateView(query=query)
            | s.CreatePlainView(query=query)
            | s.ExplainView(view=s.CreateView(query=query))
        ) if query.parameters:
            raise SchemaError(
                f"{query.subject}: a view keeps the text of its query, which must have no parameters, got "
                f"{_listed(query.parameters)}; write the value"
            )
    if args:
        raise ConfigurationError(
            f"args: only queries and statements that change rows take parameters, got {len(args)} values for "
            "another statement; leave them out"
        )
    return statement


def _bound_set(inserts: Sequence[s.Insert], args: Args | None) -> tuple[s.Insert, ...]:
    """The INSERTs of a statement set, each with the values for its own parameters."""
    if any(one.query.is_numbered for one in inserts):
        raise SchemaError("EXECUTE STATEMENT SET: parameters must have names, got ?; write :name")
    if args is not None and not isinstance(args, Mapping):
        raise ConfigurationError("EXECUTE STATEMENT SET: args must be a dict, got a list")
    used = {name for one in inserts for name in one.query.parameters}
    if unused := [name for name in args or () if name not in used]:
        raise ConfigurationError(
            f"EXECUTE STATEMENT SET: each value of args must belong to a parameter, got {_listed(unused)}; "
            f"parameters are {_listed(sorted(used)) or 'none'}"
        )
    own = [
        {name: value for name, value in (args or {}).items() if name in one.query.parameters}
        for one in inserts
    ]
    return tuple(
        replace(one, query=_valued(one.query, given or None)) for one, given in zip(inserts, own, strict=True)
    )


def parameters(statement: s.Statement) -> tuple[str, ...]:
    """The names of the parameters that a statement has; ``?`` are not among them."""
    match statement:
        case s.Explain():
            return parameters(statement.statement)
        case s.CreateTemporaryTable(table=table):
            return parameters(table)
        case s.StatementSet(inserts=inserts):
            return tuple(sorted({name for one in inserts for name in parameters(one)}))
        case s.Select() | s.Insert() | s.CreateTableAs():
            found = statement.query
        case s.Update() | s.Merge():
            found = statement.rows
        case s.Delete() if statement.rows is not None:
            found = statement.rows
        case _:
            return ()
    return () if found.is_numbered else found.parameters


def written(text: str) -> Any:
    """The value that a command line means: that of a literal of SQL, else the text itself.

    >>> [written(text) for text in ("7", "-1.5", "1e3", "NULL", "DATE '2020-10-01'", "'7'", "007", "2020-10")]
    [7, Decimal('-1.5'), 1000.0, None, datetime.date(2020, 10, 1), '7', '007', '2020-10']
    """
    if _ZEROS.match(text):  # such digits are a code, not a number
        return text
    try:
        cursor = Cursor(text, "value")
        value = literal(cursor)
    except SchemaError:
        return text
    if not cursor.at_end:
        return text
    if not (isinstance(value, Decimal) and "e" in text.lower()):
        return value
    if not isfinite(found := float(value)):  # to Spark it is a DOUBLE
        raise ConfigurationError(
            f"value {text!r}: a number with an exponent is a DOUBLE, of at most 1.8e308; write another one, "
            "or quotes around it for a text"
        )
    return found


def _valued(query: QueryText, args: Args | None) -> QueryText:
    names, subject = query.parameters, query.subject
    if query.is_numbered:
        if any(name not in QueryText.numbers(len(names)) for name in names):
            raise SchemaError(f"{subject}: parameters must be all ? or all :name, got both")
        if isinstance(args, Mapping):
            raise ConfigurationError(f"{subject}: parameters are ?, so args must be a list, got a dict")
        if len(args or ()) != len(names):
            raise SchemaError(
                f"{subject}: the {len(names)} parameters ? must have a value each, args has "
                f"{len(args or ())}; give args=[…] in their order"
            )
        values = map(_of_python, args or ())
        return replace(query, args=dict(zip(QueryText.numbers(len(names)), values, strict=True)))
    if names and args is not None and not isinstance(args, Mapping):
        raise ConfigurationError(
            f"{subject}: parameters are {_listed(names)}, so args must be a dict, got a list"
        )
    given = args if isinstance(args, Mapping) else {}
    if missing := next((name for name in names if name not in given), None):
        raise SchemaError(
            f"{subject}: parameter :{missing} must have a value, args has {_listed(list(given)) or 'none'}; "
            f"give args={{'{missing}': …}}, on the command line --param {missing}=value"
        )
    unused = [name for name in given if name not in names]
    if unused or (args and not given):
        got = _listed(unused) or f"{len(args or ())} values"
        raise ConfigurationError(
            f"{subject}: each value of args must belong to a parameter, got {got}; parameters are "
            f"{_listed(names) or 'none'}"
        )
    if not given:
        return query
    return replace(query, args={name: _of_python(value) for name, value in given.items()})


def _of_python(value: Any) -> Any:
    """A number of numpy, as those of a DataFrame are, as Python has it: Spark takes no others."""
    is_number = isinstance(value, np.number | np.bool_) and not isinstance(value, np.timedelta64)
    return value.item() if is_number else value


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f":{name}" for name in names)
