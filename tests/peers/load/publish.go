package main

import (
	"bytes"
	"fmt"
	"math"
	"math/rand"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	poolBytes    = 1 << 20
	poolCommands = 256 // at most, unless there are more topics
)

// pool is what publishers send, round and round: commands (or HTTP requests) of different bodies, one behind the other.
type pool struct {
	wire []byte
	ends []int // of each command in wire
}

// newPool makes as many commands as come to about a megabyte, at least one for each topic, and whole windows of them.
func newPool(o options) *pool {
	bodies := newBodies(o.size)
	size := len(command(o, o.topic, bodies))
	count := poolBytes / size
	if count > poolCommands {
		count = poolCommands
	}
	if count < 4 {
		count = 4
	}
	if count < o.topics {
		count = o.topics
	}
	count = (count + o.window - 1) / o.window * o.window
	p := &pool{}
	for i := 0; i < count; i++ {
		topic := o.topic
		if o.topics > 1 {
			topic += strconv.Itoa(i % o.topics)
		}
		p.wire = append(p.wire, command(o, topic, bodies)...)
		p.ends = append(p.ends, len(p.wire))
	}
	return p
}

// cursor is where one publisher is in the pool: at the beginning of a window.
type cursor struct {
	*pool
	next int
}

// take gives the next `count` commands: no more than a window, which does not go beyond the end of the pool.
func (c *cursor) take(count int) []byte {
	begin := 0
	if c.next > 0 {
		begin = c.ends[c.next-1]
	}
	wire := c.wire[begin:c.ends[c.next+count-1]]
	c.next = (c.next + count) % len(c.ends)
	return wire
}

// command is one PUB, MPUB or HTTP request.
func command(o options, topic string, body func() []byte) []byte {
	var messages []byte
	for i := 0; i < o.batch; i++ {
		if o.http == "" {
			messages = append(messages, sized(body())...)
		} else {
			messages = append(append(messages, body()...), '\n')
		}
	}
	switch {
	case o.http != "" && o.batch > 0:
		return request("/mpub?topic="+topic, messages)
	case o.http != "":
		return request("/pub?topic="+topic, body())
	case o.batch > 0:
		return append([]byte("MPUB "+topic+"\n"), sized(append(uint32Bytes(o.batch), messages...))...)
	}
	return append([]byte("PUB "+topic+"\n"), sized(body())...)
}

func uint32Bytes(n int) []byte { return []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)} }

// newBodies gives bodies that look like what people publish, JSON of a request.
func newBodies(size int) func() []byte {
	random := rand.New(rand.NewSource(1))
	return func() []byte {
		var body bytes.Buffer
		for body.Len() < size {
			fmt.Fprintf(&body, `{"id":"%016x","user":%d,"path":"/articles/%d/comments","status":%d,"milliseconds":%.3f,`+
				`"agent":"Mozilla/5.0 (X11; Linux x86_64)","session":"%016x"}`, random.Uint64(), random.Intn(1e6),
				random.Intn(1e5), 200+random.Intn(300), random.ExpFloat64()*20, random.Uint64())
		}
		return body.Bytes()[:size]
	}
}

// publisher is a connection that publishes: NSQ's or HTTP.
type publisher interface {
	send(wire []byte) error
	// answers waits for answers; how many commands were taken. A refusal is an error.
	answers() (int, error)
}

func (c *conn) answers() (int, error) {
	taken := 0
	err := c.receive(func(kind uint32, data []byte) {
		if bytes.Equal(data, ok) {
			taken++
		}
	})
	return taken, err
}

func dialPublisher(o options) (publisher, error) {
	if o.http != "" {
		return dialHTTP(o.http)
	}
	return dial(o.tcp, o.connection, small)
}

// quota is how many commands publishers may still send, all together.
type quota struct {
	mutex sync.Mutex
	left  int
}

func newQuota(o options) *quota {
	if o.count == 0 {
		return &quota{left: math.MaxInt}
	}
	return &quota{left: (o.count + o.messages() - 1) / o.messages()}
}

func (q *quota) take(wanted int) int {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	taken := min(wanted, q.left)
	q.left -= taken
	return taken
}

// messages are those of one command.
func (o options) messages() int {
	if o.batch == 0 {
		return 1
	}
	return o.batch
}

// publish writes `window` commands together, waits for the answers to all of them, and so on until the end of its time
// or quota. `published` counts messages.
func publish(to publisher, from *cursor, o options, end time.Time, q *quota, published *atomic.Int64) error {
	for time.Now().Before(end) {
		unanswered := q.take(o.window)
		if unanswered == 0 {
			return nil
		}
		if err := to.send(from.take(unanswered)); err != nil {
			return err
		}
		for unanswered > 0 {
			taken, err := to.answers()
			if err != nil {
				return err
			}
			unanswered -= taken
			published.Add(int64(taken * o.messages()))
		}
	}
	return nil
}
