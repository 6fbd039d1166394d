"""Repeatable measurements of tracked throughput: Tickwork beside its Python peers, on the same servers.

`python3 run.py bench` runs `python -m bench`. Nothing of the product imports this package.
"""
