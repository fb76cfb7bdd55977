"""What rows are measured on: models and data, made once below .grpo/bench and found there the next time."""
