"""Make a directory completely or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from mcp_rollout.gateway.errors import not_written


@contextmanager
def new_directory(target: Path) -> Generator[Path]:
    """The absolute path of a directory to fill, which gets the name `target` where the block raises nothing.

    A process that is killed meanwhile leaves a hidden directory beside it, and not half of `target`.

    Raises:
        ConfigError: it cannot be written, or something else has got the name in the meantime.
    """
    missing = [parent for parent in target.absolute().parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(mkdtemp(dir=target.parent.absolute(), prefix=f".{target.name}."))
        try:
            yield partial
            partial.chmod(0o755)
            partial.rename(target)  # fails where the directory has been filled in the meantime
        except BaseException:  # cleanup, also on Ctrl-C
            shutil.rmtree(partial, ignore_errors=True)
            with suppress(OSError):  # something else is in it by now
                for parent in missing:
                    parent.rmdir()
            raise
    except OSError as error:
        raise not_written(error, target, "--out") from error
