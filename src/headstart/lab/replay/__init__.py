"""What recorded traffic would have hit: with another capacity, block size, index, policy or routing."""
