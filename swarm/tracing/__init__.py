"""Where the time of one request went, and traces of many.

    traceparent   the W3C header that names a trace and travels with a request
    anatomy       a result's hops as parts of its latency: pure arithmetic
    inside        work inside one hop's run, where that asks others
    otel          spans by OpenTelemetry (extra `otel`): imported by those who switch it on

Nodes add moments to a hop of a sampled request, and nothing else: who asked knows all hops when the
answer comes, and makes the spans of all of them.
"""
