package main

import (
	"sync/atomic"
	"time"
)

// connect opens consumers and closes each at once, `consumers` at a time, as after the restart of a fleet: dial,
// IDENTIFY, SUB, RDY, close. They go on for their time or count.
func connect(o options) (result, error) {
	var found result
	var connected atomic.Int64
	quota := newQuota(o)
	ended := make(chan error, o.consumers)
	meter := begin(o)
	end := time.Now().Add(o.duration)
	for i := 0; i < o.consumers; i++ {
		go func(number int) {
			for time.Now().Before(end) && quota.take(1) > 0 {
				c, err := open(o, number)
				if err == nil {
					err = c.socket.Close()
				}
				if err != nil {
					ended <- err
					return
				}
				connected.Add(1)
			}
			ended <- nil
		}(i)
	}
	for i := 0; i < o.consumers; i++ {
		if err := <-ended; err != nil {
			return found, err
		}
	}
	found.Connected = connected.Load()
	meter.read(&found)
	return found, nil
}
