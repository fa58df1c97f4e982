"""A small open-loop benchmark: absolute schedule, one record a request, honest figures."""
