"""The names from which worlds are made. All of them are invented."""

from __future__ import annotations

PRODUCTS: tuple[tuple[str, str, int, tuple[tuple[str, tuple[str, ...]], ...]], ...] = (
    ("Desk Lamp", "home", 34, (("colour", ("black", "white", "brass")), ("base", ("clamp", "stand")))),
    ("Wool Blanket", "home", 58, (("colour", ("grey", "moss", "rust")), ("size", ("single", "double")))),
    ("Wall Clock", "home", 29, (("colour", ("oak", "walnut", "white")), ("size", ("25 cm", "35 cm")))),
    ("Floor Cushion", "home", 41, (("colour", ("indigo", "sand", "olive")), ("shape", ("round", "square")))),
    ("Chef Knife", "kitchen", 72, (("length", ("16 cm", "20 cm", "24 cm")), ("handle", ("wood", "resin")))),
    ("Teapot", "kitchen", 38, (("material", ("glass", "cast iron", "stoneware")), ("volume", ("0.6 l", "1.1 l")))),
    ("Frying Pan", "kitchen", 64, (("diameter", ("20 cm", "24 cm", "28 cm")), ("coating", ("ceramic", "none")))),
    ("Coffee Grinder", "kitchen", 89, (("colour", ("black", "steel", "red")), ("burrs", ("flat", "conical")))),
    ("Rain Jacket", "clothing", 97, (("size", ("S", "M", "L", "XL")), ("colour", ("navy", "yellow")))),
    ("Hiking Boots", "clothing", 124, (("size", ("39", "41", "43", "45")), ("colour", ("brown", "black")))),
    ("Cotton Shirt", "clothing", 33, (("size", ("S", "M", "L")), ("colour", ("white", "sky", "green")))),
    ("Wool Socks", "clothing", 16, (("size", ("small", "medium", "large")), ("colour", ("grey", "red")))),
    ("Headphones", "electronics", 138, (("colour", ("black", "silver", "blue")), ("fit", ("over-ear", "on-ear")))),
    ("Bike Light", "outdoor", 27, (("mount", ("handlebar", "helmet", "seatpost")), ("power", ("battery", "usb")))),
    ("Backpack", "outdoor", 83, (("volume", ("18 l", "26 l", "40 l")), ("colour", ("slate", "orange")))),
    ("Water Bottle", "outdoor", 22, (("volume", ("0.5 l", "0.75 l", "1 l")), ("colour", ("steel", "green")))),
)
"""(name, category, about how many dollars, option axes)"""

FIRST_NAMES = (
    "Amara", "Bela", "Chiara", "Darius", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaya", "Leila", "Mateo",
    "Nadia", "Oskar", "Priya", "Quentin", "Rosa", "Samir", "Tilda", "Umar", "Vera", "Wanda", "Yusuf",
)  # fmt: skip
LAST_NAMES = (
    "Adeyemi", "Brandt", "Castellano", "Dubois", "Eriksen", "Farkas", "Galvez", "Hoffer", "Ivanova", "Jansen", "Kimura",
    "Lindqvist", "Moreau", "Nowak", "Okafor", "Petrov", "Quispe", "Rossi", "Sandhu", "Tanaka", "Usman", "Vogel",
)  # fmt: skip
STREETS = (
    "Mill Lane", "Harbour Street", "Juniper Road", "Chapel Hill", "Orchard Avenue", "Station Road", "Quarry Way",
    "Linden Street", "Weaver Court", "Meadow Drive", "Foundry Lane", "Beacon Street",
)  # fmt: skip
CITIES = (
    ("Alder Falls", "OR", "971"), ("Brookhaven", "GA", "303"), ("Carrow", "OH", "441"), ("Dunmore", "PA", "185"),
    ("Elkwater", "MT", "597"), ("Fairmont", "WV", "265"), ("Granby", "CO", "804"), ("Hollis", "NH", "030"),
)  # fmt: skip
"""(city, state, the first three digits of its ZIP codes)"""
CARRIERS = ("Northline", "Parcel Fox", "Wagtail Post")
CARDS = ("Visa", "Mastercard")
