"""Where populations come from: files of people's events."""
