package main

import (
	"bytes"
	"compress/flate"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/golang/snappy"
)

const (
	frameResponse = 0
	frameError    = 1
	frameMessage  = 2

	roomy = 256 << 10 // bytes that a busy connection receives at once
	small = 4 << 10   // for an idle one
)

var (
	heartbeat = []byte("_heartbeat_")
	ok        = []byte("OK")
)

// settings are what a connection asks for in IDENTIFY.
type settings struct {
	tls, deflate, snappy bool
	heartbeat            time.Duration
}

// conn is a client's connection. One goroutine at a time may use it.
type conn struct {
	socket     net.Conn // TLS included
	reader     io.Reader
	buffer     []byte
	start, end int        // of what was received, but not yet handled
	compressor compressor // nil if nothing is compressed
	compressed bytes.Buffer
}

type compressor interface {
	io.Writer
	Flush() error
}

// dial connects and upgrades. `roomy` or `small` is the size of the buffer.
func dial(address string, s settings, buffer int) (*conn, error) {
	socket, err := net.DialTimeout("tcp", address, 30*time.Second)
	if err != nil {
		return nil, err
	}
	c := &conn{socket: socket, reader: socket, buffer: make([]byte, buffer)}
	wanted := map[string]interface{}{"client_id": "load", "feature_negotiation": true, "user_agent": "load"}
	upgrades := map[string]bool{"tls_v1": s.tls, "deflate": s.deflate, "snappy": s.snappy}
	for name, asked := range upgrades {
		wanted[name] = asked
	}
	if s.heartbeat > 0 {
		wanted["heartbeat_interval"] = s.heartbeat.Milliseconds()
	}
	body, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	if _, err := socket.Write(append([]byte("  V2IDENTIFY\n"), sized(body)...)); err != nil {
		return nil, err
	}
	answer, err := c.answer()
	if err != nil {
		return nil, err
	}
	var given map[string]interface{}
	if err := json.Unmarshal(answer, &given); err != nil {
		return nil, fmt.Errorf("IDENTIFY was answered %q", answer)
	}
	for name, asked := range upgrades {
		if asked && given[name] != true {
			return nil, fmt.Errorf("the daemon does not give %s", name)
		}
	}
	if s.tls {
		c.socket = tls.Client(socket, &tls.Config{InsecureSkipVerify: true})
		c.reader = c.socket
		if err := c.expectOK("TLS"); err != nil {
			return nil, err
		}
	}
	switch {
	case s.deflate:
		c.reader = flate.NewReader(c.socket)
		c.compressor, _ = flate.NewWriter(&c.compressed, flate.DefaultCompression)
	case s.snappy:
		c.reader = snappy.NewReader(c.socket)
		c.compressor = snappy.NewBufferedWriter(&c.compressed)
	}
	if c.compressor != nil {
		return c, c.expectOK("compression")
	}
	return c, nil
}

// answer reads one response frame and not a byte more: what follows may be on another layer.
func (c *conn) answer() ([]byte, error) {
	for {
		var head [8]byte
		if _, err := io.ReadFull(c.reader, head[:]); err != nil {
			return nil, err
		}
		size := int(binary.BigEndian.Uint32(head[:])) - 4
		if size < 0 || size > 1<<20 {
			return nil, fmt.Errorf("the daemon sent %q", head)
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(c.reader, data); err != nil {
			return nil, err
		}
		if kind := binary.BigEndian.Uint32(head[4:]); kind != frameResponse {
			return nil, fmt.Errorf("the daemon sent %q", data)
		}
		if !bytes.Equal(data, heartbeat) {
			return data, nil
		}
	}
}

func (c *conn) expectOK(what string) error {
	data, err := c.answer()
	if err == nil && !bytes.Equal(data, ok) {
		err = fmt.Errorf("%s was answered %q", what, data)
	}
	return err
}

// send writes once, also if it compresses.
func (c *conn) send(wire []byte) error {
	if c.compressor != nil {
		c.compressed.Reset()
		if _, err := c.compressor.Write(wire); err != nil {
			return err
		}
		if err := c.compressor.Flush(); err != nil {
			return err
		}
		wire = c.compressed.Bytes()
	}
	_, err := c.socket.Write(wire)
	return err
}

// subscribe to a channel; nothing comes before RDY.
func (c *conn) subscribe(topic, channel string) error {
	if err := c.send([]byte("SUB " + topic + " " + channel + "\n")); err != nil {
		return err
	}
	return c.expectOK("SUB")
}

// receive reads once and hands on every whole frame, heartbeats aside: those it answers. An error frame is an error.
func (c *conn) receive(handle func(kind uint32, data []byte)) error {
	c.makeRoom()
	n, err := c.reader.Read(c.buffer[c.end:])
	c.end += n
	if err != nil && n == 0 {
		return err
	}
	for c.end-c.start >= 8 {
		size := int(binary.BigEndian.Uint32(c.buffer[c.start:])) + 4
		if c.end-c.start < size {
			break
		}
		frame := c.buffer[c.start : c.start+size]
		c.start += size
		kind, data := binary.BigEndian.Uint32(frame[4:]), frame[8:]
		if kind == frameError {
			return fmt.Errorf("the daemon answered %q", data)
		}
		if kind == frameResponse && bytes.Equal(data, heartbeat) {
			if err := c.send([]byte("NOP\n")); err != nil {
				return err
			}
			continue
		}
		handle(kind, data)
	}
	return nil
}

// makeRoom moves the rest of a frame to the front, and lets the buffer grow for one that is larger.
func (c *conn) makeRoom() {
	if c.start == c.end {
		c.start, c.end = 0, 0
		return
	}
	if len(c.buffer)-c.end >= len(c.buffer)/4 {
		return
	}
	room := c.buffer
	if c.end-c.start > len(room)/2 {
		room = make([]byte, 2*len(room))
	}
	c.end = copy(room, c.buffer[c.start:c.end])
	c.start, c.buffer = 0, room
}

func sized(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}
