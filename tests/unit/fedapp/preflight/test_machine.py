"""Memory by the machine's and the container's own account, and room on the disk."""

import pytest
from site_desk import write_site

from fedapp.config_site import load_site_file
from fedapp.preflight.finding import Status
from fedapp.preflight.machine import available_memory, check_disk, check_memory


def machine(root, meminfo="", **files):
    (root / "proc").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text(meminfo)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_smaller_of_machine_and_container_counts(tmp_path):
    meminfo = "MemTotal: 9 kB\nMemAvailable:    1000 kB\n"

    assert available_memory(machine(tmp_path / "a", meminfo)) == 1024000
    limited = machine(tmp_path / "b", meminfo, memory__max="5000\n", memory__current="2000\n")
    assert available_memory(limited) == 3000
    free = machine(tmp_path / "c", meminfo, memory__max="max\n", memory__current="2000\n")
    assert available_memory(free) == 1024000
    full = machine(tmp_path / "d", meminfo, memory__max="5000\n", memory__current="6000\n")
    assert available_memory(full) == 0
    assert available_memory(tmp_path / "nowhere") is None


@pytest.mark.parametrize(("least", "status"), [(0.0, Status.OK), (1e6, Status.FAILED)])
def test_disk_and_memory_are_compared_with_the_file(tmp_path, least, status):
    more = f"[check]\nmin-disk-gb = {least}\nmin-memory-gb = {least}\n"
    path = write_site(tmp_path)
    path.write_text(path.read_text() + more)
    config = load_site_file(path)

    assert check_disk(config).status is status
    assert check_memory(config).status is status
