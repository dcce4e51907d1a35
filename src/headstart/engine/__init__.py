"""The engine: scheduler, runner, and the process they live in."""
