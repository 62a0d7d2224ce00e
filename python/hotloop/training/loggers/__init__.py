"""Where a run's values go while it trains: files of its folder, trackers, objects of the user's."""
