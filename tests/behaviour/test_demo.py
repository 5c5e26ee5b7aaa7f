"""--demo: a small shop that a stranger sees within a minute, and that may run for days."""

import re
from typing import Any

from kit.daemons import Instance, eventually
from kit.lookupds import DEV
from kit.traffic import DaemonFactory, post

SHOP = (*DEV, "--demo", "--data-path=")


def topic(nsqd: Instance, name: str) -> dict[str, Any]:
    return next((row for row in nsqd.stats()["topics"] if row["topic_name"] == name), {})


def consumers(nsqd: Instance) -> set[str]:
    channels = [channel for row in nsqd.stats()["topics"] for channel in row["channels"]]
    return {client["client_id"] for channel in channels for client in channel["clients"]}


def test_demo_has_all_that_a_page_shows_and_ends_cleanly(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*SHOP)
    everybody = {"billing-1", "shipping-1", "shipping-2", "mailer-1", "caller-1"}
    eventually(lambda: consumers(nsqd) == everybody)
    eventually(lambda: topic(nsqd, "demo.orders.billing.dead").get("depth") == 1, "a dead letter")
    names = ("demo.mails", "demo.reminders", "demo.audit")
    (mailer,), (caller,), (report,) = (topic(nsqd, name)["channels"] for name in names)
    assert min(mailer["depth"], caller["deferred_count"], report["depth"]) > 0
    assert {row["topic_name"].partition(".")[0] for row in nsqd.stats()["topics"]} == {"demo"}
    assert nsqd.log().count("INFO: DEMO: ") == 1
    assert nsqd.terminate() == 0
    assert not [line for line in nsqd.log().splitlines() if "WARNING: " in line or "FATAL: " in line]


def test_demo_publishes_no_more_to_a_topic_that_is_full(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*SHOP)
    post(nsqd, "/channel/pause?topic=demo.mails&channel=mailer")
    post(nsqd, "/mpub?topic=demo.mails", b"\n".join([b'{"to": "x"}'] * 1000))
    mails = topic(nsqd, "demo.mails")["message_count"]
    orders = topic(nsqd, "demo.orders")["message_count"]
    eventually(lambda: topic(nsqd, "demo.orders")["message_count"] > orders + 5, "more orders")
    assert topic(nsqd, "demo.mails")["message_count"] <= mails + 1  # one may have been on its way


def test_consumers_of_a_deleted_topic_come_back(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*SHOP)
    eventually(lambda: "mailer-1" in consumers(nsqd))
    post(nsqd, "/topic/delete?topic=demo.mails")
    assert "mailer-1" not in consumers(nsqd)
    eventually(lambda: "mailer-1" in consumers(nsqd), "it comes back")


def test_messages_of_others_are_consumed_whatever_they_are(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*SHOP)
    eventually(lambda: "billing-1" in consumers(nsqd))
    for body in (b"hello", b"[1]", b"{}", b"\xff"):
        post(nsqd, "/pub?topic=demo.orders", body)
    eventually(lambda: topic(nsqd, "demo.orders")["message_count"] > 10, "more orders")
    eventually(lambda: topic(nsqd, "demo.orders")["channels"][0]["depth"] == 0, "all are billed")
    assert "FATAL: " not in nsqd.log()


def test_clients_that_are_refused_say_so_once(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*SHOP, "--max-body-size=10")
    refused = "IDENTIFY body too big"  # each attempt has such a line
    eventually(lambda: sum(refused in line and "DEMO" not in line for line in nsqd.log().splitlines()) > 10)
    (warning,) = [line for line in nsqd.log().splitlines() if "WARNING: DEMO(mailer-1)" in line]
    assert re.search(r": E_BAD_BODY IDENTIFY body too big \d+ > 10; it connects every 2 s$", warning)
