"""Recording, replay and span export of a training, as its settings say."""

from __future__ import annotations

from contextlib import ExitStack

from gateway.cassette.recording import Recorder
from rollout.engines.recorded import RecordedTraces
from rollout.process import export_spans
from rollout.trace.reader import Traces
from rollout.training.gateways import Gateways
from rollout.training.settings import TrainingSettings


class Recordings:
    """Lets the gateways that are opened later record or replay as the settings say.

    Raises:
        ConfigError: a cassette or a directory of traces cannot be read, or the directory of a recording be written.
    """

    def __init__(self, settings: TrainingSettings, gateways: Gateways) -> None:
        self._exits = ExitStack()
        if settings.otel:
            self._exits.callback(export_spans(key=f"{settings.key}.otel"))
        stored = settings.recorded_engine
        self.engine = None if stored is None else RecordedTraces(self._exits.enter_context(Traces(stored)))
        """Stored trajectories that are played in place of the inference server's model."""
        gateways.replay = settings.opened_replay()
        if settings.record is not None:
            gateways.record = Recorder(settings.record, in_directory=True, key=f"{settings.key}.record")

    def close(self) -> None:
        """Send the last spans, and close the files of stored traces. The gateways close their recording."""
        self._exits.close()
