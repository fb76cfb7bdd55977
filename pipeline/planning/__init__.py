"""Before a training: what it will take, and many of them; see docs/training.md."""
