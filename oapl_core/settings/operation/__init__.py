"""Settings of how a run is operated: machines, time limits, prices, alarms, secrets."""
