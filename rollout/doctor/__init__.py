"""Are these servers fit to be trained against, and under which scope? Probes, and a report of what they found."""
