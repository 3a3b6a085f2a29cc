"""Statements of several sessions at once: each is done or refused by what it names, whatever others drop."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from deltajoin.observe.observer import Observer
from upsert import Catalog
from upsert.catalog import warehouse
from upsert.errors import DatabaseNotFoundError, UpsertError

Q = "shop.q (id INT, PRIMARY KEY (id) NOT ENFORCED)"
ROUNDS = 40


def at_once(warehouse: Path, *sessions: Callable[[Catalog], object]) -> None:
    """Each call again and again, in a session of its own, until one raises or all have had their rounds."""
    failed = threading.Event()

    def rounds(call: Callable[[Catalog], object]) -> None:
        catalog = Catalog(warehouse)
        for _ in range(ROUNDS):
            if failed.is_set():
                return
            try:
                call(catalog)
            except BaseException:
                failed.set()
                raise

    with ThreadPoolExecutor(len(sessions)) as threads:
        for done in [threads.submit(rounds, one) for one in sessions]:
            done.result()


def execute(*statements: str, refused: tuple[type[UpsertError], ...] = ()) -> Callable[[Catalog], None]:
    def run(catalog: Catalog) -> None:
        for text in statements:
            try:
                catalog.sql(text)
            except refused:
                continue

    return run


def test_databases_come_and_go_while_tables_are_created_in_them(tmp_path: Path) -> None:
    come_and_go = execute("CREATE DATABASE IF NOT EXISTS shop", "DROP DATABASE IF EXISTS shop CASCADE")
    create = execute(
        f"CREATE TABLE IF NOT EXISTS {Q}",
        "CREATE TABLE IF NOT EXISTS shop.p (id INT) WITH ('connector' = 'parquet', 'path' = '/nowhere')",
        refused=(DatabaseNotFoundError,),
    )
    at_once(tmp_path, come_and_go, come_and_go, create, create)
    Catalog(tmp_path).sql("DROP DATABASE IF EXISTS shop CASCADE")
    assert Catalog(tmp_path).databases.names() == ("default",)


def test_a_database_that_is_created_again_right_then_has_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one its next DROP would take the folder away while a table is made in it."""
    catalog = Catalog(tmp_path)
    catalog.sql("CREATE DATABASE shop")
    take = warehouse.locked

    def missed(path: str, *, is_folder: bool) -> AbstractContextManager[None]:
        if path.endswith("shop.db"):
            raise FileNotFoundError
        return take(path, is_folder=is_folder)

    monkeypatch.setattr(warehouse, "locked", missed)
    with pytest.raises(DatabaseNotFoundError, match="it was dropped meanwhile"):
        catalog.sql(f"CREATE TABLE {Q}")


def test_tables_that_others_drop_are_in_no_list(tmp_path: Path) -> None:
    def drop_and_create(catalog: Catalog) -> None:
        catalog.sql("CREATE DATABASE shop")
        catalog.sql(f"CREATE TABLE {Q}")
        catalog.sql("CREATE TABLE t (id INT, PRIMARY KEY (id) NOT ENFORCED)")
        catalog.sql("DROP TABLE t")
        catalog.sql("DROP DATABASE shop CASCADE")

    def look(catalog: Catalog) -> None:
        for _ in range(2):
            assert catalog.sql("SHOW MATERIALIZED VIEWS").rows.num_rows == 0
            for table in Observer(tmp_path).look(0).tables:
                assert (table.name in ("t", "shop.q"), table.error) == (True, None)

    at_once(tmp_path, drop_and_create, look, look)


def test_if_not_exists_is_never_refused_for_a_table_that_is_dropped_at_once(tmp_path: Path) -> None:
    table = "t (id INT, PRIMARY KEY (id) NOT ENFORCED)"
    at_once(
        tmp_path,
        *[execute(f"CREATE TABLE IF NOT EXISTS {table}")] * 2,
        *[execute("DROP TABLE IF EXISTS t")] * 2,
    )
