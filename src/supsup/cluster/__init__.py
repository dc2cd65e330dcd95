"""Many workers for one model: groups of tasks go out, part files come back, each is committed as it arrives."""
