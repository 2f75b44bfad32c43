"""Containers for the tests in this folder; every one of them needs an engine and both images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from engine import answers, has_image
from stack import CORE, NGINX, SITE, Stack
from stack_faults import LONG
from stack_run import StackRun


@pytest.fixture(scope="session")
def images() -> None:
    """An engine is running and has the images; fails with what to do if not."""
    assert answers(), "no Docker engine answers here; `make compose-test` starts one"
    missing = [name for name in (CORE, SITE, NGINX) if not has_image(name)]
    assert not missing, f"no image {', '.join(missing)} here; `make compose-test` builds them"


@pytest.fixture(scope="session")
def stack(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A consortium that is up and healthy, shared by all tests: leave it as it was found."""
    one = Stack(tmp_path_factory.mktemp("stack") / "project")
    try:
        one.setup()
        one.up()
        yield one
    finally:
        one.down()


@pytest.fixture(scope="session")
def undisturbed(stack: Stack) -> StackRun:
    """A run that nothing befalls, begun when first asked for: others are held against it."""
    return stack.run("undisturbed", **LONG, **{"federation.rounds": 4})


@pytest.fixture
def stacks(
    images: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Stack]]:
    """Make stacks of a test's own, with `Stack`'s options; set up, not started, taken down after.

    ``one = stacks(overlay=...); one.up()``
    """
    made: list[Stack] = []

    def make(**options: object) -> Stack:
        made.append(Stack(tmp_path_factory.mktemp("stack") / "project", **options))  # type: ignore[arg-type]
        made[-1].setup()
        return made[-1]

    yield make
    for one in made:
        one.down()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Iterator[None]:
    """A failed test's report ends with the containers' last words."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Stack):
                report.sections.append(("containers", value.all_logs()))
    return report
