"""The steps that bring a database to the schema of today."""
