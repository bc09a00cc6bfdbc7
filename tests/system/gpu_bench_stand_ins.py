"""In place of runs and of time, for tests of bench/gpu/run's parts."""

from models import Model

SMALL = Model("small", 3, 64, 4, 32, 257)


def ran(model, batch, speed, **more):
    """What Bench.eps says of a run."""
    return {"tokens_per_step": batch.tokens(model), "tokens_per_second": speed, "model_flops": 1.0, "utilisation": None,
            "device_peak_bytes": 1, "device_outside_bytes": 1, "device_cap_bytes": 8 << 30, "wait_fraction": 0.0,
            "recomputed": 0.0, "step_seconds": 1.0, "steps": 1, "all_step_seconds": [1.0], "losses": [2.0, 1.5],
            "host_planned_bytes": 1, "copies": {}, "pulled_bytes": 1,
            "floors": {"compute": None, "in": None, "out": None, "update": None, "host": None},
            "plan": {"depth_first_blocks": 0, "kept": 1, "swapped": 0, "recomputed": 0, "predicted_seconds": 1.0,
                     "from": "a file", "host_memory_bytes": 0}, **more}


class Clock:
    """In place of a module's `time`: it stands still, but for what is added to it."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now
