package distributed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// farClient returns a client that is as far from a server as packets take to it, and back.
func farClient(t *testing.T, s *redistest.Server, delay time.Duration) *redis.Client {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		all.Wait()
	})
	// It ends with the listener, and so does the test.
	all.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", s.Addr)
			if err != nil {
				_ = near.Close()
				return
			}
			all.Go(func() { carry(far, near, delay) })
			all.Go(func() { carry(near, far, delay) })
		}
	})
	rdb := redis.NewClient(&redis.Options{Addr: listener.Addr().String()})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// carry brings what comes in one direction, each packet as much later, until one side has ended.
func carry(to, from net.Conn, delay time.Duration) {
	type packet struct {
		at   time.Time
		data []byte
	}
	packets := make(chan packet, 1000)
	var writing sync.WaitGroup
	writing.Go(func() {
		defer func() { _ = to.Close() }()
		for p := range packets {
			time.Sleep(time.Until(p.at)) // the distance
			if _, err := to.Write(p.data); err != nil {
				_ = from.Close()
			}
		}
	})
	for {
		data := make([]byte, 16<<10)
		n, err := from.Read(data)
		if n > 0 {
			packets <- packet{time.Now().Add(delay), data[:n]}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				_ = to.Close()
			}
			break
		}
	}
	close(packets)
	writing.Wait()
}

// TestLine_AFarProcessHasItsTurns beside two that are at the server and take the lock again and
// again: they have no more turns than they have time for while it is on its way.
func TestLine_AFarProcessHasItsTurns(t *testing.T) {
	t.Parallel()
	redistest.NotShort(t)
	const section, turns = 20 * time.Millisecond, 20
	for _, trip := range []time.Duration{2 * time.Millisecond, 10 * time.Millisecond, 40 * time.Millisecond} {
		for kind, opts := range map[string][]sluice.LockOption{"plain": nil, "fenced": {sluice.WithFencing()}, "permits": {sluice.WithPermits(2)}} {
			t.Run(fmt.Sprint(kind, ", round trip ", trip), func(t *testing.T) {
				t.Parallel()
				s, name := redistest.Redis(t), redistest.Name(t)
				far := systest.NewLocker(t, farClient(t, s, trip/2), opts...)
				ctx, cancel := context.WithCancel(t.Context())
				var near atomic.Int64
				var loops sync.WaitGroup
				for range 2 { // as many as there are permits
					l := systest.NewLocker(t, s.Client(t), opts...)
					loops.Go(func() {
						for ctx.Err() == nil {
							k, err := l.Lock(ctx, name)
							if err != nil {
								return
							}
							time.Sleep(section) // the work
							near.Add(1)
							_ = k.Unlock(context.WithoutCancel(ctx))
						}
					})
				}
				for range turns {
					k, err := far.Lock(t.Context(), name)
					require.NoError(t, err)
					time.Sleep(section) // the work
					require.NoError(t, k.Unlock(t.Context()))
				}
				cancel()
				loops.Wait()
				// For each of its turns it is out of line for three round trips and its section,
				// and waits for one of theirs.
				t.Log(near.Load(), "turns of two that are near")
				require.LessOrEqual(t, near.Load(), 2*turns*int64(2+(4*trip+section)/section))
			})
		}
	}
}
