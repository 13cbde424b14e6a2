"""SGLang's API, vLLM's API and transformers in process are one to a trajectory: the same ids, logprobs and endings."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from inference_servers import CONTEXT, Generator, Server, SGLangLike, VLLMLike
from mcp.server.mcpserver import MCPServer
from serving import listening
from typer.testing import CliRunner
from watched import Watched
from worlds import ROLE, environment, opened, task

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.cli.app import app, main
from mcp_rollout.rollout.engines.engine import Engine, EngineOptions
from mcp_rollout.rollout.engines.opening import opened_engine
from mcp_rollout.rollout.engines.sampling import SamplingParameters
from mcp_rollout.rollout.engines.timeouts import Timeouts
from mcp_rollout.rollout.environment.task import Origin, sampling_seed
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.trace.record import SpanKind, StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.types import FinishReason, Policy

pytestmark = pytest.mark.anyio

CALCULATOR = Path(__file__).parents[3] / "configs" / "environments" / "calculator.yaml"
KINDS = ("sglang", "vllm", "transformers")
PROMPT = [40, 41, 42, 43]
NO_PAUSE = Timeouts(retry_pause_s=0)


def server_of(kind: str, generator: Generator) -> Server:
    if kind.startswith("sglang"):
        return SGLangLike(generator, original_logprobs=kind.endswith("original"))
    return VLLMLike(generator, processed_logprobs=kind.endswith("processed"))


@asynccontextmanager
async def engine_over(server: Server, model: Path, **options: Any) -> AsyncGenerator[Engine]:
    """The engine that is found at the server's address."""
    async with listening(server.app) as address:
        made = EngineOptions(engine=address, tokenizer=str(model), **{"timeouts": NO_PAUSE, **options})
        async with opened_engine(made) as engine:
            server.requests.clear()
            yield engine


@asynccontextmanager
async def engine_of(kind: str, model: Path, generator: Generator, **options: Any) -> AsyncGenerator[Engine]:
    async with AsyncExitStack() as stack:
        if kind == "transformers":
            yield await stack.enter_async_context(opened_engine(EngineOptions(engine=str(model), **options)))
        else:
            yield await stack.enter_async_context(engine_over(server_of(kind, generator), model, **options))


async def policy(engine: Engine, **origin: int) -> Policy:
    return await engine.policy(None, None, None, Origin(**origin))  # type: ignore[arg-type]  # models need none of them


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParameters(),
        SamplingParameters(temperature=0.7),
        SamplingParameters(temperature=0.7, top_p=0.3),
        SamplingParameters(top_k=5),
        SamplingParameters(temperature=0),
    ],
    ids=["1.0", "0.7", "0.7-top_p", "top_k", "greedy"],
)
@pytest.mark.parametrize("kind", [*KINDS, "sglang-original", "vllm-processed"])
async def test_a_logprob_means_the_same_whatever_engine_it_comes_from_or_is_left_out_with_a_note(
    kind: str, sampling: SamplingParameters, model: Path, generator: Generator
) -> None:
    async with engine_of(kind, model, generator, sampling=sampling) as engine:
        completion = await (await policy(engine)).generate(PROMPT, max_tokens=12, turn=0)
    assert len(completion.ids) == 12
    if kind != "transformers" and sampling not in (SamplingParameters(), SamplingParameters(temperature=0)):
        (note,) = engine.notes
        assert "logprobs are left out" in note and completion.logprobs is None
        return
    assert engine.notes == [] and completion.logprobs is not None
    expected = generator.logprobs(
        PROMPT, completion.ids, temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k
    )
    assert completion.logprobs == pytest.approx(expected, abs=1e-4)


async def test_the_same_row_sample_and_turn_are_drawn_alike_and_others_apart(model: Path, generator: Generator) -> None:
    for kind in KINDS:
        async with engine_of(kind, model, generator) as engine:
            one, same, other = await policy(engine, row=3), await policy(engine, row=3), await policy(engine, row=4)
            first = await one.generate(PROMPT, max_tokens=8, turn=2)
            assert (await same.generate(PROMPT, max_tokens=8, turn=2)).ids == first.ids
            assert (await same.generate(PROMPT, max_tokens=8, turn=3)).ids != first.ids
            assert (await other.generate(PROMPT, max_tokens=8, turn=2)).ids != first.ids


async def test_a_server_that_is_busy_is_asked_again_with_the_same_seed_and_not_for_ever(
    model: Path, generator: Generator
) -> None:
    for kind, key in (("sglang", "sampling_seed"), ("vllm", "seed")):
        server = server_of(kind, generator)
        async with engine_over(server, model, timeouts=replace(NO_PAUSE, attempts=3)) as engine:
            server.refuse = 2
            completion = await (await policy(engine, row=1)).generate(PROMPT, max_tokens=2, turn=0)
            seeds = [request.get("sampling_params", request)[key] for request in server.requests]
            assert len(completion.ids) == 2 and seeds == [sampling_seed(Origin(row=1), 0)] * 3
            server.refuse = 3
            with pytest.raises(EngineError, match="503"):
                await (await policy(engine)).generate(PROMPT, max_tokens=2, turn=0)


async def test_a_completion_whose_connection_broke_after_a_token_is_not_asked_for_again(
    model: Path, generator: Generator
) -> None:
    server = VLLMLike(generator)
    async with engine_over(server, model) as engine:
        server.break_off = 1
        with pytest.raises(EngineError, match="broke after 1 tokens"):
            await (await policy(engine)).generate(PROMPT, max_tokens=5, turn=0)
        assert len(server.requests) == 1


@pytest.mark.parametrize("lie", [-5, 1 << 40])
async def test_a_number_that_is_no_token_id_is_the_engines_failure(model: Path, generator: Generator, lie: int) -> None:
    server = SGLangLike(generator)
    async with engine_over(server, model) as engine:
        server.lies = lie
        with pytest.raises(EngineError, match="output_ids"):
            await (await policy(engine)).generate(PROMPT, max_tokens=5, turn=0)


async def test_a_server_that_reads_another_prompt_is_found_out(model: Path, generator: Generator) -> None:
    server = VLLMLike(generator)
    async with engine_over(server, model) as engine:
        server.changes_prompt = True
        with pytest.raises(EngineError, match="changed the prompt's token ids"):
            await (await policy(engine)).generate(PROMPT, max_tokens=5, turn=0)


async def refused(engine: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as refusal:
        async with opened_engine(EngineOptions(engine=engine, **options)):
            pass
    return str(refusal.value)


async def test_an_engine_that_cannot_play_is_refused_at_the_start_with_a_remedy(
    model: Path, generator: Generator, tmp_path: Path
) -> None:
    async with listening(VLLMLike(generator, token_ids=False).app) as address:
        said = await refused(address, tokenizer=str(model))
        assert "gives no token ids" in said and "vLLM" in said
        assert "--tokenizer: the server's tokenizer (tiny) is not on this machine" in await refused(address)
        assert "--tokenizer" in await refused(address, tokenizer=str(tmp_path))
        assert "--tool-format: no tool format 'x'" in await refused(address, tokenizer=str(model), tool_format="x")
        assert "neither an SGLang server" in await refused(f"{address}/nothing/here")
    assert "nothing answers at" in await refused(address)
    assert "a model's directory, the http:// address of a server" in await refused("experrt")
    assert "no model directory" in await refused(str(tmp_path)) or "no tokenizer" in await refused(str(tmp_path))
    assert "--tokenizer: no such directory: /no/where" in await refused(str(model), tokenizer="/no/where")
    assert "--engine: no such directory: /no/where" in await refused("/no/where")


async def test_the_model_that_is_named_plays_with_the_tokenizer_and_length_of_the_one_it_adapts(
    model: Path, generator: Generator, tmp_path: Path
) -> None:
    base = {"id": "tiny", "root": str(model), "max_model_len": CONTEXT}
    # As vLLM lists what --lora-modules names.
    adapters = [{"id": f"tuned-{number}", "root": str(tmp_path), "parent": "tiny"} for number in range(12)]
    server = VLLMLike(generator, models=[base, *adapters])
    async with listening(server.app) as address:
        for given, plays in ((None, "tiny"), ("tuned-3", "tuned-3")):
            async with opened_engine(EngineOptions(engine=address, model=given)) as engine:
                assert (engine.name, engine.context_tokens) == (f"openai:{plays}", CONTEXT)
                await (await policy(engine)).generate(PROMPT, max_tokens=1, turn=0)
            assert server.requests[-1]["model"] == plays
        said = await refused(address, model="tuned")
    assert "--model" in said and "lists no 'tuned' (one of tiny, tuned-0, " in said and said.endswith("tuned-8)")


async def test_an_option_that_an_engine_does_not_read_is_refused(model: Path, generator: Generator) -> None:
    for engine in ("expert", "recorded:outputs/eval", str(model)):
        assert f"--model: {engine} does not read it" in await refused(engine, model="tiny", body={"top_p": None})
        assert f"--body: {engine} does not read it" in await refused(engine, body={"top_p": None})
    async with listening(SGLangLike(generator).app) as address:
        assert f"--model: {address} does not read it" in await refused(address, tokenizer=str(model), model="tiny")
        assert f"--body: {address} does not read it" in await refused(address, model="tiny", body={"top_p": None})


async def test_a_model_directory_that_is_not_whole_is_refused_with_what_is_wrong(model: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(model, tmp_path / "bare")
    for file in bare.glob("*token*"):
        file.unlink()
    said = await refused(str(bare))
    assert "no tokenizer can be loaded" in said and "--engine" in said and "with its tokenizer" in said
    torn = shutil.copytree(model, tmp_path / "torn")
    (torn / "model.safetensors").write_bytes((torn / "model.safetensors").read_bytes()[:100])
    assert "cannot be loaded on cpu" in await refused(str(torn))
    assert "--dtype: there is no 'float33'" in await refused(str(model), dtype="float33")


async def test_a_model_that_is_loaded_draws_no_progress(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from mcp_rollout.rollout.engines.in_process import load_model

    load_model(str(model), device="cpu", dtype=None)
    assert "\r" not in "".join(capfd.readouterr())


async def test_a_server_that_serves_no_generation_at_the_start_is_refused_in_time(
    model: Path, generator: Generator
) -> None:
    waits = Timeouts(generate_timeout_s=0.5)
    async with listening(SGLangLike(generator, paused=True).app) as address:
        assert "generates nothing within 0.5 s" in await refused(address, tokenizer=str(model), timeouts=waits)
    for server in (SGLangLike(generator, refuse=9), VLLMLike(generator, refuse=9)):
        async with listening(server.app) as address:
            said = await refused(address, tokenizer=str(model), timeouts=NO_PAUSE)
            assert "does not generate" in said and "503" in said


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """What `mcp-rollout run` says before it plays anything."""

    def run(environment: Path, model: Path, *options: str) -> str:
        command = ["run", str(environment), "--engine", str(model), "--out", str(tmp_path / "out"), *options]
        monkeypatch.setattr("sys.argv", ["mcp-rollout", *command])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2 and not list(tmp_path.glob("out/*.jsonl"))
        return capsys.readouterr().err

    return run


def test_a_thinking_policy_that_the_models_format_cannot_have_is_refused_before_a_row_is_played(
    model: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    environment = tmp_path / "e.yaml"
    environment.write_text("servers: {s: {command: none}}\nthinking: {tokens_per_turn: 9}\n")
    said = refusal(environment, model, "--tool-format", "gpt-oss")
    assert re.search(r"e\.yaml: thinking\.tokens_per_turn: .*'gpt-oss'", said)


def test_a_template_that_refuses_tools_answers_is_refused_before_a_row_is_played(
    model: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    changed = tmp_path / "refusing"
    shutil.copytree(model, changed)
    template = changed / "chat_template.jinja"
    refused = "{%- for m in messages if m.role == 'tool' %}{{ raise_exception('no tools, please') }}{%- endfor %}"
    template.write_text(refused + template.read_text())
    said = refusal(CALCULATOR, changed, "-n", "1")
    assert "--chat-template: the model's chat template does not render a tool's answer" in said
    assert "no tools, please" in said


SMOLLM2 = Path(__file__).parents[2] / "support" / "templates" / "smollm2.jinja"
"""As published: it writes each message with its role, and knows no tools."""


def test_a_template_that_leaves_out_tools_is_refused_and_chat_template_replaces_it(
    model: Path, tmp_path: Path, refusal: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    changed = shutil.copytree(model, tmp_path / "without")
    rendering = (changed / "chat_template.jinja").rename(tmp_path / "tools.jinja")
    shutil.copy(SMOLLM2, changed / "chat_template.jinja")
    said = refusal(CALCULATOR, changed, "-n", "1")
    assert (
        "--chat-template: the model's chat template leaves out tools" in said and "multiply, divide, evaluate" in said
    )
    assert "leaves out tools" in refusal(CALCULATOR, model, "-n", "1", "--chat-template", str(SMOLLM2))
    assert "nowhere.jinja: --chat-template: cannot be read" in refusal(
        CALCULATOR, model, "--chat-template", "nowhere.jinja"
    )
    command = ["run", str(CALCULATOR), "--engine", str(changed), "--out", str(tmp_path / "out"), "-n", "1"]
    given = ["--chat-template", str(rendering), "--response-tokens", "8", "--split", "train"]
    done = CliRunner().invoke(app, [*command, *given])
    (trace,) = read_traces(tmp_path / "out")
    assert done.exit_code == 0 and "<tools>" in decoded(changed, trace.prompt_ids), done.output
    recorded = ["run", str(CALCULATOR), "--engine", f"recorded:{tmp_path / 'out'}", "--out", str(tmp_path / "again")]
    done = CliRunner().invoke(app, [*recorded, "-n", "1", "--split", "train"])
    assert done.exit_code == 0 and next(iter(read_traces(tmp_path / "again"))).prompt_ids == trace.prompt_ids
    resumed = refusal_of([*command, "--resume", "--split", "train", "--response-tokens", "8"])
    assert "--chat-template: the run in this directory had" in resumed
    assert "--chat-template: expert renders no template" in refusal_of(
        [*command[:2], "--engine", "expert", "--out", str(tmp_path / "expert"), *given[:2]]
    )


def refusal_of(command: list[str]) -> str:
    with pytest.raises(ConfigError) as refused:
        CliRunner().invoke(app, command, catch_exceptions=False)
    return str(refused.value)


def decoded(model: Path, ids: list[int]) -> str:
    from mcp_rollout.rollout.tokens.verl_builder import load_tokens

    return load_tokens(str(model)).decode(ids)


async def test_weights_are_named_by_the_trainers_step_where_the_server_knows_it(
    model: Path, generator: Generator
) -> None:
    server = SGLangLike(generator)
    async with engine_over(server, model) as engine:
        assert (await (await policy(engine)).generate(PROMPT, max_tokens=1, turn=0)).weights_version == (None, None)
        server.weight_version = "7"
        assert (await (await policy(engine)).generate(PROMPT, max_tokens=1, turn=0)).weights_version == (7, 7)


def judged() -> MCPServer:
    server = MCPServer("judged", log_level="ERROR")

    @server.tool(name="score", meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"score": 0.5, "parts": {}}

    return server


async def played(engine: Engine, directory: Path, limits: Limits) -> Trace:
    """One trajectory without a user; the policy sends one message."""
    servers = {"judged": judged()}
    made = environment(servers, reward={"server": "judged"})
    row = task(prompt=({"role": "user", "content": "Go on."},))

    async def policy_for(session: Session) -> Policy:
        return await engine.policy(session, made, row, Origin())

    async with opened(made, servers) as gateway:
        return await roll_out(
            Trace.begin("one", row, Origin()),
            environment=made,
            gateway=gateway,
            policy_for=policy_for,
            tokens=engine.tokens(),
            limits=limits,
            store=TraceStore(directory),
        )


GREEDY = SamplingParameters(temperature=0)
"""The tiny model never ends a turn by itself then."""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_trajectory_cancelled_in_mid_generation_is_recorded_with_its_partial_tokens(
    kind: str, model: Path, generator: Generator, tmp_path: Path
) -> None:
    async with engine_of(kind, model, generator, sampling=GREEDY) as engine, anyio.create_task_group() as tasks:
        watched = Watched(engine)
        tasks.start_soon(played, watched, tmp_path, Limits(response_tokens=3000))
        await watched.in_the_midst()
        tasks.cancel_scope.cancel()
    (trace,) = read_traces(tmp_path)
    assert trace.is_withdrawn
    assert_partial(trace, generator)


def assert_partial(trace: Trace, generator: Generator) -> None:
    (turn,) = trace.turns
    assert turn.finish_reason is FinishReason.ABORT and 0 < turn.sampled < 3000
    assert sum(trace.loss_mask) == turn.sampled == len(trace.logprobs)
    expected = generator.logprobs(trace.prompt_ids, trace.response_ids, temperature=0, top_p=1.0, top_k=-1)
    assert trace.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
async def test_time_that_runs_out_in_mid_generation_leaves_a_truncated_trajectory_that_counts(
    kind: str, model: Path, generator: Generator, tmp_path: Path
) -> None:
    async with engine_of(kind, model, generator, sampling=GREEDY) as engine:
        trace = await played(engine, tmp_path, Limits(response_tokens=100_000, wall_clock_s=1.5))
    assert trace.stop_reason is StopReason.TIME_LIMIT and not trace.is_withdrawn
    assert trace.reward is not None and trace.reward.score == 0.5
    assert sum(trace.loss_mask) == trace.turns[0].sampled > 0
    assert [span.kind for span in trace.spans] == [SpanKind.COMPLETION]


async def test_a_generation_stops_where_the_engines_context_is_full(
    model: Path, generator: Generator, tmp_path: Path
) -> None:
    async with engine_of("sglang", model, generator, sampling=GREEDY) as engine:
        assert engine.context_tokens == 4096
        trace = await played(engine, tmp_path, Limits(response_tokens=100_000, context_tokens=60))
        assert trace.stop_reason is StopReason.TOKEN_LIMIT and len(trace.context) == 60
        full = await played(engine, tmp_path, Limits(response_tokens=100, context_tokens=len(trace.prompt_ids)))
    assert full.failure is not None and full.failure.kind == "prompt_too_long"


async def test_a_text_may_have_what_some_take_for_the_end_of_a_line(model: Path, generator: Generator) -> None:
    """U+2028 and U+0085 end a line for `str.splitlines`, and none of a server's events."""
    async with engine_over(VLLMLike(generator, text="a\u2028b\u0085c"), model) as engine:
        completion = await (await policy(engine)).generate(PROMPT, max_tokens=3, turn=0)
    assert len(completion.ids) == 3 and completion.finish_reason is FinishReason.LENGTH
