package main

import "bytes"

// sinkConsumer is the sending side of a subscribed connection. The mutex of the topic is for rdy and inFlight.
type sinkConsumer struct {
	*sinkConn
	channel       *sinkChannel
	rdy, inFlight int64
	bell          chan struct{}
	encoder       encoder
	messages      []byte // very many, as they are
	block         []byte // many, encoded
	size          int    // of a message's frame
}

const (
	manyMessages  = 1024
	blockMessages = 64
)

func (c *sinkConsumer) wake() {
	select {
	case c.bell <- struct{}{}:
	default:
	}
}

// take decides how many messages are sent now, and gives the body they have.
func (c *sinkConsumer) take(body []byte) (int64, []byte) {
	t := c.channel.topic
	t.mutex.Lock()
	defer t.mutex.Unlock()
	count := t.published - c.channel.taken
	if count == 0 {
		c.channel.waiting[c] = true
	}
	if room := c.rdy - c.inFlight; count > room {
		count = room
	}
	if count <= 0 {
		return 0, body
	}
	c.channel.taken += count
	c.inFlight += count
	return count, append(body[:0], t.body...)
}

// pump sends whenever there is something to send and room for it, until the connection fails.
func (c *sinkConsumer) pump() {
	var body []byte
	var count int64
	for range c.bell {
		for {
			if count, body = c.take(body); count == 0 {
				break
			}
			if err := c.deliver(count, body); err != nil {
				return
			}
		}
	}
}

// deliver makes messages only once where they are many: those keep the body that there was then.
func (c *sinkConsumer) deliver(count int64, body []byte) error {
	first := frame(frameMessage, append([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x010123456789abcdef"), body...))
	if count == 1 {
		return c.write(c.encoder.encode(first))
	}
	if c.size != len(first) {
		c.size = len(first)
		c.messages = bytes.Repeat(first, manyMessages)
		c.block = append([]byte(nil), c.encoder.encode(c.messages[:blockMessages*c.size])...)
	}
	for left := int(count); left > 0; {
		var wire []byte
		taken := min(left, manyMessages)
		switch {
		case c.encoder == nil:
			wire = c.messages[:taken*c.size]
		case left >= blockMessages:
			taken, wire = blockMessages, c.block
		default:
			wire = c.encoder.encode(c.messages[:taken*c.size])
		}
		if err := c.write(wire); err != nil {
			return err
		}
		left -= taken
	}
	return nil
}

func (c *sinkConsumer) write(wire []byte) error {
	_, err := c.socket.Write(wire)
	return err
}

func (c *sinkConsumer) ready(count int64) {
	c.channel.topic.mutex.Lock()
	defer c.channel.topic.mutex.Unlock()
	c.rdy = count
}

func (c *sinkConsumer) finish(count int64) {
	c.channel.topic.mutex.Lock()
	defer c.channel.topic.mutex.Unlock()
	c.inFlight -= count
	c.wake()
}
