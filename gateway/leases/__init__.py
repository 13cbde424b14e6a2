"""Sessions for trajectories: slots, pools of connections, leases, and removal of leftover processes."""
