"""Long runs in small: memory after many updates, records that grow by the same amount per epoch."""

import gc
import os
import sys
from pathlib import Path

import pytest

STRESS = Path(__file__).parents[2] / "stress"
WARM_UP, NUM_UPDATES = 50, 200


def memory():
    """Resident memory of this process in MB."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_and_records_over_200_updates(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(STRESS)
    from trpl.presets import preset
    from trpl.runs import records
    from trpl.runs.events import event_writer
    from trpl.runs.trainer import Trainer

    config = preset(
        "kl", "troubles:point-v0", total_steps=32 * 1000, rollout_size=32, minibatch_size=16, policy_epochs=1,
        value_epochs=1, hidden_sizes=(4,), hidden_sizes_vf=(4,), eval_every=5, eval_episodes=1,
    )  # fmt: skip
    sizes = {}

    def size():
        return sum((tmp_path / name).stat().st_size for name in (records.METRICS, records.TIMINGS))

    with Trainer(config, tmp_path) as trainer, event_writer(tmp_path, done=0) as write:
        while trainer.epoch < WARM_UP + NUM_UPDATES:
            trainer.step([write])
            if trainer.epoch % 10 == 0:
                trainer.save()
            if trainer.epoch == WARM_UP:
                before = memory()
            sizes[trainer.epoch] = size()
        grown = memory() - before
    assert grown < 4.0
    halfway = WARM_UP + NUM_UPDATES // 2
    first, second = sizes[halfway] - sizes[WARM_UP], sizes[WARM_UP + NUM_UPDATES] - sizes[halfway]
    assert second == pytest.approx(first, rel=0.05)
    assert len(list((tmp_path / "checkpoints").glob("0*"))) == 2
    assert len(list((tmp_path / "checkpoints").iterdir())) <= 3  # and the best
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    assert "troubles" in sys.modules
