package main

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"time"
)

// httpConn is a connection that is kept alive, with one request at a time.
type httpConn struct {
	socket net.Conn
	buffer [small]byte
	end    int
}

func dialHTTP(address string) (*httpConn, error) {
	socket, err := net.DialTimeout("tcp", address, 30*time.Second)
	return &httpConn{socket: socket}, err
}

func request(target string, body []byte) []byte {
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: load\r\nContent-Length: %d\r\n\r\n", target, len(body))
	return append([]byte(head), body...)
}

func (c *httpConn) send(wire []byte) error {
	_, err := c.socket.Write(wire)
	return err
}

var endOfHead = []byte("\r\n\r\n")

// answers reads one response; anything but a 200 is an error.
func (c *httpConn) answers() (int, error) {
	for {
		n, err := c.socket.Read(c.buffer[c.end:])
		if err != nil {
			return 0, err
		}
		c.end += n
		received := c.buffer[:c.end]
		head := bytes.Index(received, endOfHead)
		if head < 0 {
			if c.end == len(c.buffer) {
				return 0, fmt.Errorf("a response with too long a head: %q...", received[:100])
			}
			continue
		}
		if !bytes.HasPrefix(received, []byte("HTTP/1.1 200 ")) {
			return 0, fmt.Errorf("the daemon answered %q", received)
		}
		length, err := contentLength(received[:head])
		if err != nil {
			return 0, err
		}
		if size := head + len(endOfHead) + length; size <= c.end {
			c.end = copy(c.buffer[:], received[size:])
			return 1, nil
		}
	}
}

func contentLength(head []byte) (int, error) {
	for _, line := range bytes.Split(head, []byte("\r\n")) {
		name, value, found := bytes.Cut(line, []byte(":"))
		if found && bytes.EqualFold(name, []byte("Content-Length")) {
			return strconv.Atoi(string(bytes.TrimSpace(value)))
		}
	}
	return 0, fmt.Errorf("no Content-Length in %q", head)
}
