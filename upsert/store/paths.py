"""Every file name that the store uses, and the rule that no name leads out of the table's folder."""

from __future__ import annotations

import os
import re
from hashlib import sha256
from typing import Final
from urllib.parse import quote, unquote

from upsert.errors import ConfigurationError, CorruptTableError
from upsert.store.storage import remote_folder, storage_of

TABLE_FILE: Final = "table.json"
ENTRY_FILE: Final = "staged.json"
"""Beside it while CREATE TABLE AS fills the table."""
DEFINITION_FOLDER: Final = "definition"
SNAPSHOT_FOLDER: Final = "snapshot"
MANIFEST_FOLDER: Final = "manifest"
STAGING_FOLDER: Final = "staging"
TAG_FOLDER: Final = "tag"
CONSUMER_FOLDER: Final = "consumer"
LOG_FOLDER: Final = "log"
STAGES_FOLDER: Final = "stages"
KEPT_ROWS_FOLDER: Final = "materialized"
DROPPED: Final = ".dropped-"
"""What the names of hidden tables begin with that are about to be deleted."""
LOG_HOME: Final = "log/home"
LIFETIME_LOCK: Final = "lifetime.lock"
LOG_LOCK: Final = "log.lock"
COMPACTION_LOCK: Final = "compaction.lock"
COMMIT_LOCK: Final = "commit.lock"
COMPACTION_ERROR: Final = "compaction-error.txt"
NULL_PARTITION: Final = "__DEFAULT_PARTITION__"

_MAX_NAME: Final = 200
"""Most file systems take names of up to 255 bytes."""

_DATA: Final = ".arrow"
_INDEX: Final = ".index.arrow"
_BUCKET_FOLDER: Final = r"(?:[^/=~]*[=~][^/]*/)*bucket-[0-9]+"
_BUCKET: Final = re.compile(_BUCKET_FOLDER)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_UNIQUE: Final = re.compile("[0-9a-f]{32}")
_SNAPSHOT: Final = re.compile(r"snapshot-(\d{20})")
_MANIFEST: Final = re.compile(r"manifest/[0-9]{20}-[0-9a-f]{32}\.arrow")
_STAGING: Final = re.compile(r"staging/[0-9]{20}-[0-9a-f]{32}\.arrow")

DATA_FILE: Final = rf"\A{_BUCKET_FOLDER}/[0-9]{{20}}-[0-9a-f]{{32}}\.(?:arrow|parquet|orc|avro)\z"
"""What every name of a data file matches; for Arrow's regular expressions."""

_DATA_FILE: Final = re.compile(DATA_FILE.removesuffix(r"\z").removeprefix(r"\A"))
_BASED: Final = re.compile(r"(\d{20})-[0-9a-f]{32}(\.index\.arrow|\.(arrow|parquet|orc|avro))")

Partition = tuple[tuple[str, str | None], ...]
"""Partition columns and their values as text, in the table's order; empty without PARTITIONED BY."""

BucketId = tuple[Partition, int]
"""A partition and a bucket within it."""


def table_folder(path: str | os.PathLike[str]) -> str:
    """The absolute local folder, or the folder in an object store or HDFS, that a table path names.

    >>> table_folder("file:///data/my%20table"), table_folder("file:/data/a#1?")
    ('/data/my table', '/data/a#1?')
    """
    text = os.fspath(path)
    if not text:
        raise ConfigurationError("a path must name a folder, got ''; write '.' for the present one")
    if not (scheme := _SCHEME.match(text)):
        return _absolute(text)
    if (kind := scheme[1].lower()) != "file":
        if (folder := remote_folder(kind, text)) is not None:
            return folder
        raise ConfigurationError(
            "table path must be a local folder, a file: URI, s3://bucket/folder, gs://bucket/folder, "
            "abfss://container@account.dfs.core.windows.net/folder or hdfs://namenode/folder, got a "
            f"{kind}: URI; commits need hard links, conditional puts or renames that fail where a name is "
            "taken, which are known of these only"
        )
    host, path = "", text[scheme.end() :]
    if path.startswith("//"):
        host, slash, path = path[2:].partition("/")
        path = f"{slash}{path}"
    if host not in ("", "localhost"):
        raise ConfigurationError(f"table path must have no host, got {text!r}; write file:///folder")
    return _absolute(unquote(path))  # with # and ? as they are: so Hadoop reads them


def _absolute(path: str) -> str:
    if "\0" in path:
        raise ConfigurationError(f"a path must have no NUL character, got {path!r}; choose another name")
    try:
        path.encode()
    except UnicodeEncodeError as cause:
        # Arrow opens no such file, of which its reader would say it is damaged
        raise ConfigurationError(
            f"a path must be text of UTF-8, got {path!r}; choose another name, or set PYTHONUTF8=1"
        ) from cause
    try:
        return os.path.abspath(os.path.expanduser(path))  # a shell leaves ~ in --warehouse=~/tables
    except FileNotFoundError as cause:
        raise ConfigurationError(
            f"a path without a / before it is within the present folder, which must exist, got {path!r} in "
            "one that was deleted; change to another folder"
        ) from cause


def resolve(root: str, name: str) -> str:
    """Absolute path of a file of the table; refuses a name that leads out of its folder."""
    parts = name.split("/")
    if not name or os.path.isabs(name) or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise CorruptTableError(
            f"table {root!r}: a file name must stay within the table's folder, got {name!r}; restore it"
        )
    return os.path.join(root, *parts)


def manifest_path(root: str, name: str) -> str:
    """Absolute path of a manifest; ``name`` may come from a file and is not trusted."""
    return _path_of_kind(root, name, "manifest", _MANIFEST)


def data_path(root: str, name: str) -> str:
    """Absolute path of a data file, likewise."""
    return _path_of_kind(root, name, "data file", _DATA_FILE)


def staging_path(root: str, name: str) -> str:
    """Absolute path of a file of raw changes, likewise."""
    return _path_of_kind(root, name, "file of raw changes", _STAGING)


def _path_of_kind(root: str, name: str, kind: str, form: re.Pattern[str]) -> str:
    path = resolve(root, name)
    if not form.fullmatch(name):
        raise CorruptTableError(
            f"table {root!r}: a {kind} must have the name of one, got {name!r}; restore what names it"
        )
    return path


def is_manifest(name: str) -> bool:
    """Whether a name, relative to the table, is that of a manifest."""
    return _MANIFEST.fullmatch(name) is not None


def name_of(root: str) -> str:
    """Name of the table whose files lie in ``root``.

    >>> name_of("/data/orders"), name_of("s3://bucket/data/orders/0123456789abcdef0123456789abcdef")
    ('orders', 'orders')
    """
    return os.path.basename(root if storage_of(root).is_local else os.path.dirname(root))


def filling_folder(folder: str, unique: str) -> str:
    """Where in an object store a table is filled that will have the name of ``folder``.

    It is a table of its own there, and ``table.json`` in ``folder`` says whether it may have the name; see
    ``upsert.store.metadata.table_file``.

    >>> filling_folder("s3://bucket/data/orders", "0123456789abcdef0123456789abcdef")
    's3://bucket/data/orders/0123456789abcdef0123456789abcdef/orders'
    """
    return os.path.join(folder, unique, os.path.basename(folder))


def filled_for(folder: str) -> tuple[str, str] | None:
    """The folder whose table is filled in this one, and the unique part; None for any other folder.

    >>> filled_for("s3://bucket/data/orders/0123456789abcdef0123456789abcdef/orders")
    ('s3://bucket/data/orders', '0123456789abcdef0123456789abcdef')
    >>> filled_for("s3://bucket/data/orders")
    """
    if storage_of(folder).is_local:
        return None
    outer, unique = os.path.split(os.path.dirname(folder))
    is_one = is_unique(unique) and os.path.basename(outer) == os.path.basename(folder)
    return (outer, unique) if is_one else None


def is_unique(name: str) -> bool:
    """Whether a folder is named by a uuid: nothing appears in it before ``table.json`` has named it."""
    return _UNIQUE.fullmatch(name) is not None


def definition_file(version: int) -> str:
    """Name of the file of one version of the table's definition, from 1 on."""
    return f"{DEFINITION_FOLDER}/definition-{version:020d}"


def snapshot_file(id: int) -> str:
    """Name of the file of one snapshot."""
    return f"{SNAPSHOT_FOLDER}/snapshot-{id:020d}"


def snapshot_id(file_name: str) -> int | None:
    """Id in the name of a snapshot file, without its folder; None for any other name."""
    match = _SNAPSHOT.fullmatch(file_name)
    return int(match[1]) if match else None


def tag_file(name: str) -> str:
    """Name of the file of a tag."""
    return f"{TAG_FOLDER}/tag-{name}"


def consumer_file(name: str) -> str:
    """Name of the file of a consumer."""
    return f"{CONSUMER_FOLDER}/consumer-{name}"


def log_file(topic: str) -> str:
    """Name of the file about a log, whose topic's name may be as long as that of a file."""
    return f"{LOG_FOLDER}/log-{sha256(topic.encode()).hexdigest()[:32]}"


def named_files(root: str, folder: str, prefix: str) -> list[str]:
    """What follows the prefix in the names of a folder, in order; nothing if there is no such folder."""
    inside = os.path.join(root, folder)
    try:
        found = storage_of(inside).names(inside)
    except FileNotFoundError:
        return []
    return sorted(name.removeprefix(prefix) for name in found if name.startswith(prefix))


def manifest_file(base: int, unique: str) -> str:
    """Name of a manifest that was written when ``base`` was the latest snapshot."""
    return f"{MANIFEST_FOLDER}/{base:020d}-{unique}{_DATA}"


def staging_file(base: int, unique: str) -> str:
    """Name of a file of raw changes that was written when ``base`` was the latest snapshot."""
    return f"{STAGING_FOLDER}/{base:020d}-{unique}{_DATA}"


def bucket_folder(partition: Partition, bucket: int) -> str:
    """Folder of one bucket.

    >>> bucket_folder((("day", "2013/01"), ("hub", None)), 3)
    'day=2013%2F01/hub=__DEFAULT_PARTITION__/bucket-3'
    """
    return "/".join((*(_partition_folder(name, value) for name, value in partition), f"bucket-{bucket}"))


def is_bucket(folder: str) -> bool:
    """Whether a folder, relative to the table, is that of a bucket."""
    return _BUCKET.fullmatch(folder) is not None


def _partition_folder(name: str, value: str | None) -> str:
    """``name=value``; nothing reads it back, so a name that no file system would take may be cut."""
    shown = NULL_PARTITION if value is None else quote(value, safe="")
    if value == NULL_PARTITION:
        shown = shown.replace("_", "%5F", 1)
    text = f"{quote(name, safe='')}={shown}"
    if len(text) <= _MAX_NAME:
        return text
    return f"{text[: _MAX_NAME - 33]}~{sha256(text.encode()).hexdigest()[:32]}"


def data_file(partition: Partition, bucket: int, base: int, unique: str) -> str:
    """Name of a data file, like ``manifest_file``; ``unique`` ends with the suffix of its format."""
    return f"{bucket_folder(partition, bucket)}/{base:020d}-{unique}"


def index_file(data_file_name: str) -> str:
    """Name of the lookup indexes beside a data file.

    >>> index_file("bucket-0/00000000000000000007-ab.arrow")
    'bucket-0/00000000000000000007-ab.index.arrow'
    >>> index_file("bucket-0/00000000000000000007-ab.parquet")
    'bucket-0/00000000000000000007-ab.index.arrow'
    """
    return data_file_name.rpartition(".")[0] + _INDEX


def base_of(name: str) -> int | None:
    """The ``base`` in the name of a manifest, staging, data or index file; None for any other name.

    >>> base_of(f"bucket-0/{7:020d}-{'a' * 32}.arrow"), base_of(f"x/{7:020d}-{'a' * 32}.arrow")
    (7, None)
    """
    folder, _, own = name.rpartition("/")
    is_place = folder in (MANIFEST_FOLDER, STAGING_FOLDER) or is_bucket(folder)
    match = _BASED.fullmatch(own) if is_place else None
    return int(match[1]) if match else None
