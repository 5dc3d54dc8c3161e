"""Ports of Ray's processes that other machines reach."""

from pathlib import Path

import pytest

from raybio.runtime.preflight.finding import OK
from raybio.runtime.preflight.ports import compare_ports, open_ports


def listening_ports() -> set[int]:
    """Ports of this machine that listen on another address than 127.x.x.x or ::1."""
    ports = set()
    for table, loopback in (("tcp", "7F"), ("tcp6", "00000000000000000000000001000000")):
        path = Path("/proc/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            address, port = line.split()[1].split(":")
            is_loopback = address == loopback or (table == "tcp" and address.endswith(loopback))
            if line.split()[3] == "0A" and not is_loopback:
                ports.add(int(port, 16))
    return ports


@pytest.mark.usefixtures("ray_cluster")
def test_the_ports_of_a_cluster_are_those_that_the_system_lists() -> None:
    import ray

    found = open_ports(ray.get_runtime_context().get_temp_dir())
    (node,) = ray.nodes()
    assert node["NodeManagerPort"] in found["raylet"]
    assert {port for ports in found.values() for port in ports} <= listening_ports()
    assert open_ports("/no/such/folder") == {}


def test_ports_are_listed_by_node_with_what_protects_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    ports = {"10.0.0.1": {"raylet": [4000, 4001], "worker": [5000]}, "10.0.0.2": {}}
    found = compare_ports(ports)
    assert (found.check, found.state) == ("ports", OK)
    assert "10.0.0.1: raylet 4000, 4001; worker 5000. 10.0.0.2: none" in found.found
    rest = "connections, but not those between training workers"
    assert f"close the network to others: RAY_USE_TLS=1 would encrypt Ray's {rest}" in found.found
    monkeypatch.setenv("RAY_USE_TLS", "1")
    # torch.distributed has no encryption.
    shown = compare_ports(ports).found
    assert f"close the network to others: RAY_USE_TLS=1 encrypts Ray's {rest}" in shown
