package web

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestShared_AsksOnceForAll: many viewers make one look, and another one only when the last is too
// old; one that took long is good for longer.
func TestShared_AsksOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		took := 100 * time.Millisecond
		s := &shared[int64]{every: time.Second, look: func(context.Context) (int64, error) {
			time.Sleep(took)
			return looks.Add(1), nil
		}}
		all := func() {
			var viewers sync.WaitGroup
			for range 50 {
				viewers.Go(func() {
					_, err := s.get(t.Context())
					require.NoError(t, err)
				})
			}
			viewers.Wait()
		}
		for range 10 {
			all()
		}
		require.EqualValues(t, 1, looks.Load())
		time.Sleep(time.Second)
		all()
		require.EqualValues(t, 2, looks.Load())
		time.Sleep(time.Second)
		took = 3 * time.Second
		all() // they wait for a second, and get the one before
		require.EqualValues(t, 2, looks.Load())
		time.Sleep(20 * time.Second)
		all()
		require.EqualValues(t, 3, looks.Load())
		time.Sleep(10 * time.Second)
		all()
		time.Sleep(5 * time.Second)
		require.EqualValues(t, 4, looks.Load())
	})
}

// TestShared_LeavesNoGoroutine: a bubble ends only when none is left. A viewer who leaves does not
// end the look for others.
func TestShared_LeavesNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shared[int]{every: time.Second, look: func(ctx context.Context) (int, error) {
			select {
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			case <-time.After(10 * time.Second):
				return 7, nil
			}
		}}
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		var others sync.WaitGroup
		others.Go(func() {
			time.Sleep(500 * time.Millisecond) // the other one has begun
			got, err := s.get(t.Context())
			require.NoError(t, err)
			require.Equal(t, 7, got)
		})
		_, err := s.get(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		others.Wait()
	})
}

// TestShared_ExpiryCountsForALookUnderWay: what was changed while it was made is not in it.
func TestShared_ExpiryCountsForALookUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks int
		failing := errors.New("failing")
		s := &shared[int]{every: time.Minute, look: func(context.Context) (int, error) {
			time.Sleep(time.Millisecond)
			if looks++; looks == 3 {
				return 0, failing
			}
			return looks, nil
		}}
		go func() { _, _ = s.get(t.Context()) }()
		synctest.Wait()
		s.expire()
		got, err := s.get(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, got)
		got, err = s.get(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, got)
		s.expire()
		_, err = s.get(t.Context())
		require.ErrorIs(t, err, failing)
		time.Sleep(time.Minute)
		got, err = s.get(t.Context())
		require.NoError(t, err)
		require.Equal(t, 4, got)
	})
}
