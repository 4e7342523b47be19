"""The models of a mesh: manifests, desired state, artifacts, and who may be believed."""
