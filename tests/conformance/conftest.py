"""The daemon under test stands here under the name it replaces: the clients' daemon is a symlink `nsqd`."""

from pathlib import Path

import pytest

from conformance.links import link_as_nsqd

pytest.register_assert_rewrite("conformance.scenario")


@pytest.fixture
def daemon_command(daemon_command: list[str], tmp_path: Path) -> list[str]:
    return [str(link_as_nsqd(daemon_command, tmp_path))]
