"""Every option of delta joins: where it may be given, and what it may be."""

import pickle
from dataclasses import asdict, fields
from typing import Any

import pytest

from deltajoin.settings import FLINK_PREFIXES, OPTIONS, SESSION_PREFIX, JoinSettings
from upsert.errors import ConfigurationError

VALUES: dict[str, tuple[str, Any, str, str]] = {
    "strategy": ("FORCE", "force", "maybe", "one of auto, force, none"),
    "first-load": ("batch", "batch", "all", "one of auto, batch, micro-batches"),
    "physical": ("fused", "fused", "merged", "one of auto, fused, shuffled, stateful"),
    "consistency": ("latest", "latest", "newest", "one of snapshot, latest"),
    "shards": ("4", 4, "0", "a positive integer"),
    "cache.enabled": ("false", False, "off", "true or false"),
    "left.cache-size": ("7", 7, "-1", "a positive integer"),
    "right.cache-size": ("7", 7, "many", "a positive integer"),
    "cache.max-bytes": ("1024", 1024, "1.5", "a positive integer"),
    "async.buffer-capacity": ("9", 9, "0", "a positive integer"),
    "async.timeout": ("5 s", 5_000, "0 s", "a duration above 0, like '3 min'"),
    "on-error": ("queue", "queue", "ignore", "one of fail, queue"),
    "changelog": ("all", "all", "some", "one of auto, all, upsert"),
    "state-path": ("/data/given", "/data/given", "", "a non-empty text"),
}
"""Of each option: a good text, its value, a bad text, and what the message asks for."""


def attribute(key: str) -> str:
    return key.replace(".", "_").replace("-", "_")


def test_every_option_is_tried_here_and_has_its_attribute() -> None:
    assert set(VALUES) == {option.key for option in OPTIONS}
    assert {attribute(option.key) for option in OPTIONS} == {field.name for field in fields(JoinSettings)}


def test_defaults_are_those_declared() -> None:
    declared = {attribute(option.key): option.default for option in OPTIONS}
    assert asdict(JoinSettings()) == asdict(JoinSettings.of({}, {})) == declared


@pytest.mark.parametrize("key", VALUES)
def test_option_is_taken_from_arguments_and_from_the_session(key: str) -> None:
    good, value, _, _ = VALUES[key]
    expected = JoinSettings(**{attribute(key): value})
    assert JoinSettings.of({attribute(key): good}, {}) == expected
    assert JoinSettings.of({key: good}, {}) == expected
    assert JoinSettings.of({}, {SESSION_PREFIX + key: good, "spark.master": "local"}) == expected


@pytest.mark.parametrize("key", VALUES)
def test_bad_value_is_refused_with_what_is_wanted(key: str) -> None:
    _, _, bad, wanted = VALUES[key]
    with pytest.raises(ConfigurationError) as refused:
        JoinSettings.of({attribute(key): bad}, {})
    assert str(refused.value) == f"optimize: option {key!r} must be {wanted}, got {bad!r}"
    with pytest.raises(ConfigurationError, match="the session's delta join options: option"):
        JoinSettings.of({}, {SESSION_PREFIX + key: bad})


@pytest.mark.parametrize(
    ("alias", "key"), [(alias, option.key) for option in OPTIONS for alias in option.aliases]
)
def test_name_of_flink_means_the_same(alias: str, key: str) -> None:
    good, value, _, _ = VALUES[key]
    assert JoinSettings.of({}, {alias: good}) == JoinSettings(**{attribute(key): value})
    with pytest.raises(ConfigurationError, match="mean the same; give one"):
        JoinSettings.of({}, {alias: good, SESSION_PREFIX + key: good})


def test_names_of_flip_486_are_known() -> None:
    own = {alias for option in OPTIONS for alias in option.aliases}
    assert {"strategy"} <= {name.removeprefix(FLINK_PREFIXES[0]) for name in own}
    assert {"cache-enable", "left-cache-size", "right-cache-size"} <= {
        name.removeprefix(FLINK_PREFIXES[1]) for name in own
    }


@pytest.mark.parametrize("prefix", [SESSION_PREFIX, *FLINK_PREFIXES])
def test_unknown_option_of_the_session_is_named(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown option '.*cache-sise'; did you mean"):
        JoinSettings.of({}, {f"{prefix}left.cache-sise": "7"})


def test_other_options_of_flink_are_none_of_ours() -> None:
    """They may be in a session that was moved over from there."""
    assert JoinSettings.of({}, {"table.exec.async-lookup.output-mode": "ORDERED"}) == JoinSettings()


def test_argument_counts_more_than_the_session() -> None:
    assert JoinSettings.of({"shards": 3}, {"spark.deltajoin.shards": "2"}).shards == 3


@pytest.mark.parametrize(("key", "value"), [("on-error", "queue"), ("consistency", "latest")])
@pytest.mark.parametrize("physical", ["fused", "shuffled"])
def test_options_that_need_the_stateful_form_are_refused_with_another(
    key: str, value: str, physical: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"option '{key}' = '{value}' needs physical = 'stateful'"):
        JoinSettings.of({key: value, "physical": physical}, {})
    assert JoinSettings.of({key: value, "physical": "stateful"}, {}).physical == "stateful"


def test_settings_cross_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(JoinSettings(shards=3))) == JoinSettings(shards=3)
