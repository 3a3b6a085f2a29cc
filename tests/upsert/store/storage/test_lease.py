import threading

import pytest

from upsert.errors import UnknownOutcomeError
from upsert.store.storage import lease
from upsert.store.storage.base import UnansweredError
from upsert.store.storage.lease import KeptLease, Lease


class Objects:
    """Objects in memory, by a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.held: dict[str, tuple[bytes, float]] = {}

    def names(self, folder: str) -> list[str]:
        return [path.removeprefix(f"{folder}/") for path in self.held]

    def aged(self, path: str) -> tuple[bytes, float] | None:
        if path not in self.held:
            return None
        content, at = self.held[path]
        return content, self.now - at

    def put_if_absent(self, path: str, content: bytes) -> bool:
        if path in self.held:
            return False
        self.replace(path, content)
        return True

    def replace(self, path: str, content: bytes) -> None:
        self.held[path] = content, self.now

    def delete(self, path: str) -> bool:
        return self.held.pop(path, None) is not None


PATH = "table/some.lock"


@pytest.fixture
def objects() -> Objects:
    return Objects()


def test_one_holds_it_and_the_next_one_when_it_is_free(objects: Objects) -> None:
    first = Lease.take(objects, PATH)
    assert first is not None
    assert Lease.take(objects, PATH) is None
    first.release()
    second = Lease.take(objects, PATH)
    assert second is not None
    assert not second.passed_over
    assert len(objects.held) == 1


def test_who_renews_it_in_time_keeps_it(objects: Objects) -> None:
    first = Lease.take(objects, PATH)
    assert first is not None
    for _ in range(3):
        objects.now += 59
        assert first.renew()
        assert Lease.take(objects, PATH) is None


def test_who_stalls_is_passed_over_once_and_sees_it(objects: Objects) -> None:
    first = Lease.take(objects, PATH)
    objects.now += 60
    second = Lease.take(objects, PATH)
    assert first is not None
    assert second is not None
    assert second.passed_over
    assert Lease.take(objects, PATH) is None
    assert not first.renew()
    first.release()
    assert Lease.take(objects, PATH) is None, "the holder before can let go of its own only"
    assert second.renew()


def test_a_lock_of_which_no_answer_tells_whether_it_is_held_says_nothing_of_rows() -> None:
    class Silent(Objects):
        def put_if_absent(self, *_: object) -> bool:
            raise UnknownOutcomeError("look at the table's history before you write the rows again")

    with pytest.raises(UnansweredError, match="must say who has the lock, got no answer; try again"):
        Lease.take(Silent(), PATH)


def test_a_number_that_was_free_again_is_no_lock(objects: Objects) -> None:
    """Between a look and the put that follows others took the lock, twice."""

    class Stalled(Objects):
        def put_if_absent(self, path: str, content: bytes) -> bool:
            for _ in range(2):
                if (other := Lease.take(objects, PATH)) is not None:
                    other.release()
            return objects.put_if_absent(path, content)

    stalled = Stalled()
    stalled.held = objects.held
    assert Lease.take(stalled, PATH) is None
    assert Lease.take(objects, PATH) is not None


@pytest.fixture
def kept(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> Objects:
    monkeypatch.setattr(lease, "storage_of", lambda _: objects)
    return objects


def test_a_thread_renews_a_lease_that_is_kept(kept: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = threading.Event()

    def renew(_: Lease) -> bool:
        renewed.set()
        return True

    monkeypatch.setattr(lease, "_RENEW_S", 0.001)
    monkeypatch.setattr(Lease, "renew", renew)
    own = KeptLease.take(PATH)
    assert own is not None
    assert renewed.wait(120)
    own.release()
    assert Lease.take(kept, PATH) is not None


def test_who_waits_for_a_lease_gets_it_a_minute_after_the_last_sign_of_life(kept: Objects) -> None:
    Lease.take(kept, PATH)

    def sleep(seconds: float) -> None:
        kept.now += seconds

    own = KeptLease.take_when_free(PATH, sleep)
    assert own is not None
    assert kept.now == 60
    own.release(for_good=True)
    assert kept.held == {}


def test_who_waits_for_a_lease_gives_up_at_a_sign_of_life(kept: Objects) -> None:
    holder = Lease.take(kept, PATH)
    assert holder is not None

    def sleep(seconds: float) -> None:
        kept.now += seconds
        if kept.now == 10:
            holder.renew()

    assert KeptLease.take_when_free(PATH, sleep) is None
    assert kept.now == 10
