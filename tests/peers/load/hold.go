package main

import (
	"sync"
	"sync/atomic"
)

const dialers = 8

// hold opens `consumers` connections that answer heartbeats and do nothing else. With a channel they are subscribed;
// with a count they take that many messages together, RDY each, and never finish them. The line of JSON comes when all
// of that is so.
func hold(o options) (result, error) {
	var found result
	meter := begin(options{})
	numbers := make(chan int, o.consumers)
	for i := 0; i < o.consumers; i++ {
		numbers <- i
	}
	close(numbers)
	var held atomic.Int64
	var waiting sync.WaitGroup
	var reached sync.Once
	full := make(chan struct{})
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	keep := func(c *conn) {
		for {
			if err := c.receive(func(kind uint32, data []byte) {
				if kind == frameMessage && held.Add(1) == int64(o.count) {
					reached.Do(func() { close(full) })
				}
			}); err != nil {
				fail(err)
				return
			}
		}
	}
	waiting.Add(o.consumers)
	for i := 0; i < dialers; i++ {
		go func() {
			for number := range numbers {
				c, err := open(o, number)
				if err != nil {
					fail(err)
					return
				}
				go keep(c)
				waiting.Done()
			}
		}()
	}
	go func() {
		waiting.Wait()
		if o.count == 0 {
			reached.Do(func() { close(full) })
		}
	}()
	select {
	case <-full:
	case err := <-failed:
		return found, err
	}
	meter.read(&found)
	found.Consumed = held.Load()
	if err := print(found); err != nil {
		return found, err
	}
	ended := make(chan struct{})
	go func() { waitForEndOfInput(); close(ended) }()
	select {
	case <-ended:
		return found, nil
	case err := <-failed:
		return found, err
	}
}

func open(o options, number int) (*conn, error) {
	if o.channel == "" {
		return dial(o.tcp, o.connection, small)
	}
	buffer := small
	if o.count > 0 {
		buffer = roomy
	}
	c, err := dialConsumer(o, number, buffer)
	if err != nil {
		return nil, err
	}
	return c.conn, c.ready(o.rdy)
}
