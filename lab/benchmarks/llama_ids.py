# pyright: basic
"""llama.cpp's ids of texts: `lab.benchmarks.token_ids` runs this with an interpreter that has the package `xllamacpp`.

python lab/benchmarks/llama_ids.py MODEL.gguf < texts.json > ids.json
"""

import json
import os
import sys
import urllib.request

import xllamacpp  # pyright: ignore[reportMissingImports]


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    for text in json.load(sys.stdin):
        body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
        address = f"{server.listening_address}/tokenize"
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            sys.stdout.write(json.dumps(json.load(answer)["tokens"]) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the server's threads do not end by themselves


if __name__ == "__main__":
    main()
