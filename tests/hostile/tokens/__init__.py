"""Hostile holders of tokens beside the hostile tenant: `make hostile TOKENS=1`.

A client for each kind of token (`holders.py`) sends everything to every subject that it can name
(`attempts.py`), in the cluster that `holdfast up --auth` composes. What a token does not allow must
change nothing and disclose nothing of a tenant whose stores are filled with marks (`office.py`).
"""
