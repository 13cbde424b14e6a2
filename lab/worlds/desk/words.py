"""What customers ask a desk, and about what: the wordings, articles and numbers of training, validation and test.

The three parts share no keyword: no two content words of different parts begin with the same four letters, no article
of one part has a word of another part's, and no number occurs in two parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One thing that the desk can look up."""

    description: str
    answer: str
    """How the expert says what was found."""
    value: Callable[[Random, int], str]
    """A value, drawn from the numbers of a part: those with the given remainder by three."""
    wordings: Mapping[Part, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Domain:
    instructions: str
    tools: Mapping[str, Tool]
    items: Mapping[Part, tuple[str, ...]]


def number(rng: Random, remainder: int, low: int, high: int) -> int:
    return 3 * rng.randrange(low // 3 + 1, high // 3) + remainder


def decimal(rng: Random, remainder: int) -> str:
    return f"{number(rng, remainder, 3, 90)}.{number(rng, remainder, 9, 99)}"


def count(rng: Random, remainder: int) -> str:
    return str(number(rng, remainder, 99, 999))


def place(rng: Random, remainder: int) -> str:
    return f"{rng.choice('ABCDEFGH')}{number(rng, remainder, 9, 99)}"


SHOP = Domain(
    instructions="You answer customers of a shop. Look it up with one tool, then say the result.",
    tools={
        "price": Tool(
            description="What an item costs.",
            answer="It costs £{}.",
            value=decimal,
            wordings={
                "train": (
                    "How much is the {}?",
                    "What does the {} cost?",
                    "What is the price of the {}?",
                    "Could you tell me what the {} costs?",
                    "Hi, price of the {} please.",
                    "How much money do I need for the {}?",
                    "I would like to know how much the {} is.",
                    "Hello! What do you want for the {}?",
                ),
                "validation": (
                    "Is the {} dear? I have few coins.",
                    "Can I afford the {}? Name your rate.",
                    "What do I owe at the till for the {}?",
                    "What does the tag on the {} read?",
                    "Good morning, what fee do you ask for the {}?",
                    "My purse is thin. Is the {} cheap?",
                ),
                "test": (
                    "What will I be charged for the {}?",
                    "Is the {} expensive? Give me the figure.",
                    "What sum in pounds would I have to pay for the {}?",
                    "Good evening, is the {} a bargain? What would I spend?",
                    "My budget is small. What is due for the {}?",
                    "Before I buy the {}: what will the bill say?",
                ),
            },
        ),
        "stock": Tool(
            description="How many there are of an item.",
            answer="We have {} of them.",
            value=count,
            wordings={
                "train": (
                    "How many of the {} are left?",
                    "Do you still have the {}, and how many?",
                    "How many of the {} do you have?",
                    "Is the {} in stock? Tell me the number.",
                    "Hi, how many pieces of the {} are there?",
                    "I want several of the {}. How many are available?",
                    "Hello! How many of the {} could I get today?",
                    "Are there enough of the {}? How many exactly?",
                ),
                "validation": (
                    "Is the {} gone, or does a pile await me?",
                    "We plan a feast of thirty with the {}. Do you have plenty?",
                    "What total of the {} do you store?",
                    "Check the {} for me: are there spares?",
                    "Good morning, is the {} rare?",
                    "Could I order the {} by the dozen?",
                ),
                "test": (
                    "What quantity of the {} remains?",
                    "Has the {} sold out, or what is your inventory?",
                    "My whole class requires the {}. What is your current supply?",
                    "Count the units of the {} for me, please.",
                    "Good evening, is the {} running low? What amount is in the warehouse?",
                    "Would your reserve of the {} be sufficient for forty people?",
                ),
            },
        ),
        "shelf": Tool(
            description="Where an item is.",
            answer="It is on shelf {}.",
            value=place,
            wordings={
                "train": (
                    "Where do I find the {}?",
                    "On which shelf is the {}?",
                    "Where is the {}?",
                    "Which shelf has the {}?",
                    "Hi, I am looking for the {}. Where is it?",
                    "Hello! Where did you put the {}?",
                    "Could you tell me where the {} is?",
                    "I can't see the {}. Where should I look?",
                ),
                "validation": (
                    "Direct me to the {}, please.",
                    "In which aisle would I spot the {}?",
                    "Good morning, lead me to the {}.",
                    "Which corner hides the {}?",
                    "Show me the way to the {}.",
                    "Is the {} upstairs or downstairs?",
                ),
                "test": (
                    "Point me to the {}, please.",
                    "In what part of the building would I come across the {}?",
                    "Good evening, guide me to the {}.",
                    "I keep walking in circles. What is the location of the {}?",
                    "I am lost. Bring me to the {}.",
                    "Take me to the {}, please.",
                ),
            },
        ),
    },
    items={
        "train": tuple(
            "garden hose,kettle,desk lamp,rain jacket,chess set,yoga mat,rice cooker,picture frame,notebook,"
            "bicycle pump,coffee mill,wool scarf,alarm clock,paint brush,flower pot,backpack,water bottle,"
            "wall mirror,board game,tool box".split(",")
        ),
        "validation": tuple(
            "coat rack,frying pan,snow globe,teapot,skipping rope,magnifying glass,cheese grater,folding chair,"
            "music stand,fish tank,wicker tray,curtain rail".split(",")
        ),
        "test": tuple(
            "umbrella,toaster,hammock,jigsaw puzzle,door bell,candle holder,sleeping bag,fountain pen,laundry basket,"
            "microscope,violin case,bird feeder".split(",")
        ),
    },
)

HARBOUR = Domain(
    instructions="You answer visitors of a harbour. Look it up with one tool, then say the result.",
    tools={
        "crew": Tool(
            description="How many sailors an item has.",
            answer="It has {} sailors.",
            value=count,
            wordings={
                "train": (
                    "How many sailors does the {} have?",
                    "How many are in the crew of the {}?",
                    "Tell me the number of sailors on the {}.",
                    "Hello! How many men and women sail the {}?",
                )
            },
        ),
        "berth": Tool(
            description="Where an item is moored.",
            answer="It lies at berth {}.",
            value=place,
            wordings={
                "train": (
                    "Where is the {} moored?",
                    "At which berth is the {}?",
                    "Where does the {} lie?",
                    "Hello! Which berth has the {}?",
                )
            },
        ),
        "speed": Tool(
            description="How fast an item is.",
            answer="It makes {} knots.",
            value=decimal,
            wordings={
                "train": (
                    "How fast is the {}?",
                    "What speed does the {} make?",
                    "How many knots does the {} do?",
                    "Hello! Tell me the speed of the {}.",
                )
            },
        ),
    },
    items={
        "train": tuple(
            "Albatross,Sea Lion,Northern Star,Grey Goose,Endeavour,Blue Marlin,Mary Ann,Sir Galahad,Old Faithful,"
            "Pelican,Silver Gull,Queen Charlotte,Trader,Amazon Trail,Cormorant,Wild Rose".split(",")
        )
    },
)
