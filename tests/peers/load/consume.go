package main

import "strconv"

const idBegin, idEnd = 10, 26 // in a message frame's data: timestamp, attempts, id

// consumer finishes messages as they come: those of a read together.
type consumer struct {
	*conn
	finishes []byte
}

func dialConsumer(o options, number, buffer int) (*consumer, error) {
	c, err := dial(o.tcp, o.connection, buffer)
	if err != nil {
		return nil, err
	}
	channel := o.channel
	if o.channels > 1 {
		channel += strconv.Itoa(number % o.channels)
	}
	topic := o.topic
	if o.topics > 1 {
		topic += strconv.Itoa(number % o.topics)
	}
	return &consumer{conn: c}, c.subscribe(topic, channel)
}

func (c *consumer) ready(count int) error { return c.send([]byte("RDY " + strconv.Itoa(count) + "\n")) }

// consume receives once and finishes what came; how many messages.
func (c *consumer) consume() (int, error) {
	c.finishes = c.finishes[:0]
	count := 0
	err := c.receive(func(kind uint32, data []byte) {
		if kind != frameMessage {
			return
		}
		c.finishes = append(c.finishes, "FIN "...)
		c.finishes = append(c.finishes, data[idBegin:idEnd]...)
		c.finishes = append(c.finishes, '\n')
		count++
	})
	if err == nil && count > 0 {
		err = c.send(c.finishes)
	}
	return count, err
}
