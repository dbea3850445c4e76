"""The collector: adds up noisy reports and never sees anything else."""
