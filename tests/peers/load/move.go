package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	patience = 30 * time.Second // for the last of the published messages
	few      = 64               // consumers that may have large buffers
)

// move publishes, consumes, or does both at once.
//
// Publishers go on for their time or count, and wait for the answers. Consumers alone go on for their time or count.
// Of both at once the time ends when all that was published has been finished, except the last windows: less than an
// output buffer's load waits up to output-buffer-timeout for the next tick, which is not a speed. The rest is waited
// for, too: if it does not come, messages are lost.
func move(o options) (result, error) {
	run := &movement{options: o, done: make(chan struct{}), failed: make(chan error, 1)}
	run.goal.Store(math.MaxInt64)
	if err := run.connect(); err != nil {
		return result{}, err
	}
	if len(run.publishers)+len(run.consumers) == 0 {
		return result{}, errors.New("neither -publishers nor -consumers")
	}
	return run.run()
}

type movement struct {
	options
	publishers                []publisher
	consumers                 []*consumer
	published, consumed, goal atomic.Int64
	reached                   sync.Once
	done                      chan struct{} // closed when `consumed` reaches `goal`
	closing                   atomic.Bool
	failed                    chan error
}

func (m *movement) connect() error {
	buffer := roomy
	if m.options.consumers > few {
		buffer = small
	}
	for i := 0; i < m.options.consumers; i++ {
		c, err := dialConsumer(m.options, i, buffer)
		if err != nil {
			return err
		}
		m.consumers = append(m.consumers, c)
	}
	for i := 0; i < m.options.publishers; i++ {
		p, err := dialPublisher(m.options)
		if err != nil {
			return err
		}
		m.publishers = append(m.publishers, p)
	}
	return nil
}

func (m *movement) run() (result, error) {
	commands := newPool(m.options)
	var found result
	meter := begin(m.options)
	for _, c := range m.consumers {
		go m.consume(c)
	}
	if len(m.publishers) == 0 {
		m.setGoal(int64(m.count))
		if err := m.wait(m.duration); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return found, err
		}
		found.Consumed = m.consumed.Load()
		meter.read(&found)
		m.closing.Store(true)
		return found, nil
	}
	published := make(chan error, len(m.publishers))
	quota := newQuota(m.options)
	end := time.Now().Add(m.duration)
	for i, p := range m.publishers {
		from := &cursor{commands, i * (len(commands.ends) / m.window) / len(m.publishers) * m.window}
		go func(p publisher) { published <- publish(p, from, m.options, end, quota, &m.published) }(p)
	}
	for range m.publishers {
		select {
		case err := <-published:
			if err != nil {
				return found, err
			}
		case err := <-m.failed:
			return found, err
		}
	}
	found.Published = m.published.Load()
	if len(m.consumers) > 0 {
		all := found.Published * int64(m.channels)
		m.setGoal(all - int64(2*m.rdy*len(m.consumers)))
		if err := m.wait(patience + 10*m.duration); err != nil {
			return found, fmt.Errorf("%d of %d messages came: %w", m.consumed.Load(), all, err)
		}
	}
	found.Consumed = m.consumed.Load()
	meter.read(&found)
	if all := found.Published * int64(m.channels); len(m.consumers) > 0 {
		return found, m.waitForRest(all)
	}
	return found, nil
}

// setGoal says how many messages are to be finished; 0 or less is reached already, but a count of 0 means no limit.
func (m *movement) setGoal(count int64) {
	if count == 0 && m.options.publishers == 0 {
		return
	}
	m.goal.Store(count)
	m.look()
}

func (m *movement) look() {
	if m.consumed.Load() >= m.goal.Load() {
		m.reached.Do(func() { close(m.done) })
	}
}

// wait for the goal; os.ErrDeadlineExceeded if it takes longer.
func (m *movement) wait(limit time.Duration) error {
	select {
	case <-m.done:
		return nil
	case err := <-m.failed:
		return err
	case <-time.After(limit):
		return os.ErrDeadlineExceeded
	}
}

func (m *movement) waitForRest(all int64) error {
	for end := time.Now().Add(patience); m.consumed.Load() < all; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("only %d of %d messages came", m.consumed.Load(), all)
		}
	}
	m.closing.Store(true)
	if consumed := m.consumed.Load(); consumed > all {
		return fmt.Errorf("%d messages came where %d were published", consumed, all)
	}
	return nil
}

func (m *movement) consume(c *consumer) {
	err := c.ready(m.rdy)
	for err == nil && !m.closing.Load() {
		var count int
		count, err = c.consume()
		m.consumed.Add(int64(count))
		m.look()
	}
	if err != nil {
		select {
		case m.failed <- err:
		default:
		}
	}
}
