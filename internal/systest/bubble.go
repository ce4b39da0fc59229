package systest

import (
	"context"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// Bubble runs a test on a fake clock (testing/synctest), with a miniredis that lives by
// it. Timing is exact here: what a test measures is what the code waits. It is not
// parallel: it takes a processor, which tests on the real clock would miss. With -short it has one
// only: its goroutines mostly wait for each other, and to wake another processor each time costs a
// fifth of all that such tests take.
func Bubble(t *testing.T, test func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient)) {
	t.Helper()
	if testing.Short() {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		defer func() {
			m.Close()
			time.Sleep(2 * unread)
		}()
		m.ClockTTL(true)
		rdb := BubbleClient(t, BubbleDialer(m))
		defer func() { require.NoError(t, rdb.Close()) }()
		test(t, m, rdb)
	})
}

// BubbleConnections is how many connections a client in a bubble has, 0 for go-redis's default. A
// call that waits for one takes a timer that is kept for the next, in another bubble or in none:
// that ends the process. But a client of many takes an outage for one only after as many failures.
// So a package where some tests make many calls at once has many, in its TestMain.
var BubbleConnections int

// BubbleClient returns a client for use in a bubble. The caller closes it before the
// bubble ends.
func BubbleClient(t *testing.T, dial redistest.Dialer) redis.UniversalClient {
	t.Helper()
	return BubbleClientOf(t, dial, BubbleConnections)
}

// BubbleClientOf is BubbleClient for a client of so many connections.
func BubbleClientOf(t *testing.T, dial redistest.Dialer, connections int) redis.UniversalClient {
	t.Helper()
	return redis.NewClient(&redis.Options{
		PoolSize:                 connections,
		ReadBufferSize:           redistest.Buffers,
		WriteBufferSize:          redistest.Buffers,
		Addr:                     "127.0.0.1:6379", // a literal IP: looking up a name does not work in a bubble
		Dialer:                   dial,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// BubbleLocker returns a Locker for use in a bubble, and the function that closes it,
// which the test calls before the bubble ends.
func BubbleLocker(t *testing.T, rdb redis.UniversalClient, opts ...sluice.LockOption) (*sluice.Locker, func()) {
	t.Helper()
	l, err := sluice.NewLocker(rdb, opts...)
	require.NoError(t, err)
	return l, func() { require.NoError(t, l.Close()) }
}

// BubbleDialer makes connections to m. Like a kernel, and unlike a net.Pipe, they take
// what is written before the other end reads it. Otherwise one client that does not
// read would hold up the whole server, and a long pipeline would block both ends.
func BubbleDialer(m *miniredis.Miniredis) redistest.Dialer {
	return DistantDialer(m, new(atomic.Int64))
}

// DistantDialer is BubbleDialer for a client at a distance: what is sent takes so many ns to the
// server, and back.
func DistantDialer(m *miniredis.Miniredis, way *atomic.Int64) redistest.Dialer {
	return func(context.Context, string, string) (net.Conn, error) {
		server, err := m.Dial()
		if err != nil {
			return nil, err
		}
		client, wire := net.Pipe()
		go carry(server, wire, way)
		go carry(wire, server, way)
		return client, nil
	}
}

// unread is how long what was sent by an end that has closed waits to be read. go-redis
// 9.22 neither reads nor closes a connection whose handshake it has given up.
const unread = time.Minute

// carry copies what is written at one end to the other, until either is closed.
func carry(from, to net.Conn, way *atomic.Int64) {
	type packet struct {
		data []byte
		due  time.Time
	}
	packets := make(chan packet, 1000)
	go func() {
		defer func() { _ = to.Close() }()
		for p := range packets {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(packets)
	for {
		p := make([]byte, 4096)
		n, err := from.Read(p)
		if err != nil {
			_ = to.SetWriteDeadline(time.Now().Add(unread))
			return
		}
		packets <- packet{p[:n], time.Now().Add(time.Duration(way.Load()))}
	}
}
