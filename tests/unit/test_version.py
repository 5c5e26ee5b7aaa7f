"""Version identity."""

import platform
import re

import gnsqd.broker.channel
from gnsqd.version import NSQD_VERSION, VERSION, lane, version_string


def test_version_line_leads_with_nsqds_version() -> None:
    python = re.escape(platform.python_version())
    assert NSQD_VERSION == "1.3.0"
    assert re.fullmatch(rf"nsqd v1\.3\.0 \(built w/gnsqd-{re.escape(VERSION)}-py{python}\)", version_string())


def test_lane_reports_whether_the_broker_is_compiled() -> None:
    assert gnsqd.broker.channel.__file__ is not None
    assert lane() == ("plain" if gnsqd.broker.channel.__file__.endswith(".py") else "compiled")
