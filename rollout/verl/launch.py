"""verl's trainer in a process of its own, and the command line that starts it, checked."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.config import INCLUDED_CONFIGS
from mcp_rollout.rollout.extras import install_command

CONFIG = "mcp_grpo"
END_S = 60.0
"""How long the trainer may take to end by itself, before it is killed."""
_PLAIN = re.compile(r"[\w./:@+-]+")
"""Values that Hydra's grammar takes as they are."""
_VARIABLES = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def override(key: str, value: object) -> str:
    """`KEY=VALUE` in Hydra's grammar."""
    text = str(value)
    if not isinstance(value, str | Path) or _PLAIN.fullmatch(text):
        return f"{key}={text}"
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"{key}='{quoted}'"


def command(overrides: Mapping[str, object], changes: Sequence[str]) -> list[str]:
    """What starts verl's `main_ppo` with the included configuration.

    Args:
        changes: further overrides, `KEY=VALUE` each, which go above the others.
    """
    start = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", str(INCLUDED_CONFIGS)]
    return [*start, "--config-name", CONFIG, *_all(overrides, changes)]


def gpus_here() -> int:
    """GPUs of this machine, of which no memory is taken."""
    from torch.cuda import device_count

    return device_count()


def composed(overrides: Mapping[str, object], changes: Sequence[str]) -> dict[str, Any]:
    """The configuration that `command` trains with; values that refer to others are as written.

    Raises:
        ConfigError: a change names a key that verl does not have, or Hydra refuses it.
    """
    known = _composed([override(key, value) for key, value in overrides.items()])
    keys = set(_keys(known))
    groups = {path.name for path in INCLUDED_CONFIGS.iterdir() if path.is_dir()}
    for change in changes:
        key, equals, _ = change.partition("=")
        if not equals and not key.startswith("~"):
            remedy = "write it as in data.train_batch_size=16"
            raise ConfigError(f"no key with a value: {change!r}", key="KEY=VALUE", remedy=remedy)
        if not key.startswith(("+", "~", "hydra.")) and key not in keys | groups:
            (*_, nearest) = ("", *get_close_matches(key, keys, n=1))
            remedy = f"did you mean {nearest!r}?" if nearest else "see verl/trainer/config"
            raise ConfigError(f"verl's configuration has no key {key!r}", key="KEY=VALUE", remedy=remedy)
    return _composed(_all(overrides, changes)) if changes else known


def _all(overrides: Mapping[str, object], changes: Sequence[str]) -> list[str]:
    last = {_key(change): change for change in changes}
    return [*(override(key, value) for key, value in overrides.items() if _key(key) not in last), *last.values()]


def _composed(overrides: Sequence[str]) -> dict[str, Any]:
    searched = override("hydra.searchpath", [f"file://{_verls_configuration()}"])
    with initialize_config_dir(str(INCLUDED_CONFIGS.resolve()), version_base=None):
        try:
            config = compose(
                CONFIG, overrides=[searched, *(each for each in overrides if not each.startswith("hydra."))]
            )
            return cast("dict[str, Any]", OmegaConf.to_container(config))
        except (HydraException, OmegaConfBaseException) as error:
            problem = f"Hydra refuses the configuration: {str(error).splitlines()[0]}"
            raise ConfigError(problem, key="KEY=VALUE", remedy="correct the override") from error


def _verls_configuration() -> Path:
    """Found without importing verl, which takes ten seconds."""
    found = find_spec("verl")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("training needs verl, which is not installed", remedy=install_command("verl"))
    return Path(found.submodule_search_locations[0], "trainer", "config")


def _key(change: str) -> str:
    return change.partition("=")[0].lstrip("+~")


def _keys(section: Any, prefix: str = "") -> Iterator[str]:
    for name, value in section.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{name}.")


@contextmanager
def started(arguments: Sequence[str], log: Path) -> Generator[subprocess.Popen[bytes]]:
    """The running trainer, in a session of its own that ends with the block; its output is added to `log`.

    In a session of its own, since some of Ray's processes outlive verl.
    """
    with ExitStack() as stack:
        output = stack.enter_context(log.open("ab"))
        process = subprocess.Popen(
            arguments,
            env=os.environ | _VARIABLES,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stack.callback(_end, process)
        yield process


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=END_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
