"""What verl's queue receives of a trajectory is what its archive holds, position by position.

tests/rollout/verl/test_strategies_training.py compares what the trainer took out of the queue again.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from random_traces import traces
from trace_samples import archived, read_file

from mcp_rollout.rollout.trace.record import Trace

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

EXAMPLES = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


@EXAMPLES
@given(traces())
def test_verl_receives_the_archived_ids_masks_and_log_probabilities(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace
) -> None:
    """Trajectories of one sample and of several (`drop_previous`), with and without log-probabilities."""
    import torch

    from mcp_rollout.rollout.verl.output import SEGMENT_KEY, TRACE_KEY, to_outputs

    assume(any(segment.turns_sampled for segment in (*trace.earlier, trace)))
    for segment in (*trace.earlier, trace):
        segment.images = 0  # verl receives images as pictures, which the made-up ones are not
    (kept,) = read_file(archived(tmp_path_factory.getbasetemp(), "one", [trace]))
    segments = [*kept.earlier, kept]
    for output in to_outputs(trace, ()):
        received = output.as_dict()
        assert output.extra_fields[TRACE_KEY] == kept.id
        segment = segments[output.extra_fields[SEGMENT_KEY]]
        assert received["prompts"].tolist() == segment.prompt_ids
        assert received["responses"].tolist() == segment.response_ids
        assert received["response_mask"].tolist() == segment.loss_mask
        if kept.has_logprobs:
            assert torch.equal(received["rollout_log_probs"], torch.tensor(segment.logprobs, dtype=torch.float32))
        else:
            assert "rollout_log_probs" not in received
