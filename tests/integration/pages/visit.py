"""Opens one page in a browser and reports what it saw, as a JSON `browser.Visit`.

It reads its options as JSON from standard input. Its Python environment is `requirements/guests/browser.txt`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--no-first-run",
]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
HEIGHT = 900


def used(page: Page) -> dict[str, Any]:
    """Use the keyboard and those controls that the page has, and report what they do."""
    found: dict[str, Any] = {}
    page.keyboard.press("Tab")
    found["first_focus"] = page.evaluate("document.activeElement.textContent")
    episodes = page.locator("details.episode")
    found["episodes"] = episodes.count()
    if not found["episodes"]:
        return found
    summary = episodes.first.locator("summary").first
    summary.focus()
    page.keyboard.press("Enter")
    found["opened_by_enter"] = episodes.first.evaluate("each => each.open")
    page.locator("#which").focus()
    page.locator("#which").select_option("apart")
    found["apart"] = page.locator("details.episode:visible").count()
    found["apart_text"] = page.locator("#count").text_content()
    page.locator("#which").select_option("")
    if page.locator("#colour").count():
        page.locator("#colour").select_option("worth")
        found["coloured_by"] = page.evaluate("document.body.className")
        page.locator("#colour").select_option("likely")
    page.locator("#open").click()
    found["open"] = page.locator("details.episode[open]").count()
    return found


def main() -> None:
    options = json.load(sys.stdin)
    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options["browser"], args=SWITCHES)
        page = browser.new_page(
            viewport={"width": options["width"], "height": HEIGHT},
            color_scheme="dark" if options["dark"] else "light",
        )
        page.on(
            "console",
            lambda message: errors.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda asked: None if asked.url == options["page"] else errors.append(asked.url))
        page.goto(options["page"])
        wide = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
        if options["picture"]:
            page.screenshot(path=options["picture"], full_page=False)
        seen = used(page) | {"wider_than_the_window": wide}
        # Every section is open by now, so the checker sees all of them. The page's own policy would block the
        # checker.
        html = page.content().replace("http-equiv", "data-was")
        page.set_content(html)
        found = Axe().run(page, options={"runOnly": {"type": "tag", "values": RULES}})
        violations = [
            f"{each['id']}: {each['help']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
            for each in found.response["violations"]
        ]
        browser.close()
    json.dump({"errors": errors, "violations": violations, "seen": seen}, sys.stdout)


main()
