// load is the load generator of the benchmarks: publishers and consumers on raw sockets that cost next to nothing, so
// that the daemon is what is measured.
//
// What a publisher sends is made before the measurement; a consumer looks at nothing but ids. Every mode prints one line
// of JSON.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

// options are the flags of all modes; each mode reads the ones that concern it.
type options struct {
	tcp, http, topic, channel string
	publishers, consumers     int
	batch, window, size       int
	topics, channels          int
	rdy, count                int
	rate                      float64
	duration, warmup          time.Duration
	wait                      bool
	connection                settings
}

// result is what is printed; times are seconds.
type result struct {
	Seconds    float64 `json:"seconds"`
	Published  int64   `json:"published"` // messages answered with OK
	Consumed   int64   `json:"consumed"`  // messages finished
	Connected  int64   `json:"connected"` // connections opened and closed
	CPUSeconds float64 `json:"cpu_seconds"`
	P50        float64 `json:"p50"`
	P99        float64 `json:"p99"`
	Longest    float64 `json:"longest"`
}

var modes = map[string]struct {
	help string
	run  func(options) (result, error)
}{
	"move":    {"publish, consume, or both at once, as fast as it goes", move},
	"trip":    {"time PUBs at a given rate, from sending to the answer", trip},
	"hold":    {"keep connections open until stdin ends", hold},
	"connect": {"open consumers and close them, as fast as it goes", connect},
}

func main() {
	mode, known := modes[strings.Join(os.Args[1:min(len(os.Args), 2)], "")]
	if !known {
		fmt.Fprintln(os.Stderr, "usage: load MODE [flags]")
		for name, mode := range modes {
			fmt.Fprintf(os.Stderr, "  %-8s %s\n", name, mode.help)
		}
		os.Exit(2)
	}
	options, err := parse(os.Args[1], os.Args[2:])
	if err == nil {
		var found result
		if found, err = mode.run(options); err == nil && os.Args[1] != "hold" {
			err = print(found)
		}
		if err == nil && options.wait {
			waitForEndOfInput()
		}
	}
	exit(err)
}

func parse(mode string, arguments []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("load "+mode, flag.ExitOnError)
	flags.StringVar(&o.tcp, "tcp", "127.0.0.1:4150", "`address` of the daemon")
	flags.StringVar(&o.http, "http", "", "publish over HTTP to this `address`")
	flags.StringVar(&o.topic, "topic", "load", "`name`; numbers are appended with -topics")
	flags.StringVar(&o.channel, "channel", "", "`name`; numbers are appended with -channels")
	flags.IntVar(&o.publishers, "publishers", 0, "`connections` that publish")
	flags.IntVar(&o.consumers, "consumers", 0, "`connections` that consume, or are held")
	flags.IntVar(&o.batch, "batch", 0, "`messages` in an MPUB; 0 is PUB")
	flags.IntVar(&o.window, "window", 1, "`commands` that a publisher writes together, before it waits for the answers")
	flags.IntVar(&o.size, "size", 200, "`bytes` of a body")
	flags.IntVar(&o.topics, "topics", 1, "`number` of topics to publish to in turn")
	flags.IntVar(&o.channels, "channels", 1, "`number` of channels; consumer n is on number n mod this")
	flags.IntVar(&o.rdy, "rdy", 2500, "`count` of each consumer")
	flags.IntVar(&o.count, "count", 0, "end after this many `messages`, if that is earlier")
	flags.Float64Var(&o.rate, "rate", 500, "`messages` per second that are timed")
	flags.DurationVar(&o.duration, "for", 3*time.Second, "how long to publish, or else consume")
	flags.DurationVar(&o.warmup, "warmup", 0, "how long to run before what is timed counts")
	flags.BoolVar(&o.wait, "wait", false, "once connected, print \"ready\" and wait for a line on stdin; "+
		"stay connected until stdin ends")
	flags.BoolVar(&o.connection.tls, "tls", false, "upgrade connections to TLS")
	flags.BoolVar(&o.connection.deflate, "deflate", false, "compress connections by deflate")
	flags.BoolVar(&o.connection.snappy, "snappy", false, "compress connections by snappy")
	flags.DurationVar(&o.connection.heartbeat, "heartbeat", 0, "`interval`; 0 is the daemon's")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("what is %q?", flags.Arg(0))
	}
	for name, number := range map[string]int{
		"window": o.window, "size": o.size, "topics": o.topics, "channels": o.channels, "rdy": o.rdy,
	} {
		if number < 1 {
			return o, fmt.Errorf("-%s %d is less than 1", name, number)
		}
	}
	if o.rate <= 0 {
		return o, fmt.Errorf("-rate %g is not more than 0", o.rate)
	}
	if o.publishers < 0 || o.consumers < 0 || o.batch < 0 || o.count < 0 {
		return o, fmt.Errorf("a number is less than 0")
	}
	return o, nil
}

// meter measures time, and the processor time of this process.
type meter struct {
	start time.Time
	cpu   float64
}

// begin starts one when all preparations are made, and with -wait on request.
func begin(o options) meter {
	if o.wait {
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 1))
	}
	return meter{time.Now(), cpuSeconds()}
}

// read fills in what passed since the start.
func (m meter) read(into *result) {
	into.Seconds = time.Since(m.start).Seconds()
	into.CPUSeconds = cpuSeconds() - m.cpu
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func print(found result) error { return json.NewEncoder(os.Stdout).Encode(found) }

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func waitForEndOfInput() { _, _ = io.Copy(io.Discard, os.Stdin) }

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}
