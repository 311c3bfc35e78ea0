"""Addresses are taken apart without their secrets, and refused without being quoted."""

import pytest

from sea_mq_worker.runtime.addresses import (
    NatsAddress,
    has_password,
    nats_addresses,
    postgres_address,
    postgres_files,
    postgres_problem,
    split_password_file,
    with_password_file,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h", [NatsAddress(url="nats://h", host="h", demands_tls=False)]),
        ("nats://h:1", [NatsAddress(url="nats://h:1", host="h", demands_tls=False)]),
        (
            "tls://u%40x:p%2Fw@a:1, nats://[::1]:2/",
            [
                NatsAddress(url="tls://a:1", host="a", demands_tls=True, user="u@x", password="p/w"),
                NatsAddress(url="nats://[::1]:2", host="::1", demands_tls=False),
            ],
        ),
        ("nats://token@h", [NatsAddress(url="nats://h", host="h", demands_tls=False, token="token")]),
    ],
)
def test_a_list_of_servers_is_taken_apart(text: str, expected: list[NatsAddress]) -> None:
    assert nats_addresses(text) == expected
    assert not any(secret in repr(nats_addresses(text)) for secret in ("p/w", "token='token'"))


BAD = (
    *("", "nats://", "http://h", "nats://h/x", "nats://h:65536", "[h"),
    *("nats://u:s3cret/x@h", "nats://h:s3cret", "nats://h#s3cret"),
)


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_server_is_refused_unquoted(text: str) -> None:
    with pytest.raises(ValueError, match="expected nats://host:4222") as refused:
        nats_addresses(text)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:p@h:1/d",
        "postgres://h:1,[::1]:2,i/d",
        "postgresql:///d?host=/run/sock&user=u",
        "postgresql://u:p%2F%23@h/d?sslmode=verify-full",
        "postgresql://",
    ],
)
def test_postgresqls_own_forms_of_a_url_are_taken(dsn: str) -> None:
    assert not postgres_problem(dsn)


@pytest.mark.parametrize(
    "dsn",
    [
        *("host=h", "mysql://h", "postgresql://u:s3/cret@h/d", "postgresql://u:12/s3@h/d"),
        *("postgresql://u:s3#cret@h/d", "postgresql://h:s3cret/d", "postgresql://[h/d"),
        *("postgresql://u:s3@cret@h/d", "postgres:s3", "postgresql:/s3", "postgresql://h/d\ns3"),
    ],
)
def test_what_is_no_url_of_postgresql_is_refused_unquoted(dsn: str) -> None:
    assert "expected postgresql://" in postgres_problem(dsn)
    assert "s3" not in postgres_problem(dsn)


@pytest.mark.parametrize(
    ("dsn", "rest", "hosts"),
    [
        ("postgresql://h:1,[::1]:2/d", "postgresql:///d", [("h", 1), ("::1", 2)]),
        (
            "postgres://u:p%40@[fe80::1],h:1,:2/d?sslmode=require&x=%2F",
            "postgres://u:p%40@/d?sslmode=require&x=%2F",
            [("fe80::1", 0), ("h", 1), ("localhost", 2)],
        ),
        ("postgresql://%2Frun%2Fsock/d", "postgresql:///d", [("/run/sock", 0)]),
        ("postgresql://u@/d?host=/run/sock", "postgresql://u@/d?host=/run/sock", []),
        ("postgresql://", "postgresql://", []),
    ],
)
def test_hosts_are_taken_out_of_a_url_of_postgresql(
    dsn: str, rest: str, hosts: list[tuple[str, int]]
) -> None:
    assert postgres_address(dsn) == (rest, hosts)
    assert postgres_address(rest) == (rest, [])


@pytest.mark.parametrize("url", ["postgresql://u@h/d", "postgresql://u@h/d?sslmode=require"])
def test_a_password_file_travels_with_a_url_of_postgresql(url: str) -> None:
    named = with_password_file(with_password_file(url, "/old"), "/run/pass word&")
    assert split_password_file(named) == (url, "/run/pass word&")
    assert postgres_files(named) == ["/run/pass word&"]
    assert split_password_file(url) == (url, "")


@pytest.mark.parametrize(
    ("url", "found"),
    [("postgresql://u:p@h/d", True), ("postgresql://u@h/d?password=p", True), ("postgresql://u@h/d", False)],
)
def test_a_password_in_a_url_of_postgresql_is_found(url: str, found: bool) -> None:
    assert has_password(url) is found


def test_the_files_of_a_dsn_are_named_as_they_are_given() -> None:
    dsn = "postgresql://h/d?sslmode=verify-full&sslrootcert=/ca%20x.pem&sslkey=k"
    assert postgres_files(dsn) == ["/ca x.pem", "k"]
