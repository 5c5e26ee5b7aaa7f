package main

import (
	"encoding/binary"
	"errors"
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
		wire, _ := from.take(1)
		if err := c.sendEncoded(wire); err != nil {
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

// latency times messages at `rate`, from sending to receiving on each channel: the time of sending travels in the body.
// Where they are sent without a buffer, the next message waits for this one, so no queue builds up.
func latency(o options) (result, error) {
	var found result
	if o.size < 8 {
		return found, errors.New("no room for a time in the body")
	}
	o.batch = 0
	from, err := dial(o.tcp, o.connection, small)
	if err != nil {
		return found, err
	}
	consumers := make([]*consumer, o.channels)
	for i := range consumers {
		if consumers[i], err = dialConsumer(o, i, roomy); err != nil {
			return found, err
		}
		if err := consumers[i].ready(o.rdy); err != nil {
			return found, err
		}
	}
	meter := begin(o)
	type receipt struct{ sent, took time.Duration }
	receipts := make(chan receipt, o.channels*(1+int(o.rate*(o.warmup+o.duration).Seconds())))
	failed := make(chan error, o.channels)
	for _, to := range consumers {
		go func(to *consumer) {
			for {
				var foreign error
				_, err := to.consume(func(body []byte) {
					now := time.Since(meter.start)
					var first [8]byte
					copy(first[:], body)
					sent := time.Duration(binary.BigEndian.Uint64(first[:]))
					if foreign != nil || len(body) != o.size || sent < 0 || sent > now {
						foreign = errors.New("a message came that is not ours: was the channel empty?")
						return
					}
					receipts <- receipt{sent, now - sent}
				})
				if err == nil {
					err = foreign
				}
				if err != nil {
					failed <- err
					return
				}
			}
		}(to)
	}
	var times []time.Duration
	receive := func() error {
		for late := time.After(patience); found.Consumed < found.Published*int64(o.channels); found.Consumed++ {
			select {
			case one := <-receipts:
				if one.sent >= o.warmup {
					times = append(times, one.took)
				}
			case err := <-failed:
				return err
			case <-late:
				return errors.New("a message did not come")
			}
		}
		return nil
	}
	plain := command(o, o.topic, newBodies(o.size))
	body := plain[len(plain)-o.size:]
	err = pace(o, func(due time.Time, _ bool) error {
		binary.BigEndian.PutUint64(body, uint64(due.Sub(meter.start)))
		if err := from.send(plain); err != nil {
			return err
		}
		for taken := 0; taken == 0; {
			var err error
			if taken, err = from.answers(); err != nil {
				return err
			}
		}
		found.Published++
		if o.connection.unbuffered {
			return receive()
		}
		return nil
	})
	if err == nil {
		err = receive()
	}
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
