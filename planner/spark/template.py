"""A plan made once and run many times, each time over other inputs.

To analyse a query, to plan its rewriting and to make it again takes some thousands of crossings into the
JVM; to put other leaves into the plan that this has given takes some per node above them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from planner.spark.catalyst import Catalyst, JavaObject

Input = TypeVar("Input")


@dataclass(frozen=True)
class _Part:
    """A node above an input; or an input, by its number, or a whole part without any."""

    node: JavaObject
    children: tuple[_Part, ...] = ()
    number: int | None = None

    @property
    def has_input(self) -> bool:
        return self.number is not None or bool(self.children)


class Template(Generic[Input]):
    """A plan whose inputs are put in when it runs; it is made when it is wanted first, for many never are."""

    def __init__(
        self,
        catalyst: Catalyst,
        plan: Callable[[], JavaObject],
        input_of: Callable[[JavaObject], Input | None],
    ) -> None:
        """Of an analysed plan; ``input_of`` says which nodes are inputs, with all that is below them."""
        self._catalyst = catalyst
        self._plan = plan
        self._input_of = input_of

    @property
    def inputs(self) -> list[Input]:
        """What was said of each input, in their order."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[_Part, list[Input]]:
        inputs: list[Input] = []
        return self._part(self._plan(), inputs), inputs

    def over(self, leaves: Sequence[JavaObject]) -> JavaObject:
        """The plan over other leaves, one for each input, under the ids of its columns."""
        return self._made(self._read[0], leaves)

    def _part(self, node: JavaObject, inputs: list[Input]) -> _Part:
        if (found := self._input_of(node)) is not None:
            inputs.append(found)
            return _Part(node, number=len(inputs) - 1)
        children = tuple(self._part(child, inputs) for child in self._catalyst.children(node))
        return _Part(node, children if any(child.has_input for child in children) else ())

    def _made(self, part: _Part, leaves: Sequence[JavaObject]) -> JavaObject:
        if part.number is not None:
            return leaves[part.number]
        if not part.children:
            return part.node
        return self._catalyst.with_children(part.node, [self._made(child, leaves) for child in part.children])
