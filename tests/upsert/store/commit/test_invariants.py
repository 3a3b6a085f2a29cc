"""The rules of a commit that say where the result of a compaction may go; files are given by their keys."""

from upsert.store.commit.change import added_file_that_is_live, run_between_inputs, second_run_of_level
from upsert.store.metadata.file_entry import FileEntry


def file(name: str, level: int, keys: str, sequence: int = 1, bucket: int = 0) -> FileEntry:
    """A file of keys from the first letter to the last."""
    first, last = keys[:1].encode(), keys[-1:].encode()
    return FileEntry(name, (), bucket, level, sequence, 1, 0, 1, 0, {}, {}, first, last)


def live(*files: FileEntry) -> dict[str, FileEntry]:
    return {entry.file: entry for entry in files}


def test_a_level_takes_files_beside_each_other_and_none_over_another():
    there = file("there", 2, "ac")
    for keys, is_refused in (("df", False), ("bd", True), ("ca", True), ("cd", True), ("az", True)):
        found = second_run_of_level([there], [file("new", 2, keys)], [])
        assert (found is there) == is_refused, keys
    assert second_run_of_level([there], [file("new", 2, "az")], [there]) is None
    assert second_run_of_level([there], [file("new", 1, "az")], []) is None
    assert second_run_of_level([there], [file("new", 2, "az", bucket=1)], []) is None


def test_level_0_takes_anything():
    assert second_run_of_level([file("there", 0, "az")], [file("new", 0, "az")], []) is None


def test_nothing_sinks_past_an_older_file_with_its_keys():
    newest, middle = file("newest", 0, "ac", sequence=3), file("middle", 0, "bd", sequence=2)
    assert run_between_inputs([newest, middle], [file("new", 1, "ac")], [newest]) is middle
    assert run_between_inputs([newest, middle], [file("new", 1, "bd")], [middle]) is None
    assert run_between_inputs([newest, file("far", 0, "xz")], [file("new", 1, "ac")], [newest]) is None
    below = file("below", 1, "cd")
    assert run_between_inputs([newest, below], [file("new", 2, "ac")], [newest]) is below
    assert run_between_inputs([newest, below], [file("new", 1, "ac")], [newest]) is None


def test_a_file_may_change_its_level_but_not_come_twice():
    there, moved = file("there", 0, "ac"), file("there", 2, "ac")
    assert added_file_that_is_live(live(there), [moved], [there]) is None
    assert added_file_that_is_live(live(there), [moved]) is moved
