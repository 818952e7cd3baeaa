"""A run's copy in an object store: kept while the run works, fetched, and sampled from by other machines."""
