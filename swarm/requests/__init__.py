"""The requester's side: admission, attempts, retries, hedges, and the `infer` service."""
