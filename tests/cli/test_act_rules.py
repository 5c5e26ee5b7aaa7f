"""`gnsqadmin channel rules`: what is shown and what is changed."""

import json

from cli.gnsqadmin import document, gnsqadmin, ok
from cli.nodes import address, at
from kit.http_api import ask
from kit.traffic import DaemonFactory, create

RULES = ("channel", "rules", "t", "c")


def test_rules_are_changed_one_by_one_where_the_channel_is(gnsqd_factory: DaemonFactory) -> None:
    other, node = gnsqd_factory(), gnsqd_factory()
    create(node, "t", "c")
    row = {"address": address(node), "rate": 10, "burst": 3, "ordered": False, "error": None}
    row |= {"idle_timeout": None, "idle_policy": None}
    changed = document(*RULES, "--rate=10", "--burst=3", "--yes", *at(other, node))
    assert changed == {"topic": "t", "channel": "c", "dry_run": False, "nodes": [row]}
    assert ok(*RULES, "--ordered", "--yes", *at(node)).split()[-1] == "changed"
    assert document(*RULES, *at(node))["nodes"] == [row | {"ordered": True}]
    for options, rules in (((), (10, 3, True)), (("--rate=0", "--no-ordered", "--yes"), (0, 0, False))):
        ok(*RULES, *options, *at(node))
        found = json.loads(ask(node, "GET /channel/rules?topic=t&channel=c")[1])
        assert found == dict(zip(("rate", "burst", "ordered"), rules, strict=True))
    ok(*RULES, "--idle-timeout=72h", "--idle-policy=delete", "--yes", *at(node))
    (found,) = document(*RULES, *at(node))["nodes"]
    assert (found["idle_timeout"], found["idle_policy"]) == (72 * 3600, "delete")
    assert ok(*RULES, *at(node)).split()[-3:] == ["3d", "0h", "delete"]
    assert "--idle-timeout: 3d is not valid" in gnsqadmin(*RULES, "--idle-timeout=3d", "--yes", *at(node)).err
    ok(*RULES, "--idle-timeout=", "--yes", *at(node))
    assert document(*RULES, *at(node))["nodes"][0]["idle_timeout"] is None
