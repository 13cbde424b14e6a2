"""MCP servers that keep one global for all their clients, as programs: the shape of the global, the names of the tools,
the form of the answers and what erases the evidence are drawn by a seed.

    (tmp_path / "server.py").write_text(hidden_global(7))       a stdio server without dependencies
"""

from random import Random

SHAPES = ("board", "cart", "cache", "clock", "cursor", "last writer", "per-day file", "rate limit")

_FRAME = """
import datetime, json, os, random, sys, uuid
from pathlib import Path

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
TOOLS = {}


def tool(name, description, read_only=None, **properties):
    def add(function):
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        definition = {"name": name, "description": description, "inputSchema": schema}
        if read_only is not None and @ANNOTATED@:
            definition["annotations"] = {"readOnlyHint": read_only}
        TOOLS[name] = definition, function
        return function
    return add

@BODY@

def text_of(value):
    if @NOISE@ and isinstance(value, dict):
        value = value | @NOISE@
    return value if isinstance(value, str) else json.dumps(value)


def answer_to(message):
    match message["method"]:
        case "initialize":
            server = {"name": "drawn", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            return {"tools": [definition for definition, _ in TOOLS.values()]}
        case "tools/call":
            _, function = TOOLS[message["params"]["name"]]
            try:
                text, error = text_of(function(**message["params"].get("arguments", {}))), False
            except ValueError as fault:
                text, error = str(fault), True
            return {"content": [{"type": "text", "text": text}], "isError": error}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer_to(message)
        outcome = {"result": result} if result else {"error": {"code": -32601, "message": "no such method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"]} | outcome), flush=True)
"""
_BODIES = {
    "board": """
board = {}

@tool("@BEGIN@", "Starts a new game on an empty board.", False)
def begin():
    board.clear()
    return {"started": True}

@tool("@ACT@", "Puts the next piece on a square.", False, square=TEXT | {"description": 'A square, e.g. "b2"'})
def move(square):
    if square in board:
        raise ValueError(f"{square} is taken")
    board[square] = "XO"[len(board) % 2]
    return {"square": square, "piece": board[square]}

@tool("@LOOK@", "The board.", True)
def show():
    return {"board": board} if @LONG@ else "to move: " + "XO"[len(board) % 2]
""",
    "cart": """
cart = []

@tool("@LOOK@", "What is in the cart.", True)
def view():
    return {"items": cart} if @LONG@ else f"{len(cart)} items"

@tool("@ACT@", "Puts an item into the cart.", False, item=TEXT)
def add(item):
    cart.append(item)
    return {"added": item}

@tool("checkout", "Buys what is in the cart, and empties it.", False)
def checkout():
    cart.clear()
    return {"ordered": True}
""",
    "cache": """
cache = {}

@tool("@LOOK@", "The length of a word.", True, word=TEXT)
def look(word):
    hit = word in cache
    cache[word] = len(word)
    return {"length": cache[word], "cached": hit} if @LONG@ else f"{len(word)} ({'from memory' if hit else 'computed'})"

@tool("@ACT@", "Forgets all words.", False)
def refresh():
    cache.clear()
    return {"refreshed": True}
""",
    "clock": """
minutes = @NUMBER@ * 7

@tool("@ACT@", "Lets time pass.", False, minutes=WHOLE)
def advance(**given):
    global minutes
    minutes += given["minutes"] + 30
    return {"passed": True}

@tool("@LOOK@", "The time in the simulation.", True)
def now():
    moment = datetime.datetime(2031, 5, 1) + datetime.timedelta(minutes=minutes)
    return {"time": moment.isoformat()} if @LONG@ else moment.strftime("%H:%M")
""",
    "cursor": """
place, items = -1, ["item %d" % number for number in range(2 + @NUMBER@ % 5)]

@tool("@LOOK@", "The next item of the list, from the beginning again after the last.", None)
def following():
    global place
    place += 1
    return {"item": items[place % len(items)]}

@tool("@BEGIN@", "Goes back to the beginning.", False)
def begin():
    global place
    place = -1
    return {"rewound": True}
""",
    "last writer": """
last = ""

@tool("@ACT@", "Keeps a text.", False, text=TEXT)
def save(text):
    global last
    last = text
    return {"saved": len(text)}

@tool("@LOOK@", "About the text that was kept last.", True)
def look():
    return {"text": last} if @LONG@ else f"{len(last)} characters"

@tool("@BEGIN@", "Starts over.", False)
def begin():
    global last
    last = ""
    return {"started": True}
""",
    "per-day file": """
def file():
    where = {"home": Path.home(), "cwd": Path.cwd(), "tmp": Path(os.environ.get("TMPDIR", "/tmp"))}["@WHERE@"]
    return where / f"{datetime.date.today().isoformat()}.jsonl"

@tool("@ACT@", "Writes a line into the journal of today.", False, line=TEXT)
def write(line):
    with file().open("a") as journal:
        journal.write(json.dumps(line) + "\\n")
    return {"written": True}

@tool("@LOOK@", "The journal of today.", True)
def read():
    lines = file().read_text().splitlines() if file().exists() else []
    return {"lines": lines} if @LONG@ else f"{len(lines)} lines"
""",
    "rate limit": """
left = 3 + @NUMBER@

@tool("@LOOK@", "The letters of a word in reverse.", True, word=TEXT)
def reverse(word):
    global left
    left -= 1
    if left < 0:
        raise ValueError("rate limit exceeded, come back tomorrow")
    return {"reversed": word[::-1], "left": left} if @LONG@ else word[::-1]
""",
}
_LOOKS = {
    "cache": ("measure", "look_up_word", "get_length"),
    "clock": ("now", "get_time", "what_time_is_it"),
    "cursor": ("next", "fetch_next", "draw_card", "next_page"),
    "rate limit": ("reverse", "search_reverse", "get_reverse"),
}
_ACTS = {
    "board": ("move", "make_move", "play", "drop_piece"),
    "cart": ("add_to_cart", "add_item", "pick"),
    "cache": ("refresh", "update_index"),
    "clock": ("advance", "wait_for", "step_time"),
}


def shape_of(seed: int) -> str:
    """The shape of the global that a seed draws: each one in turn."""
    return SHAPES[seed % len(SHAPES)]


def hidden_global(seed: int) -> str:
    """The source of a server that keeps one global for all its clients."""
    draw, shape = Random(seed), shape_of(seed)
    noise = draw.choice(("{}", "{}", '{"request": uuid.uuid4().hex}', '{"at": datetime.datetime.now().isoformat()}'))
    filled = {
        "BODY": _BODIES[shape],
        "BEGIN": draw.choice(("new_game", "begin", "start_over", "start_session")),
        "ACT": draw.choice(_ACTS.get(shape, ("save", "put", "note", "keep", "write_entry"))),
        "LOOK": draw.choice(_LOOKS.get(shape, ("show", "get_state", "view", "status", "peek"))),
        "LONG": str(draw.random() < 0.5),
        "NUMBER": str(draw.randrange(30)),
        "WHERE": draw.choice(("home", "cwd", "tmp")),
        "ANNOTATED": str(draw.random() < 0.5),
        "NOISE": noise,
    }
    source = _FRAME
    for name, text in filled.items():
        source = source.replace(f"@{name}@", text)
    return source
