package virtualtime

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// subscriber is the connection on which a process has subscribed, as the network sees it.
type subscriber struct {
	mu   sync.Mutex // guards conn
	conn net.Conn
}

// dialer makes connections, and notes the one that subscribes.
func (s *subscriber) dialer(dial redistest.Dialer) redistest.Dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return &noted{c, s}, err
	}
}

type noted struct {
	net.Conn
	by *subscriber
}

func (c *noted) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("\r\nsubscribe\r\n")) {
		c.by.mu.Lock()
		c.by.conn = c.Conn
		c.by.mu.Unlock()
	}
	return c.Conn.Write(p)
}

// forget has the server forget the subscription.
func (s *subscriber) forget(t *testing.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.conn.Write([]byte("*1\r\n$11\r\nUNSUBSCRIBE\r\n"))
	require.NoError(t, err)
}

// TestLine_AForgottenSubscriptionIsMadeAnew: the server has forgotten the subscription of a
// process, or a failover has left it with another server, and the process is not told. It joins the
// line again within a retry interval and the two seconds that a connection may owe an answer,
// although each of its polls finds the lock held.
func TestLine_AForgottenSubscriptionIsMadeAnew(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		const interval = time.Second
		f, end := newFleet(t, m, 1, sluice.WithTTL(time.Hour))
		defer end()
		k := f.hold(0)
		of := &subscriber{}
		faults := redistest.NewFaults(of.dialer(systest.BubbleDialer(m)))
		theirs := systest.BubbleClient(t, faults.Dial)
		defer func() { _ = theirs.Close() }()
		waiter, closeIt := systest.BubbleLocker(t, theirs, sluice.WithRetryInterval(interval))
		defer closeIt()
		got := make(chan error)
		go func() { _, err := waiter.Lock(context.Background(), "a"); got <- err }()
		synctest.Wait()
		require.Equal(t, 1, f.waiting())

		faults.HalfOpen()
		of.forget(t)
		m.Del(lineKey) // or a release has skipped it
		time.Sleep(interval + 2*time.Second + 100*time.Millisecond)
		synctest.Wait()
		require.Equal(t, 1, f.waiting(), "it is out of line for good")
		f.release(k)
		released := time.Now()
		require.NoError(t, <-got)
		require.Zero(t, time.Since(released))
	})
}
