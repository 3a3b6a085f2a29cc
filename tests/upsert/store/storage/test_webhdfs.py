"""What the store asks of HDFS, and what it makes of each answer, lost one and error; see test_hdfs.py too."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from tests.scripted_webhdfs import ScriptedHdfs, Trouble, scripted_hdfs
from tests.upsert.store.disk import assert_nothing_is_left_over
from upsert.errors import ConfigurationError, UnknownOutcomeError
from upsert.schema import TableSchema
from upsert.store import Table, paths
from upsert.store.storage import Storage, hdfs_client, put_if_absent, storage_of
from upsert.store.storage.hdfs import HdfsStorage
from upsert.store.storage.hdfs_client import folder_uri, split

SCHEMA = TableSchema.of({"id": pa.int64()}, primary_key=["id"])


@pytest.fixture
def folder(hdfs: ScriptedHdfs) -> str:
    return folder_uri(hdfs.folder())


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def storage(folder: str, pauses: list[float]) -> Storage:
    return HdfsStorage(split(folder)[0], sleep=pauses.append)


def inside(folder: str, name: str) -> str:
    return f"{split(folder)[1]}/{name}"


def temporaries(hdfs: ScriptedHdfs) -> list[str]:
    return [path for path in hdfs.files if path.endswith(".tmp")]


def test_a_table_lives_as_it_does_on_a_disk(hdfs: ScriptedHdfs) -> None:
    table = Table.create(hdfs.folder(), SCHEMA)
    for number in range(3):
        table.write(pa.table({"id": [number, number + 1]}))
    table.tag("early", 2)
    assert table.expire(keep=1) > 0
    opened = Table.open(table.path)
    opened.clean(older_than_s=0)
    assert sorted(opened.snapshot().scan()["id"].to_pylist()) == [0, 1, 2, 3]
    assert sorted(opened.snapshot("early").scan()["id"].to_pylist()) == [0, 1, 2]
    assert opened.check() == ()
    assert_nothing_is_left_over(opened)
    storage_of(table.path).delete_folder(table.path)
    assert storage_of(table.path).names(table.path) == []


def test_of_eight_writers_of_one_name_one_wins(hdfs: ScriptedHdfs, folder: str) -> None:
    start_together, won = threading.Barrier(8), list[int]()

    def put(writer: int) -> None:
        start_together.wait()
        if put_if_absent(f"{folder}/name", b"%d" % writer):
            won.append(writer)

    threads = [threading.Thread(target=put, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [b"%d" % winner for winner in won] == [storage_of(folder).read(f"{folder}/name")]
    assert temporaries(hdfs) == []


@pytest.mark.parametrize("trouble", ["lost answer", "lost request"])
@pytest.mark.parametrize("operation", ["CREATE", "CREATE DATA", "RENAME", "DELETE"])
@pytest.mark.parametrize("is_taken", [False, True])
def test_a_put_whose_answer_is_lost_counts_once(
    hdfs: ScriptedHdfs, storage: Storage, folder: str, operation: str, trouble: Trouble, is_taken: bool
) -> None:
    if is_taken:
        storage.write(f"{folder}/name", b"another's")
    hdfs.troubles[operation] = [trouble, None]
    assert storage.put_if_absent(f"{folder}/name", b"own") != is_taken
    assert storage.read(f"{folder}/name") == (b"another's" if is_taken else b"own")


@pytest.mark.parametrize("trouble", ["lost answer", "lost request"])
@pytest.mark.parametrize("operation", ["CREATE", "CREATE DATA", "RENAME"])
def test_a_replacement_whose_answer_is_lost_is_made_once(
    hdfs: ScriptedHdfs, storage: Storage, folder: str, operation: str, trouble: Trouble
) -> None:
    storage.write(f"{folder}/name", b"old")
    hdfs.troubles[operation] = [trouble, None]
    storage.replace(f"{folder}/name", b"new")
    assert storage.read(f"{folder}/name") == b"new"


def test_a_file_that_another_replaced_in_between_stays(hdfs: ScriptedHdfs, folder: str) -> None:
    """A replacement happened, its answer is lost, another one follows: the first is not made again."""
    hdfs.troubles["RENAME"] = ["lost answer", None]
    other = HdfsStorage(split(folder)[0])
    storage = HdfsStorage(split(folder)[0], sleep=lambda _: other.replace(f"{folder}/name", b"newer"))
    storage.replace(f"{folder}/name", b"new")
    assert storage.read(f"{folder}/name") == b"newer"


def test_while_nobody_knows_nothing_is_cleaned_up(hdfs: ScriptedHdfs, storage: Storage, folder: str) -> None:
    """The rename arrives after the writer has given up."""
    hdfs.troubles["RENAME"] = ["lost request"]
    with pytest.raises(UnknownOutcomeError, match="must say whether it has the file"):
        storage.put_if_absent(f"{folder}/name", b"own")
    (temporary,) = [path for path in temporaries(hdfs) if path.startswith(inside(folder, ""))]
    assert "DELETE" not in hdfs.operations()
    assert hdfs.rename(temporary, inside(folder, "name"), overwrites=False)
    assert storage.read(f"{folder}/name") == b"own"


def test_a_put_that_never_began_is_no_unknown_outcome(
    hdfs: ScriptedHdfs, storage: Storage, folder: str, pauses: list[float]
) -> None:
    hdfs.troubles["RENAME"] = ["standby"]
    with pytest.raises(OSError, match="StandbyException"):
        storage.put_if_absent(f"{folder}/name", b"own")
    assert not storage.exists(f"{folder}/name")
    assert 25 < sum(pauses) < 70, "for about a minute"


def test_a_folder_that_is_deleted_under_a_put_is_missing(
    hdfs: ScriptedHdfs, storage: Storage, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = HdfsStorage._written

    def write_and_lose(self: HdfsStorage, *arguments: object) -> str:
        temporary = written(self, *arguments)  # type: ignore[arg-type]
        self.delete_folder(folder)
        return temporary

    monkeypatch.setattr(HdfsStorage, "_written", write_and_lose)
    with pytest.raises(FileNotFoundError, match="its folder has been deleted"):
        storage.put_if_absent(f"{folder}/name", b"own")


@pytest.mark.parametrize("trouble", ["lost answer", "standby"])
@pytest.mark.parametrize("operation", ["OPEN", "OPEN DATA", "GETFILESTATUS", "LISTSTATUS"])
def test_a_reading_that_is_not_answered_is_asked_again(
    hdfs: ScriptedHdfs, storage: Storage, folder: str, operation: str, trouble: Trouble
) -> None:
    storage.write(f"{folder}/name", b"content")
    hdfs.troubles[operation] = [trouble, None]
    assert storage.read(f"{folder}/name") == b"content"
    assert storage.exists(f"{folder}/name")
    assert storage.names(folder) == ["name"]


def test_an_answer_that_ends_too_early_is_asked_for_again(
    hdfs: ScriptedHdfs, storage: Storage, folder: str
) -> None:
    storage.write(f"{folder}/name", b"content")
    hdfs.troubles["OPEN DATA"] = ["cut short", None]
    assert storage.read(f"{folder}/name") == b"content"
    hdfs.troubles["OPEN DATA"] = ["cut short", None]
    assert storage.mapped(f"{folder}/name", lambda path: Path(path).read_bytes()) == b"content"


def test_a_deletion_in_doubt_is_none_of_nothing(hdfs: ScriptedHdfs, storage: Storage, folder: str) -> None:
    storage.write(f"{folder}/name", b"content")
    assert not storage.delete(f"{folder}/other")
    hdfs.troubles["DELETE"] = ["lost answer", None]
    assert storage.delete(f"{folder}/name")


def test_a_name_node_that_stands_by_hands_on_to_the_active_one(hdfs: ScriptedHdfs) -> None:
    with scripted_hdfs() as other:
        for operation in ("GETFILESTATUS", "LISTSTATUS", "CREATE", "RENAME", "OPEN", "DELETE"):
            other.troubles[operation] = ["standby"]
        table = Table.create(hdfs.folder("http://127.0.0.1:9", other.endpoint), SCHEMA)
        table.write(pa.table({"id": [1]}))
        assert other.files == {}
        assert len(other.asked) == 1, "it is not asked again while the active one answers"
    assert table.snapshot().scan()["id"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("kerberos", "as from a cluster with Kerberos, which is not supported"),
        ("forbidden", "must allow user 'bob' what is asked, got 'Permission denied: user=bob'"),
        ("no webhdfs", "must be the HTTP address of a name node, usually with port 9870, got 404"),
    ],
)
def test_what_only_the_user_can_mend_is_said_at_once(
    hdfs: ScriptedHdfs, trouble: Trouble, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hdfs_client.USER_VARIABLE, "bob")
    hdfs.troubles |= {"GETFILESTATUS": [trouble], "CREATE": [trouble]}
    with pytest.raises(ConfigurationError, match=message):
        Table.create(hdfs.folder(), SCHEMA)
    assert hdfs.users == {"bob"}


def test_a_gateway_that_knows_no_overwriting_rename_is_refused(
    hdfs: ScriptedHdfs, storage: Storage, folder: str
) -> None:
    hdfs.troubles["RENAME"] = ["gateway"]
    with pytest.raises(ConfigurationError, match="give the address of a name node, no gateway's"):
        storage.prepare(folder)


def test_without_the_client_the_way_to_it_is_named(
    hdfs: ScriptedHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "urllib3", None)
    hdfs_client._pools.clear()
    with pytest.raises(ConfigurationError, match=r"pip install 'deltajoin\[hdfs\]'"):
        Table.create(hdfs.folder(), SCHEMA)


def test_what_is_its_owner_s_alone_is_created_so(hdfs: ScriptedHdfs, storage: Storage, folder: str) -> None:
    asked = list[dict[str, str]]()
    ask = hdfs_client.ask

    def remember(*arguments: str, **parameters: str) -> object:
        asked.append(parameters)
        return ask(*arguments, **parameters)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hdfs_client, "ask", remember)
        storage.put_if_absent(f"{folder}/{paths.TABLE_FILE}", b"{}", 0o600)
    assert asked[0]["permission"] == "600"


def test_age_is_by_the_clock_of_the_name_node(hdfs: ScriptedHdfs, storage: Storage, folder: str) -> None:
    storage.write(f"{folder}/name", b"content")
    key = inside(folder, "name")
    hdfs.files[key] = hdfs.files[key]._replace(modified_ms=hdfs.files[key].modified_ms - 60_000)
    found = storage.aged(f"{folder}/name")
    assert found is not None
    assert found[0] == b"content"
    assert 59 <= found[1] < 600
    assert storage.aged(f"{folder}/other") is None
