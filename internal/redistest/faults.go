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

// Faults causes faults on the connections of one client. Its methods count commands by
// scripts (EVALSHA, EVAL and SET), so handshakes and pings are never hit. It is safe for
// concurrent use.
type Faults struct {
	network Dialer // makes the real connections

	mu          sync.Mutex // guards what follows
	scripts     int        // written so far
	bytes       int        // written so far
	dropReply   int        // the number of the script whose reply is lost
	dropRequest int        // the number of the script that is lost
	holdRequest int        // the number of the script that is held back
	stallFrom   int        // the number of the script whose reply is the first to be held back
	held        []func()   // each delivers a script that is held back
	delay       time.Duration
	largest     int              // replies with more bytes are lost; 0 for none
	stalled     chan struct{}    // not nil while replies are held back; closed at Resume
	withheld    map[*conn][]byte // what was written while requests are held back; else nil
	subscribed  []*conn          // connections that have sent SUBSCRIBE
	all         []*conn
}

// Dialer makes connections, like Dialer of redis.Options.
type Dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

func newFaults() *Faults { return NewFaults(new(net.Dialer).DialContext) }

// NewFaults returns faults for connections that network makes. Use Dial as the client's
// Dialer.
func NewFaults(network Dialer) *Faults { return &Faults{network: network} }

// DropReply loses the reply to the n-th script from now: the server carries the script
// out, and the connection is reset.
func (f *Faults) DropReply(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropReply = f.scripts + n
}

// DropRequest loses the n-th script from now: the server never gets it, and the connection
// is reset.
func (f *Faults) DropRequest(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropRequest = f.scripts + n
}

// HoldRequest holds back the n-th script from now: the client's connection is reset, and
// the server gets the script only at Deliver, as after an interruption of the network.
func (f *Faults) HoldRequest(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holdRequest = f.scripts + n
}

// Deliver sends the scripts that HoldRequest has held back, waits for the replies, and
// returns how many there were.
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

// Delay delays every reply by d. Those of a pipeline come together.
func (f *Faults) Delay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// DropLargeReplies loses what the server sends in packets of more than n bytes, as a
// network does whose packets must be smaller than its ends believe. The connection stays
// silent from then on. With n = 0 later connections have no such fault. It knows the packets
// of BubbleDialer; those of a kernel may be put together or taken apart.
func (f *Faults) DropLargeReplies(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.largest = n
}

// Stall holds back everything that the server sends, until Resume.
func (f *Faults) Stall() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stalled == nil {
		f.stalled = make(chan struct{})
	}
}

// StallFrom is Stall from the n-th script from now on: the server gets that script, and
// the client gets no reply to it.
func (f *Faults) StallFrom(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stallFrom = f.scripts + n
}

// StallRequests holds back everything that the client sends, until Resume. To the client it
// counts as sent. What it has sent on a connection that it closes meanwhile is lost.
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

// HalfOpen makes the connections that have subscribed so far half-open: nothing arrives on
// them any more, not even an error.
func (f *Faults) HalfOpen() {
	f.mu.Lock()
	defer f.mu.Unlock()
	silence(f.subscribed)
	f.subscribed = nil
}

// Cut makes all connections so far half-open. New connections work.
func (f *Faults) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	silence(f.all)
	f.subscribed, f.all = nil, nil
}

// Quiet is Cut, and what the client sends on these connections is lost too.
func (f *Faults) Quiet() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.all {
		c.mu.Lock()
		c.deaf = true
		c.mu.Unlock()
	}
	silence(f.all)
	f.subscribed, f.all = nil, nil
}

func silence(conns []*conn) {
	for _, c := range conns {
		c.mu.Lock()
		c.mute = true
		c.mu.Unlock()
	}
}

// Scripts returns how many scripts the client has written.
func (f *Faults) Scripts() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.scripts
}

// Bytes returns how many bytes the client has written, of all commands.
func (f *Faults) Bytes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes
}

// Dial makes a connection with these faults.
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

// conn is a connection with faults.
type conn struct {
	net.Conn
	faults *Faults
	once   sync.Once // closes closed
	closed chan struct{}

	mu       sync.Mutex // guards what follows
	lose     bool       // the next read resets the connection
	mute     bool       // what the server sends is lost
	deaf     bool       // what the client sends is lost
	detached bool       // the client sees a reset; to the server the connection is open
	deadline time.Time
	wrote    bool      // since the last read
	read     time.Time // when the last read was over
}

func (c *conn) Write(p []byte) (int, error) {
	scripts := 0
	for _, name := range []string{"evalsha", "eval", "set"} {
		scripts += bytes.Count(p, []byte("\r\n"+name+"\r\n"))
	}
	c.mu.Lock()
	c.wrote = true
	deaf := c.deaf
	c.mu.Unlock()
	if deaf {
		return len(p), nil
	}
	f := c.faults
	f.mu.Lock()
	f.bytes += len(p)
	before := f.scripts
	f.scripts += scripts
	within := func(n int) bool { return before < n && n <= f.scripts }
	reset, lose := within(f.dropRequest), within(f.dropReply)
	if within(f.stallFrom) && f.stalled == nil {
		f.stalled = make(chan struct{})
	}
	if within(f.holdRequest) {
		f.held = append(f.held, c.detach(bytes.Clone(p)))
		f.mu.Unlock()
		return len(p), nil
	}
	if bytes.Contains(p, []byte("\r\nsubscribe\r\n")) {
		f.subscribed = append(f.subscribed, c)
	}
	if f.withheld != nil && !reset {
		f.withheld[c] = append(f.withheld[c], p...)
		f.mu.Unlock()
		return len(p), nil
	}
	f.mu.Unlock()
	if reset {
		_ = c.Close()
		return len(p), nil // to the client it counts as sent
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
	c.faults.mu.Lock()
	tooLarge := c.faults.largest > 0 && n > c.faults.largest
	c.faults.mu.Unlock()
	c.mu.Lock()
	c.mute = c.mute || tooLarge
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
	defer c.noteRead()
	if err := c.hold(); err != nil {
		return 0, err // a caller of Read takes what comes beside an error for a reply
	}
	return n, nil
}

// hold waits as long as Stall or Delay require, until the read deadline at most.
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
		if delay == 0 || c.isFurther(delay) {
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

// isFurther reports whether what is read comes with what was read before: the replies of a
// pipeline, all of which were delayed at the same time.
func (c *conn) isFurther(delay time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.wrote && time.Since(c.read) < delay
}

func (c *conn) noteRead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrote, c.read = false, time.Now()
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

// detach takes the connection away from the client. It returns a function that writes p to
// the server, waits for the reply, and closes the connection.
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
