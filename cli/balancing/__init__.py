"""Which server has which stores: `holdfast move` and `holdfast rebalance`."""
