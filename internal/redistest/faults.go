package redistest

import (
	"bytes"
	"context"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Faults are what may go wrong on the connections of one client. Commands are
// counted by their number of scripts (EVALSHA, EVAL and SET), so that handshakes and
// pings are left alone.
type Faults struct {
	mu          sync.Mutex
	scripts     int // written so far
	bytes       int // written so far
	dropReply   int // the number of the script whose reply is lost
	dropRequest int // the number of the script that is lost
	holdRequest int // the number of the script that is held back
	held        []func()
	delay       time.Duration
	stalled     chan struct{}    // not nil while replies are held back; closed when they go on
	withheld    map[*conn][]byte // what was written while requests are; nil while they are not
	conns       []*conn          // those that have subscribed
	all         []*conn
	network     Dialer // beneath
}

// Dialer makes connections, as redis.Options has it.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

func newFaults() *Faults { return NewFaults(new(net.Dialer).DialContext) }

// NewFaults returns faults for what Dial makes of a network's connections.
func NewFaults(network Dialer) *Faults { return &Faults{network: network} }

// DropReply loses the reply to the n-th script from now: it is carried out, and
// the connection is reset.
func (f *Faults) DropReply(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropReply = f.scripts + n
}

// DropRequest loses the n-th script from now: it is not carried out, and the
// connection is reset.
func (f *Faults) DropRequest(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropRequest = f.scripts + n
}

// HoldRequest holds the n-th script from now back: the connection is reset for the
// client, and the server gets the script at Deliver, as it may from a network that
// had lost touch.
func (f *Faults) HoldRequest(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holdRequest = f.scripts + n
}

// Deliver sends what was held back, waits for the replies, and says how many.
func (f *Faults) Deliver() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.held)
	for _, deliver := range f.held {
		deliver()
	}
	f.held = nil
	return n
}

// Delay holds every reply back for d.
func (f *Faults) Delay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// Stall holds back whatever the server sends, until Resume.
func (f *Faults) Stall() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stalled == nil {
		f.stalled = make(chan struct{})
	}
}

// StallRequests holds back whatever the client sends, until Resume: the client's
// kernel has taken it. What was sent on a connection that has been closed meanwhile
// is lost.
func (f *Faults) StallRequests() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.withheld == nil {
		f.withheld = map[*conn][]byte{}
	}
}

// Resume ends Stall and StallRequests.
func (f *Faults) Resume() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stalled != nil {
		close(f.stalled)
		f.stalled = nil
	}
	for c, p := range f.withheld {
		_, _ = c.Conn.Write(p)
	}
	f.withheld = nil
}

// HalfOpen leaves the connections that have subscribed so far half-open: nothing
// arrives on them any more, and no error either.
func (f *Faults) HalfOpen() {
	f.mu.Lock()
	defer f.mu.Unlock()
	silence(f.conns)
	f.conns = nil
}

// Cut is HalfOpen for all connections. New ones are all right.
func (f *Faults) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	silence(f.all)
	f.conns, f.all = nil, nil
}

func silence(conns []*conn) {
	for _, c := range conns {
		c.mu.Lock()
		c.mute = true
		c.mu.Unlock()
	}
}

// Scripts is how many scripts have been written.
func (f *Faults) Scripts() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.scripts
}

// Bytes is how many bytes have been written, of anything.
func (f *Faults) Bytes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes
}

// Dial makes a connection that has the faults.
func (f *Faults) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := f.network(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	wrapped := &conn{Conn: c, faults: f, closed: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, wrapped)
	return wrapped, nil
}

type conn struct {
	net.Conn
	faults *Faults
	once   sync.Once
	closed chan struct{}

	mu       sync.Mutex
	lose     bool // the next thing read is lost, and the connection with it
	mute     bool // whatever is read is lost
	detached bool // the client sees a reset; the server, an open connection
	deadline time.Time
}

func (c *conn) Write(p []byte) (int, error) {
	scripts := 0
	for _, name := range []string{"evalsha", "eval", "set"} {
		scripts += bytes.Count(p, []byte("\r\n"+name+"\r\n"))
	}
	f := c.faults
	f.mu.Lock()
	f.bytes += len(p)
	before := f.scripts
	f.scripts += scripts
	within := func(n int) bool { return before < n && n <= f.scripts }
	reset, lose := within(f.dropRequest), within(f.dropReply)
	if within(f.holdRequest) {
		f.held = append(f.held, c.detach(bytes.Clone(p)))
		f.mu.Unlock()
		return len(p), nil
	}
	if bytes.Contains(p, []byte("\r\nsubscribe\r\n")) {
		f.conns = append(f.conns, c)
	}
	if f.withheld != nil && !reset {
		f.withheld[c] = append(f.withheld[c], p...)
		f.mu.Unlock()
		return len(p), nil
	}
	f.mu.Unlock()
	if reset {
		_ = c.Close()
		return len(p), nil // the kernel took it; it went no further
	}
	if lose {
		c.mu.Lock()
		c.lose = true
		c.mu.Unlock()
	}
	return c.Conn.Write(p)
}

func (c *conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	detached := c.detached
	c.mu.Unlock()
	if detached {
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	lose, mute := c.lose, c.mute
	c.mu.Unlock()
	switch {
	case err != nil:
		return n, err
	case mute:
		return c.Read(p)
	case lose:
		_ = c.Close()
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	return n, c.hold()
}

// hold waits as Stall and Delay say, within the read deadline.
func (c *conn) hold() error {
	c.faults.mu.Lock()
	stalled, delay := c.faults.stalled, c.faults.delay
	c.faults.mu.Unlock()
	c.mu.Lock()
	deadline := c.deadline
	c.mu.Unlock()
	var expired <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		expired = timer.C
	}
	if stalled == nil {
		if delay == 0 {
			return nil
		}
		over := make(chan struct{})
		timer := time.AfterFunc(delay, func() { close(over) })
		defer timer.Stop()
		stalled = over
	}
	select {
	case <-stalled:
		return nil
	case <-expired:
		return os.ErrDeadlineExceeded
	case <-c.closed:
		return net.ErrClosed
	}
}

func (c *conn) SetDeadline(t time.Time) error {
	c.setRead(t)
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.setRead(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) setRead(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.detached {
		return nil
	}
	return c.Conn.Close()
}

// detach takes the connection from the client, and returns what writes p to the
// server, waits for the reply, and closes it.
func (c *conn) detach(p []byte) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.detached = true
	return func() {
		_ = c.Conn.SetDeadline(time.Time{})
		_, _ = c.Conn.Write(p)
		_, _ = c.Conn.Read(make([]byte, 1024))
		_ = c.Conn.Close()
	}
}
