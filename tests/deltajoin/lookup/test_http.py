"""Lookups over HTTP: the contract against a real server, and every way in which an endpoint can fail."""

import gzip
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from deltajoin.errors import LookupFailedError, LookupUnavailableError
from deltajoin.lookup import HttpLookup, LookupSource, RequestLimits, http_client
from deltajoin.lookup.batch import Lookups
from deltajoin.lookup.cache import RowCache
from deltajoin.lookup.contract import LookupContract, ask
from deltajoin.lookup.http_client import retry_after_s
from deltajoin.lookup.http_json import JsonExchange
from tests.deltajoin.lookup.batch_endpoint import BatchEndpoint
from upsert.errors import ConfigurationError, SchemaError

USERS = pa.table({"id": [1, 2, 3], "name": ["ann", "bob", "cy"]})
QUICK = RequestLimits(attempts=3, first_wait_s=0.0, max_wait_s=0.0)
OK = (200, {}, None)


class TestHttpLookup(LookupContract):
    @pytest.fixture(autouse=True)
    def _endpoint(self, endpoint: BatchEndpoint) -> None:
        self.endpoint = endpoint

    def make(self, rows: pa.Table, keys: Sequence[str]) -> LookupSource:
        return HttpLookup(self.endpoint.serve(rows, keys), rows.schema, keys)

    def make_silent(self, rows: pa.Table, keys: Sequence[str]) -> LookupSource:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        return HttpLookup(f"http://127.0.0.1:{port}/", rows.schema, keys, limits=RequestLimits(attempts=1))


def users(endpoint: BatchEndpoint, **arguments: Any) -> HttpLookup:
    return HttpLookup(endpoint.serve(USERS, ["id"]), USERS.schema, ["id"], **{"limits": QUICK, **arguments})


def outcome(source: HttpLookup, ids: Sequence[int] = (1, 2)) -> list[Any]:
    """For each key the names that were found, or the failure."""
    answer = ask(source, pa.table({"id": ids}))
    names: list[Any] = [answer.failures.get(at, []) for at in range(len(ids))]
    for at, name in zip(answer.positions.tolist(), answer.rows["name"].to_pylist(), strict=True):
        names[at].append(name)
    return names


def failure(source: HttpLookup) -> LookupFailedError:
    """Why both keys failed."""
    first, second = outcome(source)
    assert first is second
    assert isinstance(first, LookupFailedError)
    return first


# requests


def test_keys_are_cut_into_requests_that_are_in_flight_together(endpoint: BatchEndpoint) -> None:
    endpoint.behave(together=4)
    source = users(endpoint, limits=RequestLimits(keys_per_request=5, requests=4))
    assert outcome(source, list(range(100)))[:4] == [[], ["ann"], ["bob"], ["cy"]]
    seen = endpoint.seen()
    assert (seen["sizes"], seen["most_in_flight"], seen["connections"]) == ([5] * 20, 4, 4)


def test_a_key_is_sent_once_however_often_it_is_asked_for(endpoint: BatchEndpoint) -> None:
    assert outcome(users(endpoint), [2, 2, 1, 2]) == [["bob"], ["bob"], ["ann"], ["bob"]]
    assert sorted(endpoint.seen()["asked"]) == ['{"id": 1}', '{"id": 2}']


def test_connections_serve_one_batch_after_the_other(endpoint: BatchEndpoint) -> None:
    lookups = Lookups(users(endpoint, limits=RequestLimits(requests=1)))
    for _ in range(5):
        lookups.answer(pa.table({"id": [1]}))
    lookups.close()
    assert (endpoint.seen()["requests"], endpoint.seen()["connections"]) == (5, 1)


def test_a_thousand_lookups_are_as_many_at_a_time_as_allowed_and_none_from_the_cache(
    endpoint: BatchEndpoint,
) -> None:
    """So they take latency × 1000 ÷ 50, and the second time nothing; `bench.lookups` measures it."""
    rows = pa.table({"id": range(1_000), "name": [f"n{i}" for i in range(1_000)]})
    limits = RequestLimits(keys_per_request=1, requests=50)
    lookups = Lookups(HttpLookup(endpoint.serve(rows, ["id"]), rows.schema, ["id"], limits=limits))
    endpoint.behave(together=50)
    answer, counts = lookups.answer(rows.select(["id"]))
    lookups.close()
    assert (endpoint.seen()["requests"], endpoint.seen()["most_in_flight"]) == (1_000, 50)
    assert (counts.requests, counts.most_in_flight, counts.retries) == (1_000, 50, 0)
    cache = RowCache(rows.schema, ["id"], ["id"])
    cache.put(rows.select(["id"]), answer)
    found = cache.get(rows.select(["id"]))
    assert found.rows.equals(rows)
    assert len(found.missing) == 0


def test_headers_are_sent_and_not_shown(endpoint: BatchEndpoint) -> None:
    endpoint.behave(first=[(401, {}, "who are you?")])
    source = users(endpoint, headers={"Authorization": "Bearer s3cr3t", "X-Team": "joins"})
    assert str(failure(source)).endswith(
        "the endpoint refused the credentials, 401 Unauthorized: 'who are you?'; see 'headers'"
    )
    assert endpoint.seen()["headers"]["Authorization"] == "Bearer s3cr3t"
    assert endpoint.seen()["headers"]["X-Team"] == "joins"
    assert "s3cr3t" not in repr(source)
    assert "s3cr3t" not in repr(source.headers)


def test_what_is_secret_is_shown_in_no_message_whatever_the_endpoint_says(endpoint: BatchEndpoint) -> None:
    complaint = "Bearer s3cr3t? token=t0k3n? dTpwYXNz? no"
    results = '[{"error": "s3cr3t"}, "s3cr3t"]'
    endpoint.behave(first=[(400, {}, complaint), (200, {}, f'{{"results": {results}}}')])
    source = users(endpoint, headers={"X-Key": "Bearer s3cr3t"})
    source = replace(source, url=source.url.replace("//", "//u:pass@") + "?token=t0k3n")
    assert str(failure(source)).endswith("got 400 Bad Request: '***? ***? ***? no'")
    for found in outcome(source):
        assert '"***"' in str(found)
    misfit = '{"results": [[{"id": "s3cr3t", "name": "x"}], []]}'
    cut = f'{{"results": "{" " * 60}Bearer s3cr3t"}}'
    endpoint.behave(first=[(200, {}, misfit), (200, {}, cut)])
    assert "'***' is no BIGINT" in str(outcome(source)[0])
    said = str(failure(source))
    assert "Bea" not in said
    assert "***" in said


def test_where_a_redirect_leads_is_shown_without_its_query(endpoint: BatchEndpoint) -> None:
    endpoint.behave(first=[(302, {"Location": "https://u:p@other/x?token=t0k3n"}, "")])
    assert "it redirects to 'https://other/x'; correct the url" in str(failure(users(endpoint)))


def test_a_failure_of_the_client_does_not_quote_the_url(babbling_port: int) -> None:
    source = HttpLookup(f"http://127.0.0.1:{babbling_port}/?token=t0k3n", USERS.schema, ["id"], limits=QUICK)
    found = failure(source)
    assert "t0k3n" not in str(found)
    assert found.__cause__ is None


def test_a_given_header_takes_the_place_of_ours(endpoint: BatchEndpoint) -> None:
    outcome(users(endpoint, headers={"accept": "application/vnd.users+json"}))
    headers = endpoint.seen()["headers"]
    assert [value for name, value in headers.items() if name.lower() == "accept"] == [
        "application/vnd.users+json"
    ]


# what is tried again


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_status_that_may_pass_is_tried_again(endpoint: BatchEndpoint, status: int) -> None:
    endpoint.behave(first=[(status, {}, ""), (status, {}, "")])
    assert outcome(users(endpoint)) == [["ann"], ["bob"]]
    assert endpoint.seen()["requests"] == 3


def test_attempts_are_limited(endpoint: BatchEndpoint) -> None:
    endpoint.behave(first=[(503, {}, "later")] * 9)
    found = failure(users(endpoint))
    assert isinstance(found, LookupUnavailableError)
    assert "must answer with status 200, got 503 Service Unavailable: 'later'" in str(found)
    assert endpoint.seen()["requests"] == 3


def test_the_endpoint_says_when_to_come_back(endpoint: BatchEndpoint) -> None:
    endpoint.behave(first=[(429, {"Retry-After": "3600"}, "")])
    lookups = Lookups(users(endpoint), timeout_s=1.0)
    found = lookups.answer(pa.table({"id": [1]}))[0].failures[0]
    lookups.close()
    assert isinstance(found, LookupUnavailableError)
    assert "1 attempts did not" in str(found)
    assert endpoint.seen()["requests"] == 1


def test_a_reply_that_is_cut_off_is_tried_again(endpoint: BatchEndpoint) -> None:
    endpoint.behave(cut=True)
    assert isinstance(failure(users(endpoint)), LookupUnavailableError)
    assert endpoint.seen()["requests"] == 3


def test_a_slow_request_is_ended_and_tried_again(endpoint: BatchEndpoint) -> None:
    endpoint.behave(latency_s=30)
    limits = RequestLimits(timeout_s=0.1, attempts=2, first_wait_s=0.0)
    lookups = Lookups(users(endpoint, limits=limits))
    answer, counts = lookups.answer(pa.table({"id": [1]}))
    lookups.close()
    assert isinstance(answer.failures[0], LookupUnavailableError)
    assert (counts.requests, counts.retries, counts.failed_keys) == (2, 1, 1)


def test_a_slow_key_holds_no_other_up(endpoint: BatchEndpoint) -> None:
    """With two requests at a time the others overtake it: it is answered only after all of them."""
    endpoint.behave(last=['{"id": 1}', 9])
    limits = RequestLimits(keys_per_request=1, requests=2, timeout_s=120.0, attempts=1)
    assert outcome(users(endpoint, limits=limits), range(1, 11))[:3] == [["ann"], ["bob"], ["cy"]]
    assert endpoint.seen()["most_in_flight"] == 2


def test_a_key_that_waits_for_its_next_try_holds_no_other_up(endpoint: BatchEndpoint) -> None:
    """With one request at a time the others take its turn while it waits."""
    endpoint.behave(first=[(503, {}, "")])
    limits = RequestLimits(keys_per_request=1, requests=1)
    assert outcome(users(endpoint, limits=limits), [1, 2, 3]) == [["ann"], ["bob"], ["cy"]]
    assert endpoint.seen()["asked"] == ['{"id": 1}', '{"id": 2}', '{"id": 3}', '{"id": 1}']


# what is not


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "must answer with status 200, got 400 Bad Request: 'no'"),
        (403, "refused the credentials, 403 Forbidden: 'no'"),
        (404, "must answer with status 200, got 404 Not Found: 'no'"),
        (204, "must answer with status 200, got 204 No Content: ''"),
    ],
)
def test_other_statuses_fail_at_once(endpoint: BatchEndpoint, status: int, message: str) -> None:
    endpoint.behave(first=[(status, {}, "no")])
    found = failure(users(endpoint))
    assert type(found) is LookupFailedError
    assert message in str(found)
    assert endpoint.seen()["requests"] == 1


def test_redirects_are_not_followed(endpoint: BatchEndpoint) -> None:
    endpoint.behave(first=[(307, {"Location": f"{endpoint.address}/lookup/1"}, "")])
    assert "it redirects to" in str(failure(users(endpoint)))
    assert endpoint.seen()["requests"] == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<html>", "the reply must be JSON, it is not valid JSON"),
        ("[" * 300, "the reply must be JSON, it is nested deeper than 200 levels"),
        ("[]", "the reply must be an object whose 'results' are 2, one for each key, got b'[]'"),
        (
            '{"results": [[]]}',
            "the reply must be an object whose 'results' are 2, one for each key, got 1 results",
        ),
        ('{"results": {}}', "the reply must be an object whose 'results' are 2"),
    ],
)
def test_a_reply_must_have_the_form(endpoint: BatchEndpoint, body: str, message: str) -> None:
    endpoint.behave(first=[(200, {}, body)])
    found = failure(users(endpoint))
    assert type(found) is LookupFailedError
    assert message in str(found)
    assert f"HttpLookup {endpoint.address}/lookup/" in str(found)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ('[{"id": 1, "name": ["x"], "age": 3}]', None),
        (
            '[{"id": "one", "name": "x"}]',
            "a row of the reply must fit the schema: field 'id': 'one' is no BIGINT",
        ),
        ('[{"id": 1.5, "name": "x"}]', "field 'id': 1.5 is no BIGINT"),
        ('[{"id": 1}]', "field 'name': is missing"),
        ("[7]", "a row of the reply must fit the schema: 7 is no object"),
        ("null", "a result must be an array of rows, or an object with 'error', got null"),
        ('{"error": "shard 3 is lost"}', 'the endpoint reports for the key: "shard 3 is lost"'),
        (
            '[{"id": 2, "name": "x"}]',
            "rows must equal the key that they answer, byte by byte; the key {'id': 1}",
        ),
    ],
)
def test_what_is_wrong_with_one_result_is_a_failure_of_that_key(
    endpoint: BatchEndpoint, result: str, message: str | None
) -> None:
    endpoint.behave(first=[(200, {}, f'{{"results": [{result}, [{{"name": "bob", "id": 2}}]]}}')])
    first, second = outcome(users(endpoint))
    assert second == ["bob"]
    if message is None:
        assert first == ['["x"]']
    else:
        assert type(first) is LookupFailedError
        assert message in str(first)
    assert endpoint.seen()["requests"] == 1


def test_only_the_keys_that_may_succeed_are_asked_for_again(endpoint: BatchEndpoint) -> None:
    results = '[{"error": "later", "retry": true}, [{"id": 2, "name": "bob"}], {"error": "never"}]'
    endpoint.behave(first=[(200, {}, f'{{"results": {results}}}')])
    first, second, third = outcome(users(endpoint), [1, 2, 3])
    assert (first, second, type(third)) == (["ann"], ["bob"], LookupFailedError)
    assert endpoint.seen()["sizes"] == [3, 1]


def test_a_column_may_be_missing_where_that_is_agreed(endpoint: BatchEndpoint) -> None:
    endpoint.behave(first=[(200, {}, '{"results": [[{"id": 1}], []]}')])
    assert outcome(users(endpoint, missing_is_null=True)) == [[None], []]


def test_a_message_can_be_written_whatever_it_quotes(endpoint: BatchEndpoint) -> None:
    """Half of a surrogate pair has no UTF-8, and Spark's worker writes its errors in that."""
    endpoint.behave(first=[(200, {}, r'{"results": [{"error": "\ud800"}, "\ud800"]}')])
    for found in outcome(users(endpoint)):
        assert rb"\ud800" in str(found).encode()


def test_a_reply_that_takes_long_to_read_is_read_beside_the_others(
    endpoint: BatchEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    answer = JsonExchange.answer

    def told(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return answer(*given)

    monkeypatch.setattr(JsonExchange, "answer", told)
    assert outcome(users(endpoint)) == [["ann"], ["bob"]]
    monkeypatch.setattr(http_client, "_LARGE", 10)
    assert outcome(users(endpoint)) == [["ann"], ["bob"]]
    assert [name == "deltajoin-lookups" for name in threads] == [True, False]


def test_a_packed_reply_is_not_unpacked_beyond_the_limit(endpoint: BatchEndpoint) -> None:
    gigabyte = gzip.compress(b" " * (1 << 20)) * 1_000  # members one after the other
    with listening(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gigabyte) as port:
        source = HttpLookup(
            f"http://127.0.0.1:{port}/", USERS.schema, ["id"], limits=QUICK, max_reply_bytes=1 << 21
        )
        assert "a reply must have at most 2097152 bytes" in str(failure(source))


def test_a_reply_that_is_too_large_is_not_read(endpoint: BatchEndpoint) -> None:
    endpoint.behave(first=[(200, {}, " " * 1_000_000)])
    found = failure(users(endpoint, max_reply_bytes=100_000))
    assert type(found) is LookupFailedError
    assert "a reply must have at most 100000 bytes, it has more" in str(found)


@contextmanager
def listening(reply: bytes) -> Iterator[int]:
    """The port of a server that answers everything with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):  # the client need not read it all
                    connection.recv(1 << 16)
                    connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.fixture
def babbling_port() -> Iterator[int]:
    """The port of a server whose bytes are no HTTP."""
    with listening(b"\x00\xffSMTP ready\r\n\r\n") as port:
        yield port


def test_what_is_no_http_is_unavailable(babbling_port: int) -> None:
    source = HttpLookup(f"http://127.0.0.1:{babbling_port}/", USERS.schema, ["id"], limits=QUICK)
    found = failure(source)
    assert isinstance(found, LookupUnavailableError)
    assert "check that it runs and can be reached from here" in str(found)


def test_a_connection_that_must_be_secure_and_is_not_fails(babbling_port: int) -> None:
    source = HttpLookup(f"https://127.0.0.1:{babbling_port}/", USERS.schema, ["id"], limits=QUICK)
    assert "HttpLookup https://127.0.0.1" in str(failure(source))


# values


@pytest.mark.parametrize("header", ["Thu, 01 Jan 99999999999999999999 00:00:00 GMT", "soon", "-5", ""])
def test_a_time_to_come_back_that_is_none_says_nothing(header: str) -> None:
    assert retry_after_s(header, datetime.now(UTC)) is None


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"X": "a\nb: s3cr3t"}, "must have names and values as in HTTP, without line ends, 'X' has not"),
        ({"X y": "s3cr3t"}, "must have names and values as in HTTP, without line ends, 'X y' has not"),
        ({"X-a": "s3cr3t", "x-A": "1"}, "must be given once each, .* got 'X-a' and 'x-A'"),
        ({"content-length": "3"}, "must leave 'content-length' to the client"),
        (
            {"authorization": "s3cr3t"},
            "credentials must be given once, .* leave one of them out of 'http://h/'",
        ),
    ],
)
def test_headers_must_be_such(headers: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as found:
        HttpLookup("http://u:s3cr3t@h/", USERS.schema, ["id"], headers=headers)
    assert "s3cr3t" not in str(found.value)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:80/x",
        "ftp://host/x",
        "http:///x",
        "",
        "http://h:99999/",
        "http://[::1",
        "http://h h/",
        "http://../",
    ],
)
def test_the_url_must_be_one(url: str) -> None:
    with pytest.raises(ConfigurationError, match="url must be like 'https://host/path'"):
        HttpLookup(url, USERS.schema, ["id"])


def test_columns_must_have_a_form_in_json() -> None:
    schema = pa.schema({"id": pa.int64(), "m": pa.map_(pa.int64(), pa.string())})
    with pytest.raises(SchemaError, match="a MAP in JSON must have a key of type STRING"):
        HttpLookup("http://host/", schema, ["id"])


def test_certificates_must_be_readable(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="ca_file must be a PEM file of certificates"):
        ask(HttpLookup("https://host/", USERS.schema, ["id"], ca_file=str(tmp_path)), USERS.select(["id"]))


def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "deltajoin.lookup.http_client", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ConfigurationError, match=r"needs the package 'aiohttp'.*'deltajoin\[http\]'"):
        ask(HttpLookup("http://host/", USERS.schema, ["id"]), USERS.select(["id"]))
