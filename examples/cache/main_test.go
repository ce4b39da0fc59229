package main

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, "1000 callers, loaded 1 time(s)\n", out.String())
}

// TestCache_LoadsOncePerTTL: in two processes, which each have many callers.
func TestCache_LoadsOncePerTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		var loads atomic.Int64
		var caches []*Cache
		for range 2 {
			rdb := r.NewClient()
			locker, err := sluice.NewLocker(rdb)
			require.NoError(t, err)
			defer locker.Close()
			caches = append(caches, &Cache{Redis: rdb, Locker: locker, TTL: time.Minute, Load: func(context.Context, string) (string, error) {
				time.Sleep(time.Second)
				if loads.Add(1) == 1 {
					return "", errors.New("the database is away")
				}
				return "value", nil
			}})
		}
		_, err := caches[0].Get(t.Context(), "key")
		require.ErrorContains(t, err, "away")
		for round := int64(1); round <= 3; round++ {
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() {
					value, err := caches[i%2].Get(t.Context(), "key")
					require.NoError(t, err)
					require.Equal(t, "value", value)
				})
			}
			all.Wait()
			require.Equal(t, 1+round, loads.Load())
			r.Advance(2 * time.Minute)
		}
	})
}
