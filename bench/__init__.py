"""Measurements against what a person would run instead: `python -m bench [NAME...]`, or `make bench` for all.

`rows/` says what is compared, one module a row; `peers/` and `ours/` hold the programs, each a process of its own that
a reader can run by hand; `measuring` runs them in alternation, `results` keeps the JSON, `rendering` turns the JSON
into README.md and plots. Nothing here is a test, and nothing in the pipeline imports it.
"""
