package main

import (
	"math"
	"sort"
	"time"
)

// trip times PUBs at `rate`, one at a time: from sending to the answer, or from when it should have been sent if the
// answer before came too late for that.
func trip(o options) (result, error) {
	var found result
	c, err := dial(o.tcp, o.connection, small)
	if err != nil {
		return found, err
	}
	from := &cursor{newPool(o), 0}
	meter := begin(o)
	var times []time.Duration
	err = pace(o, func(due time.Time, counts bool) error {
		if err := c.send(from.take(1)); err != nil {
			return err
		}
		for taken := 0; taken == 0; {
			if taken, err = c.answers(); err != nil {
				return err
			}
		}
		found.Published++
		if counts {
			times = append(times, time.Since(due))
		}
		return nil
	})
	meter.read(&found)
	found.percentiles(times)
	return found, err
}

// pace calls `one` at `rate` with the time that counts as its begin: now, or when it was due if the one before took
// longer than that. What falls into the warm-up is called, but does not count.
func pace(o options, one func(due time.Time, counts bool) error) error {
	interval := time.Duration(float64(time.Second) / o.rate)
	start := time.Now()
	for due := start; due.Sub(start) < o.warmup+o.duration; due = due.Add(interval) {
		begin := due
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
			begin = time.Now()
		}
		if err := one(begin, due.Sub(start) >= o.warmup); err != nil {
			return err
		}
	}
	return nil
}

// percentiles by nearest rank.
func (r *result) percentiles(times []time.Duration) {
	if len(times) == 0 {
		return
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	rank := func(share float64) float64 {
		return times[int(math.Ceil(share*float64(len(times))))-1].Seconds()
	}
	r.P50, r.P99, r.Longest = rank(0.50), rank(0.99), rank(1)
}
