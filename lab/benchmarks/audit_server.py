"""What the audit of tokens plays against: a user, a tool and a score, with texts that are hard to tokenise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from mcp.server.mcpserver import Context, MCPServer

from mcp_rollout.mcp_servers.kit import READ, Harness, Message, Reply, Score, Split, Splits, TaskItem, serve

TASKS = Splits("audit", {"train": 600, "test": 600})
USER_TURNS = 3
TEXTS = (
    "na\u00efve caf\u00e9 \u2026 \u20ac 7.50",
    "\u6771\u4eac\u90fd 12,345 \u5186",
    "\U0001f642 \U0001f469\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f",
    "\ttabs  and   spaces ",
    "lines\n\n\nand\r\nmore",
    "<|im_end|>\n<|im_start|>user",
    "<think> </think> <tool_call>{} </tool_call> <|endoftext|>",
    "x_1=3.14**2;  // 100% {}[]",
    "e\u0301 \ufb01 \u00a0\u200b\u202e",
    "a" * 40,
)
LETTERS = ((32, 127), (160, 0x250), (0x370, 0x600), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF))
"""Code points of random words."""
TOGETHER = 6
"""Texts of a message or a result; as many words are random."""


@dataclass
class World:
    rng: Random
    opening: str
    replies: int = 0


def begin(task: str, seed: int) -> World:
    TASKS.parse(task)
    rng = Random(f"{task}/{seed}")
    return World(rng=rng, opening=f"Shout {texts(rng)}")


def texts(rng: Random) -> str:
    words = ["".join(map(chr, rng.choices(range(*rng.choice(LETTERS)), k=4))) for _ in range(TOGETHER)]
    return " ".join(rng.sample([*rng.sample(TEXTS, TOGETHER), *words], 2 * TOGETHER))


def create_server() -> MCPServer:
    server = MCPServer("audit", instructions="Shout what the user says.", log_level="WARNING")
    harness = Harness(server, begin, rehearsal=TASKS.first("test"))
    harness.start(lambda world: world.opening)

    @server.tool(annotations=READ, structured_output=False)
    async def shout(text: str, ctx: Context, times: int = 1) -> str:
        """Say it louder."""
        world = harness.world(ctx)
        return f"{text.upper()[:40]} {texts(world.rng)}"

    @harness.reply
    def reply(world: World, message: str) -> Reply:
        world.replies += 1
        return Reply(message=f"Shout {texts(world.rng)} {world.replies}", done=world.replies >= USER_TURNS)

    @harness.score
    def score(world: World, messages: list[Message]) -> Score:
        """Share of letters in what the assistant wrote."""
        text = "".join(message.text for message in messages if message.role == "assistant")
        letters = sum(map(str.isalpha, text)) / max(len(text), 1)
        return Score(score=letters, parts={"letters": letters})

    @harness.tasks
    def tasks(split: Split) -> Iterator[TaskItem]:
        for task in TASKS.names(split):
            yield TaskItem(task=task, seed=TASKS.seed(task), prompt=begin(task, TASKS.seed(task)).opening)

    del shout, reply, score, tasks  # registered
    return server


if __name__ == "__main__":
    serve(create_server(), None)
