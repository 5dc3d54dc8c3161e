"""Ports of Ray's processes that other machines reach."""

import ipaddress
import os
from collections.abc import Iterable, Mapping

import psutil

from raybio.runtime.preflight.finding import OK, Finding

WORKER = "worker"


def ray_processes(folder: str) -> Iterable[psutil.Process]:
    """Yield Ray's processes on this machine, and their children.

    Args:
        folder: Ray's temporary folder, which the command lines of its own processes name.
    """
    seen = set()
    for process in psutil.process_iter():
        try:
            if folder not in " ".join(process.cmdline()):
                continue
            family = [process, *process.children(recursive=True)]
        except psutil.Error:
            continue
        for member in family:
            if member.pid not in seen:
                seen.add(member.pid)
                yield member


def open_ports(folder: str) -> dict[str, list[int]]:
    """Return the TCP ports of Ray's processes that do not listen on loopback alone.

    Args:
        folder: Ray's temporary folder.

    Returns:
        Kind of process, such as ``raylet`` -> its ports, ascending.
    """
    ports: dict[str, set[int]] = {}
    for process in ray_processes(folder):
        try:
            title = " ".join(process.cmdline())
            connections = process.net_connections("tcp")
        except psutil.Error:
            continue
        for connection in connections:
            is_open = connection.status == psutil.CONN_LISTEN
            if is_open and not ipaddress.ip_address(connection.laddr.ip).is_loopback:
                ports.setdefault(_kind(title), set()).add(connection.laddr.port)
    return {kind: sorted(numbers) for kind, numbers in sorted(ports.items())}


def compare_ports(ports_by_node: Mapping[str, Mapping[str, list[int]]]) -> Finding:
    """List the open ports of each node, with what protects them."""
    shown = []
    for node, ports in ports_by_node.items():
        kinds = [f"{kind} {', '.join(map(str, numbers))}" for kind, numbers in ports.items()]
        shown.append(f"{node}: {'; '.join(kinds) or 'none'}")
    state = "RAY_USE_TLS=1 would encrypt Ray's connections"
    if os.environ.get("RAY_USE_TLS") == "1":
        state = "RAY_USE_TLS=1 encrypts Ray's connections"
    # Ports of torch.distributed are not listed, since workers open them only in training.
    advice = f"close the network to others: {state}, but not those between training workers"
    return Finding("ports", OK, f"open to other machines: {'. '.join(shown)}. {advice}")


def _kind(title: str) -> str:
    for kind in ("gcs_server", "raylet", "dashboard", "runtime_env", "log_monitor", "monitor"):
        if kind in title:
            return kind
    return WORKER
