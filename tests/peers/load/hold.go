package main

import "sync"

const dialers = 8

// hold opens `consumers` connections that answer heartbeats and do nothing else. With a channel they are subscribed. The
// line of JSON comes when all are open.
func hold(o options) (result, error) {
	var found result
	meter := begin(options{})
	numbers := make(chan int, o.consumers)
	for i := 0; i < o.consumers; i++ {
		numbers <- i
	}
	close(numbers)
	failed := make(chan error, o.consumers)
	var waiting sync.WaitGroup
	waiting.Add(o.consumers)
	for i := 0; i < dialers; i++ {
		go func() {
			for number := range numbers {
				c, err := open(o, number)
				if err != nil {
					failed <- err
					return
				}
				go func() { failed <- keep(c) }()
				waiting.Done()
			}
		}()
	}
	all := make(chan struct{})
	go func() { waiting.Wait(); close(all) }()
	select {
	case <-all:
	case err := <-failed:
		return found, err
	}
	meter.read(&found)
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

// keep reads, and answers heartbeats, until the connection fails.
func keep(c *conn) error {
	for {
		if err := c.receive(func(kind uint32, data []byte) {}); err != nil {
			return err
		}
	}
}

func open(o options, number int) (*conn, error) {
	if o.channel == "" {
		return dial(o.tcp, o.connection, small)
	}
	c, err := dialConsumer(o, number, small)
	if err != nil {
		return nil, err
	}
	return c.conn, c.ready(o.rdy)
}
