package sluicetest

import (
	"net"
	"sync"
)

// dial connects a client to the server by pipes. Like a kernel, and unlike a net.Pipe, the
// connection takes what is written before the other end reads it. Otherwise a long pipeline would
// block both ends: the client writes all of it before it reads a reply. The goroutines end when
// either end is closed; nothing waits for them.
func (s *server) dial() (net.Conn, error) {
	at, err := s.redis.Dial()
	if err != nil {
		return nil, err
	}
	client, wire := net.Pipe()
	go carry(at, wire)
	go carry(wire, at)
	return &connection{client, s.tick}, nil
}

// connection is the client's end.
type connection struct {
	net.Conn
	tick func()
}

func (c *connection) Write(p []byte) (int, error) {
	c.tick()
	return c.Conn.Write(p)
}

// carry copies what is written at one end to the other. It ends, with the goroutine that it starts,
// and closes both, when either is closed. Nothing waits for them.
func carry(from, to net.Conn) {
	b := &buffer{}
	b.filled.L = &b.mu
	go func() {
		defer func() { _ = to.Close() }()
		for p := b.take(); p != nil; p = b.take() {
			if _, err := to.Write(p); err != nil {
				_ = from.Close()
				return
			}
		}
	}()
	for p := make([]byte, 4096); ; {
		n, err := from.Read(p)
		b.put(p[:n], err != nil)
		if err != nil {
			return
		}
	}
}

// buffer is what has been written and not been read.
type buffer struct {
	mu     sync.Mutex // guards what follows
	filled sync.Cond
	bytes  []byte
	closed bool
}

func (b *buffer) put(p []byte, last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes = append(b.bytes, p...)
	b.closed = b.closed || last
	b.filled.Signal()
}

// take waits for bytes, and returns all that there are, or nil if there will be none.
func (b *buffer) take() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.bytes) == 0 && !b.closed {
		b.filled.Wait()
	}
	p := b.bytes
	b.bytes = nil
	return p
}
