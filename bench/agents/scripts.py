"""Text of the conversations: ten small projects, three messages about each, and a model's replies."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from bench.agents.clients import Agent

__all__ = ["SCRIPTS", "Message", "Script"]

NUM_LINES = 60
WORDS = ("river", "stone", "lamp", "window", "garden", "music", "paper", "winter", "bread", "silver", "letter", "horse")


class Message(NamedTuple):
    """A user's message, and the model's replies until it makes no further call.

    A reply is a text with an optional call: "read FILE" or "run COMMAND".
    """

    said: str
    replies: tuple[tuple[str, str], ...]


class Script(NamedTuple):
    """A conversation about a project: its name (and folder), its files with their text, and the messages."""

    name: str
    files: Mapping[str, str]
    messages: tuple[Message, ...]

    def write_files(self, folder: Path) -> None:
        """Write the project into `folder`."""
        folder.mkdir(parents=True)
        for name, text in self.files.items():
            (folder / name).write_text(text)

    def replies(self, message: Message, agent: Agent, folder: Path) -> list[str]:
        """Replies as written by a model that calls tools in Hermes' form."""
        return [self._reply(text, action, agent, folder) for text, action in message.replies]

    @staticmethod
    def _reply(text: str, action: str, agent: Agent, folder: Path) -> str:
        if not action:
            return text
        kind, _, what = action.partition(" ")
        name, arguments = agent.read(folder / what) if kind == "read" else agent.run(what)
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"{text}\n<tool_call>\n{call}\n</tool_call>"


def _script(name: str, first: str, second: str) -> Script:
    source = random.Random(name)

    def lines() -> str:
        return "".join(" ".join(source.choices(WORDS, k=source.randint(2, 9))) + "\n" for _ in range(NUM_LINES))

    word = source.choice(WORDS)
    return Script(
        name,
        {first: lines(), second: lines()},
        (
            Message(
                f"What is {first} about, and how often does it say “{word}”?",
                (
                    (f"I'll read {first} first.", f"read {first}"),
                    (f"Now I count “{word}”.", f"run grep -c {word} {first}"),
                    (
                        f"{first} lists short lines of everyday words \u2013 naïve ones, too. “{word}” is counted above.",
                        "",
                    ),
                ),
            ),
            Message(
                f"Which line of {second} comes first in the alphabet?",
                (
                    ("Sorting tells.", f"run sort {second}"),
                    ("The first of the sorted lines.\n\n```text\nsee above\n```", ""),
                ),
            ),
            Message(
                "Thank you. Sum up what we did.",
                ((f"1. We read {first} and counted a word.\n2. We sorted {second}.\n\nNothing was changed. ✅", ""),),
            ),
        ),
    )


SCRIPTS = tuple(
    _script(name, first, second)
    for name, first, second in (
        ("orders", "orders.csv", "returns.csv"),
        ("weather", "stations.txt", "rainfall.txt"),
        ("library", "books.txt", "readers.txt"),
        ("trains", "timetable.csv", "delays.csv"),
        ("recipes", "soups.md", "breads.md"),
        ("chess", "openings.txt", "games.txt"),
        ("garden", "seeds.csv", "beds.csv"),
        ("music", "albums.txt", "scores.txt"),
        ("hiking", "paths.md", "huts.md"),
        ("stars", "catalogue.csv", "sightings.csv"),
    )
)
