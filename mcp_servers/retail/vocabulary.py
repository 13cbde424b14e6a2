"""What short tasks are made of: training, validation and test share no wording, name, product, number or day.

Validation is for choosing settings, test for the measurement that is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

from mcp_servers.retail.generate import FIRST_NAMES, LAST_NAMES, PRODUCTS, Stock

Part = Literal["train", "validation", "test"]
Step = Literal["cancel", "track", "return"]

_DAYS = Random("days").sample(range(1, 31), 30)
_NUMBERS = Random("order numbers").sample(range(100, 1000), 900)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """What a part's tasks are drawn from."""

    greetings: tuple[str, ...]
    introductions: tuple[str, ...]
    """With the customer's name."""
    wishes: Mapping[Step, tuple[str, ...]]
    requests: tuple[str, ...]
    """With one wish for each step."""
    closings: tuple[str, ...]
    stock: Stock
    """Names and products of the database."""
    days: tuple[int, ...]
    """Days until a shipment arrives, or until the return window of a delivered order closes."""
    numbers: tuple[int, ...]
    """Of orders, after the letter."""


VOCABULARIES: dict[Part, Vocabulary] = {
    "train": Vocabulary(
        greetings=("Hello!", "Hi there,", "Good morning.", "Hello,", "Good day.", "Dear team,"),
        introductions=(
            "I am {name}.", "my name is {name}.", "this is {name}.", "{name} here.", "I'm {name}, a customer.",
        ),
        wishes={
            "cancel": (
                "cancel my order", "call off the order", "stop this purchase", "cancel what I ordered",
                "undo the purchase", "call everything off",
            ),
            "track": (
                "tell me when my order will arrive", "say when it gets here", "tell me the arrival day",
                "find out when the parcel comes", "say how long it still travels", "give me the delivery date",
            ),
            "return": (
                "tell me until when I can return my order", "say how long I may send it back",
                "tell me the last day for a return", "check whether it can still go back",
                "say until when returns are open", "give me the final day to hand it back",
            ),
        },
        requests=(
            "Please {}, {} or {}, whichever fits.",
            "Could you {}, {} or {}? Whatever the order allows.",
            "I want you to {}, {}, or else {}, as its state permits.",
            "Can you {}? If not, {}, or {}.",
            "Do one of these for me: {}; {}; {}. Only one is possible.",
            "Would you {}, {} or {}, depending on how far it is?",
        ),
        closings=("Thank you!", "Thanks, that was all."),
        stock=Stock(first_names=FIRST_NAMES[:16], last_names=LAST_NAMES[:15], products=PRODUCTS[:11]),
        days=tuple(_DAYS[14:]),
        numbers=tuple(_NUMBERS[350:]),
    ),
    "validation": Vocabulary(
        greetings=("Greetings,", "Good evening.", "Hey!", "Good afternoon,"),
        introductions=("{name} speaking.", "You are talking to {name}.", "The name's {name}.", "It's {name} again."),
        wishes={
            "cancel": (
                "scrap the thing I bought", "withdraw that order", "drop my purchase", "annul my recent order",
            ),
            "track": (
                "let me know its arrival time", "estimate the day of delivery", "work out where my package is",
                "look up when the box reaches me",
            ),
            "return": (
                "let me know my deadline for returning it", "look up how many days remain to bring it back",
                "see if a refund is open to me", "work out the closing date for giving it back",
            ),
        },
        requests=(
            "Kindly {}, {} or {}, according to its status.",
            "I need someone to {}, {}, alternatively {}: just what is feasible.",
            "Either {} or {} or {}, your choice, so long as it is right.",
            "My wish: {}. Failing that, {}. Failing that as well, {}.",
        ),
        closings=("Perfect, bye.", "Lovely, cheers."),
        stock=Stock(first_names=FIRST_NAMES[16:], last_names=LAST_NAMES[15:], products=PRODUCTS[11:]),
        days=tuple(_DAYS[8:14]),
        numbers=tuple(_NUMBERS[200:350]),
    ),
    "test": Vocabulary(
        greetings=("Salutations,", "Good day to you!", "Hello there;", "Hi team!", "To customer service:"),
        introductions=(
            "{name}, writing to you.", "Signed: {name}.", "I go by {name}.", "Customer {name}, once more.",
            "Account holder: {name}.",
        ),
        wishes={
            "cancel": (
                "rescind what I bought yesterday", "take my purchase off the books", "back out of the deal for me",
                "see that nothing is charged or sent", "revoke the thing I paid for",
            ),
            "track": (
                "pin down when the courier knocks", "forecast its appearance at my door",
                "report how far away the goods are", "name the date on which it lands here",
                "trace where the carton has got to",
            ),
            "return": (
                "explain how late I could still hand the goods in", "quote me the end of the refund period",
                "verify that sending this stuff home to you is allowed", "state by which date I must decide to keep it",
                "clarify if my chance for money back has lapsed",
            ),
        },
        requests=(
            "It would be great to have you {}; otherwise {}; otherwise {}.",
            "You choose, as the situation demands: {}, {}, {}.",
            "One favour, the one that can be done: {} / {} / {}.",
            "Is it feasible to {}? Or to {}? Or at least to {}? Pick what works.",
            "Have a look and then {}, or {}, or {}. I trust your judgement.",
        ),
        closings=("Wonderful, so long.", "Cool, that settles it."),
        stock=Stock(
            first_names=("Agnieszka", "Bruno", "Cosima", "Dmitri", "Esme", "Florian", "Gwen", "Haruto", "Isolde"),
            last_names=(
                "Abernathy", "Bukowski", "Cheng", "Delgado", "Eastwood", "Fitzroy", "Gruber", "Hashimoto", "Iqbal",
            ),
            products=(
                ("Garden Hose", "outdoor", 36, (("length", ("10 m", "20 m", "30 m")), ("colour", ("black", "yellow")))),
                ("Picture Frame", "home", 18, (("size", ("small", "medium", "large")), ("colour", ("oak", "white")))),
                ("Rice Cooker", "kitchen", 66, (("volume", ("0.6 l", "1.1 l", "1.8 l")), ("colour", ("steel", "red")))),
                ("Yoga Mat", "sport", 31, (("colour", ("sand", "moss", "indigo")), ("length", ("170 cm", "185 cm")))),
                ("Chess Set", "games", 54, (("material", ("beech", "maple", "marble")), ("size", ("small", "medium")))),
            ),
        ),
        days=tuple(_DAYS[:8]),
        numbers=tuple(_NUMBERS[:200]),
    ),
}  # fmt: skip
