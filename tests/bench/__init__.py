"""Measurements: ``make bench``. Nothing here is a test; figures go to docs/benchmarks.md."""
