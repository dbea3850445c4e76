"""Other designs for counting a state again and again, to compare with; for simulation only."""
