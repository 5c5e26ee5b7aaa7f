// promtool has a module of its own: NSQ needs older versions of what both import.
module gnsqd/tests/peers/promtool

go 1.25.0

require github.com/prometheus/prometheus v0.312.0
