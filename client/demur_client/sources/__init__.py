"""Where a device's answers come from: its owner's data."""
