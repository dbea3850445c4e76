"""What a run found: values, files, pictures and text."""
