"""What a guarantee costs and what it is worth: conversions, calibration, intervals."""
