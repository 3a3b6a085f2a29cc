"""A table made of nothing but its changes."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from upsert.rowkind import ROW_KIND_COLUMN

State = Counter[tuple[Any, ...]]


@dataclass
class Replay:
    """A table rebuilt from its changes alone, which must fit it."""

    state: State

    def apply(self, changes: pa.Table, is_keyed: bool) -> None:
        for part in changes.to_pylist():
            kind = part.pop(ROW_KIND_COLUMN)
            row = tuple(freeze(value) for value in part.values())
            if kind[0] == "-":
                assert self.state[row] > 0, f"{kind} of a row that is not there: {row}"
                self.state[row] -= 1
            else:
                assert not is_keyed or not any(r[0] == row[0] for r in +self.state), (
                    f"{kind} of a key that is: {row}"
                )
                self.state[row] += 1
        self.state = +self.state


def freeze(value: Any) -> Any:
    return repr(value) if isinstance(value, list | dict | float) else value


def state_of(table: pa.Table) -> State:
    return Counter(tuple(freeze(v) for v in row.values()) for row in table.to_pylist())
