"""Tries out a device, or a collector, from the other end of the wire, and says which rule holds."""
