from __future__ import annotations

import pytest

from fedapp.cli import daemon


def test_other_visible_gpus_need_another_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    builds = {daemon._build()}
    for visible in ("", "0", "1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        builds.add(daemon._build())

    assert len(builds) == 4
