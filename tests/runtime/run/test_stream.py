"""The stream brings what collating in this process brings, in order, from any step, for any number of workers."""
