"""Which proxy the environment names for an address: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, as httpx2 reads
them."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies

from mcp_rollout.mcp_wire.admission import host_of, is_address, is_loopback

_PORTS = {"http": 80, "https": 443}


def proxy_of(url: str) -> str:
    """The address of a URL's proxy, with its user and password; empty if it has none.

    A proxy on another machine is not asked for an address of this one, which it could not reach.
    """
    given, host = getproxies(), host_of(url)
    proxy = given.get(urlsplit(url).scheme) or given.get("all", "")
    if not proxy or any(_names(entry.strip(), url, host) for entry in given.get("no", "").split(",")):
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    return "" if is_loopback(host) and not is_loopback(host_of(proxy)) else proxy


def _names(entry: str, url: str, host: str) -> bool:
    """Whether an entry of NO_PROXY names a URL: `*`, a network, an address, or a name, which has its subdomains (alone,
    with `.` or `*.` before it), and perhaps a port."""
    try:
        if is_address(host):
            return entry == "*" or ip_address(host) in ip_network(entry.replace("[", "").replace("]", ""), strict=False)
    except ValueError:
        pass  # no network
    try:
        found, asked = urlsplit(f"//{entry}"), urlsplit(url)
        name, port = (found.hostname or "").removeprefix("*"), found.port
    except ValueError:
        return False
    if port not in (None, asked.port or _PORTS.get(asked.scheme)):
        return False
    return entry == "*" or (name != "" and (host == name or host.endswith(f".{name.removeprefix('.')}")))
