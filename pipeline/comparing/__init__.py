"""Runs side by side, one run looked at, one repeated; see docs/compare.md."""
