"""Many jobs with one kind of worker: in this process, or over the machines of a Ray cluster."""
