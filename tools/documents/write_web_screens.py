"""Takes the pictures of the page in contrib/docs/screens: it starts `gnsqd --dev --demo` on the ports that this has by
default, looks at its page with Chromium until mails have piled up, were sent, and pile up again, and keeps what that
shows as PNG."""

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, sync_playwright

from documents.write_screens import SCREENS
from kit.daemons import Instance, eventually, own_command

PAGE = "http://127.0.0.1:4171"
FLAGS = ("--dev", "--demo", "--data-path=", "--tcp-address=127.0.0.1:4150", "--http-address=127.0.0.1:4151")

ORDERS = 375  # in one rush, in the quiet time after it, and in half of the next rush
SECONDS = 600  # in which they must have come, also on a busy machine
WIDTH, HEIGHT = 1280, 800


class PagePicture(NamedTuple):
    """A page, and a text that it has to show."""

    path: str
    text: str


PICTURES = {
    "web": PagePicture("/", "demo.mails"),
    "web-channel": PagePicture("/topics/demo.mails/mailer", "mailer-1"),
}


def taken(browser: Browser, nsqd: Instance) -> dict[str, bytes]:
    def orders() -> int:
        topics = {row["topic_name"]: row for row in nsqd.stats()["topics"]}
        return int(topics["demo.orders"]["message_count"])

    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    page.goto(PAGE)  # charts have values from the first look on
    eventually(lambda: orders() >= ORDERS, "enough orders", SECONDS)
    found = {}
    for name, picture in PICTURES.items():
        page.goto(PAGE + picture.path)
        page.get_by_text(picture.text).first.wait_for()
        page.wait_for_timeout(3000)  # for rates, and findings
        found[name] = page.screenshot(full_page=True)
    return found


def pictures() -> dict[Path, bytes]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with (
        tempfile.TemporaryDirectory() as directory,
        Instance(own_command(), Path(directory), *FLAGS) as nsqd,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        return {SCREENS / f"{name}.png": picture for name, picture in taken(browser, nsqd).items()}
