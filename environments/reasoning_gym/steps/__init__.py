"""The puzzles that are played move by move."""
