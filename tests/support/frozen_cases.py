"""The cases of the frozen corpus, drawn from a seed, and the policy that plays them when the corpus is made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import recorded_programs
from frozen_worlds import SPELLED, VAULT, words
from sampled import respelled
from tool_formats import DIALECTS, tokenizer_for

from mcp_rollout.rollout.types import Call

Case = dict[str, Any]
ASK = "ASKED FOR A SUMMARY"
SCORED = {"reward": {"server": "desk", "parts": ["neat"]}}
LIMITS = {"assistant_turns": 6, "wall_clock_s": 600.0}
WITH_USER = SCORED | {"user": {"server": "user"}, "limits": LIMITS | {"user_turns": 4}}


class Author:
    """Says what its random numbers make it say; they come from the seed of the request alone.

    A generation that is cut for new weights goes on where it was cut, with the next version.
    """

    def __init__(self, case: Case) -> None:
        self._case, self._tokenizer, self._dialect = case, tokenizer_for(case["format"]), DIALECTS[case["format"]]
        self._left: dict[tuple[int, ...], list[int]] = {}
        self._version = case["step"]
        self._asked = Counter[int]()
        self._said = self._beside = 0

    def __call__(self, prompt: list[int], seed: int, params: Mapping[str, Any]) -> dict[str, Any]:
        rng = Random(f"{self._case['kind']}/{self._case['number']}/{seed}/{self._asked[seed]}")
        self._asked[seed] += 1
        failing = self._case.get("engine", {})
        if failing.get("dies", 0) > rng.random():
            return {"ids": [], "logprobs": None, "reason": "stop", "version": None, "error": "the engine is gone"}
        whole = self._left.pop(tuple(prompt), None)
        if whole is None:
            whole = self._ids(rng, prompt)
        said, reason = whole[: params["max_tokens"]], "stop" if len(whole) <= params["max_tokens"] else "length"
        if self._case["asynchronous"] and rng.random() < 0.35:
            said, reason = said[: rng.randint(0, len(said))], "aborted"
            self._left[(*prompt, *said)] = whole[len(said) :]
        version = self._version
        self._version += reason == "aborted"
        if failing.get("aborts", 0) > rng.random():
            said, reason = said[: len(said) // 2], "abort"
        # Of few values, which pack well; each is a float32.
        logprobs: list[float] | None = [-min(int(rng.expovariate(0.02)), 2047) / 512 for _ in said]
        if not self._case["logprobs"] or failing.get("silent", 0) > rng.random():
            logprobs = None
        elif failing.get("short", 0) > rng.random():
            logprobs = logprobs[:-1]
        elif failing.get("wrong", 0) > rng.random() and said:
            logprobs[-1] = math.inf
        if failing.get("strange", 0) > rng.random():
            said = [*said, 2**20]
            logprobs = None if logprobs is None else [*logprobs, -1.0]
        return {"ids": said, "logprobs": logprobs, "reason": reason, "version": version}

    def _ids(self, rng: Random, prompt: list[int]) -> list[int]:
        script = self._case.get("script")
        if script is not None:
            return respelled(self._tokenizer, self._scripted(script, prompt), rng)
        tail = self._tokenizer.decode(prompt[-160:])
        style = rng.random()
        thinking = words(rng, 8) if rng.random() < 0.6 else ""
        content = words(rng, 5) if rng.random() < 0.7 else ""
        if ASK in tail and style < 0.85:
            style = 0.9
        if style < 0.07:
            text = self._dialect.half
        elif style < 0.1:
            text = rng.choice(["", " ", rng.choice(SPELLED), "<tool_call>{", f"{words(rng, 4)} " * 9])
        elif style < 0.65:
            calls = [self._call(rng) for _ in range(rng.choice([1, 1, 1, 2, 3] if self._dialect.many else [1]))]
            text = self._dialect.write(thinking, content, calls)
        else:
            text = self._dialect.write(thinking, content or "Done.", [])
        return respelled(self._tokenizer, text, rng)

    def _scripted(self, script: list[str], prompt: list[int]) -> str:
        """The next text, or to a request without the world's tools, the next of what is said beside."""
        if "asides" in self._case and "<tools>" not in self._tokenizer.decode(prompt):
            texts, at = self._case["asides"], self._beside
            self._beside += 1
        else:
            texts, at = script, self._said
            self._said += 1
        return (texts[at] if at < len(texts) else "Nothing more.") + "<|im_end|>"

    def _call(self, rng: Random) -> Call:
        name = rng.choice(self._case.get("calls", ["note", "note", "note", "find", "guess", "stamp"]))
        arguments: dict[str, Any] = {
            "note": {"text": words(rng, 4)} | ({"size": rng.choice([1, 2.5, -3])} if rng.random() < 0.4 else {}),
            "find": {"query": rng.choice(["plum", "pear"])},
            "stamp": {"page": rng.choice([1, "2", "x"])},
            "guess": {"x": 1},
            "keep": {"text": words(rng, 3)},
        }[name]
        return Call(name=self._case.get("prefix", "") + name, arguments=arguments)


def row(rng: Random, environment: str, number: int, **more: Any) -> dict[str, Any]:
    prompt = [{"role": "user", "content": f"Begin: {words(rng, 5)}."}]
    if rng.random() < 0.5:
        prompt.insert(0, {"role": "system", "content": words(rng, 4)})
    mcp = {"environment": environment, "task": f"t{number}", "seed": number, "tools": None, **more}
    return {
        "raw_prompt": prompt,
        "extra_info": {"index": number, "mcp": mcp},
        "index": number,
        "reward_model": {"ground_truth": "45"},
        "data_source": "frozen",
    }


def case(rng: Random, kind: str, number: int, environment: str, **fields: Any) -> Case:
    own = {
        "kind": kind,
        "number": number,
        "format": "hermes",
        "asynchronous": False,
        "logprobs": True,
        "leaves": 3,
        "lengths": [4096, 8192],
        "step": rng.randint(1, 4),
        "row": row(rng, environment, number),
    }
    return own | fields


CHAINS: dict[str, Any] = {
    "plain": SCORED | {"limits": LIMITS},
    "user": WITH_USER,
    "masked": WITH_USER
    | {
        "thinking": {"loss": "mask", "reward": "include"},
        "filters": {
            "void": "mask",
            "repeated_calls": {"action": "penalise", "times": 2},
            "long_thinking": {"action": "mark", "tokens": 12},
        },
    },
    "dropped": WITH_USER | {"thinking": {"context": "drop_previous"}},
    "budget": WITH_USER | {"thinking": {"tokens_per_turn": 8}, "limits": LIMITS | {"tokens_per_turn": 60}},
    "cut": SCORED
    | {
        "results": {"max_tokens": 24, "tools": {"find": {"max_tokens": 16, "keep": "tail"}}},
        "limits": LIMITS | {"tell_budget": True, "parallel_calls": 2, "tool_calls": 6},
        "filters": {"void": "end"},
    },
    "weighed": SCORED
    | {
        "reward": {
            "server": "desk",
            "parts": ["neat"],
            "weights": {"turns": 0.5, "exact_match": 1.0, "valid_calls": 0.25, "format": 0.25, "neat": 0.5},
        },
        "limits": LIMITS,
        "filters": {"void": "mask_trajectory"},
    },
}


def chains(rng: Random, name: str, count: int) -> Iterator[Case]:
    for number in range(count):
        made = case(rng, f"chain_{name}", number, list(CHAINS)[number % len(CHAINS)], format=name)
        if number % 5 == 4:
            made["row"] = row(rng, "user", number, tools=["note", "find"], later_tools=["stamp"])
        elif number % 7 == 6:
            setup = [{"name": "note", "arguments": {"text": "before"}}]
            check = [
                {
                    "name": "find",
                    "arguments": {"query": "plum"},
                    "returns": rng.choice(["plum", "is", "[0-9]"]),
                    "match": "regex",
                }
            ]
            made["row"] = row(rng, "weighed", number, setup=setup, check=check)
        elif number % 9 == 8:
            made["validate"] = True
        elif number % 11 == 10:
            made["lengths"] = [4096, 260]
        yield made


TREES: dict[str, Any] = {
    f"{branch_at}_{'restored' if restore else 'replayed'}{'_user' if user else ''}": {
        **(WITH_USER if user else SCORED),
        "limits": LIMITS | {"assistant_turns": 8},
        "strategy": {
            "use": "tree",
            "tree": {"roots": roots, "branch_at": branch_at, "first_turns": 2, "restore": restore},
        },
    }
    for branch_at, restore, user, roots in (
        ("uniform", True, False, 1),
        ("uniform", False, True, 2),
        ("first_turns", False, False, 2),
        ("first_turns", True, True, 1),
        ("entropy", True, False, 2),
        ("entropy", False, False, 1),
    )
}


def trees(rng: Random, kind: str, count: int, **fields: Any) -> Iterator[Case]:
    for number in range(count):
        made = case(rng, kind, number, list(TREES)[number % len(TREES)], leaves=rng.choice([4, 5, 6]), **fields)
        # Each world answers in its own way, so that a branch finds another world than its root's.
        yield made | ({"breaks": {"differ": True}} if number % 6 == 1 else {})


SINGLE: dict[str, Any] = {
    "short": SCORED
    | {
        "strategy": {"use": "single_turn", "single_turn": {"history_tokens": 120, "observations": {"max_tokens": 16}}},
        "limits": LIMITS | {"assistant_turns": 8},
    },
    "user": WITH_USER | {"strategy": {"use": "single_turn"}, "filters": {"void": "mask"}},
    "masked": WITH_USER
    | {"strategy": "single_turn", "thinking": {"loss": "mask", "tokens_per_turn": 10}, "filters": {"void": "penalise"}},
}
COMPACT: dict[str, Any] = {
    f"keeps_{keep}_{loss}": {
        **(WITH_USER if keep == 1 else SCORED),
        "limits": LIMITS | {"assistant_turns": 12, "user_turns": 8},
        "strategy": {
            "use": "compact",
            "compact": {
                "at_tokens": 1150 if tokens else 1050,
                "keep_turns": keep,
                "summary_tokens": tokens,
                "summary_loss": loss,
                "instruction": ASK,
            },
        },
    }
    for keep, tokens, loss in ((0, 60, "train"), (1, 80, "mask"), (2, 60, "train"), (2, 0, "train"))
}
AGENTS: dict[str, Any] = {
    "reflects": WITH_USER | {"agent": "mcp_rollout.rollout.agents.reflect:Reflect"},
    "retries": WITH_USER | {"agent": {"use": "mcp_rollout.rollout.agents.retry_with_feedback:RetryWithFeedback"}},
    "plans": SCORED
    | {
        "agent": {"use": "mcp_rollout.rollout.agents.plan_then_act:PlanThenAct", "with": {"plan_tokens": 50}},
        "limits": LIMITS,
    },
    "compacts": COMPACT["keeps_1_mask"] | {"agent": "mcp_rollout.rollout.agents.reflect:Reflect"},
}


def mixed(rng: Random, kind: str, environments: dict[str, Any], count: int, **fields: Any) -> Iterator[Case]:
    """Cases of all environments, with one of these formats each."""
    formats = fields.pop("formats", ("hermes",))
    for number in range(count):
        name = list(environments)[number % len(environments)]
        yield case(rng, kind, number, name, format=formats[number % len(formats)], **fields)


def _function(use: str, **arguments: Any) -> dict[str, Any]:
    own = {"use": use, "arguments": arguments} if arguments else {"use": use}
    return SCORED | {"agent": {"use": "mcp_rollout.rollout.programs.program:Function", "with": own}, "limits": LIMITS}


CALL = '<tool_call>\n{"name": "note", "arguments": {"text": "plum",  "size": 3.0}}\n</tool_call>'
TWO = (
    CALL.replace("plum", "a") + "\n" + CALL.replace('"text": "plum",  ', '"text":\n "b\\u00e4", ').replace("3.0", "1e2")
)
SUMMARY = "So far two plums are noted, and the answer is not given yet."
PROGRAMS: dict[str, tuple[dict[str, Any], list[str] | None]] = {
    "plain": (_function("told:plain"), None),
    "streamed": (_function("told:plain", stream=True), None),
    "repeating": (_function("told:repeating"), None),
    "hasty": (_function("told:hasty"), None),
    "careless": (_function("told:careless"), None),
    "withdrawing": (_function("told:withdrawing"), [CALL, "<think>\nOnly this.\n</think>", "Here."]),
    "compacting": (_function("told:compacting"), [CALL, SUMMARY, TWO, "Done."]),
    "trained_asides": (_function("told:compacting", train=True), [CALL, SUMMARY, TWO, "Done."]),
    "checkpointing": (_function("told:checkpointing"), [CALL, SUMMARY, TWO, "Done."]),
    "calling_freely": (_function("told:free_calls"), [CALL, "Done."]),
    "half_heard": (_function("told:half_heard"), [f"I note.\n{CALL}", "Done."]),
    "rounding": (_function("told:rounding"), [CALL.replace("3.0", "12345678901234567890"), "Done."]),
    "persistent": (_function("told:persistent", most=8), None),
    "raising": (_function("told:raising"), [CALL]),
}


def programs(rng: Random, kind: str, count: int) -> Iterator[Case]:
    for number in range(count):
        name = list(PROGRAMS)[number % len(PROGRAMS)]
        script = PROGRAMS[name][1]
        made = case(rng, kind, number, name, leaves=1, calls=["note", "note", "find", "guess"])
        if script is not None:
            spoken = [
                f"{words(rng, 3)} {text}" if rng.random() < 0.4 and "<think>" not in text else text for text in script
            ]
            made |= {"script": spoken, "asides": ["A title", SUMMARY, "More."]}
            if name == "checkpointing":
                made["script"].pop(1)
        yield made | ({"prefix": "mcp__desk__"} if name == "careless" else {})


RECORDED = {
    name: _function("recorded_programs:replaying", name=name) | {"limits": LIMITS | {"assistant_turns": 100}}
    for name in sorted(recorded_programs.PROGRAMS)
}


def recorded(rng: Random, kind: str, count: int) -> Iterator[Case]:
    """Conversations of real programs, whose requests were recorded."""
    for number in range(count):
        name = list(RECORDED)[number % len(RECORDED)]
        own = row(rng, name, number, tools=["note"])
        made = case(rng, kind, number, name, leaves=1, lengths=[60_000, 60_000], row=own)
        yield made | {"script": recorded_programs.script(name), "asides": ["A title"]}


_BROKEN = {"factory": "frozen_worlds:desk", "trusted": True}
_VAULT = {"command": "${python}", "args": ["-I", "-S", VAULT], "scope": "process"}
WITHDRAWN: dict[str, Any] = {
    "plain": SCORED | {"limits": LIMITS},
    "user": WITH_USER,
    "tree": TREES["uniform_replayed_user"],
    "hanging": SCORED | {"servers": {"desk": _BROKEN | {"call_timeout_s": 0.25}}, "limits": LIMITS},
    "raising": SCORED | {"agent": "frozen_worlds:Raising", "limits": LIMITS},
    "lost": SCORED | {"servers": {"desk": _BROKEN, "vault": _VAULT}, "limits": LIMITS | {"attempts": 2}},
    "lost_tree": TREES["first_turns_replayed"]
    | {"servers": {"desk": _BROKEN, "vault": _VAULT}, "limits": LIMITS | {"attempts": 2}},
}
CAUSES: list[tuple[str, dict[str, Any]]] = [
    ("plain", {"engine": {"dies": 0.15}}),
    ("plain", {"engine": {"aborts": 0.15}}),
    ("plain", {"engine": {"short": 0.15}}),
    ("plain", {"engine": {"wrong": 0.15}}),
    ("plain", {"engine": {"silent": 0.15}}),
    ("plain", {"engine": {"strange": 0.15}}),
    ("plain", {"breaks": {"reset": "error"}}),
    ("plain", {"breaks": {"score": "error"}}),
    ("plain", {"breaks": {"score": "malformed"}}),
    ("user", {"breaks": {"reply": "malformed"}}),
    ("tree", {"engine": {"dies": 0.1}, "leaves": 5}),
    ("tree", {"engine": {"aborts": 0.1}, "leaves": 5}),
    ("hanging", {"breaks": {"find": "hang"}}),
    ("raising", {}),
    ("lost", {"calls": ["keep", "keep", "note"]}),
    ("lost", {"calls": ["keep", "note"], "leaves": 2}),
    ("lost_tree", {"calls": ["keep", "note", "note"], "leaves": 4}),
    ("nowhere", {}),
    ("plain", {"row": {"extra_info": {"index": 1}}}),
    ("plain", {"lengths": [120, 200]}),
]


def withdrawn(rng: Random, kind: str, count: int) -> Iterator[Case]:
    for number in range(count):
        name, fields = CAUSES[number % len(CAUSES)]
        made = case(rng, kind, number, name)
        yield made | fields | {"row": made["row"] | fields.get("row", {})}


def kinds(seed: int = 51) -> Iterator[tuple[str, dict[str, Any], list[Case]]]:
    """Kind, environments and cases."""
    for name in DIALECTS:
        yield f"chain_{name}", CHAINS, list(chains(Random(f"{seed}/{name}"), name, 27))
    rng = Random(f"{seed}/more")
    formats = ("hermes", "gpt-oss", "glm", "kimi", "qwen3_coder")
    yield "tree", TREES, list(trees(rng, "tree", 48))
    yield "tree_gpt-oss", TREES, list(trees(rng, "tree_gpt-oss", 12, format="gpt-oss"))
    yield "single_turn", SINGLE, list(mixed(rng, "single_turn", SINGLE, 45, formats=formats))
    yield "compact", COMPACT, list(mixed(rng, "compact", COMPACT, 60, formats=formats))
    yield "agents", AGENTS, list(mixed(rng, "agents", AGENTS, 24, formats=("hermes", "seed", "deepseek_v4")))
    yield "programs", {name: each for name, (each, _) in PROGRAMS.items()}, list(programs(rng, "programs", 168))
    yield "recorded_programs", RECORDED, list(recorded(rng, "recorded_programs", len(RECORDED)))
    both = {f"chain_{name}": each for name, each in CHAINS.items()} | COMPACT | TREES
    options = {"formats": ("hermes", "hermes", "minimax"), "asynchronous": True}
    yield "asynchronous", both, list(mixed(rng, "asynchronous", both, 68, **options))
    yield "without_logprobs", CHAINS, list(mixed(rng, "without_logprobs", CHAINS, 14, logprobs=False))
    yield "withdrawn", WITHDRAWN, list(withdrawn(rng, "withdrawn", 80))
