"""The preflight stops a run that cannot work: one message with file, key and remedy, and exit status 2."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from structlog.testing import capture_logs
from typer.testing import CliRunner
from verl_config import composed

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.app import app
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

ROOT = Path(__file__).parents[3]
PROCESS = {"command": "${python}", "args": [str(ROOT / "tests" / "support" / "echo_server.py")]}
SERVER = {"factory": "echo_server:create", "roles": {"score": "judge"}}
"""In this process: a start of another one costs more than all that is examined."""
ENVIRONMENT: dict[str, Any] = {"servers": {"echo": SERVER}, "reward": {"server": "echo", "parts": ["letters"]}}
MCP: dict[str, Any] = {"environment": "echo", "task": "t", "seed": 1, "tools": ["shout"]}
Preflight = Callable[..., str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=64, layers=1)


@pytest.fixture
def preflight(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Preflight:
    """Runs the callback as Hydra does; returns the error message, "" if the preflight passes."""
    from mcp_rollout.rollout.verl.preflight import PreflightCallback

    def run(
        *overrides: str,
        environment: dict[str, Any] = ENVIRONMENT,
        mcp: Any = MCP,
        prompt: Any = ({"role": "user", "content": "Shout plum."},),
        index: object = 0,
        agent: str = "tool_agent",
        copies: int = 1,
    ) -> str:
        (tmp_path / "environments").mkdir()
        (tmp_path / "environments" / "echo.yaml").write_text(yaml.safe_dump(environment))
        row = {"agent_name": "mcp_agent", "prompt": list(prompt), "extra_info": {"index": index, "mcp": mcp}}
        other = {"agent_name": agent, "prompt": [{"role": "user", "content": "x"}], "extra_info": None}
        pq.write_table(pa.Table.from_pylist([*[other] * copies, row, row]), tmp_path / "rows.parquet")
        config = composed(
            model,
            f"data.train_files={tmp_path / 'rows.parquet'}",
            "data.train_batch_size=3",
            f"trainer.default_local_dir={tmp_path / 'out'}",
            f"actor_rollout_ref.rollout.custom.mcp.environments_dir={tmp_path / 'environments'}",
            *overrides,
        )
        try:
            PreflightCallback().on_run_start(config)
            PreflightCallback().on_job_start(OmegaConf.create(OmegaConf.to_container(config)))
        except SystemExit as stopped:
            assert stopped.code == 2
            return capsys.readouterr().err
        return ""

    return run


def test_a_run_that_can_work_passes(preflight: Preflight) -> None:
    assert preflight() == ""


def test_a_prompt_that_leaves_no_room_for_a_summary_is_refused(preflight: Preflight, tmp_path: Path) -> None:
    compact = {"use": "compact", "compact": {"at_tokens": 1200}}
    message = preflight(environment=ENVIRONMENT | {"strategy": compact})
    said = f"error: {tmp_path / 'environments' / 'echo.yaml'}: strategy.compact.at_tokens: is 1200; the prompt of "
    assert message.startswith(said) and "rows.parquet: row 1 has " in message and "make it at least " in message


def test_contexts_that_can_be_compacted_pass(preflight: Preflight) -> None:
    compact = {"use": "compact", "compact": {"at_tokens": 3000}}
    assert preflight(environment=ENVIRONMENT | {"strategy": compact}) == ""


def test_rows_for_an_agent_loop_that_is_not_registered_are_refused(preflight: Preflight) -> None:
    said = preflight(agent="my_loop", copies=23)
    assert "rows.parquet: row 0: agent_name: unknown agent 'my_loop'" in said and "row 19" in said
    assert "mcp_agent, single_turn_agent, tool_agent" in said and "and 3 more problems" in said
    assert "row 20" not in said


def test_rows_for_an_agent_loop_of_the_configured_file_pass(preflight: Preflight, tmp_path: Path) -> None:
    file = tmp_path / "loops.yaml"
    file.write_text((ROOT / "configs" / "agent_loop.yaml").read_text() + "- name: my_loop\n  _target_: my.Loop\n")
    key = "actor_rollout_ref.rollout.agent.agent_loop_config_path"
    assert preflight(f"{key}={file}", agent="my_loop") == ""


def test_rows_that_would_be_sampled_alike_are_said(preflight: Preflight) -> None:
    with capture_logs() as logs:
        assert preflight(index=None) == ""
    (warning,) = [entry for entry in logs if "extra_info.index" in entry["event"]]
    assert warning["rows"] == 2 and warning["file"].endswith("rows.parquet")


def test_held_out_rows_with_a_prompt_of_training_are_warned_of(preflight: Preflight, tmp_path: Path) -> None:
    def row(index: int, text: str, seed: int = 1) -> dict[str, Any]:
        prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        return {
            "agent_name": "mcp_agent",
            "prompt": prompt,
            "extra_info": {"index": index, "mcp": {**MCP, "seed": seed}},
        }

    held_out = [row(0, "Shout pear."), row(1, " shout PLUM. "), row(2, "Shout plum.", seed=2)]
    pq.write_table(pa.Table.from_pylist(held_out), tmp_path / "held_out.parquet")
    with capture_logs() as logs:
        assert preflight(f"data.val_files={tmp_path / 'held_out.parquet'}") == ""
    (warning,) = [entry for entry in logs if entry["event"] == "held-out rows have prompts of training"]
    assert (warning["rows"], warning["of"]) == (1, 3) and warning["first"].endswith("held_out.parquet: row 1")
    (repeats,) = [entry for entry in logs if entry["event"] == "rows of training repeat others"]
    assert repeats["rows"] == 1 and repeats["first"].endswith("rows.parquet: row 2")


def test_a_format_in_which_the_template_writes_no_calls_is_refused(preflight: Preflight) -> None:
    said = preflight("actor_rollout_ref.rollout.multi_turn.format=qwen3_coder")
    assert "multi_turn.format: is qwen3_coder, and the model's chat template writes calls as hermes" in said
    assert "(make it hermes)" in said


def test_calls_of_a_row_that_its_servers_cannot_answer_are_refused(preflight: Preflight) -> None:
    said = preflight(mcp={**MCP, "setup": '[{"name": "shuot"}]', "check": '[{"name": "shout", "arguments": {}}]'})
    assert "row 1: extra_info.mcp.setup.0: unknown tool 'shuot' (did you mean 'shout'?)" in said
    assert "row 1: extra_info.mcp.check.0.arguments: shout: " in said


def test_a_row_that_asks_for_nothing_is_refused_where_solved_is_the_reward(preflight: Preflight) -> None:
    said = preflight(environment={"servers": {"echo": SERVER}, "reward": {"weights": {"solved": 1.0}}})
    assert "row 1: reward_model.ground_truth: has neither an answer nor checks" in said


def test_rows_that_would_share_a_request_id_are_refused_under_full_determinism(preflight: Preflight) -> None:
    message = preflight("actor_rollout_ref.rollout.full_determinism=True")
    assert "extra_info.index" in message and "request ids" in message and "number the rows" in message


V0 = ["trainer.use_v1=False", "algorithm.adv_estimator=reinforce_plus_plus"]
USER = ENVIRONMENT | {
    "servers": {"echo": SERVER | {"roles": {"score": "judge", "start": "say_hello", "reply": "answer"}}},
    "user": {"server": "echo"},
}
DROPS = USER | {"thinking": {"context": "drop_previous"}}
CLOSES = ENVIRONMENT | {"thinking": {"tokens_per_turn": 100}}


@pytest.mark.parametrize(
    ("environment", "overrides", "said"),
    [
        (DROPS, V0, ["echo.yaml", "thinking.context", "v0 trainer takes one"]),
        (DROPS, ["actor_rollout_ref.rollout.multi_turn.format=gpt-oss"], ["thinking.context", "gpt-oss"]),
        (CLOSES, ["actor_rollout_ref.rollout.multi_turn.format=gpt-oss"], ["thinking.tokens_per_turn", "gpt-oss"]),
        (
            ENVIRONMENT,
            ["++actor_rollout_ref.rollout.custom.mcp.environment.filters.void.action=forgive"],
            ["custom.mcp.environment.filters.void.action", "mask_trajectory"],
        ),
        (ENVIRONMENT | {"filters": {"void": {"penality": 1}}}, [], ["echo.yaml", "filters.void", "penality"]),
    ],
)
def test_a_thinking_policy_or_filter_that_cannot_be_trained_is_refused(
    preflight: Preflight, environment: dict[str, Any], overrides: list[str], said: list[str]
) -> None:
    message = preflight(*overrides, environment=environment)
    assert [part for part in said if part not in message] == [], message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mcp": None}, ["rows.parquet: row 1", "extra_info.mcp", "mcp-rollout data"]),
        ({"index": "7"}, ["rows.parquet: row 1", "extra_info.index", "'7'", "number the rows", "mcp-rollout data"]),
        ({"mcp": {**MCP, "seed": None}}, ["rows.parquet: row 1", "extra_info.mcp.seed"]),
        (
            {"mcp": {**MCP, "tools": ["shuot"]}},
            ["rows.parquet: row 1", "shuot", "did you mean 'shout'?"],
        ),
        ({"mcp": {**MCP, "environment": "ecko"}}, ["rows.parquet: row 1", "ecko", "did you mean 'echo'"]),
        ({"prompt": [{"role": "system", "content": "x"}]}, ["rows.parquet: row 1", "does not end in a user message"]),
        (
            {"prompt": [{"role": "user", "content": "plum " * 3000}]},
            ["row 1", "raise data.max_prompt_length to at least"],
        ),
        ({"environment": ENVIRONMENT | {"serverz": {}}}, ["echo.yaml", "serverz", "did you mean 'servers'"]),
        (
            {"environment": {"servers": {"echo": {"command": "no-such-program"}}}},
            ["echo.yaml", "servers.echo", "no-such-program", "install it"],
        ),
        (
            {"environment": {"servers": {"echo": {"command": "sleep", "args": ["60"], "start_timeout_s": 1}}}},
            ["echo.yaml", "servers.echo", "handshake", "start_timeout_s"],
        ),
        (
            {"environment": {"servers": {"echo": {**SERVER, "tools": ["shuot"]}}}},
            ["echo.yaml", "servers.echo.tools", "shuot"],
        ),
        (
            {"environment": {"servers": {"echo": {**SERVER, "roles": {}}}, "reward": {"server": "echo"}}},
            ["echo.yaml", "reward.server", "score"],
        ),
    ],
)
def test_what_is_wrong_with_rows_or_environment_is_said(
    preflight: Preflight, change: dict[str, Any], said: list[str]
) -> None:
    message = preflight(**change)
    assert message.startswith("error: ") and all(part in message for part in said), message


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.train_files=null", ["data.train_files", "mcp-rollout data"]),
        ("data.train_files=/nowhere.parquet", ["/nowhere.parquet", "no such file"]),
        ("actor_rollout_ref.model.path=null", ["actor_rollout_ref.model.path"]),
        ("actor_rollout_ref.model.path=/nowhere", ["actor_rollout_ref.model.path", "/nowhere"]),
        (
            "actor_rollout_ref.rollout.max_model_len=100",
            ["rollout.max_model_len", "at most 100", "row 1", "the sum of"],
        ),
        ("actor_rollout_ref.actor.loss_agg_mode=nonsense", ["actor_rollout_ref.actor", "Invalid loss_agg_mode"]),
        ("actor_rollout_ref.rollout.custom.mcp.max_failed_share=2", ["custom.mcp.max_failed_share"]),
        ("+actor_rollout_ref.rollout.custom.mcp.trace_dirr=x", ["custom.mcp.trace_dirr", "did you mean 'trace_dir'"]),
        ("actor_rollout_ref.rollout.custom.mcp.trace_dir=/proc/traces", ["/proc/traces", "trace_dir"]),
        ("actor_rollout_ref.rollout.multi_turn.tool_config_path=/nowhere.yaml", ["/nowhere.yaml", "no such file"]),
        ("actor_rollout_ref.model.path=/nowhere", ["/nowhere", "model.path", "no such directory"]),
    ],
)
def test_what_is_wrong_with_the_configuration_is_said(preflight: Preflight, override: str, said: list[str]) -> None:
    message = preflight(override)
    assert message.startswith("error: ") and all(part in message for part in said), message


REWARD = """
import math

async def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return math.pi
"""
UNREWARDED: dict[str, Any] = {"servers": {"echo": SERVER}}
OURS = "actor_rollout_ref.rollout.custom.mcp"


@pytest.fixture
def function(tmp_path: Path) -> str:
    """The override with which a verl user configures a reward function."""
    (tmp_path / "reward.py").write_text(REWARD)
    return f"reward.custom_reward_function.path={tmp_path / 'reward.py'}"


def test_an_environment_without_any_reward_is_refused(preflight: Preflight) -> None:
    message = preflight(environment=UNREWARDED)
    said = ["echo.yaml", "reward: nothing gives a reward", "reward: {server: NAME}"]
    assert [part for part in said if part not in message] == [], message


@pytest.mark.parametrize("weights", ["{score:0}", "{score:0,turns:1}"])
def test_an_environment_whose_weights_leave_no_reward_is_refused(preflight: Preflight, weights: str) -> None:
    assert "nothing gives a reward" in preflight(f"++{OURS}.environment.reward.weights={weights}")


def test_verls_reward_function_is_enough_for_an_environment_without_a_reward(
    preflight: Preflight, function: str
) -> None:
    assert preflight(function, environment=UNREWARDED) == ""


def test_beside_the_environments_reward_a_key_decides_about_verls(preflight: Preflight, function: str) -> None:
    assert preflight(function, f"{OURS}.custom_reward=replace") == ""


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            [],
            [f"error: {OURS}.custom_reward: reward.custom_reward_function.path gives a reward", "replace, add, ignore"],
        ),
        ([f"{OURS}.custom_reward=add", "reward.custom_reward_function.name=scor"], ["cannot be imported", "scor"]),
        ([f"{OURS}.custom_reward=add", "reward.custom_reward_function.path=/no.py"], ["cannot be imported", "/no.py"]),
        ([f"{OURS}.custom_reward=add", "reward.custom_reward_function.path=null"], ["verl has no reward function"]),
        ([f"{OURS}.custom_reward=add", "custom_reward_function.path=x.py"], ["is not read by this verl"]),
        (
            [
                f"{OURS}.custom_reward=ignore",
                "reward.reward_model.enable=True",
                "reward.reward_model.rollout.name=vllm",
            ],
            ["reward.reward_model.enable", "enable_resource_pool=True"],
        ),
        (
            [f"{OURS}.custom_reward=add", "trainer.use_v1=False", "algorithm.adv_estimator=gae"],
            ["reward.custom_reward_function.path", "trainer.use_v1=True"],
        ),
    ],
)
def test_a_reward_of_verls_that_would_be_ignored_or_cannot_be_computed_is_refused(
    preflight: Preflight, function: str, overrides: list[str], said: list[str]
) -> None:
    message = preflight(function, *overrides)
    assert [part for part in said if part not in message] == [], message


def test_a_template_that_does_not_render_what_comes_behind_the_prompt_is_refused(
    preflight: Preflight, model: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(model, tmp_path / "model")
    template = (own / "chat_template.jinja").read_text()
    refusal = "{%- if messages|length > 1 and messages[-1].role == 'user' -%}{{ raise_exception('not here') }}"
    (own / "chat_template.jinja").write_text(refusal + "{%- endif -%}" + template)
    message = preflight(f"actor_rollout_ref.model.path={own}", environment=USER)
    said = [
        "rows.parquet: row 1",
        "custom.mcp.chat_template",
        "does not render a user's message: TemplateError: not here",
    ]
    assert [part for part in said if part not in message] == [], message


TEMPLATE = "actor_rollout_ref.rollout.custom.mcp.chat_template"
SMOLLM2 = ROOT / "tests" / "support" / "templates" / "smollm2.jinja"


def test_a_template_that_leaves_out_tools_is_refused(preflight: Preflight, model: Path, tmp_path: Path) -> None:
    own = shutil.copytree(model, tmp_path / "model")
    shutil.copy(SMOLLM2, own / "chat_template.jinja")
    message = preflight(f"actor_rollout_ref.model.path={own}")
    assert f"row 1: {TEMPLATE}: the model's chat template leaves out tools" in message and "shout" in message


def test_a_template_of_a_file_replaces_the_models_own(preflight: Preflight, model: Path, tmp_path: Path) -> None:
    own = shutil.copytree(model, tmp_path / "model")
    given = (own / "chat_template.jinja").rename(tmp_path / "tools.jinja")
    shutil.copy(SMOLLM2, own / "chat_template.jinja")
    assert preflight(f"actor_rollout_ref.model.path={own}", f"{TEMPLATE}={given}") == ""


def test_copied_configurations_name_each_other_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["configs", "mine/for verl"])
    assert done.exit_code == 0, done.output
    with initialize_config_dir(str(tmp_path / "mine/for verl"), version_base=None):
        config = compose("mcp_grpo", overrides=["hydra.searchpath=[pkg://verl.trainer.config]"])
    rollout = config.actor_rollout_ref.rollout
    assert rollout.custom.mcp.environments_dir == "mine/for verl/environments"
    assert Path(rollout.agent.agent_loop_config_path).is_file() and Path(rollout.custom.mcp.environments_dir).is_dir()
    areal = yaml.safe_load(Path("mine/for verl/areal/grpo.yaml").read_text())
    assert Path(areal["mcp"]["environments_dir"]).is_dir()
    assert "configs" not in Path("mine/for verl/mcp_grpo.yaml").read_text().replace("for verl", "").replace(
        "pkg://verl.trainer.config", ""
    )


def test_verl_itself_is_handed_the_text_of_the_file() -> None:
    from mcp_rollout.rollout.verl.settings import TEMPLATE_KEY, Settings, read_template

    config = composed(Path("model"), f"{TEMPLATE}={SMOLLM2}")
    with pytest.raises(ConfigError, match="chat_template: has not been read"):
        Settings.of(config)
    read_template(config)
    assert OmegaConf.select(config, TEMPLATE_KEY) == SMOLLM2.read_text()
    assert Settings.of(config).chat_template == SMOLLM2


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (f"{TEMPLATE}=nowhere.jinja", "nowhere.jinja: actor_rollout_ref.rollout.custom.mcp.chat_template: cannot be"),
        (f"actor_rollout_ref.model.custom_chat_template=x {TEMPLATE}={SMOLLM2}", "custom_chat_template is given too"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(preflight: Preflight, override: str, said: str) -> None:
    assert said in preflight(*override.split())


SGLANG = "actor_rollout_ref.rollout.name=sglang"


@pytest.fixture
def installed_sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site" / "sglang").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.mark.usefixtures("installed_sglang")
def test_trajectories_that_the_model_has_no_room_for_are_refused(preflight: Preflight) -> None:
    message = preflight(SGLANG, "data.max_response_length=32768")
    said = ["rollout.max_model_len", "is not given", "reads 32768 tokens", "make it 32768", "token_limit"]
    assert [part for part in said if part not in message] == [], message


def test_an_engine_that_is_not_installed_is_said_last(preflight: Preflight) -> None:
    message = preflight("actor_rollout_ref.rollout.name=vllm", "data.max_prompt_length=2048")
    assert message.startswith(
        "error: actor_rollout_ref.rollout.name: vllm is not installed here (python -m pip install"
    )


@pytest.mark.usefixtures("installed_sglang")
def test_the_model_has_room_where_an_engine_is_told_its_length(preflight: Preflight) -> None:
    overrides = ["data.max_response_length=32768", "actor_rollout_ref.rollout.max_model_len=32768"]
    assert preflight(SGLANG, *overrides) == ""


def test_a_definition_that_differs_from_the_lock_is_refused_with_the_difference(
    preflight: Preflight, tmp_path: Path
) -> None:
    from mcp_rollout.gateway.catalogue.tool_config import lock_entries, write_lock
    from mcp_rollout.gateway.types import ToolDefinition

    changed = ToolDefinition(
        server="echo", name="shout", exposed_name="shout", description="Whisper it.", input_schema={"type": "object"}
    )
    write_lock(tmp_path / "lock.yaml", lock_entries({"echo": [changed]}, environment="echo", source="echo.yaml"))
    message = preflight(f"actor_rollout_ref.rollout.multi_turn.tool_config_path={tmp_path / 'lock.yaml'}")
    assert "Whisper it." in message and "Say it louder." in message
    assert f"`mcp-rollout tool-config echo.yaml -o {tmp_path / 'lock.yaml'} --accept`" in message


def test_the_lock_is_compared_for_verls_own_tool_agent_too(preflight: Preflight, tmp_path: Path) -> None:
    from mcp_rollout.gateway.catalogue.tool_config import lock_entries, write_lock
    from mcp_rollout.gateway.types import ToolDefinition

    fields: dict[str, Any] = {"exposed_name": "shout", "description": "Whisper it.", "input_schema": {"type": "object"}}
    stock = tmp_path / "stock.yaml"
    stock.write_text(yaml.safe_dump({"servers": {"echo": {**SERVER, "roles": {}}}}))
    locked = [ToolDefinition(server="echo", name="shout", **fields)]
    entries = lock_entries({"echo": locked}, environment="stock", source=str(stock))
    good = ToolDefinition(
        server="echo",
        name="say_hello",
        exposed_name="say_hello",
        description="How the user begins.",
        input_schema={"type": "object", "properties": {}, "title": "say_helloArguments"},
        output_schema={"type": "object", "additionalProperties": True, "title": "say_helloDictOutput"},
    )
    write_lock(
        tmp_path / "lock.yaml", [*entries, *lock_entries({"echo": [good]}, environment="echo", source="echo.yaml")]
    )
    mcp = {**MCP, "tools": ["say_hello"]}
    message = preflight(f"actor_rollout_ref.rollout.multi_turn.tool_config_path={tmp_path / 'lock.yaml'}", mcp=mcp)
    assert "Whisper it." in message and "Say it louder." in message and f"tool-config {stock} echo.yaml" in message


@pytest.mark.parametrize(
    ("environment", "overrides", "said"),
    [
        (
            ENVIRONMENT | {"servers": {"echo": PROCESS | {"scope": "process", "max_processes": 3}}},
            [],
            ["servers.echo.max_processes", "is 3 per node", "4 workers", "at least 4", "num_workers"],
        ),
        (ENVIRONMENT, [f"++{OURS}.environment.max_sessions=3"], ["max_sessions", "is 3 per node"]),
        (ENVIRONMENT, ["trainer.nnodes=2", f"++{OURS}.environment.max_sessions=2"], []),
    ],
)
def test_more_workers_than_processes_or_sessions_of_a_node_are_refused(
    preflight: Preflight, environment: dict[str, Any], overrides: list[str], said: list[str]
) -> None:
    message = preflight("actor_rollout_ref.rollout.agent.num_workers=4", *overrides, environment=environment)
    assert [part for part in said if part not in message] == [] and bool(message) == bool(said), message


def test_a_batch_that_the_rows_cannot_fill_is_refused(preflight: Preflight) -> None:
    message = preflight("data.train_batch_size=4")
    assert "data.train_batch_size" in message and "is 4, and data.train_files have 3 rows" in message


def test_what_is_wrong_with_configuration_rows_and_environment_is_reported_together(preflight: Preflight) -> None:
    wrong = ENVIRONMENT | {"servers": {"echo": SERVER | {"comand": "x"}}, "user": {"server": "ecko"}}
    message = preflight(
        "data.train_batch_size=4",
        "actor_rollout_ref.rollout.custom.mcp.record_trained=True",
        "trainer.v1.trainer_mode=sync",
        environment=wrong,
        agent="my_loop",
    )
    for said in (
        "custom.mcp.record_trained",
        "row 0: agent_name: unknown agent 'my_loop'",
        "data.train_batch_size: is 4",
        "row 1: extra_info.mcp.environment: needs environment 'echo'",
        "servers.echo.comand: unknown key 'comand'",
        "user.server names 'ecko'",
    ):
        assert message.count(said) == 1, (said, message)


def test_a_score_that_lacks_a_part_is_reported_before_ray_starts(preflight: Preflight) -> None:
    message = preflight(environment={**ENVIRONMENT, "reward": {"server": "echo", "parts": ["letters", "words"]}})
    assert "a trajectory of echo that does nothing fails" in message and "lacks the parts ['words']" in message
