"""What the tests of the chat page share: a site to look at, and how one talks on it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from browser import ELSEWHERE
from chat_stack import GibberishRunner, gibberish_engine
from playwright.sync_api import Locator, Page, expect

from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer

__all__ = ["THREE", "Dictated", "Site", "converse", "delete", "hold_in_a_reply", "regenerate", "say", "shown"]

THREE = (
    ("First question", "First answer."),
    ("Second question", "Second answer."),
    ("Third question", "Third answer."),
)


class Dictated(Protocol):
    """A site whose model says what it is told to."""

    @property
    def runner(self) -> GibberishRunner: ...

    def dictate(self, *replies: str) -> None: ...


class Site:
    """A gateway that can be restarted at its address, on its state file, before an engine that runs on."""

    def __init__(self, model: str, folder: Path, **engine: Any) -> None:
        self._stack = ExitStack()
        self.engine, self.runner, self.text = self._stack.enter_context(gibberish_engine(model, **engine))
        self._config = {"state_file": folder / "state.sqlite", "drain_s": 0.05, "allow_hosts": (ELSEWHERE,)}
        self._listen = "127.0.0.1:0"
        self._server: GatewayServer | None = None
        self.start()

    def start(self) -> None:
        config = GatewayConfig(listen=self._listen, **self._config)  # type: ignore[arg-type]  # as they are above
        self._server = GatewayServer(self.engine, config)
        self._server.__enter__()
        self._listen = self._server.address

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    @property
    def url(self) -> str:
        return f"http://{self._listen}/"

    def dictate(self, *replies: str) -> None:
        """What the model says next, each up to its end."""
        self.runner.dictate(*replies)

    def close(self) -> None:
        self.runner.gate.open()
        self.stop()
        self._stack.close()


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def shown(page: Page) -> Locator:
    """The messages of the branch that is shown, those of the user and finished replies."""
    return page.locator("article.complete")


def converse(site: Dictated, page: Page, *turns: tuple[str, str]) -> None:
    for question, answer in turns:
        before = shown(page).count()
        site.dictate(answer)
        say(page, question)
        expect(shown(page)).to_have_count(before + 2)
        expect(shown(page).last).to_contain_text(answer)


def regenerate(site: Dictated, page: Page, answer: str) -> None:
    """Ask for a further version of the last reply."""
    site.dictate(answer)
    shown(page).last.get_by_role("button", name="Regenerate").click()
    expect(shown(page).last).to_contain_text(answer)


def delete(message: Locator) -> None:
    """Delete a message and what follows it."""
    message.get_by_role("button", name="Other actions").click()
    message.get_by_role("button", name="Delete this").click()


def hold_in_a_reply(site: Dictated, page: Page) -> None:
    """Ask for a long reply, which is held up behind its beginning."""
    site.dictate("word " * 100)
    site.runner.gate.close_after(20)
    say(page, "Go on and on")
    expect(page.locator("article.running")).to_contain_text("word word")
