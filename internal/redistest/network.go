package redistest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Network is hosts on loopback and the links between them, each of which can be cut in one
// direction or both. A host has two addresses: its own, to which its servers bind and from which
// all that it does comes, and one that the others know, where a proxy stands. A proxy tells by the
// address of its client between which hosts a connection is. It is safe for concurrent use.
//
// A link that is cut loses nothing and tells neither end: what was sent arrives after Heal, as what
// TCP sends again, also if the sender has closed the connection by then. A connection that is made
// meanwhile waits. What is on its way at the cut may still arrive. A link that refuses resets its
// connections. Unlike a real network, one that is cut in one direction carries all of the other,
// where the acknowledgements of TCP would be missing after a while.
type Network struct {
	prefix string // of all addresses, three of the four numbers

	mu        sync.Mutex // guards what follows
	cut       map[link]bool
	refused   map[link]bool
	changed   chan struct{} // closed at the next change
	closed    bool
	listeners []net.Listener
	open      map[net.Conn]link // the link that has the connection's input
	running   sync.WaitGroup    // what the proxies do
}

// link is one direction between two hosts.
type link struct{ from, to int }

// known is how much larger the last number of the address is that other hosts know.
const known = 100

func newNetwork() *Network {
	return &Network{
		prefix: fmt.Sprintf("127.%d.%d.", 64+rand.IntN(128), rand.IntN(256)),
		cut:    map[link]bool{}, refused: map[link]bool{}, changed: make(chan struct{}), open: map[net.Conn]link{},
	}
}

// own returns a host's own address. Without a network all hosts are one.
func (n *Network) own(host int) string {
	if n == nil {
		return "127.0.0.1"
	}
	return n.prefix + strconv.Itoa(host)
}

// public returns the address of a host that others know.
func (n *Network) public(host int) string {
	if n == nil {
		return "127.0.0.1"
	}
	return n.own(host + known)
}

// hostOf returns the host that has an address.
func (n *Network) hostOf(addr string) int {
	ip, _, _ := net.SplitHostPort(addr)
	host, _ := strconv.Atoi(strings.TrimPrefix(ip, n.prefix))
	if host > known {
		host -= known
	}
	return host
}

// settings returns what makes a server that of a host, with more of it. There is nothing to set
// without a network.
func (n *Network) settings(host int, more ...string) []string {
	if n == nil {
		return nil
	}
	return append([]string{"--bind", n.own(host), "--bind-source-addr", n.own(host), "--protected-mode", "no"}, more...)
}

// introduce has the servers, each on its host, know by which address the others know them.
func (n *Network) introduce(servers []*Server) {
	for host, s := range servers {
		s.known = net.JoinHostPort(n.public(host), s.port())
	}
}

// listen starts the proxy in front of a host's port, until close, which waits for it to end.
func (n *Network) listen(host, port int) error {
	if n == nil {
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(n.public(host), strconv.Itoa(port)))
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners = append(n.listeners, l)
	n.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.running.Go(func() { n.serve(c.(*net.TCPConn), host, port) })
		}
	})
	return nil
}

// serve connects a client with a host's port, when the link between them lets packets pass in both
// directions, and waits until both directions have ended.
func (n *Network) serve(client *net.TCPConn, host, port int) {
	from := n.hostOf(client.RemoteAddr().String())
	there, back := link{from, host}, link{host, from}
	if !n.begin(client, there) {
		return
	}
	defer n.end(client)
	if n.await(context.Background(), there, back) != nil {
		return
	}
	c, err := net.Dial("tcp", net.JoinHostPort(n.own(host), strconv.Itoa(port)))
	if err != nil {
		return
	}
	server := c.(*net.TCPConn)
	if !n.begin(server, back) {
		return
	}
	defer n.end(server)
	var answers sync.WaitGroup
	answers.Go(func() { n.carry(back, server, client) })
	n.carry(there, client, server)
	answers.Wait()
}

// begin notes a connection, unless it is closed at once: that of a link that refuses, or of a
// network that has ended.
func (n *Network) begin(c *net.TCPConn, l link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.refused[l] {
		reset(c)
		return false
	}
	n.open[c] = l
	return true
}

// end resets a connection: where both sides have closed it that changes nothing.
func (n *Network) end(c *net.TCPConn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.open, c)
	reset(c)
}

func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// carry brings what comes in one direction, until its sender has closed it or the link refuses.
func (n *Network) carry(l link, from, to *net.TCPConn) {
	packet := make([]byte, 16<<10)
	for {
		size, err := from.Read(packet)
		if n.await(context.Background(), l) != nil {
			return
		}
		if _, failed := to.Write(packet[:size]); cmp.Or(err, failed) != nil {
			_ = to.CloseWrite()
			return
		}
	}
}

// await waits until no link is cut. It returns an error if one refuses, or if ctx ends.
func (n *Network) await(ctx context.Context, links ...link) error {
	for {
		n.mu.Lock()
		isCut, changed := false, n.changed
		for _, l := range links {
			if n.closed || n.refused[l] {
				n.mu.Unlock()
				return syscall.ECONNREFUSED
			}
			isCut = isCut || n.cut[l]
		}
		n.mu.Unlock()
		if !isCut {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return os.ErrDeadlineExceeded
		}
	}
}

// Dialer returns what connects from a host to the addresses that others know.
func (n *Network) Dialer(host int) Dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		to := n.hostOf(addr)
		if err := n.await(ctx, link{host, to}, link{to, host}); err != nil {
			return nil, &net.OpError{Op: "dial", Net: network, Err: err}
		}
		own := &net.TCPAddr{IP: net.ParseIP(n.own(host))}
		return (&net.Dialer{LocalAddr: own}).DialContext(ctx, network, addr)
	}
}

// Cut holds back what goes from one host to another.
func (n *Network) Cut(from, to int) { n.change(func() { n.cut[link{from, to}] = true }) }

// Refuse has the connections between two hosts reset, and new ones refused.
func (n *Network) Refuse(a, b int) {
	n.change(func() {
		n.refused[link{a, b}], n.refused[link{b, a}] = true, true
		for c, l := range n.open {
			if n.refused[l] {
				reset(c)
			}
		}
	})
}

// Heal ends all that Cut and Refuse have begun.
func (n *Network) Heal() { n.change(func() { clear(n.cut); clear(n.refused) }) }

func (n *Network) change(what func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	what()
	close(n.changed)
	n.changed = make(chan struct{})
}

// close ends all proxies and their connections, and waits for that.
func (n *Network) close() error {
	var errs []error
	n.change(func() {
		n.closed = true
		for _, l := range n.listeners {
			errs = append(errs, l.Close())
		}
		for c := range n.open {
			reset(c)
		}
	})
	n.running.Wait()
	return errors.Join(errs...)
}
