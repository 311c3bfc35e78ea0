"""The parts that both directions run on, without knowledge of either."""
