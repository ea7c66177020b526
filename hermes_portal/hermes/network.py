"""Where the portal may connect to: one spelling of a base URL, and the address guard (case 49).

An endpoint's address is an admin's input and a name's records belong to whoever runs its DNS. So a name is
resolved once per connection, every address it has is checked, and the connection goes to a checked address;
`Host` and the TLS name stay those of the stored URL. Nothing is cached: each connection is checked anew.
"""

from __future__ import annotations

import asyncio
import ipaddress
import queue
import re
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hermes_portal.hermes.errors import AddressRefused, ConnectFailed

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Lookup = Callable[[str, int], Sequence[str]]

CONNECT_SECONDS = 10.0
BASE_URL_LIMIT = 512

DEFAULT_PORTS = {"http": 80, "https": 443}

# Services that take commands from whatever bytes arrive, or that hold what the portal must not touch.
# Everything below 1024 but 80 and 443 is refused anyway.
REFUSED_PORTS = frozenset(
    {1433, 1521, 2049, 2375, 2376, 2379, 2380, 3306, 3389, 5432, 5672, 5900, 6000, 6379, 10250, 11211, 27017}
    | set(range(6665, 6670))
    | {6697}
)

LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
NUMBER_LIKE = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)")
SEGMENT = re.compile(r"[A-Za-z0-9._~-]+")
URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[^\[\]:/]+)(?::(?P<port>[0-9]{1,5}))?(?P<path>/.*)?",
    re.IGNORECASE,
)

# The registries of special addresses (RFC 6890 and its updates). Python's own `is_private` differs between
# patch releases, a list in the open does not.
PRIVATE_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared address space of carriers (CGNAT)
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
    )
)
# In IPv6 only 2000::/3 is given out to the public internet; these parts of it are special.
PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
PRIVATE_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, Teredo (2001::/32) among them
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)
NAT64 = tuple(ipaddress.IPv6Network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48"))

# No allow list opens these: "this host" and multicast are no servers, and cloud metadata services hand out
# keys.
NEVER: tuple[Network, ...] = (
    ipaddress.IPv4Network("0.0.0.0/8"),
    ipaddress.IPv4Network("224.0.0.0/4"),
    ipaddress.IPv4Network("240.0.0.0/4"),
    ipaddress.IPv4Network("100.100.100.200/32"),
    ipaddress.IPv4Network("169.254.169.254/32"),
    ipaddress.IPv4Network("169.254.170.2/32"),
    ipaddress.IPv6Network("::/128"),
    ipaddress.IPv6Network("fd00:ec2::254/128"),
    ipaddress.IPv6Network("ff00::/8"),
)


def normalise_base_url(text: str) -> str:
    """The one spelling of an endpoint's origin and profile path, such as `https://hermes.example:8443/p/ops`.

    Scheme and host in lower case, no default port, no slash at the end, and no `/p/default`, which Hermes
    serves as the same scope as no prefix (contract 0.22, b2). Two spellings of one endpoint give equal
    strings, so that the database can hold "one origin and profile path, one tenant" as a unique column.

    Raises AddressRefused, with a sentence that says what to write instead.
    """
    text = text.strip(" ")
    if not text or len(text) > BASE_URL_LIMIT:
        raise _refused("The base URL must have 1 to 512 characters.")
    if re.search(r"[^\x21-\x7e]", text):
        raise _refused(
            "The base URL may hold visible ASCII only. Write an international host name in its xn-- form."
        )
    if re.search(r"[@?#\\]", text):
        raise _refused("The base URL must not hold a user name, a query, a fragment or a backslash.")
    match = URL.fullmatch(text)
    if match is None:
        raise _refused("The base URL must look like http://host:port or https://host:port/p/profile.")
    scheme = match["scheme"].lower()
    host = _host(match["host"].lower())
    port = int(match["port"]) if match["port"] else DEFAULT_PORTS[scheme]
    check_port(port)
    shown_port = "" if port == DEFAULT_PORTS[scheme] else f":{port}"
    return f"{scheme}://{host}{shown_port}{_prefix(match['path'] or '')}"


def origin(base_url: str) -> str:
    """Scheme, host and port of a normal base URL, without its profile path."""
    return "/".join(base_url.split("/", 3)[:3])


def check_port(port: int) -> None:
    """Raises AddressRefused unless a Hermes may listen there: 80, 443, or 1024 and up without known
    services."""
    if port in (80, 443) or (1024 <= port <= 65535 and port not in REFUSED_PORTS):
        return
    raise _refused(
        f"Port {port} is not allowed. Use 80, 443, or one from 1024 that no other known service has."
    )


def _refused(sentence: str, detail: str = "") -> AddressRefused:
    return AddressRefused(detail, sentence=sentence)


def _host(host: str) -> str:
    if host.startswith("["):
        return f"[{_ipv6(host[1:-1])}]"
    labels = host.split(".")
    if labels[-1] == "":
        raise _refused("Write the host name without a dot at its end.")
    if NUMBER_LIKE.fullmatch(labels[-1]):
        # Resolvers read 127.1, 0x7f.1 and 2130706433 as addresses too: only the plain form is taken.
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise _refused("Write an IPv4 address as four decimal numbers, such as 192.0.2.10.") from None
    if len(host) > 253 or not all(LABEL.fullmatch(label) for label in labels):
        raise _refused("The host name may hold letters, digits, hyphens and dots only.")
    return host


def _ipv6(text: str) -> ipaddress.IPv6Address:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise _refused("The IPv6 address in the base URL is not valid.") from None
    if address.ipv4_mapped is not None:
        raise _refused(f"Write the IPv4 address itself: {address.ipv4_mapped}.")
    return address


def _prefix(path: str) -> str:
    path = path.rstrip("/")
    segments = path.split("/")[1:]
    if not all(SEGMENT.fullmatch(segment) and segment not in (".", "..") for segment in segments):
        raise _refused("The path of the base URL may hold plain segments only, such as /p/profile.")
    return "" if segments == ["p", "default"] else path


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """An endpoint's allow list from its CIDR texts. Raises AddressRefused for one that is not a network."""
    networks: list[Network] = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text.strip()))
        except ValueError:
            raise _refused(
                f"{text.strip()[:64]!r} is not a network. Write it as 10.1.2.0/24 or fd00::/64."
            ) from None
    return tuple(networks)


def system_lookup(host: str, port: int) -> list[str]:
    """All addresses of a name, from the system's resolver. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(sockaddr[0]) for *_, sockaddr in found]


@dataclass(frozen=True)
class Guard:
    """Decides which addresses may be connected to: public ones, and those inside `allow`.

    `allow` is the endpoint's list of networks (a Hermes often lives on a private network; the default is
    none). `lookup` resolves a name to all of its addresses; tests pass their own.
    """

    allow: tuple[Network, ...] = ()
    lookup: Lookup = field(default=system_lookup, compare=False)

    def permits(self, address: Address) -> bool:
        """Whether a connection to this address may be opened.

        An address that carries an IPv4 address inside (mapped, NAT64, 6to4, Teredo) is permitted only if
        both are.
        """
        embedded = embedded_ipv4(address)
        if embedded is not None and not self.permits(embedded):
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            return True
        if any(_within(address, network) for network in NEVER):
            return False
        return is_public(address) or any(_within(address, network) for network in self.allow)

    def resolve(self, host: str, port: int, *, timeout: float = CONNECT_SECONDS) -> list[Address]:
        """The addresses of `host`, each of them checked, in the resolver's order.

        Raises AddressRefused if even one is not permitted (a name with a public and a private record is a
        trick), ConnectFailed if the name does not resolve within `timeout` seconds.
        """
        check_port(port)
        literal = _literal(host)
        if literal is not None:
            return self._checked(host, [literal])
        try:
            texts = _within_seconds(lambda: self.lookup(host, port), timeout)
        except (OSError, UnicodeError) as exc:
            raise _unresolved(host) from exc
        return self._checked(host, texts)

    async def aresolve(self, host: str, port: int) -> list[Address]:
        """As `resolve`, without blocking the loop; the caller bounds the time."""
        check_port(port)
        literal = _literal(host)
        if literal is not None:
            return self._checked(host, [literal])
        try:
            texts = await asyncio.get_running_loop().run_in_executor(None, self.lookup, host, port)
        except (OSError, UnicodeError) as exc:
            raise _unresolved(host) from exc
        return self._checked(host, texts)

    def _checked(self, host: str, texts: Sequence[str]) -> list[Address]:
        addresses: list[Address] = []
        for text in texts:
            try:
                address: Address = ipaddress.ip_address(text)
            except ValueError:
                raise _refused(f"The name {host} resolves to something that is no address.", text) from None
            if not self.permits(address):
                raise _refused(
                    f"Nothing was sent: {host} leads to {address}, no public address. "
                    "If it is the right Hermes, an admin can name its network in the endpoint's allow list.",
                )
            if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
                address = address.ipv4_mapped
            if address not in addresses:
                addresses.append(address)
        if not addresses:
            raise _unresolved(host)
        return addresses


def is_public(address: Address) -> bool:
    """Whether the address belongs to the public internet."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in PRIVATE_V4)
    return address in PUBLIC_V6 and not any(address in network for network in PRIVATE_V6)


def embedded_ipv4(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a transition form of IPv6 would really reach, if it is such a form."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _literal(host: str) -> str | None:
    text = host.strip("[]")
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return None
    return text


def _unresolved(host: str) -> ConnectFailed:
    return ConnectFailed(
        sentence=f"Nothing was sent: the name {host} could not be resolved. Check the base URL."
    )


def _within_seconds(work: Callable[[], Sequence[str]], seconds: float) -> Sequence[str]:
    """The result of a blocking lookup, or TimeoutError (an OSError): the system's resolver takes no time
    limit.

    The thread that is left behind ends with the resolver's own patience.
    """
    box: queue.SimpleQueue[Sequence[str] | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            box.put(work())
        except Exception as exc:  # noqa: BLE001 - carried over to the waiting thread, which raises it
            box.put(exc)

    threading.Thread(target=run, name="hermes-lookup", daemon=True).start()
    try:
        found = box.get(timeout=max(seconds, 0.0))
    except queue.Empty:
        raise TimeoutError("name lookup took too long") from None
    if isinstance(found, BaseException):
        raise found
    return found
