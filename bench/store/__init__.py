"""The engine alone, idle stores, large values, fairness, threads."""
