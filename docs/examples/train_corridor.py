"""An environment and an algorithm of one's own, trained from Python."""

from __future__ import annotations

from corridor import make_corridor

import parl_mq


def main() -> None:
    """Trains on a short corridor and says how it went."""
    config = parl_mq.RunConfig.model_validate(
        {
            "preset": "own-corridor",
            "environment": {"id": make_corridor, "kwargs": {"length": 6}},
            "algorithm": {"name": "dueling_config:DUELING", "batch_size": 64, "learning_rate": 3e-3},
            "replay": {"buffer_size": 20_000, "learning_starts": 500, "samples_per_insert": 4, "fragment_length": 8},
            "actor": {"num_envs": 16},
            "evaluation": {"every_updates": 200},
            "stop": {"target_return": 0.65, "max_seconds": 60},
        }
    )
    result = parl_mq.train(config)
    print(f"reached {result.eval_return:.2f} after {result.env_steps} steps; see {result.run_dir}")


if __name__ == "__main__":
    main()
