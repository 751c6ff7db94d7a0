"""Addresses of replicas: a list separated by commas, and what its host names mean now."""

import asyncio
import ipaddress
import socket

#: What the address of a vLLM server begins with.
JSON_SCHEMES = ("http://", "https://")


def split_addresses(listed: str, *, may_be_json: bool = False) -> list[str]:
    """The addresses in ``listed``, each ``host:port``; IPv6 addresses in brackets.

    ``may_be_json``: ``http://`` or ``https://`` may stand before one.

    Raises:
        ValueError: none is there, or one is not an address.
    """
    addresses = [each.strip() for each in listed.split(",") if each.strip()]
    if not addresses:
        raise ValueError("give at least one address, host:port")
    for each in addresses:
        host_and_port(_split_scheme(each)[1] if may_be_json else each)
    return list(dict.fromkeys(addresses))


async def resolve(address: str) -> list[str]:
    """The addresses that ``address`` stands for now, sorted, with numbers for its host.

    A host with addresses of both families counts once: IPv4 is taken, because a replica that is
    reached by both would be two. A name after ``https://`` stays, because a certificate names it.

    Raises:
        OSError: the name does not resolve.
    """
    scheme, place = _split_scheme(address)
    host, port = host_and_port(place)
    if _is_literal(host) or scheme == "https://":
        return [address]
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # an empty label, or one of more than 63 letters
        raise OSError(f"{host} is no host name") from error
    numbers = {family: set[str]() for family in (socket.AF_INET, socket.AF_INET6)}
    for family, _, _, _, endpoint in found:
        if family in numbers:
            numbers[socket.AddressFamily(family)].add(str(endpoint[0]))
    if numbers[socket.AF_INET]:
        return sorted(f"{scheme}{number}:{port}" for number in numbers[socket.AF_INET])
    return sorted(f"{scheme}[{number}]:{port}" for number in numbers[socket.AF_INET6])


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of ``address``; an IPv6 host without its brackets.

    Raises:
        ValueError: it is no ``host:port``.
    """
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"{address} is not host:port")
    if not is_bracketed and not {":", "/", "@", " "}.isdisjoint(host):
        raise ValueError(f"{address} is not host:port (an IPv6 address goes in brackets)")
    return host.strip("[]"), int(port)


def _split_scheme(address: str) -> tuple[str, str]:
    for scheme in JSON_SCHEMES:
        if address.startswith(scheme):
            return scheme, address.removeprefix(scheme)
    return "", address


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
