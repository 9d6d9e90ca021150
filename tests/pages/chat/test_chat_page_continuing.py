"""The chat page in a real browser: replies that go on from a text of their own, and branches from one that is being written."""

from __future__ import annotations

from browser import check_accessible
from chat_site import Site, converse, hold_in_a_reply, say, shown
from playwright.sync_api import Page, expect
from waiting import wait_until


def go_on(site: Site, page: Page, reply: str, more: str) -> None:
    """Press Continue at a reply; the model says `more`."""
    site.dictate(more)
    page.locator(reply).last.get_by_role("button", name="Continue").click()
    expect(shown(page).last).to_contain_text(more)
    expect(shown(page).last).to_contain_text("tokens reused")


def test_a_stopped_reply_tells_its_cost_and_goes_on_where_it_was_stopped(site: Site, page: Page) -> None:
    hold_in_a_reply(site, page)
    page.locator("article.running").get_by_role("button", name="Stop").click()
    stopped = page.locator("article.stopped")
    expect(stopped).to_contain_text("tokens reused")
    text = stopped.locator(".markdown").inner_text()
    site.runner.gate.open()
    wait_until(lambda: site.engine.stats().engine.num_running_branches == 0)
    go_on(site, page, "article.stopped", "and that was it.")
    assert shown(page).last.locator(".markdown").inner_text().startswith(text)
    expect(shown(page).last).to_contain_text(" 1 computed")
    expect(shown(page).last).to_contain_text("2 / 2")
    check_accessible(page)
    page.reload()
    expect(shown(page).last).to_contain_text("and that was it.")
    expect(shown(page).last.get_by_role("button", name="Continue")).to_have_count(0)  # it came to its own end


def test_a_reply_goes_on_where_it_was_cut_or_edited(site: Site, page: Page) -> None:
    page.get_by_role("button", name="1 reply").click()
    page.get_by_label("Longest reply").fill("4")
    site.dictate("One two three four five six")
    say(page, "Count")
    expect(shown(page).last).to_contain_text("Cut at the longest length allowed.")
    page.get_by_label("Longest reply").fill("")
    go_on(site, page, "article.complete", " five and six.")
    expect(shown(page).last).to_contain_text("One two three four five and six.")
    shown(page).last.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit: Reply").fill("One two three and")
    page.get_by_role("button", name="Keep as a new version").click()
    expect(shown(page).last).to_contain_text("edited by hand")
    go_on(site, page, "article.complete", " that is all.")
    expect(shown(page).last).to_contain_text("One two three and that is all.")
    expect(shown(page).last).to_contain_text("4 / 4")


def test_a_branch_goes_off_from_a_reply_while_it_is_written(site: Site, page: Page) -> None:
    converse(site, page, ("First question", "First answer."))
    hold_in_a_reply(site, page)
    running = page.locator("article.running")
    running.get_by_role("button", name="Branch").click()
    expect(page.locator(".branching")).to_contain_text("word")
    say(page, "Stop there, why?")
    expect(page.locator("article.stopped")).to_contain_text("word word")
    expect(page.locator("article.user").last).to_contain_text("Stop there, why?")
    expect(page.locator("article.user")).to_have_count(3)
    site.runner.gate.open()
    expect(page.locator("article.complete.assistant")).to_have_count(2)
    page.locator("article.stopped").get_by_role("button", name="Earlier version").click()
    expect(shown(page).last).to_contain_text("word word")
    expect(page.locator("article.stopped")).to_have_count(0)  # the first one was written to its end
