"""The page in a headless Chromium, against the service: what it shows, live, and what it must not do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

from driftline.errors import StoreUnavailable
from driftline.records import encode
from driftline.store import keys
from driftline.store.memory import MemoryStore
from driftline.store.protocol import StoredObject
from driftline.store.run_store import RunStore
from tests.support import offset_runs
from tests.support.chromium import browser as chromium
from tests.support.offset_service import serving_here as serving

TOKEN = "a-token-of-enough-characters"
SMALL: Any = {"groups": 2, "members": 2}
FIGURES = ("k3", "lag", "lead", "wait", "parts", "ledger", "timeline")
WAIT_MS = 15_000


class Store(MemoryStore):
    """A store that can be switched off."""

    down = False

    def get(self, key: str) -> StoredObject:
        if self.down:
            raise StoreUnavailable("cannot read: the endpoint does not answer")
        return super().get(key)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


class Watch:
    """What a page says and asks for."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        # Chromium itself says of every answer that is no success.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def _request(self, request: Request) -> None:
        self.asked.append(request.url)


Opened = Callable[..., tuple[Page, Watch]]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    contexts: list[BrowserContext] = []

    def open_page(address: str, **options: Any) -> tuple[Page, Watch]:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        watch = Watch(page)
        page.goto(address)
        return page, watch

    yield open_page
    for context in contexts:
        context.close()


def drawn(page: Page) -> None:
    """Wait until every panel has been drawn."""
    expect(page.locator("#freshness")).to_have_text("live", timeout=WAIT_MS)
    for name in FIGURES:
        expect(page.locator(f"#{name}")).not_to_be_empty()


def violations(page: Page) -> list[str]:
    found = json.loads(json.dumps(Axe().run(page).response))["violations"]
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes']]}" for one in found]


def test_without_any_run_it_says_how_to_start_one(opened: Opened):
    with serving(Store()) as address:
        page, watch = opened(address)
        expect(page.locator("#problem")).to_contain_text("the store holds no run yet", timeout=WAIT_MS)
        assert violations(page) == []
        assert watch.complaints == []


def test_a_run_that_has_not_begun_is_readable(opened: Opened):
    store = Store()
    RunStore(store, "new").create(offset_runs.description("new"))
    with serving(store) as address:
        page, watch = opened(address)
        drawn(page)
        expect(page.locator("#tiles")).to_contain_text("not started")
        expect(page.locator("#cause-why")).to_have_text("no step yet")
        expect(page.locator("#k3")).to_have_text("no step yet")
        assert violations(page) == []
        assert watch.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_one_step_is_readable_in_light_and_dark(opened: Opened, scheme: str):
    store = Store()
    offset_runs.write_run(store, "one", 1, **SMALL)
    with serving(store) as address:
        page, watch = opened(address, color_scheme=scheme)
        drawn(page)
        expect(page.locator("#k3 circle").first).to_be_visible()
        assert violations(page) == []
        assert watch.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_thousand_steps_are_few_points_and_fit_any_window(opened: Opened, scheme: str):
    store = Store()
    causes: Any = [(1, "healthy"), (900, "staleness"), (1_400, "engine mismatch"), (1_700, "failed weight sync")]
    offset_runs.write_run(store, "long", 2_000, causes=causes, groups=1, members=2)
    with serving(store) as address:
        page, watch = opened(address, color_scheme=scheme)
        expect(page.locator("#freshness")).to_have_text("live", timeout=60_000)
        drawn(page)
        assert page.locator("#cause-strip rect").count() <= 250
        assert len((page.locator("#k3 path").first.get_attribute("d") or "").split("L")) <= 240
        expect(page.locator("#causes .fault")).to_contain_text("Weight sync: this is the cause")
        assert page.locator("#causes li").count() == 3
        assert violations(page) == []
        page.set_viewport_size({"width": 360, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert watch.complaints == []
        assert all(url.startswith(address) for url in watch.asked)


def test_what_was_not_measured_is_said_so(opened: Opened):
    store = Store()
    offset_runs.write_run(store, "old", 6, measured=False, **SMALL)
    with serving(store) as address:
        page, watch = opened(address)
        drawn(page)
        expect(page.locator("#cause-why")).to_contain_text("not diagnosed")
        expect(page.locator("#parts")).to_contain_text("not measured")
        expect(page.locator("#engines")).to_contain_text("not measured")
        assert page.locator("#causes .unknown").count() == 3
        assert watch.complaints == []


def test_it_is_live_and_says_when_it_is_not(opened: Opened):
    store = Store()
    offset_runs.write_run(store, "r", 3, **SMALL)
    with serving(store) as address:
        page, watch = opened(address)
        drawn(page)
        before = page.locator("#k3 svg[role=img]").get_attribute("aria-label")
        offset_runs.commit(store, next(offset_runs.records("r", 4, first=4, k3=0.25, **SMALL)))
        expect(page).to_have_title("r: step 4, running", timeout=WAIT_MS)
        expect(page.locator("#k3 svg[role=img]")).not_to_have_attribute("aria-label", before or "", timeout=WAIT_MS)
        saying = "Divergence of the batch, k3 over 4 steps; now k3 0.25 nats, floor (lag 0) 1.0e-7 nats"
        expect(page.locator("#k3 svg[role=img]")).to_have_attribute("aria-label", saying)
        store.down = True
        expect(page.locator("#freshness")).to_contain_text("stale: as of", timeout=WAIT_MS)
        store.down = False
        expect(page.locator("#freshness")).to_have_text("live", timeout=WAIT_MS)
        assert watch.complaints == []


def test_a_budget_is_seen_however_far_beyond_it_a_batch_was(opened: Opened):
    """An outlier of 300 times the budget: the axis is logarithmic, and what is below the budget is drawn below it."""
    store = Store()
    offset_runs.write_run(store, "r", 3, **SMALL)
    offset_runs.commit(store, next(offset_runs.records("r", 4, first=4, k3=6.0, **SMALL)))
    offset_runs.commit(store, next(offset_runs.records("r", 5, first=5, k3=0.01, **SMALL)))
    with serving(store) as address:
        page, watch = opened(address)
        drawn(page)
        expect(page.locator("#k3 svg[role=img]")).to_contain_text("nats, log")
        budget = float(page.locator("#k3 .limit").get_attribute("y1") or 0)
        path = page.locator("#k3 path").first.get_attribute("d") or ""
        heights = [float(point.split(" ")[1]) for point in path.removeprefix("M").split("L")]
        assert heights[3] + 40 < budget < heights[4] - 5
        assert watch.complaints == []


def test_a_picture_is_read_with_the_keyboard_and_its_table_stays_open(opened: Opened):
    store = Store()
    offset_runs.write_run(store, "r", 5, **SMALL)
    with serving(store) as address:
        page, _ = opened(address)
        drawn(page)
        page.locator("#lag svg[role=img]").focus()
        page.keyboard.press("Home")
        expect(page.locator("#lag .readout")).to_contain_text("step 1: mean 0")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#lag .readout")).to_contain_text("step 2: mean 0.8")
        page.locator("#lag summary").click()
        offset_runs.commit(store, next(offset_runs.records("r", 6, first=6, **SMALL)))
        expect(page.locator("#lag tbody tr")).to_have_count(6, timeout=WAIT_MS)
        expect(page.locator("#lag details")).to_have_attribute("open", "")


def test_a_trajectory_is_looked_up(opened: Opened):
    store = Store()
    offset_runs.write_run(store, "r", 5, **SMALL)
    with serving(store) as address:
        page, watch = opened(address)
        drawn(page)
        page.locator("#group").fill("8")
        page.get_by_role("button", name="Show its segments").click()
        expect(page.locator("#trajectory")).to_contain_text("Task pointer_chase/00008, step 5, trained by version 4")
        page.locator("#group").fill("999")
        page.get_by_role("button", name="Show its segments").click()
        expect(page.locator("#trajectory")).to_contain_text("has used group 999")
        assert watch.complaints == []


def test_text_from_the_store_is_text_and_no_page(opened: Opened):
    store = Store()
    offset_runs.write_run(store, "r", 2, **SMALL)
    attack = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    store.put(keys.head("r"), encode(offset_runs.head("r", 2, state="failed", reason=attack)))
    record = offset_runs.record("r", 2, keys.step("r", 1, 1), **SMALL)
    assert record.diagnosis is not None
    record = replace(record, diagnosis=replace(record.diagnosis, why=attack))
    store.put(keys.step("r", 2, 1), encode(record))
    with serving(store) as address:
        page, watch = opened(address)
        drawn(page)
        expect(page.locator("#tiles")).to_contain_text("onerror")
        expect(page.locator("#cause-why")).to_contain_text("<script>")
        assert page.locator("main img").count() == 0
        assert page.title() == "r: step 2, failed"
        assert watch.complaints == []


def test_names_of_runs_are_text_whatever_they_hold(opened: Opened):
    """A folder in the bucket may be named by anybody."""
    store = Store()
    offset_runs.write_run(store, "r", 2, **SMALL)
    attack = '<img src=x onerror=alert(1)> späte "Läufe" ☃'
    RunStore(store, attack).create(offset_runs.description(attack, created=offset_runs.BEGAN - 1))
    with serving(store) as address:
        page, watch = opened(address)
        drawn(page)
        page.locator("#run").select_option(attack)
        expect(page.locator("#problem")).to_contain_text("a parameter is impossible", timeout=WAIT_MS)
        assert page.locator("img").count() == 0
        page.locator("#run").select_option("r")
        drawn(page)
        expect(page.locator("#problem")).to_be_hidden()
        assert watch.complaints == []


def test_however_often_one_chooses_it_asks_no_more_often(opened: Opened):
    store = Store()
    offset_runs.write_run(store, "r", 2, **SMALL)
    offset_runs.write_run(store, "other", 5, created=offset_runs.BEGAN - 1, **SMALL)
    with serving(store) as address:
        page, watch = opened(address)
        drawn(page)
        for _ in range(15):
            page.locator("#by").select_option("version")
            page.locator("#run").select_option("r")
            page.locator("#run").select_option("other")
        expect(page.locator("#k3 svg[role=img]")).to_have_attribute("aria-label", re.compile("over 5 steps"))
        page.wait_for_timeout(2_500)
        watch.asked.clear()
        page.wait_for_timeout(5_000)
        asked = [url for url in watch.asked if url.endswith("/offset")]
        assert set(asked) == {f"{address}/v1/runs/other/offset"}
        assert len(asked) <= 3, "once in two seconds"
        assert watch.complaints == []


def test_the_policy_stops_what_a_page_must_not_do(opened: Opened):
    """The header is really in force: inline script, foreign requests and parsed text are refused by the browser."""
    store = Store()
    offset_runs.write_run(store, "r", 1, **SMALL)
    with serving(store) as address:
        page, watch = opened(address)
        drawn(page)
        done = page.evaluate(
            """async () => {
                const script = document.createElement('script');
                try { script.textContent = "window.ran = true"; document.head.append(script); } catch (e) {}
                let html = false;
                try { document.createElement('p').innerHTML = '<b>x</b>'; html = true; } catch (e) {}
                let fetched = true;
                try { await fetch('http://127.0.0.2:1/'); } catch (e) { fetched = false; }
                return [window.ran === true, html, fetched];
            }"""
        )
        assert done == [False, False, False]
        assert any("Content Security Policy" in text for text in watch.complaints)


def test_with_a_token_the_page_asks_for_it_and_no_address_ever_holds_it(opened: Opened):
    store = Store()
    offset_runs.write_run(store, "r", 2, **SMALL)
    with serving(store, TOKEN) as address:
        page, watch = opened(address)
        field = page.get_by_label("Token of this service")
        expect(field).to_be_visible(timeout=WAIT_MS)
        expect(page.locator("#content")).to_be_hidden()
        assert violations(page) == []
        field.fill("a-wrong-token-of-the-right-length")
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#problem")).to_contain_text("no bearer token, or a wrong one")
        field.fill(TOKEN)
        page.get_by_role("button", name="Use it").click()
        drawn(page)
        expect(field).to_be_hidden()
        assert not any("token-of" in url for url in watch.asked)
        assert watch.complaints == []


def test_a_token_in_the_fragment_is_taken_and_removed(opened: Opened):
    store = Store()
    offset_runs.write_run(store, "r", 2, **SMALL)
    with serving(store, TOKEN) as address:
        page, watch = opened(f"{address}/?run=r#token={TOKEN}")
        drawn(page)
        assert page.url == f"{address}/?run=r"
        assert not any(TOKEN in url for url in watch.asked if "#" not in url)
        page.reload()
        drawn(page)
