"""The dashboard in a browser, as a person uses it: by what is seen, with a real mouse and real keys."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

from tests.spark.report.browser import Browser

PATIENCE = 60.0  # seconds: it only ends a wait for something that never comes
KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32}
COMPLAINTS = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")


class Page:
    def __init__(self, browser: Browser, base: str) -> None:
        self.browser, self.base = browser, base

    # ── looking ───────────────────────────────────────────────────────────────────────────────

    def open(self, where: str = "#/") -> None:
        """Go there and wait until the screen has its data."""
        self.go(where)
        self.loaded()

    def go(self, where: str) -> None:
        """Go there, as from nowhere."""
        self.browser.do("Page.navigate", url="about:blank")
        self.browser.events.clear()
        self.browser.do("Page.navigate", url=self.base + where)

    def open_again(self) -> None:
        """What a reload does."""
        self.ask("window.old = true")
        self.browser.do("Page.reload")
        self.until("window.old === undefined")

    def loaded(self) -> None:
        self.until("document.querySelector('main[aria-busy=false]') !== null")

    def ask(self, expression: str) -> Any:
        return self.browser.ask(expression)

    def until(self, expression: str, patience: float = PATIENCE) -> Any:
        """Wait until an expression is true."""
        ends = monotonic() + patience
        while True:
            value = self.browser.ask(expression)
            if value:
                return value
            assert monotonic() < ends, f"never came true: {expression}\n{self.text()[:3_000]}"
            sleep(0.03)

    def text(self, selector: str = "body") -> str:
        return str(self.ask(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def sees(self, *words: str, within: str = "body") -> None:
        """Wait until all of it is to be seen."""
        for word in words:
            self.until(f"(document.querySelector({json.dumps(within)})?.innerText ?? '').includes({json.dumps(word)})")

    def count(self, selector: str) -> int:
        return int(self.ask(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def complaints(self) -> list[str]:
        return [json.dumps(event["params"]) for event in self.browser.events if event["method"] in COMPLAINTS]

    def asked(self) -> list[str]:
        """Where requests went."""
        return [
            event["params"]["request"]["url"]
            for event in self.browser.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def picture(self, path: Path, whole: bool = False) -> None:
        shot = self.browser.do("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._all(whole))
        path.write_bytes(base64.b64decode(shot["data"]))

    def _all(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        wide, high = self.ask("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        return {"clip": {"x": 0, "y": 0, "width": wide, "height": high, "scale": 1}}

    # ── acting ────────────────────────────────────────────────────────────────────────────────

    def click(self, selector: str, text: str = "") -> None:
        """A real click into the middle of what is seen of it, so that something in front of it would be noticed."""
        found = f"""(() => {{
          const all = [...document.querySelectorAll({json.dumps(selector)})];
          const fits = (node) => node.innerText.includes({json.dumps(text)});
          const one = all.find((node) => fits(node) && node.getClientRects().length && !node.disabled);
          if (!one) return null;
          one.scrollIntoView({{block: "center"}});
          const box = one.getBoundingClientRect();
          const at = [box.x + box.width / 2, box.y + box.height / 2];
          const top = document.elementFromPoint(...at);
          return one.contains(top) || top?.contains(one) ? at : null;
        }})()"""
        x, y = self.until(found)
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, *keys: str) -> None:
        """One key after another; as the page is told, a tenth of a second apart, however long it takes to tell it."""
        at = time()
        for number, key in enumerate(keys):
            self._press(key, at + number / 10)

    def _press(self, key: str, at: float) -> None:
        code = KEYS.get(key, ord(key.upper()[0]))
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        named = {"key": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self.browser.do("Input.dispatchKeyEvent", type="keyDown", timestamp=at, **named)
        self.browser.do("Input.dispatchKeyEvent", type="keyUp", timestamp=at, key=key, windowsVirtualKeyCode=code)

    def write(self, selector: str, text: str) -> None:
        """Into a field, in place of what is there."""
        self.until(f"document.querySelector({json.dumps(selector)}) !== null")
        self.ask(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.focus(); one.select?.(); }})()"
        )
        self.browser.do("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        options = f"[...(document.querySelector({json.dumps(selector)})?.options ?? [])]"
        self.until(f"{options}.some((one) => one.value === {json.dumps(value)})")
        self.ask(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.value = {json.dumps(value)};"
            " one.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    # ── surroundings ──────────────────────────────────────────────────────────────────────────

    def size(self, width: int, height: int = 900) -> None:
        self.browser.size(width, height, phone=width < 700)

    def colours(self, scheme: str) -> None:
        self.browser.do(
            "Emulation.setEmulatedMedia", media="screen", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
