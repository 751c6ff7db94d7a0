"""Addresses of replicas: a list separated by commas, and what its host names mean now."""

import asyncio
import ipaddress
import socket


def split_addresses(listed: str) -> list[str]:
    """The addresses in ``listed``, each ``host:port``; IPv6 addresses in brackets.

    Raises:
        ValueError: none is there, or one is not an address.
    """
    addresses = [each.strip() for each in listed.split(",") if each.strip()]
    if not addresses:
        raise ValueError("give at least one address, host:port")
    for each in addresses:
        _host_and_port(each)
    return list(dict.fromkeys(addresses))


async def resolve(address: str) -> list[str]:
    """The addresses that ``address`` stands for now, sorted, with numbers for its host.

    A host with addresses of both families counts once: IPv4 is taken, because a replica that is
    reached by both would be two.

    Raises:
        OSError: the name does not resolve.
    """
    host, port = _host_and_port(address)
    if _is_literal(host):
        return [address]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    numbers = {family: set[str]() for family in (socket.AF_INET, socket.AF_INET6)}
    for family, _, _, _, place in found:
        if family in numbers:
            numbers[socket.AddressFamily(family)].add(str(place[0]))
    if numbers[socket.AF_INET]:
        return sorted(f"{number}:{port}" for number in numbers[socket.AF_INET])
    return sorted(f"[{number}]:{port}" for number in numbers[socket.AF_INET6])


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"{address} is not host:port")
    if not is_bracketed and not {":", "/", "@", " "}.isdisjoint(host):
        raise ValueError(f"{address} is not host:port (an IPv6 address goes in brackets)")
    return host.strip("[]"), int(port)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
