"""A small script of branching chats, written for this project: the page `/fragmentation` shows its recording first.

Ten people talk to one assistant, go back, change a turn, request another reply or several drafts; a job sends questions under
one few-shot prompt. The replies are the model's.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["EXAMPLES", "PEOPLE", "QUESTIONS", "SYSTEM", "Act", "Ask", "Drafts", "Edit", "Person", "Regenerate"]


class Ask(NamedTuple):
    """A further turn."""

    text: str


class Regenerate(NamedTuple):
    """Another reply to the last turn."""


class Edit(NamedTuple):
    """Turn `turn`, from 0, with another text; later turns are left on their branch."""

    turn: int
    text: str


class Drafts(NamedTuple):
    """A further turn, with several replies at once; the first of them is kept."""

    text: str
    n: int


Act = Ask | Regenerate | Edit | Drafts


class Person(NamedTuple):
    """`start_s`: time of the first turn. `pause_s`: time to read each reply."""

    start_s: float
    pause_s: float
    acts: tuple[Act, ...]


SYSTEM = (
    "You are the adviser of a public garden. Visitors ask you about plants, soil, water, tools and the seasons, and about "
    "the garden itself: it lies on a slope above a river, has three glasshouses, an orchard of forty old apple trees, a "
    "herb yard, a pond with two kinds of water lilies, and a wall of climbing roses that faces south. It opens at eight and "
    "closes at dusk; dogs stay outside. Answer kindly and plainly, in a few sentences, and say so when you do not know. Give "
    "amounts in litres and grams, lengths in metres, and name months rather than seasons, since visitors come from both halves "
    "of the world. Never recommend a poison where a rake will do."
)

PEOPLE = (
    Person(
        0.0,
        0.3,
        (
            Ask("My tomato plants have yellow leaves near the ground. What should I look at first?"),
            Regenerate(),
            Ask("The soil is wet two fingers deep. Is that too much?"),
            Edit(1, "The soil is dry two fingers deep. How much water should each plant get?"),
            Ask("And how often in July, when it has not rained for a week?"),
            Drafts("Write a note of two sentences for the neighbour who waters them while I am away.", 4),
        ),
    ),
    Person(
        1.2,
        0.45,
        (
            Ask("Which of your apple trees would you show to a child, and why?"),
            Ask("When do they flower, and when can one pick them?"),
            Regenerate(),
            Regenerate(),
            Edit(0, "Which of your apple trees would you show to somebody who keeps bees?"),
            Ask("How many hives would the orchard feed?"),
        ),
    ),
    Person(
        2.5,
        0.25,
        (
            Drafts("Suggest a name for a guided walk through the glasshouses.", 8),
            Ask("Take the one you like best and write three sentences for the poster."),
            Edit(1, "Take the shortest one and write three sentences for the poster."),
            Regenerate(),
            Ask("Now the same for children of six."),
        ),
    ),
    Person(
        4.0,
        0.55,
        (
            Ask("I want to plant a rose at a wall that faces north. Will it live?"),
            Ask("What would you plant there in its place?"),
            Ask("How far from the wall, and how deep?"),
            Edit(1, "Which climbing rose bears the most shade?"),
            Ask("How far from the wall, and how deep?"),
            Regenerate(),
            Ask("What does it need in its first winter?"),
        ),
    ),
    Person(
        6.0,
        0.35,
        (
            Ask("Something eats my basil at night. There are no holes, whole leaves are gone."),
            Edit(0, "Something eats my basil at night. There are round holes in the leaves."),
            Edit(0, "Something eats my basil at night. There is slime on the pot."),
            Ask("What can I do that harms nobody?"),
            Drafts("Write a friendly sign that tells visitors not to feed the snails.", 8),
            Regenerate(),
        ),
    ),
    Person(
        8.0,
        0.4,
        (
            Ask("How does one keep a pond clear without a pump?"),
            Ask("Ours is four metres long and knee deep. How many lilies are too many?"),
            Regenerate(),
            Edit(1, "Ours is a barrel of two hundred litres. How many lilies are too many?"),
            Ask("Can fish live in it?"),
            Edit(2, "Can frogs live in it?"),
        ),
    ),
    Person(
        1.8,
        0.2,
        (
            Ask("Tell me how to make compost in a box of one cubic metre."),
            Ask("Mine smells. What did I do wrong?"),
            Edit(1, "Mine stays cold. What did I do wrong?"),
            Ask("Give me a list for the kitchen wall: what goes in, what does not."),
            Regenerate(),
        ),
    ),
    Person(
        3.0,
        0.2,
        (
            Ask("We want to marry in the orchard. What should we think of?"),
            Drafts("Write one sentence for the invitation that says how to get there.", 4),
            Ask("And what if it rains?"),
            Edit(2, "And if my grandmother cannot walk far?"),
        ),
    ),
    Person(
        4.5,
        0.15,
        (
            Ask("Explain to a child of six why leaves turn red."),
            Edit(0, "Explain to a child of nine why leaves turn red."),
            Edit(0, "Explain to a biologist why leaves turn red."),
            Ask("Which of your trees shows it best?"),
        ),
    ),
    Person(
        5.5,
        0.2,
        (
            Ask("Plan a bed of two square metres with herbs that need little water."),
            Regenerate(),
            Ask("Replace the rosemary, it dies in our winters."),
            Ask("In which month do I sow what?"),
            Drafts("Name three things that go wrong most often.", 4),
        ),
    ),
)

EXAMPLES = """\
Say what a visitor wants: one word of plants, tools, opening, path, lost, thanks.

Visitor: Where do I find the pond from here? Wants: path
Visitor: Does the rose by the gate need full sun? Wants: plants
Visitor: Are you open on the first of May? Wants: opening
Visitor: My son left a blue cap in the glasshouse. Wants: lost
Visitor: What do you cut the hedge with? Wants: tools
Visitor: That was a lovely afternoon. Wants: thanks
Visitor: Until when can one come in? Wants: opening
Visitor: Is there a way to the orchard without steps? Wants: path
Visitor: Has anybody found a single glove? Wants: lost
Visitor: Which spade is best for heavy clay? Wants: tools
Visitor: Can lavender stay outside in January? Wants: plants
Visitor: Please tell the lady in the herb yard how kind she was. Wants: thanks
"""

QUESTIONS = (
    "How late may one stay in June?",
    "I cannot find my keys, they have a green ribbon.",
    "What is the tall thing with purple flowers?",
    "Do you lend out wheelbarrows?",
    "Which way to the river?",
    "We liked the lilies so much.",
    "Is the first glasshouse closed on Mondays?",
    "How do I sharpen shears?",
    "Why do my apples fall in July?",
    "An umbrella, black, with a wooden handle?",
    "Is there a shorter walk back to the gate?",
    "Your gardeners are wonderful.",
    "May one come in at seven?",
    "What grows in the shade of a wall?",
    "Does a fork do less harm than a spade?",
    "Where can a wheelchair pass?",
)
