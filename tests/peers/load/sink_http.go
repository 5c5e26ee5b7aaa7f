package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
)

var newline = []byte("\n")

// serveHTTP answers what the benchmarks ask nsqd for, one request after the other. It is written by hand because
// net/http, which nsqd uses, would be as slow as nsqd.
func (s *sinkServer) serveHTTP(socket net.Conn) error {
	reader := bufio.NewReaderSize(socket, roomy)
	var body, answer []byte
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		words := strings.Fields(string(line))
		if len(words) != 3 {
			return fmt.Errorf("no request: %q", line)
		}
		length, err := readHead(reader)
		if err != nil {
			return err
		}
		if cap(body) < length {
			body = make([]byte, length)
		}
		body = body[:length]
		if _, err := io.ReadFull(reader, body); err != nil {
			return err
		}
		status, page := s.answer(words[1], body)
		answer = append(answer[:0], fmt.Sprintf("HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n", status, len(page))...)
		if _, err := socket.Write(append(answer, page...)); err != nil {
			return err
		}
	}
}

// readHead reads the lines up to the empty one; how long the body is.
func readHead(reader *bufio.Reader) (int, error) {
	length := 0
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			return length, nil
		}
		if name, _, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = contentLength(line); err != nil {
				return 0, err
			}
		}
	}
}

func (s *sinkServer) answer(target string, body []byte) (status string, page []byte) {
	path, query, _ := strings.Cut(target, "?")
	if topic := strings.TrimPrefix(query, "topic="); topic != query && !strings.Contains(topic, "&") {
		switch path { // without url.ParseQuery, because they are many
		case "/pub":
			s.topic(topic).publish(1, body)
			return "200 OK", ok
		case "/mpub":
			first, _, _ := bytes.Cut(body, newline)
			s.topic(topic).publish(bytes.Count(body, newline), first)
			return "200 OK", ok
		}
	}
	values, err := url.ParseQuery(query)
	switch {
	case err != nil:
	case path == "/ping":
		return "200 OK", ok
	case path == "/topic/create":
		s.topic(values.Get("topic"))
		return "200 OK", nil
	case path == "/channel/create":
		s.topic(values.Get("topic")).channel(values.Get("channel"))
		return "200 OK", nil
	case path == "/stats":
		page, err = json.Marshal(map[string]interface{}{"topics": []interface{}{s.stats(values.Get("topic"))}})
		if err == nil {
			return "200 OK", page
		}
	}
	return "404 Not Found", nil
}

func (s *sinkServer) stats(name string) map[string]interface{} {
	t := s.topic(name)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	channels := []map[string]interface{}{}
	for name, c := range t.channels {
		channels = append(channels, map[string]interface{}{
			"channel_name": name, "depth": t.published - c.taken, "backend_depth": 0, "in_flight_count": 0,
		})
	}
	return map[string]interface{}{"topic_name": name, "depth": 0, "channels": channels}
}
