"""The page in Chromium, as people use it: every view and action, by mouse and by keyboard, narrow and wide, with and
without JavaScript, with hostile names and a node that hangs; no line on the console and no request to another host.
"""

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cli.fake_nsqd import FakeServer, channel, client, node, peeked, topic
from cli.nodes import address, at, at_lookupd, publish
from conftest import missing
from interop.test_nsqadmin import BROWSERS
from kit.daemons import DEADLINE, Instance, eventually, own_command
from kit.nsq_client import NSQClient
from kit.peer_program import PeerProgram
from kit.traffic import DaemonFactory, create, post, wait_for
from web.app import WebProcess
from web.test_views import HOSTILE

pytestmark = pytest.mark.peer

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip

BELOW = "/nsq"  # the base path of the page in some tests, which then asks for nothing else
FOCUSED = "[document.activeElement.textContent, getComputedStyle(document.activeElement).outlineStyle]"

Open = Callable[..., Any]
Serve = Callable[..., WebProcess]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, (os.environ.get("GNSQD_BROWSER", ""), *BROWSERS))), None)
    if path is None:
        missing(f"no browser on this machine: $GNSQD_BROWSER names none, and there is no {', '.join(BROWSERS)}")
    if importlib.util.find_spec("playwright") is None:
        missing("playwright is not installed (the extra `browser`)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serves the page with options, until the test has ended and its pages are closed."""
    with ExitStack() as stack:
        yield lambda *flags, **more: stack.enter_context(WebProcess(tmp_path, *flags, **more))


@pytest.fixture
def page(browser: Any, serve: Serve) -> Iterator[Open]:
    """Opens an address; whatever a page prints on the console, or loads from elsewhere, fails the test."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def open_page(url: str, width: int = 1400, scheme: str = "light", javascript: bool = True) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=javascript
        )
        contexts.append(context)
        context.set_default_timeout(DEADLINE * 1000)
        tab = context.new_page()
        site = "/".join([*url.split("/")[: 4 if BELOW in url else 3], ""])
        tab.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        tab.on("console", lambda message: complaints.append(f"console: {message.text}"))
        tab.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        tab.on("request", lambda one: complaints.extend([one.url] if not f"{one.url}/".startswith(site) else []))
        tab.goto(url)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("javascript", [True, False])
def test_every_action_by_its_buttons(page: Open, serve: Serve, nsqd: Instance, javascript: bool) -> None:
    it = page(serve(*at(nsqd)).url, javascript=javascript)
    it.get_by_label("Create a topic").fill("orders")
    it.get_by_role("button", name="Create on all nodes").click()
    assert "Done: topic create orders" in it.inner_text("main")
    it.get_by_text("More actions").click()
    it.get_by_label("Create a channel").fill("mail")
    it.get_by_role("button", name="Create", exact=True).click()
    assert it.inner_text("h1") == "Channel mail"

    it.get_by_role("button", name="Pause", exact=True).click()
    assert nsqd.channel_stats("orders", "mail")["paused"] is True
    it.get_by_role("button", name="Unpause").click()
    assert nsqd.channel_stats("orders", "mail")["paused"] is False

    it.get_by_role("link", name="Publish").click()
    it.get_by_label("Topic").fill("orders")
    it.get_by_label("Message").fill('{"first": 1}')
    it.get_by_role("button", name="Publish").click()
    assert "1 message published" in it.inner_text("main")
    it.get_by_role("link", name="To the topic orders").click()
    wait_for(nsqd, "orders", "mail", depth=1)
    it.get_by_role("link", name="mail").click()
    it.get_by_role("link", name="Queued messages").click()
    shown = '"first": 1' if nsqd.command == own_command() else "only gnsqd supports peek"
    assert shown in it.inner_text("main")
    it.get_by_role("link", name="mail").click()

    for action, plan, result in (
        ("Empty…", "loses 1 message", "emptied"),
        ("Delete…", "loses no messages", "deleted"),
        ("Delete…", "Deleting the topic orders", "deleted"),
    ):
        it.get_by_role("button", name=action).click()
        assert plan in it.inner_text("main")
        it.get_by_role("button", name="Yes,").click()
        assert result in it.inner_text("main")
        it.get_by_role("link", name="Back").click()
    assert nsqd.stats()["topics"] == []
    it.get_by_text("No topics yet").wait_for()


def test_numbers_rates_and_charts_are_live(page: Open, serve: Serve, nsqd: Instance) -> None:
    create(nsqd, "orders", "mail")
    web = serve(*at(nsqd), f"--base-path={BELOW}", fast=True)
    it = page(web.url)
    it.get_by_text("live", exact=True).wait_for()
    it.evaluate("window.loaded = 'once'")
    it.get_by_role("link", name="orders").focus()
    publish(nsqd, "orders", 7)
    it.locator("td", has_text="7").first.wait_for()
    it.locator(".chart polygon").nth(1).wait_for()
    assert it.evaluate("window.loaded") == "once"
    assert it.evaluate("document.activeElement.textContent") == "orders"
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.identify(client_id="worker-7")
        consumer.subscribe("orders", "mail")
        it.goto(f"{web.url}/topics/orders/mail")
        it.get_by_role("rowheader", name="worker-7").wait_for()
    it.get_by_text("No clients.").wait_for()
    it.keyboard.press("p")
    it.get_by_text("stopped", exact=True).wait_for()


ANNOUNCED = """key => {
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  return [value.ariaLive, value.textContent];
}"""


def test_values_of_a_chart_are_shown_by_the_pointer_and_announced_for_arrow_keys(page: Open, serve: Serve) -> None:
    counts = iter(range(1000, 10**9))
    fake = FakeServer({"/stats": [lambda: node(topic("t", depth=next(counts), message_count=next(counts)))]})
    it = page(serve(*at(fake), fast=True).url)
    value = it.locator("#value")
    it.locator(".chart svg").nth(1).hover()
    it.get_by_text(re.compile(r"^[\d,.]+, (now|\d+ s ago)$")).wait_for()
    assert value.get_attribute("aria-live") == "off"
    it.mouse.move(0, 0)
    assert value.inner_text() == ""
    it.locator(".chart svg").first.focus()
    for key in ("Home", "ArrowRight", "End"):
        live, text = it.evaluate(ANNOUNCED, key)
        assert live == "polite"
        assert re.fullmatch(r"[\d,]+, (now|\d+ s ago)", text) is not None
    eventually(lambda: value.inner_text() != text)  # a live update
    assert value.get_attribute("aria-live") == "off"
    it.keyboard.press("Escape")
    assert value.inner_text() == ""


CLICKS = """
window.clicked = [];
window.patched = 0;
document.addEventListener("click", (event) => {
  event.preventDefault();
  clicked.push(event.target.closest("tbody a")?.textContent ?? event.target.localName);
}, true);
const changes = { childList: true, characterData: true, subtree: true };
new MutationObserver(() => patched++).observe(document.getElementById("live"), changes);
"""
ORDERS = """
(() => {
  const { x, y } = document.querySelector('a[href="/topics/orders"]').getBoundingClientRect();
  return [x + 5, y + 5];
})()
"""


def test_live_updates_lose_no_click_no_selection_and_no_focus(page: Open, serve: Serve) -> None:
    counts = iter(range(10**9))

    def stats() -> dict[str, Any]:
        number = next(counts)
        names = ["clicks", "orders", *(["web"] if number // 5 % 2 else [])]  # one comes and goes
        return node(*(topic(name, message_count=number) for name in names))

    fake = FakeServer({"/stats": [stats]})
    it = page(serve(*at(fake), fast=True).url)
    it.get_by_text("Doctor found no problems").wait_for()
    it.evaluate(CLICKS)
    it.mouse.move(*it.evaluate(ORDERS))
    for _ in range(200):
        it.mouse.down()
        it.wait_for_timeout(10)  # a person takes longer
        it.mouse.up()
    assert it.evaluate("clicked") == ["orders"] * 200
    assert it.evaluate("patched") > 10  # meanwhile

    it.get_by_role("link", name="clicks").focus()
    it.locator(".taken").select_text()
    selected, looks = it.evaluate("getSelection().toString()"), len(fake.asked)
    assert selected.startswith("As of ")
    eventually(lambda: len(fake.asked) > looks + 10)
    assert it.evaluate("getSelection().toString()") == selected
    it.get_by_text("waits while text is selected").wait_for()
    patched = it.evaluate("getSelection().empty(), patched")
    eventually(lambda: it.evaluate("patched") > patched + 10)
    it.get_by_text("live", exact=True).wait_for()
    assert it.evaluate("document.activeElement.textContent") == "clicks"


def test_bodies_are_copied_and_what_is_unfolded_stays_so(page: Open, serve: Serve, gnsqd: Instance) -> None:
    post(gnsqd, "/pub?topic=orders", b'{"a": 1}')
    web = serve(*at(gnsqd), fast=True)
    it = page(f"{web.url}/peek?topic=orders")
    it.context.grant_permissions(["clipboard-read", "clipboard-write"])
    it.get_by_role("button", name="Copy").click()
    it.get_by_role("button", name="Copied").wait_for()
    assert it.evaluate("navigator.clipboard.readText()") == '{\n  "a": 1\n}'
    it.goto(f"{web.url}/topics/orders")
    it.get_by_text("More actions").click()
    it.get_by_label("Create a channel").fill("mail")
    publish(gnsqd, "orders", 6)
    it.locator("dd", has_text="7").first.wait_for()
    assert it.get_by_label("Create a channel").is_visible()
    assert it.get_by_label("Create a channel").input_value() == "mail"


def test_views_by_keyboard_alone(page: Open, serve: Serve, nsqd: Instance) -> None:
    create(nsqd, "orders", "mail")
    web = serve(*at(nsqd), f"--base-path={BELOW}/")
    it = page(web.url)
    it.keyboard.press("Tab")
    assert it.evaluate("document.activeElement.className") == "skip"
    it.keyboard.press("Enter")
    assert it.evaluate("document.activeElement.id") == "main"
    it.keyboard.press("/")
    it.keyboard.type("mail")  # no shortcuts while one types
    it.keyboard.press("Enter")
    it.wait_for_url("**/?find=mail")
    for key, path in (("n", "/nodes"), ("l", "/lookup"), ("d", "/doctor"), ("g", "/")):
        it.keyboard.press(key)
        it.wait_for_url(f"{web.url}{path}")
    name = outline = ""
    for _ in range(40):
        it.keyboard.press("Tab")
        name, outline = it.evaluate(FOCUSED)  # at once, as a live update may replace the element at any time
        if name == "orders":
            break
    assert (name, outline) == ("orders", "solid")  # one sees the focus
    it.keyboard.press("Enter")
    it.wait_for_url("**/topics/orders")


LINES = """
[...document.querySelectorAll('tbody .address a')].map((address) => {
  const host = document.createRange();
  host.selectNode(address.firstChild);
  return host.getClientRects().length;
})
"""


def test_hostile_names_long_lists_and_a_node_that_hangs_fit_every_width(page: Open, serve: Serve, hanging: str) -> None:
    topics = [topic(f"{'long-' * 12}{number:03}", channel("c", depth=number)) for number in range(300)]
    clients = client(HOSTILE), client("w" * 64, user_agent=HOSTILE * 3)
    fake = FakeServer({"/stats": [node(topic(HOSTILE, channel(HOSTILE, *clients, depth=10**12), depth=5), *topics)]})
    names, both = serve(*at(fake)).url, serve(*at(fake, hanging), "--timeout=0.5").url
    for width, scheme in ((360, "dark"), (1600, "light")):
        it = page(f"{names}/?sort=topic", width, scheme)
        odd = it.locator("tbody a").first.get_attribute("href")
        for path in ("/?sort=topic", odd, f"{odd}&channel={odd.partition('=')[2]}", "/nodes", "/publish"):
            it.goto(f"{names}{path}")
            assert it.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
            assert "alert(1)" in it.inner_text("body") or path in ("/nodes", "/publish")
        it.goto(names)
        assert it.locator("tbody tr").count() == 100
        it.get_by_role("link", name="Next").click()
        it.get_by_text("Page 2 of 4").wait_for()
        it = page(both, width, scheme)
        for path in ("/", "/nodes"):
            it.goto(f"{both}{path}")
            assert it.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
            assert "no complete answer within" in it.inner_text("main")
        assert it.evaluate(LINES) == [1, 1]  # of each host


TABLES = "[...document.querySelectorAll('.scroll')].map(table => table.scrollWidth - table.clientWidth)"


def test_no_column_of_ordinary_tables_is_cut(page: Open, serve: Serve) -> None:
    """Shows two nodes with usual names and numbers, and with a word in every column of states."""
    places = [f"10.0.0.{number}:57213" for number in (1, 2)]
    workers = [client("worker-7", remote_address=place, user_agent="go-nsq/1.1.0") for place in places]
    shop = topic("orders", channel("mail", depth=24_310), channel("billing", *workers, depth=3), depth=0)
    others = [topic("web-events-of-the-shop", channel("analytics", depth=270)), topic("clicks", depth=123_456)]
    looks = [node(shop, *others), node(shop | {"message_count": 90}, *others)]
    body = json.dumps({"order": 1, "items": [{"sku": f"sku-{number}", "price": 9.95} for number in range(20)]})
    documents: dict[str, list[Any]] = {"/stats": looks, "/ping": ["OK"], "/channel/peek": [peeked(*[body] * 10)]}
    fakes = [FakeServer(documents) for _ in range(2)]
    ordinary = serve(*at(*fakes))
    for width, scheme in ((360, "light"), (800, "dark"), (1280, "light")):
        it = page(ordinary.url, width, scheme)
        paths = ["/", "/topics/orders", "/topics/orders/billing", "/nodes"]
        for path in paths:
            it.goto(f"{ordinary.url}{path}")
            if path == "/nodes":
                paths.append(it.locator("tbody a").first.get_attribute("href"))
            assert max(it.evaluate(TABLES)) == 0, (path, width)
        it.goto(f"{ordinary.url}/peek?topic=orders&channel=billing")
        assert it.evaluate("document.querySelectorAll('pre').length") == 20
        assert it.evaluate("document.documentElement.scrollHeight") < 20 * 250 + 500  # 50 lines each


FIELDS = "[...document.querySelectorAll('input:not([type=hidden]), select, textarea')]"
UNLABELLED = f"{FIELDS}.filter(field => !field.labels.length).map(field => field.name)"
UNHEADED = "[...document.querySelectorAll('td')].filter(cell => !cell.closest('tr').querySelector('th[scope]')).length"


def test_every_field_has_a_label_and_every_table_headers(page: Open, serve: Serve, gnsqd: Instance) -> None:
    create(gnsqd, "orders", "mail")
    web = serve(*at(gnsqd))
    it = page(web.url)
    views = ["/", "/topics/orders", "/topics/orders/mail", "/nodes", "/lookup", "/publish", "/peek?topic=orders"]
    views += ["/tail?topic=orders", f"/options?node={address(gnsqd)}", "/change/topology/import"]
    views += [f"/change/channel/{name}?topic=orders&channel=mail" for name in ("rewind", "rules", "deferred")]
    views += [f"/change/{name}?node={address(gnsqd)}" for name in ("drain/start", "config/set")]
    for path in views:
        it.goto(f"{web.url}{path}")
        assert (it.evaluate(UNLABELLED), it.evaluate(UNHEADED), it.locator("h1").count()) == ([], 0, 1), path
        assert it.evaluate("document.documentElement.lang") == "en"


def test_log_in_and_tombstone(
    page: Open, serve: Serve, gnsqd_factory: DaemonFactory, nsqlookupd: PeerProgram, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    nsqd = gnsqd_factory("--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={nsqlookupd.address['TCP']}")
    create(nsqd, "orders", "mail")
    eventually(lambda: nsqlookupd.ask("GET", "/lookup?topic=orders")[0] == 200)
    flags = [f"--http-auth-token-file=full:{tmp_path / 'token'}", f"--base-path={BELOW}"]
    it = page(f"{serve(*at_lookupd(nsqlookupd.address['HTTP']), *flags).url}/topics/orders")
    it.get_by_label("Token").fill("0123456789abcdef")
    it.get_by_role("button", name="Log in").click()
    assert it.inner_text("h1") == "Topic orders"
    it.get_by_text("More actions").click()
    it.get_by_label("and delete the topic there").check()
    it.get_by_role("button", name="Tombstone…").click()
    assert "loses no messages" in it.inner_text("main")
    it.get_by_role("button", name="Yes,").click()
    assert re.search(r"nsqlookupd[\s–]+hidden", it.inner_text("main"))
    assert nsqd.stats()["topics"] == []
    it.get_by_role("button", name="Log out").click()
    it.get_by_label("Token").wait_for()
