"""What all folders stand on: rules for values, patterns of names, and suggestions of names."""
