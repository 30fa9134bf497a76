"""A fit that dies in the middle: `python -m training.killed folder epoch`, run by test_checkpoint.py."""

import os
import signal
import sys

import torch

from training.problems import Objective, fitted, rows


def dying_fit(folder: str, deadline: int) -> None:
    """Killed in the middle of the epoch after the `deadline`-th, which nothing can catch."""
    steps = 0
    objective = Objective(dropout=0.3)

    def die(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 4 * deadline + 2:
            os.kill(os.getpid(), signal.SIGKILL)

    objective.encoder.register_forward_pre_hook(lambda module, _: die() if module.training else None)
    fitted(objective=objective, validation=rows(20, seed=9), checkpoint_dir=folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dying_fit(sys.argv[1], int(sys.argv[2]))
