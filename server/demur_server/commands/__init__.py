"""The commands of analysts and of those who run a collector."""
