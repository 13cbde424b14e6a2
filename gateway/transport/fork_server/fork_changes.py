"""Keep what a program changed in its process before the fork: a spawned process has changed it as well."""

from __future__ import annotations

import os


class Changes:
    """Changes of the environment and the working directory since this was made, which is before the program begins."""

    def __init__(self) -> None:
        self._env, self._cwd = dict(os.environ), os.getcwd()

    def make_again(self, env: dict[str, str], cwd: str) -> None:
        """Give this process `env` and `cwd`, and change both as the program did."""
        written = {name: value for name, value in os.environ.items() if self._env.get(name) != value}
        removed = self._env.keys() - os.environ.keys()
        os.environ.clear()
        os.environ.update({name: value for name, value in env.items() if name not in removed})
        os.environ.update(written)
        if not self._moved():
            os.chdir(cwd)

    def _moved(self) -> bool:
        try:
            return os.getcwd() != self._cwd
        except FileNotFoundError:
            return False  # the directory was removed, and may have been made again
