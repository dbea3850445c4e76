"""Does this implementation reproduce a file of vectors? One module for each group of families."""
