"""The command line and what it shows: demo, train, plan, doctor, inspect."""
