"""What every system must do, on a tiny store, whatever its method."""
