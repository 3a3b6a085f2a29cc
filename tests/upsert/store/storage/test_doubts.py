"""A store that fails while a name is published: nobody may call that a failure."""

from collections.abc import Iterator
from typing import Any

import pytest

from upsert.errors import ConfigurationError, UnknownOutcomeError
from upsert.store.storage.base import UnansweredError
from upsert.store.storage.object_store import ObjectStorage


def test_rights_that_end_after_a_put_without_an_answer_leave_it_in_doubt() -> None:
    """It may be carried out yet: whoever took it for refused would delete the rows of a commit."""

    class Client:
        answers: Iterator[Exception] = iter(
            [UnansweredError(5, "no answer"), *[ConfigurationError("403")] * 99]
        )

        def put(self, *_: Any) -> None:
            raise next(self.answers)

        get = put

    storage = ObjectStorage(Client(), sleep=lambda _: None)  # type: ignore[arg-type]
    with pytest.raises(UnknownOutcomeError, match="got no answer"):
        storage.put_if_absent("s3://bucket/t/snapshot-1", b"rows")
