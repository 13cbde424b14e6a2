"""How a training that stops itself ends its program."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

pytestmark = pytest.mark.usefixtures("imported_verl")


def test_a_training_that_stops_itself_has_an_exit_status_of_its_own_and_one_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from hydra.core.utils import JobReturn, JobStatus
    from ray.exceptions import RayTaskError

    from mcp_rollout.rollout.training.void import VoidRun
    from mcp_rollout.rollout.verl.preflight import PreflightCallback

    stopped = RayTaskError("run", "the traceback of another process", VoidRun("three batches taught nothing"))
    job = JobReturn(status=JobStatus.FAILED, _return_value=stopped.as_instanceof_cause())
    with pytest.raises(SystemExit) as ended:
        PreflightCallback().on_job_end(OmegaConf.create(), job)
    assert ended.value.code == 3
    assert capsys.readouterr().err == "error: three batches taught nothing\n"
    for other in (JobReturn(status=JobStatus.COMPLETED, _return_value=None), JobReturn(_return_value=OSError("full"))):
        PreflightCallback().on_job_end(OmegaConf.create(), other)
