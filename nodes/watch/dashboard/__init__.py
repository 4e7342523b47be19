"""`swarm dashboard`: one page that shows a fleet, live, to any number of browsers.

One process, and a NATS client like any other: it hears statuses and events, keeps a view of the
fleet (pure: `page_state` and the modules below it), and sends each change to every browser.
"""
