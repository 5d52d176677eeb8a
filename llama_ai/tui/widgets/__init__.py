"""One widget a file. A widget turns what is shown into lines; it decides nothing."""
