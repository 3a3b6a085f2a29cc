"""``CREATE TEMPORARY FUNCTION`` and what belongs to it: functions of the Spark session, which keeps them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle

from upsert.catalog.results import Done, Rows
from upsert.catalog.run.jobs import needed
from upsert.catalog.run.shows import matching
from upsert.errors import ConfigurationError
from upsert.options import suggestion
from upsert.spark.functions import function_names
from upsert.sql import statements as s
from upsert.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_function(statement: s.CreateFunction, spark: SparkSession | None) -> Done:
    """``CREATE TEMPORARY FUNCTION``, by an expression, a function of Python or a class of Java."""
    what = f"CREATE TEMPORARY FUNCTION {statement.name}"
    session = needed(spark, what)
    if _is_there(session, "SYSTEM", statement.name):
        raise ConfigurationError(
            f"{what}: Spark has a function of this name, which queries would still use; choose another name"
        )
    is_there = _is_there(session, "USER", statement.name)
    if is_there and statement.if_not_exists:
        return Done(what, "is there already")
    if is_there and not statement.or_replace:
        raise ConfigurationError(
            f"{what}: the session has one of this name; choose another name, OR REPLACE or IF NOT EXISTS"
        )
    if statement.is_python:
        function = _function_of_python(statement.body, what)
        (session.udtf if _gives_rows(function) else session.udf).register(statement.name, function)
    else:
        replacing = "OR REPLACE " if is_there else ""
        session.sql(f"CREATE {replacing}TEMPORARY FUNCTION {statement.name}{statement.body}")
    return Done(what, "replaced" if is_there else "created")


def drop_function(statement: s.DropFunction, spark: SparkSession | None) -> Done:
    """``DROP TEMPORARY FUNCTION``."""
    what = f"DROP TEMPORARY FUNCTION {statement.name}"
    session = needed(spark, what)
    if _is_there(session, "USER", statement.name):
        session.sql(what)
        return Done(what, "dropped")
    if statement.if_exists:
        return Done(what, "there was none")
    names = suggestion(statement.name, function_names(session, "USER"), "it has")
    raise ConfigurationError(f"{what}: the session has no such function; {names}")


def show_functions(statement: s.ShowFunctions, spark: SparkSession | None) -> Rows:
    """``SHOW FUNCTIONS``: a row a name."""
    found = matching(function_names(needed(spark, "SHOW FUNCTIONS"), statement.kind), statement.like)
    return Rows("SHOW FUNCTIONS", pa.table({"function": pa.array(found, pa.string())}))


def describe_function(statement: s.DescribeFunction, spark: SparkSession | None) -> Rows:
    """``DESCRIBE FUNCTION``: what Spark says of it, a row a line."""
    extended = "EXTENDED " if statement.is_extended else ""
    text = f"DESCRIBE FUNCTION {extended}{quoted(statement.name)}"
    return Rows("DESCRIBE FUNCTION", needed(spark, "DESCRIBE FUNCTION").sql(text).toArrow())


def _is_there(session: SparkSession, kind: str, name: str) -> bool:
    return name.lower() in map(str.lower, function_names(session, kind))


def _function_of_python(path: str, what: str) -> Any:
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ConfigurationError(f"{what}: expected 'module.function', found {path!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{what}: Python finds no module {error.name!r}; PYTHONPATH names the folders of modules"
        ) from error
    except Exception as error:  # it is the user's program
        raise ConfigurationError(f"{what}: module {module_name!r} cannot be imported: {error!r}") from error
    function = getattr(module, name, None)
    if function is None:
        own = [known for known in vars(module) if not known.startswith("_")]
        raise ConfigurationError(
            f"{what}: module {module_name!r} has no {name!r}; {suggestion(name, own, 'it has')}"
        )
    if not (hasattr(function, "evalType") and hasattr(function, "returnType")):
        raise ConfigurationError(
            f"{what}: {path} must be a function of Spark, with the type that it returns, found a "
            f"{type(function).__name__}; write @udf(returnType='INT') before it"
        )
    # else executors would need the module, and could not read its types: @udf("INT") asks the driver's JVM
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return function


def _gives_rows(function: Any) -> bool:
    # Spark Connect has a class of its own
    return type(function).__name__ == "UserDefinedTableFunction"
