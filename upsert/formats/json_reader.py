"""Messages with a JSON object each to rows: in bulk where that is exact, else one by one (pure).

All JSON formats read through this; the CDC formats read their envelope as a row and go on from there.

``pyarrow.json`` reads 2 million messages a second, and is another reader than the reference. So

* only messages that `_candidates` lets pass come to it: each of them is one row for it;
* only numbers in columns of numbers are read by it; all texts become values through ``text_values``;
* numbers and booleans that are to become texts are put in quotes for it;
* a value that it cannot read fails the whole call. Then pieces of it are tried, and the messages of the
  pieces that fail again are left to the reference.

It takes a message with two values for two rows, an unclosed one together with the next, NaN for a number; a
top-level ``null`` and some decimals make it crash. So regular expressions let only messages pass that begin
with ``{``, end with ``}`` and outside of strings have nothing but ``,``, ``}`` and ``]`` after any other
``}``. Strings are told apart only in messages that need it: those with JSON in a text, as a column of that
type has. A line break is no part of a string for that reader, hence between two messages it stands outside of
all values, and each message is exactly one row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from upsert import types
from upsert.arrays import Mask, Positions
from upsert.formats.base import BadMessage, Decoded
from upsert.formats.json_values import MAX_DEPTH, STEPS, JsonDialect, Number, parse, struct_converter
from upsert.formats.text_values import BadValueError, flat_bytes, read_column

_SPACE: Final = r"[ \t\r\n]"
_NOT_AN_OBJECT: Final = rf"^{_SPACE}*(?:[^{{ \t\r\n]|$)|[^}} \t\r\n]{_SPACE}*$"
_MORE_AFTER_A_BRACE: Final = rf"\}}{_SPACE}*[^,\]}} \t\r\n]"
_NO_NUMBERS: Final = (b"NaN", b"Inf")
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_SOUND: Final = rf'(?s)^(?:[^"}}NI]|{_STRING}|(?:\}}{_SPACE}*)+(?:[,\]]|$))*$'
"""Has, outside of strings, no more after a brace than there may be, and no NaN and Inf."""
_BARE: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false"
_ODD_DECIMAL: Final = rf'[:,\["]{_SPACE}*[-+]?[0-9]*\.?[0-9]*[eE][-+]?[0-9]{{3}}'


def _candidates(messages: pa.Array, *, has_decimal: bool) -> Positions:
    """Positions, ascending, of the messages whose rows that reader surely finds, if it can read them."""
    is_candidate = _is_text(messages) & _is_object(messages)
    text = flat_bytes(messages)[0]
    is_doubtful = np.zeros(len(messages), dtype=np.bool_)
    # an object ends with a brace; where there are no others nothing stands behind one
    if np.count_nonzero(text == ord("}")) != np.count_nonzero(is_candidate):
        is_doubtful |= _matches(messages, _MORE_AFTER_A_BRACE)
    for word in _NO_NUMBERS:
        if _occurs(word, text):
            is_doubtful |= _matches(messages, word.decode())
    _keep(is_candidate, is_doubtful, messages, lambda some: _matches(some, _SOUND))
    if has_decimal:
        is_candidate &= ~_matches(messages, _ODD_DECIMAL)
    if _occurs(b"\x00", text):
        is_candidate &= ~_matches(messages, r"\x00")
    # Each level takes a bracket that opens and one that closes.
    is_long = _mask(pc.greater(pc.binary_length(messages), 2 * MAX_DEPTH))
    _keep(is_candidate, is_long, messages, _is_flat)
    return np.flatnonzero(is_candidate)


def _keep(kept: Mask, doubtful: Mask, messages: pa.Array, is_good: Callable[[pa.Array], Mask]) -> None:
    """Look closer at the messages that are kept so far, and doubtful."""
    positions = np.flatnonzero(kept & doubtful)
    if len(positions):
        kept[positions] = is_good(messages.take(pa.array(positions)))


def _is_flat(objects: pa.Array) -> Mask:
    r"""Which objects surely are not nested deeper than a message may be.

    >>> brackets = ["{" * 201, "{},[]" * 201, '"{[" ' * 201]
    >>> _is_flat(pa.array([f'{{"a": [{text}]}}'.encode() for text in brackets])).tolist()
    [False, True, True]
    """
    opened = pc.add(pc.count_substring(objects, "{"), pc.count_substring(objects, "["))
    is_flat = np.ones(len(objects), np.bool_)
    _keep(is_flat, _mask(pc.greater(opened, MAX_DEPTH)), objects, _is_flat_outside_of_strings)
    return is_flat


def _is_flat_outside_of_strings(objects: pa.Array) -> Mask:
    characters, lengths = flat_bytes(pc.replace_substring_regex(objects, f"(?s){_STRING}", ""))
    levels = np.cumsum(STEPS[characters], dtype=np.int32)
    starts = np.cumsum(lengths) - lengths
    before = np.append(np.int32(0), levels)[starts]
    is_flat: Mask = np.maximum.reduceat(levels, starts) - before <= MAX_DEPTH
    return is_flat


def _occurs(word: bytes, text: npt.NDArray[np.uint8]) -> bool:
    """Whether a word of some bytes is anywhere in a text."""
    count = len(text) - len(word) + 1
    found = text[: max(0, count)] == word[0]
    for place in range(1, len(word)):
        if not found.any():
            return False
        found &= text[place : place + count] == word[place]
    return bool(found.any())


def _is_text(messages: pa.Array) -> Mask:
    try:
        messages.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([_is_utf8(message) for message in messages.to_pylist()], dtype=np.bool_)
    is_valid: Mask = messages.is_valid().to_numpy(zero_copy_only=False)
    return is_valid


def _is_object(messages: pa.Array) -> Mask:
    found = _mask(pc.and_(pc.starts_with(messages, "{"), pc.ends_with(messages, "}")))
    others = np.flatnonzero(~found)
    found[others] = ~_matches(messages.take(pa.array(others)), _NOT_AN_OBJECT)
    return found


def _matches(messages: pa.Array, pattern: str) -> Mask:
    return _mask(pc.match_substring_regex(messages, pattern=pattern))


def _mask(found: pa.Array) -> Mask:
    mask: Mask = found.fill_null(False).to_numpy(zero_copy_only=False).copy()
    return mask


def _is_utf8(message: bytes | None) -> bool:
    try:
        return message is not None and message.decode() is not None
    except UnicodeDecodeError:
        return False


Path = tuple[str, ...]

_PIECE: Final = 512
_WIDE_DIGITS: Final = 76
_SAMPLE: Final = 16


class BulkReader:
    """Reads messages that are one JSON object each into columns of the given fields.

    Numbers that come as strings, and texts that come as numbers or booleans, are noticed once and expected
    from then on: that is all it remembers.
    """

    def __init__(self, fields: pa.Schema, dialect: JsonDialect) -> None:
        self._fields = fields
        self._dialect = dialect
        self._quoted: frozenset[Path] = frozenset()
        self._bare: frozenset[str] = frozenset()
        found = [one for field in fields for one in types.within(field.type)]
        self._is_able = len(fields) > 0 and not any(map(pa.types.is_map, found))
        self._has_decimal = any(map(pa.types.is_decimal, found))

    def read(self, messages: pa.Array) -> Iterator[tuple[Positions, list[pa.Array]]]:
        """Positions of messages, ascending, and the columns of their rows, one row each.

        Messages that are in none of the results are left to the reference, NULL among them.
        """
        if not self._is_able:
            return
        positions = _candidates(messages, has_decimal=self._has_decimal)
        if not len(positions):
            return
        columns = self._columns(_taken(messages, positions))
        if columns is None and self._learn(messages, positions):
            columns = self._columns(_taken(messages, positions))
        if columns is not None:
            yield _good(positions, *columns)
            return
        for start in range(0, len(positions), _PIECE):
            piece = positions[start : start + _PIECE]
            columns = self._columns(_taken(messages, piece)) if len(piece) < len(positions) else None
            if columns is not None:
                yield _good(piece, *columns)

    def _columns(self, messages: pa.Array) -> tuple[list[pa.Array], Mask] | None:
        """The columns of these messages, and which rows are not to be trusted."""
        if self._bare:
            messages = pc.replace_substring_regex(messages, _bare_members(self._bare), r'\1"\2"')
        # With a line break at its end this reader takes all of the text as one block.
        text = pc.binary_join_element_wise(messages, b"\n", b"").buffers()[2]
        schema = pa.schema(
            [(field.name, _wire_type(field.type, (field.name,), self._quoted)) for field in self._fields]
        )
        try:
            table = pj.read_json(
                pa.BufferReader(text),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(messages):
            return None
        doubtful = np.zeros(len(messages), dtype=np.bool_)
        columns = [
            self._values(column.combine_chunks(), field, None, doubtful, is_member=True)
            for column, field in zip(table.columns, self._fields, strict=True)
        ]
        return columns, doubtful

    def _values(
        self,
        found: pa.Array,
        field: pa.Field,
        rows: Positions | None,
        doubtful: Mask,
        *,
        is_member: bool,
        is_within: Mask | None = None,
    ) -> pa.Array:
        """What was read as values of a field.

        ``rows`` has the row of each value, None for its position; ``doubtful`` is set for rows whose message
        the reference must read. A NULL of an ``is_member`` may be a missing field; ``is_within`` says whether
        there is an object that has the value, None that there always is.
        """
        type_ = field.type
        if found.null_count and (not field.nullable or (is_member and self._dialect.fail_on_missing_field)):
            is_missing = found.is_null().to_numpy(zero_copy_only=False)
            _mark(doubtful, is_missing if is_within is None else is_missing & is_within, rows)
        if pa.types.is_struct(type_):
            is_there = found.is_valid().to_numpy(zero_copy_only=False)
            inside = is_there if is_within is None else is_there & is_within
            children = [
                self._values(found.field(index), child, rows, doubtful, is_member=True, is_within=inside)
                for index, child in enumerate(type_)
            ]
            return pa.Array.from_buffers(type_, len(found), found.buffers()[:1], children=children)
        if pa.types.is_list(type_):
            lengths = found.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            inner = np.repeat(np.arange(len(found)) if rows is None else rows, lengths)
            values = self._values(found.values, type_.value_field, inner, doubtful, is_member=False)
            return pa.Array.from_buffers(type_, len(found), found.buffers()[:2], children=[values])
        if found.type == pa.string() and type_ != pa.string():
            found, bad = read_column(found, type_, self._dialect.timestamps)
            if bad is not None:
                _mark(doubtful, bad, rows)
        elif pa.types.is_floating(type_):
            # This reader takes a number that is too large for infinite.
            _mark(doubtful, ~np.isfinite(found.fill_null(0).to_numpy(zero_copy_only=False)), rows)
        elif pa.types.is_decimal(type_):
            too_large = _is_too_large(found, type_)
            _mark(doubtful, too_large.to_numpy(zero_copy_only=False), rows)
            found = pc.if_else(too_large, pa.scalar(None, found.type), found).cast(type_)
        return found

    def _learn(self, messages: pa.Array, positions: Positions) -> bool:
        """Look which numbers and booleans come as strings, and the other way round; whether that is news."""
        values = []
        for message in messages.take(pa.array(positions[:_SAMPLE])).to_pylist():
            try:
                values.append(parse(message))
            except BadValueError:
                continue
        struct = pa.struct(list(self._fields))
        quoted = frozenset(_quoted_paths(struct, values, ()))
        bare = self._bare | (frozenset(_names_of_bare(struct, values)) & _names_of_texts(struct))
        is_news = (quoted, bare) != (self._quoted, self._bare)
        self._quoted, self._bare = quoted, bare
        return is_news


def _good(positions: Positions, columns: list[pa.Array], doubtful: Mask) -> tuple[Positions, list[pa.Array]]:
    if not doubtful.any():
        return positions, columns
    good = pa.array(~doubtful)
    return positions[~doubtful], [column.filter(good) for column in columns]


def _taken(messages: pa.Array, positions: Positions) -> pa.Array:
    return messages if len(positions) == len(messages) else messages.take(pa.array(positions))


def _mark(doubtful: Mask, mask: Mask, rows: Positions | None) -> None:
    if rows is None:
        doubtful |= mask
    else:
        doubtful[rows[mask]] = True


def _is_too_large(decimals: pa.Array, type_: pa.DataType) -> pa.Array:
    """Which wide decimals have more digits before the point than the type."""
    digits = f"{'9' * type_.precision}E-{type_.scale}"
    largest, smallest = (pa.scalar(Decimal(sign + digits), decimals.type) for sign in "+-")
    outside = pc.or_(pc.greater(decimals, largest), pc.less(decimals, smallest))
    return outside.fill_null(False)


def _wire_type(type_: pa.DataType, path: Path, quoted: frozenset[Path]) -> pa.DataType:
    """The type in which the values of a type are read: strings but for numbers and booleans."""
    if pa.types.is_struct(type_):
        return pa.struct(
            [(field.name, _wire_type(field.type, (*path, field.name), quoted)) for field in type_]
        )
    if pa.types.is_list(type_):
        return pa.list_(_wire_type(type_.value_type, (*path, ""), quoted))
    if _comes_unquoted(type_):
        return pa.string() if path in quoted else type_
    if pa.types.is_decimal(type_):
        # This reader takes 10 for a DECIMAL(3,2), and of too many digits those that fit into its words.
        # With this many digits before the point nothing that passes it can outgrow 256 bits.
        return pa.decimal256(_WIDE_DIGITS - type_.scale, type_.scale)
    return pa.string()


def _comes_unquoted(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or type_ == pa.bool_())


def _quoted_paths(type_: pa.DataType, values: list[Any], path: Path) -> Iterator[Path]:
    """Paths of numbers and booleans that came as strings and only so."""
    if pa.types.is_struct(type_):
        objects = [value for value in values if isinstance(value, dict)]
        for field in type_:
            inner = [value.get(field.name) for value in objects]
            yield from _quoted_paths(field.type, inner, (*path, field.name))
    elif pa.types.is_list(type_):
        items = [item for value in values if isinstance(value, list) for item in value]
        yield from _quoted_paths(type_.value_type, items, (*path, ""))
    elif _comes_unquoted(type_):
        given = [value for value in values if value is not None]
        if given and all(isinstance(value, str) and not isinstance(value, Number) for value in given):
            yield path


def _names_of_bare(type_: pa.DataType, values: list[Any]) -> Iterator[str]:
    """Names of texts, not those in arrays, that came as numbers or booleans."""
    objects = [value for value in values if isinstance(value, dict)]
    for field in type_:
        inner = [value.get(field.name) for value in objects]
        if pa.types.is_struct(field.type):
            yield from _names_of_bare(field.type, inner)
        elif any(isinstance(value, Number | bool) for value in inner):
            yield field.name


def _names_of_texts(type_: pa.DataType) -> frozenset[str]:
    """Names that only fields of type STRING have, and that cannot be what stands between two strings."""
    fields = [*_members(type_)]
    others = {field.name for field in fields if field.type != pa.string()}
    return frozenset(field.name for field in fields if re.match(r"\w", field.name)) - others


def _members(type_: pa.DataType) -> Iterator[pa.Field]:
    """The fields of all objects in values of a type."""
    if pa.types.is_list(type_):
        yield from _members(type_.value_type)
    elif pa.types.is_struct(type_):
        for field in type_:
            yield field
            yield from _members(field.type)


@lru_cache(maxsize=256)
def _bare_members(names: frozenset[str]) -> str:
    r"""The regular expression of members of these names that are numbers or booleans.

    A quote in a string has a backslash before it, so nothing within a string looks like this.

    >>> re.sub(_bare_members(frozenset({"a", "b"})), r'\1"\2"', '{"a":1,"b":"x","c":{"a":-2.50}}')
    '{"a":"1","b":"x","c":{"a":"-2.50"}}'
    """
    name = "|".join(re.escape(encode_basestring(name)) for name in sorted(names))
    return rf"([{{,]{_SPACE}*(?:{name}){_SPACE}*:{_SPACE}*)({_BARE})"


_MESSAGES_AT_ONCE: Final = 32_768
_BYTES_AT_ONCE: Final = 16 << 20


class JsonReader:
    """Reads messages into rows of the given fields.

    An object is one row, a top-level array one row for each element if arrays are taken, else bad. No
    message, an empty one, ``null`` and a ``null`` element give no row.
    """

    def __init__(self, fields: pa.Schema, dialect: JsonDialect, *, takes_arrays: bool = True) -> None:
        self._fields = fields
        self._dialect = dialect
        self._takes_arrays = takes_arrays
        self._bulk = BulkReader(fields, dialect)
        self._convert = struct_converter(list(fields), dialect)

    def decode(self, messages: pa.Array) -> Decoded:
        """The rows of all messages, in their order; bad messages give none, and no exception."""
        tables = [self._fields.empty_table()]
        positions = [np.zeros(0, np.int64)]
        bad: list[BadMessage] = []
        start = 0
        while start < len(messages):
            chunk = _chunk(messages, start)
            where, table = self._read_chunk(chunk, start, bad)
            tables.append(table)
            positions.append(where + start)
            start += len(chunk)
        found = np.concatenate(positions)
        rows = pa.concat_tables(tables)
        if not len(self._fields):  # Arrow keeps the number of rows when the last column is taken away
            rows = pa.table({"_": pa.nulls(len(found))}).select([])
        return Decoded.at(found, len(messages), rows, bad)

    def _read_chunk(
        self, messages: pa.Array, start: int, bad: list[BadMessage]
    ) -> tuple[Positions, pa.Table]:
        found = [
            (where, pa.Table.from_arrays(columns, schema=self._fields))
            for where, columns in self._bulk.read(messages)
        ]
        is_left = messages.is_valid().to_numpy(zero_copy_only=False).copy()
        for where, _ in found:
            is_left[where] = False
        if is_left.any() or not found:
            found.append(self._read_singly(messages, np.flatnonzero(is_left), start, bad))
        if len(found) == 1:
            return found[0]
        where = np.concatenate([where for where, _ in found])
        order = np.argsort(where, kind="stable")
        table = pa.concat_tables([table for _, table in found])
        return where[order], table.take(pa.array(order))

    def _read_singly(
        self, messages: pa.Array, positions: Positions, start: int, bad: list[BadMessage]
    ) -> tuple[Positions, pa.Table]:
        rows: list[tuple[Any, ...]] = []
        where: list[int] = []
        for position, message in zip(
            positions.tolist(), messages.take(pa.array(positions)).to_pylist(), strict=True
        ):
            try:
                of_message = self.rows_of(message)
            except BadValueError as cause:
                if not self._dialect.ignore_parse_errors:
                    bad.append(BadMessage(start + position, cause.reason))
                continue
            rows += of_message
            where += [position] * len(of_message)
        columns = [
            pa.array([row[index] for row in rows], field.type) for index, field in enumerate(self._fields)
        ]
        return np.array(where, dtype=np.int64), pa.Table.from_arrays(columns, schema=self._fields)

    def rows_of(self, message: bytes) -> list[tuple[Any, ...]]:
        """The rows of one message as tuples, read by the reference; raises ``BadValueError``."""
        value = parse(message)
        items = value if isinstance(value, list) and self._takes_arrays else [value]
        found = []
        for item in items:
            try:
                if item is not None:
                    found.append(self._convert(item))
            except BadValueError:
                if not self._dialect.ignore_parse_errors:
                    raise
        return found


def _chunk(messages: pa.Array, start: int) -> pa.Array:
    size = _MESSAGES_AT_ONCE
    chunk = messages.slice(start, size)
    while chunk.nbytes > _BYTES_AT_ONCE and len(chunk) > 1:
        size //= 2
        chunk = messages.slice(start, size)
    return chunk
