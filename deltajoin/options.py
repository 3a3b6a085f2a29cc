"""Options of the Spark format ``delta-join`` (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from deltajoin.spec import DeltaJoinSpec
from upsert.options import Option, parse, text

FORMAT: Final = "delta-join"

OPTIONS: Final = (Option("spec", text, "the join: JSON text of a DeltaJoinSpec"),)


def spec_of(options: Mapping[str, str]) -> DeltaJoinSpec:
    """The join that the options of a read name.

    Raises:
        ConfigurationError: an option is unknown, or the spec is none.
    """
    return DeltaJoinSpec.from_json(parse(FORMAT, OPTIONS, options)["spec"])
