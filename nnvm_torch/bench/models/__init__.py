"""Where models come from, how their weights are made meaningful, and how fresh inputs are drawn."""
