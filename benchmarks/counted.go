package main

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/stats"
)

// counted is a connection that counts the commands which a client sends to Redis. The server cannot
// count them: `INFO commandstats` and total_commands_processed include the commands that scripts
// run, and a script may run the same commands as a client.
type counted struct {
	*net.TCPConn // as a client may ask for its file descriptor
	commands     commandCounter
	sent         *atomic.Int64
}

// dialCounted opens a connection that adds to sent.
func dialCounted(ctx context.Context, addr string, sent *atomic.Int64) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second} // go-redis's default
	c, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &counted{TCPConn: c.(*net.TCPConn), sent: sent}, nil
}

func (c *counted) Write(b []byte) (int, error) {
	c.sent.Add(c.commands.count(b))
	return c.TCPConn.Write(b)
}

// commandCounter counts the commands in what a client of Redis writes, wherever the writes cut it.
type commandCounter struct {
	skip   int    // bytes of an argument that are still to come
	header []byte // the part of a header that has come
}

func (c *commandCounter) count(b []byte) (commands int64) {
	for len(b) > 0 {
		if c.skip > 0 {
			n := min(c.skip, len(b))
			c.skip, b = c.skip-n, b[n:]
			continue
		}
		part, rest, complete := bytes.Cut(b, []byte("\n"))
		c.header, b = append(c.header, part...), rest
		if complete {
			commands += c.readHeader()
		}
	}
	return commands
}

// readHeader takes a header that is complete except for its LF. It returns 1 if a command begins
// with it.
func (c *commandCounter) readHeader() (commands int64) {
	header := bytes.TrimSuffix(c.header, []byte("\r"))
	c.header = c.header[:0]
	if size, isArgument := bytes.CutPrefix(header, []byte("$")); isArgument {
		n, _ := strconv.Atoi(string(size))
		c.skip = n + len("\r\n")
	}
	if bytes.HasPrefix(header, []byte("*")) {
		return 1
	}
	return 0
}

// countedCalls counts the messages which a client sends by gRPC: calls, and what it writes to a
// stream.
type countedCalls struct{ sent *atomic.Int64 }

func (c countedCalls) HandleRPC(_ context.Context, event stats.RPCStats) {
	if _, ok := event.(*stats.OutPayload); ok {
		c.sent.Add(1)
	}
}

func (countedCalls) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (countedCalls) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (countedCalls) HandleConn(context.Context, stats.ConnStats)                       {}
