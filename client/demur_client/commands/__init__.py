"""The commands that need no more than a device's installation."""
