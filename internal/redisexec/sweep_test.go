package redisexec

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// quietConn loses what is sent on it, once it is quiet, and counts that.
type quietConn struct {
	net.Conn
	isQuiet *atomic.Bool
	lost    *atomic.Int64
}

func (c quietConn) Write(p []byte) (int, error) {
	if !c.isQuiet.Load() {
		return c.Conn.Write(p)
	}
	c.lost.Add(1)
	return len(p), nil
}

// TestSweep_OfOneClientIsMadeOnce, however many executors share it: each would take the other's new
// connections.
func TestSweep_OfOneClientIsMadeOnce(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	const executors, idle = 50, 10
	m := miniredis.RunT(t)
	var isQuiet atomic.Bool
	var lost, dials atomic.Int64
	rdb := redis.NewClient(&redis.Options{
		Addr: m.Addr(), PoolSize: 1000, MinIdleConns: idle,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if isQuiet.Load() {
				dials.Add(1)
			}
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return quietConn{conn, &isQuiet, &lost}, err
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	require.Eventually(t, func() bool { return rdb.PoolStats().IdleConns == idle }, time.Minute, time.Millisecond)
	require.NoError(t, rdb.Ping(t.Context()).Err())
	isQuiet.Store(true)
	all := make([]*Executor, executors)
	for i := range all {
		all[i] = New(rdb)
		all[i].sweep()
	}
	for _, e := range all {
		e.Close(t.Context())
	}
	require.Positive(t, lost.Load())
	require.LessOrEqual(t, dials.Load(), int64(3*idle), "those that were idle are replaced")
}
