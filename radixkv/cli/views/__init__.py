"""What commands draw in a terminal: trees, tables, plots."""
