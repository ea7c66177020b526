"""Base URLs in one spelling, and which addresses the portal connects to (case 49)."""

import asyncio
import ipaddress
import time
from collections.abc import Callable

import pytest

from hermes_portal.hermes.connections import Departure, GuardedAsyncBackend, GuardedBackend
from hermes_portal.hermes.errors import AddressRefused, ConnectFailed, DeadlineExpired
from hermes_portal.hermes.network import (
    Guard,
    normalise_base_url,
    origin,
    parse_networks,
)

pytestmark = pytest.mark.once

PUBLIC = "93.184.215.14"


def names(*addresses: str) -> Callable[[str, int], list[str]]:
    return lambda host, port: list(addresses)


def guard(*networks: str, lookup: Callable[[str, int], list[str]] | None = None) -> Guard:
    return Guard(parse_networks(networks), lookup or names(PUBLIC))


# One spelling.


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("https://hermes.example", "https://hermes.example"),
        ("HTTPS://Hermes.EXAMPLE:443/", "https://hermes.example"),
        ("  http://hermes.example:80// ", "http://hermes.example"),
        ("http://hermes.example:8642/p/Ops/", "http://hermes.example:8642/p/Ops"),
        ("http://hermes.example:8642/p/default/", "http://hermes.example:8642"),
        ("https://hermes.example:080443", None),
        ("http://hermes.example:08642", "http://hermes.example:8642"),
        ("http://hermes_1:8642", "http://hermes_1:8642"),
        ("http://XN--BCHER-KVA.example", "http://xn--bcher-kva.example"),
        ("http://127.0.0.1:8642", "http://127.0.0.1:8642"),
        ("http://[2001:0DB8:0:0::1]:8642", "http://[2001:db8::1]:8642"),
        ("http://[::1]", "http://[::1]"),
    ],
)
def test_a_base_url_has_one_spelling(text, normal):
    if normal is None:
        with pytest.raises(AddressRefused):
            normalise_base_url(text)
    else:
        assert normalise_base_url(text) == normal
        assert normalise_base_url(normal) == normal


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hermes.example",
        "file:///etc/passwd",
        "gopher://hermes.example",
        "ftp://hermes.example",
        "//hermes.example",
        "http://",
        "http:///v1",
        "http://user@hermes.example",
        "http://user:word@hermes.example",
        "http://user@evil.example@127.0.0.1/",
        "http://host.example#@internal/",
        "http://hermes.example/?x=1",
        "http://hermes.example?",
        "http://hermes.example#",
        "http://hermes.example\\@evil.example",
        "http://hermes.example\r\nX: y",
        "http://hermes.example\t",
        "http://her\x00mes.example",
        "http://her mes.example",
        "http://hermes.example.",
        "http://localhost.",
        "http://hermes..example",
        "http://.example",
        "http://-hermes.example",
        "http://hermes%2eexample",
        "http://bücher.example",
        "http://127。0。0。1",
        "http://①②⑦.0.0.1",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0x7f000001",
        "http://127.1/",
        "http://0/",
        "http://0177.0.0.1",
        "http://127.0.0.1.",
        "http://127.0.0.256",
        "http://hermes.0x7f",
        "http://[::ffff:169.254.169.254]/",
        "http://[::ffff:7f00:1]/",
        "http://[fe80::1%25eth0]/",
        "http://[::1",
        "http://::1",
        "http://hermes.example:",
        "http://hermes.example:0",
        "http://hermes.example:22",
        "http://hermes.example:25",
        "http://redis:6379/",
        "http://hermes.example:65536",
        "http://hermes.example:+80",
        "http://hermes.example:８０",
        "http://hermes.example/p/../admin",
        "http://hermes.example/./p",
        "http://hermes.example//p",
        "http://hermes.example/p/%2e%2e",
        "http://hermes.example/p;x",
        "http://" + "a." * 150 + "example",
        "http://hermes.example/" + "p" * 600,
    ],
)
def test_a_base_url_that_could_mean_something_else_is_refused(text):
    with pytest.raises(AddressRefused) as caught:
        normalise_base_url(text)
    assert caught.value.sentence


def test_the_origin_leaves_the_profile_path_out():
    assert origin("http://hermes.example:8642/p/ops") == "http://hermes.example:8642"
    assert origin("http://hermes.example:8642") == "http://hermes.example:8642"


@pytest.mark.parametrize("text", ["10.0.0.1/8", "ten", "10.0.0.0/33", ""])
def test_an_allow_list_holds_networks_only(text):
    with pytest.raises(AddressRefused):
        parse_networks([text])


# Which addresses.


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",  # noqa: S104 - an address that must be refused
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.168.1.1",
        "198.18.0.1",
        "203.0.113.9",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::808:808",
        "64:ff9b:1::a00:1",
        "100::1",
        "2001::7f00:1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_an_address_that_is_not_public_is_refused(address):
    with pytest.raises(AddressRefused):
        guard(lookup=names(address)).resolve("hermes.example", 443)


@pytest.mark.parametrize("address", ["93.184.215.14", "172.32.0.1", "100.128.0.1", "2606:4700::1111"])
def test_a_public_address_is_taken(address):
    assert guard(lookup=names(address)).resolve("hermes.example", 443) == [ipaddress.ip_address(address)]


@pytest.mark.parametrize(
    ("network", "address", "taken"),
    [
        ("10.1.0.0/16", "10.1.2.3", True),
        ("10.1.0.0/16", "10.2.2.3", False),
        ("127.0.0.0/8", "127.0.0.1", True),
        ("127.0.0.0/8", "::1", False),
        ("::1/128", "::1", True),
        ("fd00::/8", "fd12::1", True),
        ("10.1.0.0/16", "::ffff:10.1.2.3", True),
        ("64:ff9b::/96", "64:ff9b::808:808", True),
        ("64:ff9b::/96", "64:ff9b::7f00:1", False),
        ("2002::/16", "2002:7f00:1::", False),
        ("0.0.0.0/0", "192.168.1.1", True),
        ("0.0.0.0/0", "169.254.169.254", False),
        ("0.0.0.0/0", "0.0.0.0", False),  # noqa: S104
        ("0.0.0.0/0", "224.0.0.1", False),
        ("::/0", "fd00:ec2::254", False),
        ("::/0", "::ffff:127.0.0.1", False),
    ],
)
def test_an_allow_list_opens_its_own_networks_and_never_metadata_services(network, address, taken):
    assert guard(network).permits(ipaddress.ip_address(address)) is taken


def test_a_mapped_address_is_connected_to_as_the_ipv4_address_that_it_is():
    found = guard("10.0.0.0/8", lookup=names("::ffff:10.0.0.1")).resolve("hermes.example", 443)
    assert found == [ipaddress.ip_address("10.0.0.1")]


def test_one_private_record_among_public_ones_refuses_the_name():
    with pytest.raises(AddressRefused):
        guard(lookup=names(PUBLIC, "10.0.0.1")).resolve("hermes.example", 443)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "0", "localhost", "::1", "[::1]"]
)
def test_what_the_system_reads_as_this_machine_is_refused_whatever_its_spelling(host):
    with pytest.raises((AddressRefused, ConnectFailed)):
        Guard().resolve(host, 8642)


def test_a_port_is_checked_again_when_it_is_connected_to():
    with pytest.raises(AddressRefused):
        guard().resolve("hermes.example", 22)


@pytest.mark.parametrize("failure", [OSError("no such name"), UnicodeError("label too long")])
def test_a_name_that_does_not_resolve_was_not_sent(failure):
    def lookup(host: str, port: int) -> list[str]:
        raise failure

    with pytest.raises(ConnectFailed):
        guard(lookup=lookup).resolve("hermes.example", 443)
    with pytest.raises(ConnectFailed):
        asyncio.run(guard(lookup=lookup).aresolve("hermes.example", 443))


def test_a_name_without_addresses_or_with_nonsense_is_not_connected_to():
    with pytest.raises(ConnectFailed):
        guard(lookup=names()).resolve("hermes.example", 443)
    with pytest.raises(AddressRefused):
        guard(lookup=names("nonsense")).resolve("hermes.example", 443)


def test_a_slow_resolver_does_not_hold_the_call():
    def lookup(host: str, port: int) -> list[str]:
        time.sleep(0.5)
        return [PUBLIC]

    with pytest.raises(ConnectFailed):
        guard(lookup=lookup).resolve("hermes.example", 443, timeout=0.05)


# At the connection.


def test_the_name_is_resolved_once_per_connection_and_checked_each_time():
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])
    asked: list[str] = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return next(answers)

    checked = guard("127.0.0.0/8", lookup=rebinding)
    backend = GuardedBackend(checked, Departure(limit=time.monotonic() + 5), receive_limit=1000)
    with pytest.raises(ConnectFailed):
        backend.connect_tcp("hermes.example", 1024)  # nothing listens there: the checked address was tried
    assert asked == ["hermes.example"]
    with pytest.raises(AddressRefused):
        backend.connect_tcp("hermes.example", 1024)
    assert asked == ["hermes.example"] * 2


def test_the_event_streams_backend_checks_as_well():
    backend = GuardedAsyncBackend(guard(lookup=names("10.0.0.1")))
    with pytest.raises(AddressRefused):
        asyncio.run(backend.connect_tcp("hermes.example", 443))
    with pytest.raises(AddressRefused):
        asyncio.run(backend.connect_tcp("::1", 443))


def test_no_connection_is_opened_to_a_socket_in_the_file_system():
    departure = Departure(limit=time.monotonic() + 5)
    with pytest.raises(AddressRefused):
        GuardedBackend(guard(), departure, receive_limit=1).connect_unix_socket("/run/hermes.sock")
    with pytest.raises(AddressRefused):
        asyncio.run(GuardedAsyncBackend(guard()).connect_unix_socket("/run/hermes.sock"))


def test_the_first_byte_may_not_leave_after_send_until():
    departure = Departure(limit=time.monotonic() + 60, send_until=time.monotonic() - 0.001)
    with pytest.raises(DeadlineExpired):
        departure.leave()
    assert not departure.left


def test_once_a_byte_has_left_the_rest_of_the_request_may_follow():
    departure = Departure(limit=time.monotonic() + 60, send_until=time.monotonic() + 0.02)
    departure.leave()
    time.sleep(0.03)
    departure.leave()
    assert departure.left
