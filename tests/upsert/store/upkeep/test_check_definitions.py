"""Each rule of definitions: a table whose definitions were damaged in one way breaks just that rule."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.upsert.store.upkeep.damage import rewrite_json, rewrite_last_delta, rewrite_snapshot
from upsert.schema import Column, TableSchema
from upsert.store import Table, paths
from upsert.store.alterations import AddColumn, DropColumn, SetOptions
from upsert.store.upkeep import check

SCHEMA = TableSchema.of({"id": pa.int64(), "value": pa.int64()}, primary_key=["id"])
OPTIONS = {"bucket": "2", "write-only": "true"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows of version 0, then versions 1 to 3, then rows of version 3."""
    table = Table.create(tmp_path_factory.mktemp("whole") / "t", SCHEMA, OPTIONS)
    table.write(pa.table({"id": [1, 2, 3], "value": [1, 2, 3]}))
    table.alter(AddColumn(Column("more", pa.int32())))
    table.alter(DropColumn("value"))
    table.alter(SetOptions({"target-file-size": "64 mb"}))
    table.write(pa.table({"id": [4, 5, 6], "more": pa.array([4, 5, 6], pa.int32())}))
    return table.path


@pytest.fixture
def table(whole: str, tmp_path: Path) -> Table:
    """A copy of it, to be damaged."""
    shutil.copytree(whole, tmp_path / "t")
    return Table.open(tmp_path / "t")


def edited(version: int, edit: Callable[[dict[str, Any]], object]) -> Callable[[Table], None]:
    """Another content of one version's file."""

    def damage(table: Table) -> None:
        def edited(content: dict[str, Any]) -> dict[str, Any]:
            edit(content)
            return content

        rewrite_json(table, paths.definition_file(version), edited)
        for info in table.history():  # as if an older release had published them
            rewrite_snapshot(table, info.id, definition_checksum=0)

    return damage


def gone(table: Table) -> None:
    Path(table.path, paths.definition_file(2)).unlink()


def garbage(table: Table) -> None:
    Path(table.path, paths.definition_file(1)).write_bytes(b"garbage")


def a_file_of_tomorrow(table: Table) -> None:
    rewrite_last_delta(table, lambda entries: [{**entries[0], "definition": 9}, *entries[1:]])


def an_old_id(content: dict[str, Any]) -> None:
    content["schema"]["columns"][-1]["id"] = 2


def a_narrower_type(content: dict[str, Any]) -> None:
    content["schema"]["columns"][-1]["type"] = "short"


def another_key(content: dict[str, Any]) -> None:
    content["schema"]["primary_key"] = ["more"]


def more_buckets(content: dict[str, Any]) -> None:
    content["options"]["bucket"] = "4"


DAMAGES = [
    ("definition_can_be_read", gone),
    ("definition_can_be_read", garbage),
    ("definition_can_be_read", edited(1, lambda content: content.update(uuid="another"))),
    ("definition_can_be_read", edited(2, lambda content: content.update(version=7))),
    ("file_is_of_a_published_definition", a_file_of_tomorrow),
    ("field_id_is_given_once", edited(3, an_old_id)),
    ("field_id_is_given_once", edited(3, a_narrower_type)),
    ("place_of_rows_is_kept", edited(2, another_key)),
]


def test_a_table_with_several_definitions_keeps_every_rule(table: Table) -> None:
    assert table.check(deep=True) == ()


@pytest.mark.parametrize(("rule", "damage"), DAMAGES)
def test_a_damage_is_named_by_its_rule(table: Table, rule: str, damage: Callable[[Table], None]) -> None:
    damage(table)
    assert {found.rule for found in table.check() if not found.is_information} == {rule}


def test_files_lie_in_the_buckets_that_their_definition_says(table: Table) -> None:
    edited(3, more_buckets)(table)
    found = {one.rule for one in table.check(deep=True) if not one.is_information}
    assert found == {"rows_lie_in_their_bucket"}


def test_every_rule_has_a_damage() -> None:
    assert {rule for rule, _ in DAMAGES} == {rule.__name__ for rule in check.DEFINITION_RULES}
