"""Faults that a correct asynchronous run can be given, for tests of the check that finds them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

from async_check import AsyncRun, turns_of


def _interrupted(run: AsyncRun) -> dict[str, Any]:
    trained = {row["trace"] for row in run.trained if row["dropped"] is None}
    traces = (trace for trace in run.traces if trace["id"] in trained)
    return next(turn for trace in traces for turn in trace["turns"] if len(turn["attempts"]) > 1)


def _stale(run: AsyncRun) -> dict[str, Any]:
    return next(row for row in run.trained if row["dropped"] is None and min(row["versions"]) > 0)


def _version_of_a_token(run: AsyncRun) -> None:
    _stale(run)["versions"][0] -= 1


def _versions_of_a_sample(run: AsyncRun) -> None:
    row = _stale(run)
    row["versions"] = [version - 1 for version in row["versions"]]


def _version_of_an_attempt(run: AsyncRun) -> None:
    _interrupted(run)["attempts"][0]["weights_version"] += 1


def _lost_attempt(run: AsyncRun) -> None:
    del _interrupted(run)["attempts"][0]


def _token_of_the_next_attempt(run: AsyncRun) -> None:
    first, second, *_ = _interrupted(run)["attempts"]
    first["tokens"], second["tokens"] = first["tokens"] + 1, second["tokens"] - 1


def seed_used_twice(run: AsyncRun) -> None:
    one, other, *_ = turns_of(run)
    one["seeds"] = other["seeds"]


def _lost_turn(run: AsyncRun) -> None:
    trace = next(trace for trace in run.traces if len(trace["turns"]) > 1 and not trace["origin"]["validate"])
    del trace["turns"][-1]


def _trained(run: AsyncRun) -> tuple[dict[str, Any], dict[str, Any]]:
    row = next(row for row in run.trained if row["dropped"] is None)
    return row, next(trace for trace in run.traces if trace["id"] == row["trace"])


def _log_probability(run: AsyncRun) -> None:
    row, _ = _trained(run)
    row["sampled_logprobs"][-1] += 1e-4


def _sampled_id(run: AsyncRun) -> None:
    row, trace = _trained(run)
    trace["response_ids"][row["mask"].index(True)] += 1


def _trained_twice(run: AsyncRun) -> None:
    row, _ = _trained(run)
    run.trained.append({**row, "step": row["step"] + 1})


def _withdrawn_and_trained(run: AsyncRun) -> None:
    _, trace = _trained(run)
    trace["stop_reason"] = "failed"


def _masked_token(run: AsyncRun) -> None:
    _, trace = _trained(run)
    trace["loss_mask"][trace["loss_mask"].index(1)] = 0


def _lost_trace(run: AsyncRun) -> None:
    row, _ = _trained(run)
    run.traces = [trace for trace in run.traces if trace["id"] != row["trace"]]


def _neither_trained_nor_dropped(run: AsyncRun) -> None:
    row = next(row for row in run.trained if row["step"] == 1)
    run.trained = [each for each in run.trained if each["trace"] != row["trace"]]


Fault = Callable[[AsyncRun], None]
FAULTS: list[Fault] = [
    _version_of_a_token,
    _versions_of_a_sample,
    _version_of_an_attempt,
    _lost_attempt,
    _token_of_the_next_attempt,
    seed_used_twice,
    _lost_turn,
    _log_probability,
    _sampled_id,
    _trained_twice,
    _withdrawn_and_trained,
    _masked_token,
    _lost_trace,
    _neither_trained_nor_dropped,
]


def broken(run: AsyncRun, fault: Fault) -> AsyncRun:
    """A copy of a run, with a fault."""
    changed = replace(run, traces=deepcopy(run.traces), trained=deepcopy(run.trained))
    fault(changed)
    return changed
