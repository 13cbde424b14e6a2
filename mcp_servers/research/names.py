"""Names of places, people, companies and works.

Surnames recur on purpose, among people and in companies, so that a search for one finds several. The words that name
people, companies and works are divided into two halves, so that libraries of different halves share no such name.
"""

from __future__ import annotations

from random import Random
from typing import Literal

FIRST = (
    "Agnes Albin Beata Bertil Clara Conrad Dagny Didrik Edda Emil Frida Gerda Gustav Hanna Helmer Ida Ivar Jenny Johan "
    "Karin Knut Liv Ludvig Maja Magnus Nora Nils Olga Otto Petra Rolf Signe Sten Thea Tore Ulla Valter Vera Ylva Yngve"
).split()
SURNAMES = (
    "Abelin Almqvist Bergson Brandt Carlberg Dahlin Ekman Falk Fjelstad Granlund Hagen Holm Isaksen Juhl Kjellman "
    "Kvist Lindahl Lund Malm Moberg Nordin Nyberg Olander Palm Quist Rask Rosing Sandel Skog Stenvik Thorsen Tveit "
    "Ulvang Vik Wallin Westrup Ystad Zetterlund Aabye Borg"
).split()
_PLACE_HEADS = (
    "Alder Ash Birch Black Brook Clay Crow Dun Elm Fair Glen Grey Hart Hazel High Iron Kings Lamb Long Marsh Mill Moor "
    "North Oak Pine Raven Red Salt Silver Stone Thorn West White Wolf"
).split()
_PLACE_TAILS = (
    "bridge burn bury cliff combe dale field ford gate ham haven hill hurst leigh mere port stead ton".split()
)
RIVERS = tuple(
    "Arven Bale Calder Dorne Eske Farrow Gyle Hesper Irk Jolle Kell Lorne Mease Nidder Orr Pell Quill Rhee Sarn Teme "
    "Ulle Varn Wend Yarrow Zell Aune Brede Clun Deben Enler".split()
)
COUNTIES = tuple(
    "Ostmark Lowen Carrick Vale Hallam Norrland Tarn Brecken Sundal Marrow Ellery Fennick Gorse Holland Kestrel Leven "
    "Mossdale Penhal".split()
)
PROFESSIONS = tuple(
    "architect astronomer botanist cartographer chemist clockmaker composer engraver geologist historian linguist "
    "mathematician painter physician sculptor surveyor".split()
)
PRODUCTS = tuple(
    "barometers bells bicycles cameras cellos clocks compasses furniture glassware lanterns locks maps organs paper "
    "pianos porcelain sails scales telescopes typewriters".split()
)
KINDS = ("novel", "opera", "atlas", "symphony", "play", "essay", "ballet", "travelogue")
_COMPANY_TAILS = ("Works", "Brothers", "Company", "Press", "Foundry", "Trust", "Union")
_ADJECTIVES = (
    "Amber Bitter Broken Crimson Distant Drifting Early Empty Endless Faithful Frozen Gentle Golden Hidden Hollow Last "
    "Long Lost Midnight Open Pale Quiet Restless Second Secret Silent Slow Sunken Tall Winter"
).split()
_NOUNS = (
    "Anchor Archive Bell Bridge Candle Compass Corridor Feather Garden Harbour Hour Island Journey Lantern Ledger "
    "Mirror Orchard Passage Portrait Promise River Shore Staircase Summer Tide Valley Voyage Wall Window Witness"
).split()

Half = Literal[0, 1]


def place(rng: Random, half: Half) -> str:
    return rng.choice(_PLACE_HEADS[half::2]) + rng.choice(_PLACE_TAILS)


def person(rng: Random, half: Half) -> str:
    return f"{rng.choice(FIRST[half::2])} {rng.choice(SURNAMES[half::2])}"


def company(rng: Random, half: Half) -> str:
    if rng.random() < 0.5:
        return f"{rng.choice(SURNAMES[half::2])} {rng.choice(_COMPANY_TAILS)}"
    return " & ".join(rng.sample(SURNAMES[half::2], 2))


def work(rng: Random, half: Half) -> str:
    return f"The {rng.choice(_ADJECTIVES[half::2])} {rng.choice(_NOUNS)}"
