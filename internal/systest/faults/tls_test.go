package faults

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestTLS_UnderFaults: connections with TLS are cut, fall silent, stall in one direction or the
// other, also while they shake hands. Locks exclude each other, no task is lost, and everything
// goes on.
func TestTLS_UnderFaults(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	authority, err := redistest.NewAuthority()
	require.NoError(t, err)
	s := redistest.StartTLS(t, authority)
	onQueue := systest.NewQueueTest(t, s.Client(t), "orders")
	var networks []*redistest.Faults
	client := func() *redis.Client {
		network := redistest.NewFaults(new(net.Dialer).DialContext)
		networks = append(networks, network)
		return systest.Dial(t, redis.Options{Addr: s.Addr, ReadTimeout: time.Second, Dialer: func(ctx context.Context, kind, addr string) (net.Conn, error) {
			plain, err := network.Dial(ctx, kind, addr)
			if err != nil {
				return nil, err
			}
			config := authority.Trust()
			config.ServerName = "127.0.0.1"
			return tls.Client(plain, config), nil // it shakes hands when it is first written to
		}})
	}
	var mu sync.Mutex // guards what follows
	var spans []systest.Span
	handled := map[string]int{}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	begun := time.Now()
	for range 4 {
		l := systest.NewLocker(t, client(), sluice.WithTTL(2*time.Second))
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					k, err := l.Lock(ctx, "stock")
					if err != nil {
						continue // an outage, or the end
					}
					span := systest.Span{From: time.Since(begun).Nanoseconds()}
					time.Sleep(rand.N(time.Millisecond))
					span.Until = time.Since(begun).Nanoseconds()
					if k.Valid() {
						mu.Lock()
						spans = append(spans, span)
						mu.Unlock()
					}
					_ = k.Unlock(ctx)
				}
			})
		}
		w := &sluice.Worker{Queue: onQueue.On(client()), Concurrency: 4, Lease: 2 * time.Second, Grace: time.Second, Logger: slog.New(slog.DiscardHandler),
			Handler: func(_ context.Context, e sluice.Entry) error {
				mu.Lock()
				defer mu.Unlock()
				handled[e.ID]++
				return nil
			}}
		all.Go(func() { _ = w.Run(ctx) })
	}
	faults := map[string]func(f *redistest.Faults) func(){
		"cut":            func(f *redistest.Faults) func() { f.Cut(); return func() {} },
		"quiet":          func(f *redistest.Faults) func() { f.Quiet(); return func() {} },
		"stall replies":  func(f *redistest.Faults) func() { f.Stall(); return f.Resume },
		"stall requests": func(f *redistest.Faults) func() { f.StallRequests(); return f.Resume },
		"delay":          func(f *redistest.Faults) func() { f.Delay(30 * time.Millisecond); return func() { f.Delay(0) } },
	}
	ids := 0
	count := func() (sections, tasks int) {
		mu.Lock()
		defer mu.Unlock()
		return len(spans), len(handled)
	}
	for range 3 {
		for name, strike := range faults { // in a new order each time
			heal := strike(networks[rand.N(len(networks))])
			for range 20 {
				_, err := onQueue.Q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(ids)})
				require.NoError(t, err)
				ids++
			}
			time.Sleep(rand.N(300 * time.Millisecond)) // how long it lasts is part of the fault
			heal()
			before, _ := count()
			require.Eventually(t, func() bool {
				sections, tasks := count()
				return tasks == ids && sections > before+20
			}, 30*time.Second, 10*time.Millisecond, "after %q: %d tasks", name, ids)
		}
	}
	cancel()
	all.Wait()
	sections, _ := count()
	t.Logf("%d sections, %d tasks", sections, ids)
	require.Equal(t, 1, systest.AtOnce(spans))
	for id, times := range handled {
		require.LessOrEqual(t, times, 1+len(faults)*3, id)
	}
}
