package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// far returns the scenarios on a server that is not on this machine: one name 20 ms away, with 64
// goroutines of one process and of two; and a worker 1 ms away, as between two zones of a cloud.
func far() []scenario {
	one, pair := hot(1), procs()
	one.name, pair.name = "far-20", "far-pair-20"
	pair.about = "2 processes of 32 goroutines on one name"
	pair.turn = crowds{processes: 2, size: 32}.turn
	all := []scenario{one, pair}
	for i := range all {
		all[i].about += ", 20 ms of round trip"
		all[i].entries, all[i].roundTrip = enter(sluiceName, "rueidislock"), 20*time.Millisecond
	}
	zones := work(64, 20_000) // asynq takes one task a round trip
	zones.name, zones.about = "work-64-1ms", zones.about+", 1 ms of round trip"
	zones.headline += ", with the server 1 ms away"
	zones.entries, zones.roundTrip = enterQueues(sluiceName, asynqName, bullName), time.Millisecond
	return append(all, zones)
}

// away returns the address of a proxy through which addr is a round trip away. stop ends it.
func away(addr string, roundTrip time.Duration) (proxy string, stop func(), err error) {
	if roundTrip == 0 {
		return addr, func() {}, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("a proxy that delays: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", addr)
			if err != nil {
				_ = c.Close()
				continue
			}
			context.AfterFunc(ctx, func() { _, _ = c.Close(), server.Close() })
			go delay(server, c, roundTrip) // all of it on the way there, as each sleep ends late
			go delay(c, server, 0)
		}
	}()
	return l.Addr().String(), func() { cancel(); _ = l.Close() }, nil
}

// delay copies what is read to where it is written, each part so much later. What follows
// does not wait for what is under way.
func delay(to io.WriteCloser, from io.Reader, by time.Duration) {
	type packet struct {
		due   time.Time
		bytes []byte
	}
	packets := make(chan packet, 10_000)
	go func() {
		defer func() { _ = to.Close() }()
		for p := range packets {
			if wait := time.Until(p.due); wait > 0 {
				sleepExactly(wait)
			}
			if _, err := to.Write(p.bytes); err != nil {
				break
			}
		}
		for range packets { // until the reader ends, which the other direction's end makes it do
		}
	}()
	defer close(packets)
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		packets <- packet{time.Now().Add(by), slices.Clone(buffer[:n])}
	}
}
