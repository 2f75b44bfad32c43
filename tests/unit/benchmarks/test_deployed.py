"""What the benchmarks of a deployment compute, and the meter that they put in the line."""

import socket
import threading

import pytest

from benchmarks.deployed_memory import slopes
from benchmarks.wire_meter import WireMeter


def test_a_slope_is_that_of_the_rounds_after_the_caches_have_filled():
    held = {"grows": [90.0, 100.0, 100.25, 100.5, 100.75], "fills": [50.0, 80.0, 80.0, 80.0, 80.0]}

    found = slopes(held, settle=1)

    assert found["grows"]["slope"] == pytest.approx(0.25)
    assert found["fills"]["slope"] == pytest.approx(0.0)
    assert found["fills"]["slope_from_the_first_round"] > 1
    assert (found["grows"]["settled"], found["grows"]["last"]) == (100.0, 100.75)


def test_the_meter_counts_both_directions_and_changes_nothing():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            far, _ = server.accept()
            with far:
                got = b""
                while piece := far.recv(4096):
                    got += piece
                    if len(got) == 100_000:
                        far.sendall(got[::-1][:777])

        thread = threading.Thread(target=answer)
        thread.start()
        meter = WireMeter(server.getsockname()[:2])
        host, _, port = meter.address.rpartition(":")
        sent = bytes(range(250)) * 400
        with socket.create_connection((host, int(port))) as near:
            near.sendall(sent)
            back = b""
            while len(back) < 777:
                back += near.recv(4096)
        thread.join(10)
        meter.close()

    assert back == sent[::-1][:777]
    assert (meter.up, meter.down) == (100_000, 777)
