"""Flows in a browser: what a person does on the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import browsing, viewing
from viewed_traces import HOSTILE_ID, hostile, order, run_record, training, tree

from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.trace.store import TraceStore

DRAWN = "main:not([aria-busy]) > *"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("traces")
    training(directory / "run")
    hostile(directory / "hostile")
    return directory


@pytest.fixture(scope="module")
def start(directory: Path) -> Iterator[str]:
    with viewing(directory) as address:
        yield address


@pytest.fixture
def page(browser: Any, start: str) -> Iterator[Any]:
    """A page at its start that fails the test on an error, on a violation of its policy, or on a request elsewhere."""
    problems: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None
    )
    home = start.rsplit("/", 1)[0]
    opened.set_default_timeout(15_000)
    opened.on("request", lambda sent: None if sent.url.startswith((home, "data:")) else problems.append(sent.url))
    opened.on("dialog", lambda dialog: problems.append(dialog.message))
    opened.goto(start)
    opened.wait_for_selector(DRAWN)
    yield opened
    context.close()
    assert problems == []


def go(page: Any, address: str) -> None:
    page.evaluate("address => { location.hash = address }", address)
    page.wait_for_function("address => location.hash === address", arg=address)
    page.wait_for_selector(DRAWN)


def test_from_a_finding_to_the_token_that_training_pushed_down(page: Any) -> None:
    finding = page.get_by_role("article", name="Low reward: track returned an error")
    finding.get_by_role("link", name="held-out-1, step 4, sample 0").click()
    failed = page.get_by_role("article", name="call of track, failed")
    failed.wait_for()
    assert "only shipped orders can be tracked" in failed.inner_text()
    page.go_back()
    finding.locator("a.moved").first.click()
    details = page.get_by_role("complementary", name="the token")
    details.get_by_text("(down)").wait_for()
    text = details.inner_text()
    assert text.startswith("t\n") and "advantage" in text and "-1" in text
    assert page.locator(".tokens .current.down6").count() == 1
    assert page.get_by_role("button", name="▼ down").count() >= 1


def test_the_list_is_filtered_sorted_and_its_address_can_be_sent(page: Any, browser: Any) -> None:
    go(page, "#/list")
    page.locator("#total").get_by_text("39 of 39").wait_for()
    page.get_by_label("split").select_option("train")
    page.locator("#total").get_by_text("32 of 39").wait_for()
    page.get_by_label("tool failed").fill("track")
    page.get_by_label("tool failed").press("Enter")
    page.locator("#total").get_by_text("12 of 39").wait_for()
    page.get_by_role("columnheader", name="step").get_by_role("link").click()
    page.wait_for_selector("th[aria-sort='ascending']")
    assert page.locator("tbody tr").first.locator("td.step").inner_text() == "1"
    other = browser.new_page(storage_state=page.context.storage_state())  # another tab, which has the token
    other.goto(page.url)
    other.locator("#total").get_by_text("12 of 39").wait_for()
    other.close()


def test_a_trajectory_by_keyboard(page: Any) -> None:
    go(page, "#/list?failed_tool=track&split=train&sort=id")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="train-0").wait_for()
    assert "#/t/train-1-0-2" in page.url
    page.keyboard.press("]")
    page.wait_for_selector("#turn-1.current")
    page.keyboard.press("j")
    page.wait_for_selector("#turn-2.current")
    assert page.locator("details.thinking[open]").count() == 0
    page.keyboard.press("f")
    page.wait_for_selector("details.thinking[open]")
    page.keyboard.press("J")
    page.wait_for_function("() => location.hash === '#/t/train-1-0-3'")
    page.wait_for_selector(DRAWN)
    page.keyboard.press("2")
    tokens = page.get_by_role("application")
    tokens.wait_for()
    before = page.locator("#token-details").inner_text()
    tokens.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("text => document.getElementById('token-details').innerText !== text", arg=before)
    colour = page.locator("#colour").input_value()
    page.keyboard.press("c")
    page.wait_for_function("old => document.getElementById('colour').value !== old", arg=colour)
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("?")
    page.get_by_role("dialog", name="keys").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    page.wait_for_selector("table.trajectories")


def test_siblings_stand_side_by_side_from_where_they_differ(page: Any) -> None:
    go(page, "#/t/train-1-0-1?tab=siblings")
    table = page.get_by_label("siblings side by side")
    table.wait_for()
    heads = table.get_by_role("columnheader").all_inner_texts()
    one, other = [[line for line in head.split("\n") if line.strip()] for head in heads[1:]]
    assert one[:3] == ["sample 1", "reward 0", "advantage -1"] and one[-1].strip() == "copies: 2 3"
    assert other[:3] == ["sample 0", "reward 1", "advantage 1"] and "differs from token" in other[-1]
    assert "the same in all" in table.locator("tbody tr").first.inner_text()
    assert table.locator("#first-difference mark").first.inner_text().startswith("cancel")
    page.get_by_role("heading", name="The same task in other steps").wait_for()


def test_a_tree_is_drawn_where_trajectories_share_a_beginning(browser: Any, tmp_path: Path) -> None:
    tree(tmp_path)
    with viewing(tmp_path) as address:
        page = browser.new_page()
        page.goto(f"{address}#/t/root?tab=siblings")
        lines = page.get_by_label("tree", exact=True).locator(".line")
        lines.first.wait_for()
        texts = lines.all_inner_texts()
        page.close()
    assert [text.split("\n")[0] for text in texts] == ["sample 0", "· sample 1", "· sample 2"]
    assert "from token 40" in texts[1] and "from token 60" in texts[2]


def test_runs_are_drawn_over_steps(page: Any) -> None:
    go(page, "#/runs")
    page.get_by_role("img", name="reward: ").first.wait_for()
    assert page.locator(".plot canvas").count() >= 6
    page.get_by_label("runs", exact=True).get_by_role("link", name="run · shop · train").click()
    page.locator("#total").get_by_text("32 of 39").wait_for()


def test_the_page_follows_a_run_that_goes_on(browser: Any, tmp_path: Path) -> None:
    training(tmp_path / "one", steps=1)
    with viewing(tmp_path) as address:
        page = browser.new_page()
        page.goto(f"{address}#/list")
        page.locator("#total").get_by_text("14 of 14").wait_for()
        hostile(tmp_path / "two")
        page.locator("#total").get_by_text("15 of 15").wait_for()
        page.close()


def test_figures_of_several_steps_weigh_trajectories_and_calls_and_not_steps(browser: Any, tmp_path: Path) -> None:
    run, store = run_record(tmp_path / "traces"), TraceStore(tmp_path / "traces")
    for step, sample in ((1, 0), (1, 1), (1, 2), (2, 0)):
        trace = order(Origin(row=0, sample=sample, step=step), run, is_right=step == 1)
        if step == 1 and sample > 0:
            trace.fail("server_unavailable", "gone")
            trace.reward, trace.turns[0].tools, trace.turns[1].tools, trace.tool_calls = None, [], [], 0
        store.append(trace)
    page = browser.new_page()
    with viewing(tmp_path / "traces") as address:
        page.goto(f"{address}#/runs")
        row = page.get_by_label("runs", exact=True).locator("tbody tr")
        row.first.wait_for()
        shown = [cell.strip() for cell in row.get_by_role("cell").all_inner_texts()]
    # Rewards 1 of one trajectory and 0 of one, an error in none of two calls and in one of two.
    assert (shown[0], shown[2], shown[4]) == ("4", "0.50", "25%")
    page.close()


def test_what_was_recorded_is_text(page: Any) -> None:
    title = page.title()
    go(page, "#/list?split=evaluation")
    page.get_by_label("split").wait_for()
    for tab in ("", "?tab=tokens", "?tab=siblings"):
        address = page.evaluate("id => `#/t/${encodeURIComponent(id)}`", HOSTILE_ID)
        go(page, address + tab)
        page.get_by_role("tabpanel").wait_for()
        shown = page.locator("main").inner_text()
        assert "<script>" in shown and "⟨U+202E⟩" in shown and "⟨U+200B⟩" in shown and "⟨U+E0041⟩" in shown
        assert "␛[31mred" in shown and not {"\x1b", "\u202e", "\u200b"} & set(shown)
    assert page.locator("main script, main img, main svg, main iframe").count() == 0
    assert page.evaluate("[...document.links].filter(a => a.protocol === 'javascript:').length") == 0
    assert "owned" not in page.title() and title


def test_a_script_that_is_injected_does_not_run(browser: Any, start: str) -> None:
    page = browser.new_page()
    page.goto(start)
    page.wait_for_selector(DRAWN)
    outcome = page.evaluate(
        """() => new Promise((resolve) => {
            addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
            try {
                document.body.insertAdjacentHTML("beforeend", "<b onclick='window.owned = true'>x</b>");
                document.body.lastElementChild.click();
            } catch (error) {
                resolve(error.name);
            }
        })"""
    )
    assert outcome in ("TypeError", "script-src-attr", "require-trusted-types-for")
    assert page.evaluate("window.owned") is None
    page.close()


def test_every_control_has_a_name(page: Any) -> None:
    for address in ("#/", "#/list", "#/runs", "#/t/train-1-0-1", "#/t/train-1-0-1?tab=tokens"):
        go(page, address)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, a")]
                .filter((each) => !(each.innerText.trim() || each.getAttribute("aria-label") || each.labels?.length))
                .map((each) => each.outerHTML)"""
        )
        assert nameless == [], address
