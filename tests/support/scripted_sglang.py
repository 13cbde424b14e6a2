"""An HTTP server that speaks SGLang's `/generate` and says what a script says, as a function of the ids it is given."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from zlib import crc32

from sampled import respelled


@dataclass
class Script:
    """Says one of `texts`, chosen by the ids so far, in spellings and with logprobs that follow from them, too.

    Args:
        choose: picks the text instead: gets the decoded ids and the number of assistant turns in them.
    """

    tokenizer: Any
    texts: Sequence[str] = ()
    choose: Callable[[str, int], str] | None = None
    log: list[dict[str, Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, ids: list[int], max_tokens: int) -> tuple[list[int], list[float], str]:
        """(ids, logprobs, finish reason) of a generation."""
        with self._lock:  # a tokenizer is not for several threads
            read = self.tokenizer.decode(ids)
            chance = random.Random(crc32(json.dumps(ids).encode()))
            turns = read.count("<|im_start|>assistant") - 1
            text = chance.choice(self.texts) if self.choose is None else self.choose(read, turns)
            sampled = [*respelled(self.tokenizer, text, chance), self.tokenizer.eos_token_id]
            cut = sampled[:max_tokens]
            logprobs = [-chance.random() for _ in cut]
            self.log.append({"prompt_ids": ids, "token_ids": cut, "log_probs": logprobs})
        return cut, logprobs, "stop" if len(cut) == len(sampled) else "length"


@contextlib.contextmanager
def scripted_sglang(script: Script) -> Iterator[str]:
    """The server's `host:port`, as long as the block lasts. A text of "fail" is answered with a server error."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, {})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/generate":
                self._answer(200, {"success": True})
                return
            ids, logprobs, reason = script.say(asked["input_ids"], asked["sampling_params"]["max_new_tokens"])
            if script.tokenizer.decode(ids).startswith("fail"):
                self._answer(500, {"error": "the engine is gone"})
                return
            pairs = [[logprob, token, None] for logprob, token in zip(logprobs, ids, strict=True)]
            meta = {"finish_reason": {"type": reason}, "output_token_logprobs": pairs}
            self._answer(200, {"output_ids": ids, "meta_info": meta})

        def _answer(self, status: int, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
