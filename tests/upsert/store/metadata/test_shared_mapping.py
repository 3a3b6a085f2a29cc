"""What is shared between mappings is right in each; a dict that is copied at each step is the oracle."""

import random

import pytest

from upsert.store.metadata import shared_mapping
from upsert.store.metadata.shared_mapping import SharedMapping


@pytest.mark.parametrize("most", [1, 5, 50])
def test_each_mapping_stays_what_it_is(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys come, change, go and come back, with few differences from a shared dict and with many."""
    monkeypatch.setattr(shared_mapping, "MOST_CHANGED", most)
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    base = {key: key for key in range(20)}
    pairs = [(SharedMapping(base), dict(base))]
    for _ in range(200):
        mapping, oracle = chance.choice(pairs[-5:])
        changes = {chance.randrange(30): chance.choice([None, 1, 2]) for _ in range(chance.randrange(4))}
        merged = {**oracle, **changes}
        expected = {key: value for key, value in merged.items() if value is not None}
        pairs.append((mapping.after(changes), expected))
    for mapping, oracle in pairs:
        assert dict(mapping) == oracle
        assert len(mapping) == len(oracle)
        assert all((key in mapping) == (key in oracle) for key in range(30))
        assert [mapping.get(key) for key in range(30)] == [oracle.get(key) for key in range(30)]
    assert base == {key: key for key in range(20)}


def test_few_differences_copy_nothing() -> None:
    base = dict.fromkeys(range(10), 0)
    first = SharedMapping(base)
    second = first.after({3: 1})
    base[99] = 5  # would show in both, for it is one dict
    assert 99 in first
    assert 99 in second
