"""People, time, seeds and processes: whole populations on one machine."""
