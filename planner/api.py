"""What users call: `optimize` and `explain` a DataFrame, and check what is written into a sink."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, assert_never, overload

from pyspark.sql import DataFrame

from planner.connect.explained import explained_frame, explained_over_connect
from planner.connect.relations import carried
from planner.connect.text import planned
from planner.explanation import Explanation, explanation_of, sink_report
from planner.optimizer import CHEAPER, Trace, optimize_plan
from planner.plan.keys import unique_keys
from planner.plan.nodes import DeltaJoin, Filter, Generate, Plan, Project, Union, Wrapper
from planner.plan.trees import reads_changes, walk
from planner.refusals import PlanError, Refused
from planner.rules.topics import unmet_everywhere
from planner.settings import Settings, unused
from planner.spark.build import build_plan
from planner.spark.catalyst import Catalyst
from planner.spark.read import read_plan
from planner.spark.small_plan import rows_in_arrow
from planner.spark.state import with_state_of_one_shape
from planner.spark.unnest import unnested_over
from planner.views.keep import kept
from upsert.catalog.context import Explained, OfText, Refreshed, Request, RowsInArrow, Unnested
from upsert.catalog.query_records import DECISIONS_MARK
from upsert.catalog.results import given_frame
from upsert.errors import ConfigurationError
from upsert.options import parse as parse_options
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.spark.connect import is_connect, needs_classic, parallelism
from upsert.spark.java import conf_of
from upsert.store.rows.computed import InArrow
from upsert.store.table_options import SINK_MATERIALIZE
from upsert.stream_keys import KEYS_MARK, UPSERTS_MARK, UniqueKeys, UpsertKey
from upsert.views.refresh import Kept


@overload
def optimize(
    df: DataFrame,
    *,
    sink_key: Sequence[str] | None = None,
    sink_rule: str | None = None,
    start_from: str | None = None,
    request: Unnested | OfText | None = None,
    **options: Any,
) -> DataFrame: ...


@overload
def optimize(df: DataFrame, *, request: Refreshed, **options: Any) -> Kept: ...


@overload
def optimize(
    df: DataFrame,
    *,
    sink_key: Sequence[str] | None = None,
    sink_rule: str | None = None,
    request: Explained,
    **options: Any,
) -> Explanation: ...


@overload
def optimize(df: DataFrame, *, request: RowsInArrow, **options: Any) -> InArrow | None: ...


def optimize(
    df: DataFrame,
    *,
    sink_key: Sequence[str] | None = None,
    sink_rule: str | None = None,
    start_from: str | None = None,
    request: Request | None = None,
    **options: Any,
) -> DataFrame | Kept | Explanation | InArrow | None:
    """The DataFrame with its joins of changelogs of managed tables as delta joins (FLIP-486).

    Joins directly below each other become one delta join, of up to eight tables: INNER, LEFT, RIGHT, FULL,
    LEFT SEMI and LEFT ANTI, with projections and filters anywhere between. An INNER join without an index
    becomes Spark's own join over signed rows, whose state grows without end; `explain` says where, and why.

    A topic is read without its normalizer if the sink needs no UPDATE_BEFORE (FLIP-149). Filters on its
    METADATA columns for partition, offset and timestamp (FLIP-107) restrict which records are read.
    The query is not run; the only change to the session is that a data source is registered.

    Args:
        df: a streaming DataFrame over `catalog.read_changes`, from the DataFrame API or `spark.sql`.
        sink_key: primary key of the table that the result is written into, () if it has none; None if it is
            not known. The sink must replace and delete rows by this key, as managed tables and
            `upsert-kafka` tables do. `Catalog(optimize=…)` passes it by itself.
        sink_rule: the option by which that table makes one row of several of a key, `sequence.field` or
            `merge-engine`; None where a row simply replaces the one of its key.
        start_from: the checkpoint of a stopped query. The result, with a new checkpoint of its own, continues
            from the tables' versions that the stopped query has reached, also with other columns, filters or
            keys of the join. The sink keeps its rows. Only for plans of delta joins and operators without
            state.
        request: used by a catalog to ask for something else than the DataFrame to be written, see
            `upsert.catalog.context.Request`. With the text of a query, `df` is any of its streams.
        **options: `strategy`: "auto" (default), "force": each join of the query must become a delta join,
            or "none": no delta join; `shards`: tasks that share the join of a micro-batch; and all others of
            `deltajoin.settings.OPTIONS`, with `_` for `.` and `-`. They may also be set in the session, as
            `spark.deltajoin.strategy`, and under FLIP-486's names.

    Returns:
        The user's columns in the user's order, and `_row_kind` last, even if the query does not select it.
        For a plan that reads no changelog, or was optimized before, the same object.

    Raises:
        PlanError: Spark would treat changes as rows, and no rewrite is right: a limit over a changelog, an
            outer join without an index, an unknown operator; or upserts without UPDATE_BEFORE would
            leave replaced rows in the sink. The message says why, and what to do.
        ConfigurationError: an option is unknown or has a wrong value, or the plan cannot continue from
            another checkpoint.
        CheckpointMismatchError: `start_from` is no checkpoint of a join of these tables, or it has an
            unfinished micro-batch.

    Warns:
        UserWarning: an option has no effect on this query; the text names it.

    >>> import tempfile, upsert
    >>> catalog = upsert.Catalog(tempfile.mkdtemp())
    >>> _ = catalog.sql(
    ...     "CREATE TABLE orders (id INT, sku STRING, PRIMARY KEY (id) NOT ENFORCED, INDEX (sku))"
    ... )
    >>> _ = catalog.sql("CREATE TABLE products (sku STRING, price DOUBLE, PRIMARY KEY (sku) NOT ENFORCED)")
    >>> orders, products = (catalog.read_changes(spark, name) for name in ("orders", "products"))
    >>> optimize(orders.join(products, "sku").select("id", "price"))
    DataFrame[id: int, price: double, _row_kind: string]
    """
    match request:
        case OfText(query, references, tables, told):
            return planned(df, query, references, tables, options, told)
        case Explained(mode, told) if told:
            return explained_over_connect(df, told, sink_key, mode)
        case Explained(mode):
            return explain(df, sink_key=sink_key, sink_rule=sink_rule, sink_materialize=mode, **options)
        case Unnested(streams):
            return unnested_over(Catalyst(df), df, streams)
        case Refreshed(view):
            return kept(df, view, Settings.of_query(options, conf_of(df.sparkSession), view.key))
        case RowsInArrow(plan, source):
            return rows_in_arrow(df, plan, source)
        case None:
            pass
        case _:
            assert_never(request)
    df = given_frame(df, "optimize")
    if is_connect(df):
        return _carried_over_connect(df, start_from)
    settings, catalyst, trace = _optimized(df, options, sink_key, start_from, sink_rule=sink_rule)
    if trace.refusals:
        raise PlanError(trace.refusals, is_for_a_view=trace.is_for_a_view)
    if start_from is not None:
        _check_can_continue(trace.after)
    _warn_of_unused(df, trace, options, "optimize")
    made = with_state_of_one_shape(build_plan(catalyst, trace.after, settings) if trace.is_changed else df)
    return _with_marks(made, trace, settings) if trace.is_changed or sink_key is not None else made


def explain(
    df: DataFrame,
    *,
    sink_key: Sequence[str] | None = None,
    sink_rule: str | None = None,
    sink_materialize: str = "auto",
    **options: Any,
) -> Explanation:
    """What `optimize` does with the DataFrame, or why it refuses it; `str()` gives a text.

    Args:
        df: the DataFrame.
        sink_key: as for `optimize`.
        sink_rule: as for `optimize`.
        sink_materialize: the sink's option `sink.materialize`.
        **options: as for `optimize`.

    Raises:
        ConfigurationError: an option is unknown or has a wrong value.

    Warns:
        UserWarning: as for `optimize`.

    >>> import tempfile, upsert
    >>> catalog = upsert.Catalog(tempfile.mkdtemp())
    >>> _ = catalog.sql("CREATE TABLE clicks (id BIGINT, page STRING, PRIMARY KEY (id) NOT ENFORCED)")
    >>> clicks = catalog.read_changes(spark, "clicks")
    >>> (join,) = explain(clicks.alias("a").join(clicks.alias("b"), "page")).joins
    >>> join.form, join.remedy
    ('regular', 'ALTER TABLE clicks ADD INDEX (page)')
    """
    df = given_frame(df, "explain")
    mode = parse_options("explain", [SINK_MATERIALIZE], {SINK_MATERIALIZE.key: sink_materialize})
    found = mode[SINK_MATERIALIZE.key]
    if is_connect(df):
        return explained_frame(
            df, Settings.of_query(options, df.sparkSession.conf.getAll, sink_key, sink_rule=sink_rule), found
        )
    settings, _, trace = _optimized(df, options, sink_key, sink_rule=sink_rule)
    sink = None if sink_key is None else sink_report(trace.before, trace.after, tuple(sink_key), found)
    if found == "force" and sink is not None and sink.form == "materialized":
        # a sink that keeps its rows needs every kind of change, as one without a key does
        settings, _, trace = _optimized(df, options, ())
    if not trace.refusals:
        _warn_of_unused(df, trace, options, "explain")
    return explanation_of(trace, _with_shards(df, settings), sink)


def _with_shards(df: DataFrame, settings: Settings) -> Settings:
    return replace(settings, shards=settings.shards or parallelism(df.sparkSession))


def _carried_over_connect(df: DataFrame, start_from: str | None) -> DataFrame:
    if start_from is not None:
        needs_classic(df, "start_from", "leave it out, and load all rows again")
    return carried(df)


def _warn_of_unused(df: DataFrame, trace: Trace, options: dict[str, Any], caller: str) -> None:
    session = conf_of(df.sparkSession)
    for sentence in unused(trace.before, trace.after, options, session, caller):
        warnings.warn(sentence, stacklevel=3)


def _with_marks(df: DataFrame, trace: Trace, settings: Settings) -> DataFrame:
    """The changes with marks on their kind: by which columns they are told apart, and what was decided.

    The sink asks for the first. Upserts bear a mark of their own instead, which says by which columns they
    replace each other. The second is for people who look on while the query runs.
    """
    schema = df.schema.jsonValue()
    if not reads_changes(trace.before):
        return df
    upserts, keys = UpsertKey.of_schema(schema), unique_keys(trace.before)
    marks = {KEYS_MARK: keys.to_text()} if upserts is None else {UPSERTS_MARK: upserts.to_text()}
    has_more = upserts is None and UniqueKeys.of_schema(schema) != keys
    if trace.is_changed and (decided := explanation_of(trace, _with_shards(df, settings)).decisions):
        marks[DECISIONS_MARK] = json.dumps(decided, ensure_ascii=False)
        has_more = True
    return df.withMetadata(ROW_KIND_COLUMN, marks) if has_more else df


def check_sink(df: DataFrame, sink_key: Sequence[str] = ()) -> None:
    """Check that a DataFrame may be written into a table as it is: rows, or changes with their kind.

    Args:
        df: the DataFrame.
        sink_key: primary key of the table; () for one without.

    Raises:
        PlanError: the plan reads a changelog and has lost its kinds, needs `optimize` to be right, or gives
            upserts by another key than the table's.
    """
    settings, _, trace = _optimized(given_frame(df, "check_sink"), {}, sink_key)
    unmet = (
        Refused(
            f"the upserts of {leaf.name!r} are not enough here: {reason}",
            "read the topic with changelog = 'all', or write planner.optimize(df, sink_key=…) instead of df",
        )
        for leaf, reason in unmet_everywhere(trace.before, settings.sink_key)
    )
    if refusals := (*trace.refusals, *unmet):
        raise PlanError(refusals)
    if with_state_of_one_shape(df) is not df:
        reason = "what Spark keeps as state for the query has other fields where a source has no new rows"
    elif reads_changes(trace.before) and not CHEAPER.issuperset(step.rule for step in trace.steps):
        reason = "the query reads a changelog and has lost its '_row_kind', or joins changes as rows"
    else:
        return
    raise PlanError([Refused(reason, "write planner.optimize(df) instead of df")])


def _optimized(
    df: DataFrame,
    options: dict[str, Any],
    sink_key: Sequence[str] | None,
    start_from: str | None = None,
    *,
    sink_rule: str | None = None,
) -> tuple[Settings, Catalyst, Trace]:
    session = conf_of(df.sparkSession)
    settings = Settings.of_query(options, session, sink_key, start_from, sink_rule=sink_rule)
    catalyst = Catalyst(df)
    return settings, catalyst, optimize_plan(read_plan(catalyst, df), settings)


def _check_can_continue(plan: Plan) -> None:
    """Make sure that a plan needs nothing of what was before but versions of joined tables."""
    for node in walk(plan):
        if not isinstance(node, DeltaJoin | Project | Filter | Union | Generate | Wrapper):
            raise ConfigurationError(
                f"start_from: the query must consist of delta joins and of what works row by row, got {node};"
                " leave start_from out, and load all rows again"
            )
