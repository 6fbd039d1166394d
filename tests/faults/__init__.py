"""Fault injection: `python -m tests.faults` runs load on the distributed mode, breaks every part of it in a seeded
random order, and checks afterwards that every due run happened, once, and that every failure is seen and explained.
"""
