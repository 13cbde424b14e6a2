"""What short tasks are made of: training, validation and test share no wording, name, product, number or day.

Validation is for choosing settings, test for the measurement that is reported. Only the words that tell the wishes
`out` and `news` apart are those of all parts: a model of random weights knows no word that it was not trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

from mcp_rollout.mcp_servers.retail.generate import FIRST_NAMES, LAST_NAMES, PRODUCTS, Stock

Part = Literal["train", "validation", "test"]
Step = Literal["cancel", "track", "return", "tell"]
"""What an agent does about an order; `tell` is to say its state, and to try nothing."""
Wish = Literal["out", "news"]
"""What a customer wants who does not say how: to be out of the purchase, or to know about it."""

TELLING: dict[Wish, tuple[str, ...]] = {
    "out": ("regret", "mistake", "undo", "unwanted", "withdraw", "refund"),
    "news": ("news", "progress", "curious", "await", "status", "forward"),
}
"""The words that tell the wishes apart. Each sentence of `Vocabulary.sentences` has exactly one, followed by a space or
a full stop: before another character it would be other tokens."""

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
    sentences: Mapping[Wish, tuple[str, ...]]
    """In which a customer has one wish, and names no step."""
    closings: tuple[str, ...]
    stock: Stock
    """Names and products of the database."""
    days: tuple[int, ...]
    """Days until a shipment arrives, or until the return window of a delivered order closes."""
    numbers: tuple[int, ...]
    """Of orders, after the letter."""


VOCABULARIES: dict[Part, Vocabulary] = {
    "train": Vocabulary(
        greetings=(
            "Hello!", "Hi there,", "Good morning.", "Hello,", "Good day.", "Dear team,", "Hi,", "Dear shop,",
            "Hello again.", "Excuse me,",
        ),
        introductions=(
            "I am {name}.", "my name is {name}.", "this is {name}.", "{name} here.", "I'm {name}, a customer.",
            "you know me as {name}.", "I write as {name}.", "it is me, {name}.", "I bought from you: {name}.",
        ),
        wishes={
            "cancel": (
                "cancel my order", "call off the order", "stop this purchase", "cancel what I ordered",
                "undo the purchase", "call everything off", "halt the order", "reverse the sale",
                "delete my order from your list", "forget what I wanted", "not send it at all", "end this order now",
            ),
            "track": (
                "tell me when my order will arrive", "say when it gets here", "tell me the arrival day",
                "find out when the parcel comes", "say how long it still travels", "give me the delivery date",
                "follow the parcel for me", "check how soon it is here",
                "show me on what day I can expect it", "ask the driver when he comes",
                "see how the transport is going", "write me when it will be at home",
            ),
            "return": (
                "tell me until when I can return my order", "say how long I may send it back",
                "tell me the last day for a return", "check whether it can still go back",
                "say until when returns are open", "give me the final day to hand it back",
                "help me to get rid of it again", "see whether I am in time to return it", "let me send it in again",
                "find the limit for a return", "say if you would still take it", "check if I can get my money again",
            ),
        },
        requests=(
            "Please {}, {} or {}, whichever fits.",
            "Could you {}, {} or {}? Whatever the order allows.",
            "I want you to {}, {}, or else {}, as its state permits.",
            "Can you {}? If not, {}, or {}.",
            "Do one of these for me: {}; {}; {}. Only one is possible.",
            "Would you {}, {} or {}, depending on how far it is?",
            "I would like you to {}. Or to {}. Or to {}. See which one you can do.",
            "First try to {}; then to {}; and in the end to {}, but only what is allowed.",
            "There is one thing to do: {}, or {}, or {}.",
            "What I want is simple: {} or {} or {}, as you think right.",
            "It depends on the order: {}, {}, or maybe {}.",
            "My question is whether you can {}, {} or {}. Do that.",
        ),
        sentences={
            "out": (
                "I regret this purchase.", "It fills me with regret.", "It was a mistake of mine.",
                "I ordered it by mistake.", "Please undo it for me.", "It is a purchase to undo.",
                "It is unwanted now.", "What I bought is unwanted.", "I withdraw from the purchase.", "So I withdraw.",
                "A refund is all that I ask for.", "I would like a refund.",
            ),
            "news": (
                "I wait for news of it.", "I hope for good news.", "Tell me about the progress of it.",
                "I ask about its progress.", "I am curious about it.", "It is late, and I am curious.",
                "I await it with joy.", "It is something that we await.", "The status interests me.",
                "I ask for its status.", "I look forward to it.", "It is a gift to which we look forward.",
            ),
        },
        closings=("Thank you!", "Thanks, that was all."),
        stock=Stock(first_names=FIRST_NAMES[:16], last_names=LAST_NAMES[:15], products=PRODUCTS[:11]),
        days=tuple(_DAYS[14:24]),
        numbers=tuple(_NUMBERS[350:700]),
    ),
    "validation": Vocabulary(
        greetings=(
            "Greetings,", "Good evening.", "Hey!", "Good afternoon,", "Salutations,", "Good day to you!",
            "Hello there;", "Hi team!", "To customer service:",
        ),
        introductions=(
            "{name} speaking.", "You are talking to {name}.", "The name's {name}.", "It's {name} again.",
            "{name}, writing to you.", "Signed: {name}.", "I go by {name}.", "Customer {name}, once more.",
            "Account holder: {name}.",
        ),
        wishes={
            "cancel": (
                "scrap the thing I bought", "withdraw that order", "drop my purchase", "annul my recent order",
                "rescind what I bought yesterday", "take my purchase off the books", "back out of the deal for me",
                "see that nothing is charged or sent", "revoke the thing I paid for",
            ),
            "track": (
                "let me know its arrival time", "estimate the day of delivery", "work out where my package is",
                "look up when the box reaches me", "pin down when the courier knocks",
                "forecast its appearance at my door", "report how far away the goods are",
                "name the date on which it lands here", "trace where the carton has got to",
            ),
            "return": (
                "let me know my deadline for returning it", "look up how many days remain to bring it back",
                "see if a refund is open to me", "work out the closing date for giving it back",
                "explain how late I could still hand the goods in", "quote me the end of the refund period",
                "verify that sending this stuff home to you is allowed", "state by which date I must decide to keep it",
                "clarify if my chance for money back has lapsed",
            ),
        },
        requests=(
            "Kindly {}, {} or {}, according to its status.",
            "I need someone to {}, {}, alternatively {}: just what is feasible.",
            "Either {} or {} or {}, your choice, so long as it is right.",
            "My wish: {}. Failing that, {}. Failing that as well, {}.",
            "It would be great to have you {}; otherwise {}; otherwise {}.",
            "You choose, as the situation demands: {}, {}, {}.",
            "One favour, the one that can be done: {} / {} / {}.",
            "Is it feasible to {}? Or to {}? Or at least to {}? Pick what works.",
            "Have a look and then {}, or {}, or {}. I trust your judgement.",
        ),
        sentences={
            "out": (
                "This click is one that I regret.", "Honestly, a mistake of my thumb.",
                "Would somebody undo the deal?", "In our house such goods are unwanted.",
                "On second thoughts I withdraw from everything.", "Might there be a refund in this?",
            ),
            "news": (
                "Any news would please us.", "Describe to me what progress the goods make.",
                "My wife grows curious.", "Eagerly I await the courier.", "Would you read me the status at present?",
                "Oh, how I look forward to holding it!",
            ),
        },
        closings=("Perfect, bye.", "Lovely, cheers.", "Wonderful, so long.", "Cool, that settles it."),
        stock=Stock(
            first_names=(
                *FIRST_NAMES[16:], "Agnieszka", "Bruno", "Cosima", "Dmitri", "Esme", "Florian", "Gwen", "Haruto",
                "Isolde",
            ),
            last_names=(
                *LAST_NAMES[15:], "Abernathy", "Bukowski", "Cheng", "Delgado", "Eastwood", "Fitzroy", "Gruber",
                "Hashimoto", "Iqbal",
            ),
            products=(
                *PRODUCTS[11:],
                ("Garden Hose", "outdoor", 36, (("length", ("10 m", "20 m", "30 m")), ("colour", ("black", "yellow")))),
                ("Picture Frame", "home", 18, (("size", ("small", "medium", "large")), ("colour", ("oak", "white")))),
                ("Rice Cooker", "kitchen", 66, (("volume", ("0.6 l", "1.1 l", "1.8 l")), ("colour", ("steel", "red")))),
                ("Yoga Mat", "sport", 31, (("colour", ("sand", "moss", "indigo")), ("length", ("170 cm", "185 cm")))),
                ("Chess Set", "games", 54, (("material", ("beech", "maple", "marble")), ("size", ("small", "medium")))),
            ),
        ),
        days=tuple(_DAYS[:14]),
        numbers=tuple(_NUMBERS[:350]),
    ),
    "test": Vocabulary(
        greetings=("Ahoy,", "Dear Sir or Madam,", "Howdy!", "A question, if I may.", "Attention please:"),
        introductions=(
            "{name} is my name.", "I sign as {name}.", "The account belongs to {name}.", "They call me {name}.",
            "Yours truly, {name}.",
        ),
        wishes={
            "cancel": (
                "make the contract null and void", "terminate what is under way", "take back my commitment to buy",
                "abort the whole transaction", "pull out of this before it leaves",
            ),
            "track": (
                "disclose the current whereabouts of my stuff", "predict the moment of handover",
                "shed light on its journey", "pass on the carrier's latest forecast",
                "spell out how soon I will hold it",
            ),
            "return": (
                "remind me of the cut-off for changing my mind", "confirm how much time remains to ship it home to you",
                "establish if I am still entitled to reject it", "read out the expiry of my right to give it up",
                "assess whether taking it back is an option",
            ),
        },
        requests=(
            "Out of three things do the feasible one: {}; {}; {}.",
            "Might I ask that you {} or, should that fail, {} or, at worst, {}?",
            "Any of them suits me: {}, or instead {}, or instead {}.",
            "There are three roads: {} - {} - {}. Take the open one.",
            "If the rules let you, {}; if not, {}; if neither, {}.",
        ),
        sentences={
            "out": (
                "With deep regret do I write these lines.", "My cat made a purchase by mistake.",
                "You ought to undo my hasty deed.", "To my aunt such a thing is unwanted.",
                "Hereby your customer does withdraw.", "Only a refund would end these worries.",
            ),
            "news": (
                "Bring them news from the warehouse.", "Surely there was progress since Monday?",
                "All the neighbours are curious.", "Patiently they await your van.",
                "Kindly reveal its current status.", "Nobody could look forward more than I do.",
            ),
        },
        closings=("Splendid, farewell.", "Nice one, we are done."),
        stock=Stock(
            first_names=(
                "Aurelio", "Birgit", "Ciaran", "Dagny", "Ezra", "Fenna", "Giulia", "Hamza", "Ingrid", "Jorge",
            ),
            last_names=(
                "Andersson", "Beaumont", "Czerny", "Dlamini", "Ekwueme", "Fontaine", "Guerrero", "Halvorsen",
                "Ishikawa", "Jovanovic",
            ),
            products=(
                ("Umbrella", "clothing", 26, (("colour", ("plum", "teal", "tartan")), ("opening", ("knob", "hand")))),
                ("Toaster", "kitchen", 47, (("slots", ("two", "four")), ("finish", ("chrome", "enamel", "matt")))),
                ("Hammock", "garden", 69, (("fabric", ("canvas", "net")), ("width", ("120 cm", "150 cm", "180 cm")))),
                ("Jigsaw Puzzle", "games", 23, (("pieces", ("500", "1000", "2000")), ("motif", ("harbour", "map")))),
                ("Door Mat", "home", 19, (("fibre", ("coir", "jute")), ("shape", ("half-moon", "oblong", "square")))),
            ),
        ),
        days=tuple(_DAYS[24:]),
        numbers=tuple(_NUMBERS[700:]),
    ),
}  # fmt: skip
