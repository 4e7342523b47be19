"""Guards of models: each request's distance from calibration data, told and counted."""
