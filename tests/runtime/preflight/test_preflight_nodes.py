"""What a cluster's nodes say of themselves before the start, seen good and bad; slow: on two real nodes."""
