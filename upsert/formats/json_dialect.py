"""The options that the JSON formats share, and what they say about how JSON is read and written (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from upsert import options
from upsert.formats.timestamps import TimestampStandard
from upsert.options import Option

FAIL_ON_MISSING_FIELD: Final = Option(
    "fail-on-missing-field", options.boolean, "whether a message without one of the fields is bad", False
)
IGNORE_PARSE_ERRORS: Final = Option(
    "ignore-parse-errors",
    options.boolean,
    "whether bad values become NULL and unreadable messages are passed over",
    False,
)
TIMESTAMP_STANDARD: Final = Option(
    "timestamp-format.standard",
    options.one_of(*TimestampStandard),
    "how times are written: SQL, ISO-8601 or ISO-8601-WITH-OFFSET",
    TimestampStandard.SQL.value,
)
# A NULL key is no part of an Arrow or Spark map. The two options are known so that a table definition that
# Flink takes is taken here; no value that they speak of ever arrives.
MAP_NULL_KEY_MODE: Final = Option(
    "map-null-key.mode",
    options.one_of("fail", "drop", "literal"),
    "what is written for a map's NULL key: FAIL, DROP or LITERAL",
    "fail",
)
MAP_NULL_KEY_LITERAL: Final = Option(
    "map-null-key.literal", options.text, "the name written for a NULL key in mode LITERAL", "null"
)
DECIMAL_AS_PLAIN_NUMBER: Final = Option(
    "encode.decimal-as-plain-number", options.boolean, "whether 0.00000001 is never written as 1E-8", False
)
IGNORE_NULL_FIELDS: Final = Option(
    "encode.ignore-null-fields", options.boolean, "whether NULLs are left out of what is written", False
)


@dataclass(frozen=True)
class JsonDialect:
    """How JSON is read and written: the values of the options that the JSON formats share."""

    timestamps: TimestampStandard = TimestampStandard.SQL
    fail_on_missing_field: bool = False
    ignore_parse_errors: bool = False
    decimal_as_plain_number: bool = False
    ignore_null_fields: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The dialect that the options of a format ask for; a format without some option has its default."""
        keys = {
            "timestamp-format.standard": "timestamps",
            "fail-on-missing-field": "fail_on_missing_field",
            "ignore-parse-errors": "ignore_parse_errors",
            "encode.decimal-as-plain-number": "decimal_as_plain_number",
            "encode.ignore-null-fields": "ignore_null_fields",
        }
        found = {name: options[key] for key, name in keys.items() if key in options}
        if "timestamps" in found:
            found["timestamps"] = TimestampStandard(found["timestamps"])
        return cls(**found)
