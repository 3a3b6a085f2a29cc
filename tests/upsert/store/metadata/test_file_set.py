"""The files of a snapshot after a commit are those of all its files put together anew."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.file_set import FileSet


def entry(number: int, partition: int, level: int, sequence: int) -> FileEntry:
    place = (("day", str(partition)),)
    key = number.to_bytes(2, "big")
    return FileEntry(f"f{number}", place, 0, level, sequence, 1, 0, 1, 0, {}, {}, key, key)


ENTRIES = st.tuples(st.integers(0, 2), st.sampled_from((0, 0, 0, 1, 2)), st.integers(1, 6))
COMMITS = st.lists(st.tuples(st.lists(ENTRIES, max_size=4), st.integers(0, 2**8)), max_size=8)


@given(COMMITS)
def test_each_commit_gives_what_all_files_together_give(
    commits: list[tuple[list[tuple[int, int, int]], int]],
) -> None:
    files: dict[str, FileEntry] = {}
    found = FileSet.of([])
    for added, choice in commits:
        removed = (
            [one for n, one in enumerate(files.values()) if choice >> n & 1 and n < 8]
            if choice % 3 == 0
            else []
        )
        new = [entry(len(files) + 100 * n + choice * 7, *given) for n, given in enumerate(added)]
        new = [one for one in new if one.file not in files]
        moved = [replace(one, level=3) for one in removed[:1]]
        found = found.after([*new, *moved], removed)
        for one in removed:
            del files[one.file]
        files |= {one.file: one for one in (*new, *moved)}
        assert found == FileSet.of(files.values())
        assert all(runs for runs in found.groups.values())


def test_an_append_takes_the_runs_that_are_there_as_they_are() -> None:
    before = FileSet.of([entry(1, 0, 0, 1), entry(2, 0, 1, 1)])
    after = before.after([entry(3, 0, 0, 2)], [])
    (runs,) = after.groups.values()
    assert [run[0].file for run in runs] == ["f3", "f1", "f2"]
    assert all(run is there for run, there in zip(runs[1:], *before.groups.values(), strict=True))
