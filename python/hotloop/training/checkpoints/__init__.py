"""What a run leaves on disk, and how a later one continues from it."""
