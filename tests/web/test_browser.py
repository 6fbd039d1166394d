"""The pages as people use them: a real browser, the real program, live updates without reloading."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect, sync_playwright

from tests.waiting import PATIENCE_SECONDS
from tests.web.program import PASSWORD, USER, running_program

pytestmark = pytest.mark.browser
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
_number = count(1)


@pytest.fixture(scope="module")
def address(chromium: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running program."""
    with running_program(tmp_path_factory.mktemp("program")) as address:
        yield address


@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Browser]:
    """Chromium; closed with this file, since Playwright keeps an event loop running that others would trip over."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def login(browser: Browser, address: str) -> Any:
    """The cookies of somebody who logged in."""
    context = browser.new_context(base_url=address)
    page = context.new_page()
    page.goto("/jobs/")
    expect(page).to_have_url(f"{address}/login/?next=/jobs/")
    page.get_by_label("Username").fill(USER)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{address}/jobs/")
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def page(browser: Browser, address: str, login: Any) -> Iterator[Page]:
    """A page that is logged in; the test fails if the browser reported an error or a breach of the content policy."""
    context = browser.new_context(base_url=address, storage_state=login, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_SECONDS * 1000)
    page = context.new_page()
    complaints: list[str] = []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    assert complaints == []


expect.set_options(timeout=PATIENCE_SECONDS * 1000)


def make_job(page: Page, job_type: str, data: str = "{}", name: str = "", cron: str = "") -> str:
    """A job that runs on schedule or only on call, made with the form; returns its name, and the page shows it."""
    name = f"{name or job_type} {next(_number)}"
    page.goto("/jobs/new/")
    page.locator("#id_name").fill(name)
    page.locator("#id_worker").fill("gate-worker")
    page.locator("#id_job_type").fill(job_type)
    page.locator("#id_data").fill(data)
    if cron:
        page.locator("#id_cron").fill(cron)
        page.locator("#id_timezone").fill("Europe/Berlin")
    else:
        page.get_by_label("Only on call").check()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(name)
    return name


def start_gated(page: Page, folder: Path) -> Path:
    """Run a job that waits for its gate and stay on its page; returns the gate."""
    gate = folder / uuid4().hex
    make_job(page, "gated", f'{{"gate": "{gate}"}}')
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("h1")).to_contain_text("Running")
    return gate


def test_a_run_is_followed_live_from_the_click_to_its_result(page: Page, tmp_path: Path) -> None:
    gate = start_gated(page, tmp_path)
    expect(page.locator("#live-word")).to_have_text("Live")
    expect(page.locator("#log-lines")).to_contain_text("waiting at the gate")
    expect(page.locator(".progress-line")).to_contain_text("at the gate")
    page.evaluate("window.stillTheSamePage = true")
    gate.touch()
    expect(page.locator("h1")).to_contain_text("Completed")
    expect(page.locator("#log-lines")).to_contain_text("went through")
    expect(page.locator("pre").filter(has_text='"rows": 42')).to_be_visible()
    assert page.evaluate("window.stillTheSamePage")


def test_cancelling_a_run_shows_the_request_and_then_the_end(page: Page, tmp_path: Path) -> None:
    start_gated(page, tmp_path)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("h1")).to_contain_text("Cancelled")
    expect(page.locator(".timeline")).to_contain_text("cancel requested")


def test_a_failure_comes_in_live_a_tick_survives_it_and_it_is_resolved(page: Page) -> None:
    make_job(page, "broken", '{"reason": "first"}')
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("h1")).to_contain_text("Failed")
    page.goto("/failures/")
    row = page.locator("tr", has_text="first")
    row.get_by_role("checkbox").check()
    page.get_by_label("Note").fill("typing while it changes")
    with page.context.new_page() as other:
        make_job(other, "broken", '{"reason": "second"}')
        other.get_by_role("button", name="Run now").click()
        expect(other.locator("h1")).to_contain_text("Failed")
    expect(page.locator("tr", has_text="second")).to_be_visible()
    expect(row.get_by_role("checkbox")).to_be_checked()
    expect(page.get_by_label("Note")).to_have_value("typing while it changes")
    page.get_by_role("button", name="Resolve").click()
    expect(page.locator(".messages")).to_contain_text("1 resolved")
    expect(page.locator("tr", has_text="first")).to_have_count(0)
    expect(page.locator("tr", has_text="second")).to_be_visible()


def test_text_that_is_being_typed_stays_while_the_page_changes_around_it(page: Page, tmp_path: Path) -> None:
    gate = start_gated(page, tmp_path)
    gate.touch()
    expect(page.locator("h1")).to_contain_text("Completed")
    page.get_by_text("Retry with other data").click()
    area = page.get_by_label("Data of the next attempt")
    area.fill('{"gate": "typed"}')
    with page.context.new_page() as other:
        other.goto(page.url)
        other.once("dialog", lambda dialog: dialog.accept())
        other.get_by_role("button", name="Run again").click()
        expect(page.locator(".timeline")).to_contain_text("retried by an operator")
    expect(page.locator("h1")).to_contain_text("Completed")
    expect(area).to_have_value('{"gate": "typed"}')


def test_pause_is_absolute_and_going_on_catches_up(page: Page, tmp_path: Path) -> None:
    gate = start_gated(page, tmp_path)
    page.locator("#live-state").click()
    expect(page.locator("#live-word")).to_have_text("Paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with page.context.new_page() as other:
        other.goto(page.url)
        gate.touch()
        expect(other.locator("h1")).to_contain_text("Completed")
    expect(page.locator("h1")).to_contain_text("Running")
    assert asked == []
    page.locator("#live-state").click()
    expect(page.locator("#live-word")).to_have_text("Live")
    expect(page.locator("h1")).to_contain_text("Completed")


def test_without_its_websocket_a_page_says_so_and_polls_and_comes_back(page: Page, tmp_path: Path) -> None:
    is_down = True

    def route(socket: WebSocketRoute) -> None:
        if is_down:
            socket.close()
        else:
            socket.connect_to_server()

    page.route_web_socket("**/ws/live/", route)
    gate = start_gated(page, tmp_path)
    expect(page.locator("#live-word")).to_have_text("Reconnecting")
    gate.touch()
    expect(page.locator("h1")).to_contain_text("Completed")
    is_down = False
    expect(page.locator("#live-word")).to_have_text("Live")


def test_the_form_shows_the_next_runs_while_one_types_and_keeps_what_was_wrong(page: Page) -> None:
    page.goto("/jobs/new/")
    page.locator("#id_name").fill("Nightly")
    page.locator("#id_worker").fill("gate-worker")
    page.locator("#id_job_type").fill("gated")
    expect(page.locator("#schema")).to_contain_text("gate")
    page.get_by_role("button", name="Fill in these names").click()
    expect(page.locator("#id_data")).to_have_value('{\n  "gate": ""\n}')
    page.locator("#id_cron").fill("30 2 * * MON-FRI")
    page.locator("#id_timezone").fill("Europe/Berlin")
    expect(page.locator("#preview")).to_contain_text("At 02:30 on Monday to Friday")
    expect(page.locator("#preview li")).to_have_count(5)
    page.locator("#id_cron").fill("99 2 * * *")
    expect(page.locator("#preview")).to_contain_text("out of range")
    # A page that is refused is still a page: the status 422 is no complaint of ours.
    page.locator("#id_cron").fill("30 2 * * *")
    page.get_by_role("button", name="Create").click()
    expect(page.locator(".fires li")).to_have_count(10)


def test_light_and_dark_follow_the_choice_over_pages(page: Page) -> None:
    def background() -> Any:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    page.emulate_media(color_scheme="light")
    page.goto("/")
    light = background()
    page.emulate_media(color_scheme="dark")
    dark = background()
    assert dark != light
    page.get_by_role("button", name="Switch between light and dark").click()
    assert background() == light
    page.goto("/jobs/")
    assert background() == light


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_page_and_no_table_is_wider_than_its_place(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    make_job(page, "broken", cron="30 2 * * *")
    make_job(page, "broken", '{"reason": "' + "a_very_long_word_" * 20 + '"}', name="x" * 190)
    job = page.url
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("h1")).to_contain_text("Failed")
    occurrence = page.url
    page.get_by_role("link", name="Open failure").click()
    expect(page.locator("#h-error")).to_be_visible()
    for url in (page.url, occurrence, job, "/", "/jobs/", "/jobs/new/", "/occurrences/", "/failures/", "/workers/"):
        page.goto(url)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, url
        hidden = """() => [...document.querySelectorAll(".table-wrap")]
            .filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.scrollWidth)"""
        assert page.evaluate(hidden) == [], url


def test_on_a_phone_the_bar_for_the_ticked_ones_covers_nothing_until_something_is_ticked(page: Page) -> None:
    make_job(page, "broken")
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("h1")).to_contain_text("Failed")
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto("/failures/")
    expect(page.get_by_role("button", name="Resolve")).to_be_hidden()
    page.locator("tbody").get_by_role("checkbox").first.check()
    expect(page.get_by_role("button", name="Resolve")).to_be_in_viewport()


def test_the_keyboard_reaches_the_content_and_every_control_has_a_name(page: Page) -> None:
    make_job(page, "broken")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    for url in (page.url.split("#")[0], "/", "/jobs/", "/jobs/new/", "/occurrences/", "/failures/", "/workers/"):
        page.goto(url)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("a, button, summary, input:not([type=hidden]), select, textarea")]
                .filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.title || e.labels?.length
                                 || e.closest("svg")))
                .map((e) => e.outerHTML)"""
        )
        assert nameless == [], url


def test_contrast_of_text_is_enough_in_light_and_dark(page: Page) -> None:
    make_job(page, "broken")
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("h1")).to_contain_text("Failed")
    urls = [page.url, "/", "/jobs/", "/failures/", "/workers/"]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for url in urls:
            page.goto(url)
            assert page.evaluate(LOW_CONTRAST) == [], (scheme, url)


LOW_CONTRAST = """() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return canvas.getImageData(0, 0, 1, 1).data;
    };
    const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (element) => {
        for (let e = element; e; e = e.parentElement) {
            const colour = rgba(getComputedStyle(e).backgroundColor);
            if (colour[3] === 255) return colour;
        }
        return [255, 255, 255, 255];
    };
    const low = [];
    for (const element of document.querySelectorAll("main *, header *")) {
        const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        if (!own || !element.checkVisibility() || element.closest("svg, option")) continue;
        const [a, b] = [light(rgba(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) low.push(`${element.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
    }
    return low;
}"""
