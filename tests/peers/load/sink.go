package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

// sink serves like nsqd, on the same flags, with all the work left out: messages are counted and not kept, so every
// consumer gets as many as were published, made of the last body. It takes what the benchmarks send, and nothing else.
func sink(arguments []string) error {
	flags := map[string]string{}
	for _, argument := range arguments {
		name, value, _ := strings.Cut(strings.TrimLeft(argument, "-"), "=")
		flags[name] = value
	}
	s := &sinkServer{topics: map[string]*sinkTopic{}}
	if flags["tls-cert"] != "" {
		pair, err := tls.LoadX509KeyPair(flags["tls-cert"], flags["tls-key"])
		if err != nil {
			return err
		}
		s.tls = &tls.Config{Certificates: []tls.Certificate{pair}}
	}
	failed := make(chan error)
	for name, serve := range map[string]func(net.Conn) error{"tcp": s.serveNSQ, "http": s.serveHTTP} {
		listener, err := net.Listen("tcp", flags[name+"-address"])
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "INFO: %s: listening on %s\n", strings.ToUpper(name), listener.Addr())
		go func(serve func(net.Conn) error) { failed <- accept(listener, serve) }(serve)
	}
	return <-failed
}

func accept(listener net.Listener, serve func(net.Conn) error) error {
	for {
		socket, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer socket.Close()
			if err := serve(socket); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				fmt.Fprintf(os.Stderr, "ERROR: %s: %v\n", socket.RemoteAddr(), err)
			}
		}()
	}
}

type sinkServer struct {
	mutex  sync.Mutex
	topics map[string]*sinkTopic
	tls    *tls.Config
}

// sinkTopic counts what was published, and what each channel has given away. Its mutex is for all of that.
type sinkTopic struct {
	mutex     sync.Mutex
	published int64
	body      []byte // the last one
	channels  map[string]*sinkChannel
}

type sinkChannel struct {
	topic   *sinkTopic
	taken   int64
	waiting map[*sinkConsumer]bool // for the next message
}

func (s *sinkServer) topic(name string) *sinkTopic {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	t := s.topics[name]
	if t == nil {
		t = &sinkTopic{channels: map[string]*sinkChannel{}}
		s.topics[name] = t
	}
	return t
}

func (t *sinkTopic) channel(name string) *sinkChannel {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	c := t.channels[name]
	if c == nil {
		c = &sinkChannel{topic: t, waiting: map[*sinkConsumer]bool{}}
		if len(t.channels) > 0 {
			c.taken = t.published // the first channel gets what was there before
		}
		t.channels[name] = c
	}
	return c
}

func (t *sinkTopic) publish(count int, body []byte) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.published += int64(count)
	t.body = append(t.body[:0], body...)
	for _, c := range t.channels {
		for consumer := range c.waiting {
			consumer.wake()
			delete(c.waiting, consumer)
		}
	}
}

func frame(kind uint32, data []byte) []byte {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(data)+4))
	return append(binary.BigEndian.AppendUint32(head, kind), data...)
}

// sinkConn is one connection; `answers` are written when no more commands are at hand.
type sinkConn struct {
	server   *sinkServer
	socket   net.Conn // TLS included
	reader   *bufio.Reader
	upgrades settings
	encoder  encoder
	answers  []byte
	consumer *sinkConsumer
	finished int64    // not yet reported to the consumer
	last     struct { // what the last PUB named
		name  string
		topic *sinkTopic
	}
	body []byte
}

var okFrame = frame(frameResponse, ok)

func (s *sinkServer) serveNSQ(socket net.Conn) error {
	c := &sinkConn{server: s, socket: socket, reader: bufio.NewReaderSize(socket, roomy)}
	if _, err := c.reader.Discard(len("  V2")); err != nil {
		return err
	}
	for {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		if err := c.obey(line[:len(line)-1]); err != nil {
			return err
		}
		if c.reader.Buffered() == 0 {
			if c.consumer != nil {
				c.consumer.finish(c.finished)
				c.finished = 0
			}
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
}

func (c *sinkConn) flush() error {
	if len(c.answers) == 0 {
		return nil
	}
	_, err := c.socket.Write(c.encoder.encode(c.answers))
	c.answers = c.answers[:0]
	return err
}

func (c *sinkConn) obey(line []byte) error {
	if bytes.HasPrefix(line, []byte("FIN ")) && c.consumer != nil {
		c.finished++
		return nil
	}
	words := strings.Fields(string(line))
	switch {
	case len(words) == 1 && words[0] == "IDENTIFY":
		return c.identify()
	case len(words) == 3 && words[0] == "SUB":
		channel := c.server.topic(words[1]).channel(words[2])
		c.consumer = &sinkConsumer{sinkConn: c, channel: channel, bell: make(chan struct{}, 1)}
		c.consumer.encoder = c.upgrades.encoder()
		go c.consumer.pump()
		c.answers = append(c.answers, okFrame...)
	case len(words) == 2 && words[0] == "RDY" && c.consumer != nil:
		count, err := strconv.ParseInt(words[1], 10, 64)
		c.consumer.ready(count)
		return err
	case len(words) == 1 && words[0] == "NOP":
	case len(words) >= 2 && (words[0] == "PUB" || words[0] == "DPUB" || words[0] == "MPUB"):
		return c.publish(words[0] == "MPUB", words[1])
	default:
		return fmt.Errorf("a sink does not know %q", line)
	}
	return nil
}

func (c *sinkConn) publish(many bool, name string) error {
	size, err := c.readSize()
	if err != nil {
		return err
	}
	count := 1
	if many {
		if count, err = c.readSize(); err != nil {
			return err
		}
		rest := size - 4
		if size, err = c.readSize(); err != nil {
			return err
		}
		if err := c.readBody(size); err != nil {
			return err
		}
		if _, err := c.reader.Discard(rest - 4 - size); err != nil {
			return err
		}
	} else if err := c.readBody(size); err != nil {
		return err
	}
	if c.last.topic == nil || c.last.name != name {
		c.last.name, c.last.topic = name, c.server.topic(name)
	}
	c.last.topic.publish(count, c.body)
	c.answers = append(c.answers, okFrame...)
	return nil
}

func (c *sinkConn) readSize() (int, error) {
	head, err := c.reader.Peek(4)
	if err != nil {
		return 0, err
	}
	size := int(binary.BigEndian.Uint32(head))
	_, err = c.reader.Discard(4)
	return size, err
}

func (c *sinkConn) readBody(size int) error {
	if cap(c.body) < size {
		c.body = make([]byte, size)
	}
	c.body = c.body[:size]
	_, err := io.ReadFull(c.reader, c.body)
	return err
}

// identify grants what is asked for, and upgrades.
func (c *sinkConn) identify() error {
	size, err := c.readSize()
	if err != nil {
		return err
	}
	if err := c.readBody(size); err != nil {
		return err
	}
	var wanted struct {
		TLS         bool `json:"tls_v1"`
		Deflate     bool `json:"deflate"`
		Snappy      bool `json:"snappy"`
		Negotiation bool `json:"feature_negotiation"`
	}
	if err := json.Unmarshal(c.body, &wanted); err != nil {
		return err
	}
	wanted.TLS = wanted.TLS && c.server.tls != nil
	answer := ok
	if wanted.Negotiation {
		if answer, err = json.Marshal(wanted); err != nil {
			return err
		}
	}
	c.answers = frame(frameResponse, answer)
	if err := c.flush(); err != nil {
		return err
	}
	if wanted.TLS {
		c.socket = tls.Server(c.socket, c.server.tls)
		c.reader = bufio.NewReaderSize(c.socket, roomy)
		c.answers = append(c.answers, okFrame...)
		if err := c.flush(); err != nil {
			return err
		}
	}
	c.upgrades = settings{deflate: wanted.Deflate, snappy: wanted.Snappy}
	if c.encoder = c.upgrades.encoder(); c.encoder != nil {
		plain, err := c.upgrades.over(c.socket)
		if err != nil {
			return err
		}
		c.reader = bufio.NewReaderSize(plain, roomy)
		c.answers = append(c.answers, okFrame...)
		return c.flush()
	}
	return nil
}
