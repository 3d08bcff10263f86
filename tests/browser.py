"""A real browser for tests of pages: headless Chromium, which loads nothing from elsewhere."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FLAGS = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
    --disable-background-networking --disable-component-update --disable-dev-shm-usage
    --hide-scrollbars
""".split()


@contextmanager
def chromium(width: int, dark: bool = False) -> Iterator:
    """A window of a width, in the light or the dark scheme; skips if there is no browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (browser and driver):
        pytest.skip("there is no Chromium with its driver (packages chromium, chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in [*FLAGS, f"--window-size={width},1000"]:
        options.add_argument(flag)
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    window = webdriver.Chrome(options=options, service=Service(driver))
    try:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        window.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False},
        )
        yield window
    finally:
        window.quit()


def visit(window, page: Path) -> None:
    """Raises AssertionError if the page complains."""
    window.get(page.resolve().as_uri())
    complaints = [entry["message"] for entry in window.get_log("browser")]
    assert not complaints, complaints


def overflow(window) -> int:
    """Pixels that the page is wider than the window."""
    return window.execute_script("return document.documentElement.scrollWidth - innerWidth")


def brightness(colour: str) -> float:
    """Of "rgb(20, 23, 26)", from 0 to 1 (relative luminance)."""
    shares = [part / 255 for part in parts(colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in shares]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(window, selector: str) -> float:
    """The least of the texts of such elements with what is behind them (WCAG asks for 4.5)."""
    found = window.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => [getComputedStyle(e).color,"
        "getComputedStyle(e).backgroundColor, getComputedStyle(document.body).backgroundColor])",
        selector,
    )
    assert found, selector
    ratios = []
    for text, own, page in found:
        low, high = sorted([brightness(text), brightness(blend(own, page))])
        ratios.append((high + 0.05) / (low + 0.05))
    return min(ratios)


def parts(colour: str) -> list[float]:
    return [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")]


def blend(own: str, page: str) -> str:
    """What is seen of a background that the page shines through."""
    *colour, alpha = (*parts(own), 1.0)[:4]
    mixed = [alpha * a + (1 - alpha) * b for a, b in zip(colour, parts(page), strict=False)]
    return f"rgb({', '.join(map(str, mixed))})"
