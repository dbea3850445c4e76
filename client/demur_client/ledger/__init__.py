"""Where a device keeps what it must never forget: what it has spent, and what it has said."""
