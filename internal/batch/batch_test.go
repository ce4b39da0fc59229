package batch_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/batch"
	"github.com/sluice-go/sluice/internal/lease"
)

var errExited = errors.New("exited")

// joined are the batches of a Joiner of ints, and the errors of its calls.
type joined struct {
	*batch.Joiner[int]
	all     sync.WaitGroup
	mu      sync.Mutex // guards what follows
	batches [][]int
	errs    map[int]error
}

// join returns a Joiner whose calls fail with the number of an item that is odd.
func join(size int, wait time.Duration, also func(ctx context.Context, items []int)) *joined {
	j := &joined{errs: map[int]error{}}
	j.Joiner = batch.New(size, wait, errExited, func(ctx context.Context, items []int) []error {
		j.mu.Lock()
		j.batches = append(j.batches, items)
		j.mu.Unlock()
		if also != nil {
			also(ctx, items)
		}
		errs := make([]error, len(items))
		for i, item := range items {
			if item%2 == 1 {
				errs[i] = fmt.Errorf("%d", item)
			}
		}
		return errs
	})
	return j
}

// do makes a call for an item.
func (j *joined) do(ctx context.Context, item, most int) {
	j.all.Go(func() {
		err := j.Do(ctx, item, most)
		j.mu.Lock()
		defer j.mu.Unlock()
		j.errs[item] = err
	})
}

// requireErrors requires that each of n items had its own error.
func (j *joined) requireErrors(t *testing.T, n int) {
	t.Helper()
	require.Len(t, j.errs, n)
	for item, err := range j.errs {
		if item%2 == 1 {
			require.EqualError(t, err, fmt.Sprint(item))
		} else {
			require.NoError(t, err)
		}
	}
}

// TestJoiner_ABatchBeginsOnceItIsFull, or the first call has waited for long enough.
func TestJoiner_ABatchBeginsOnceItIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var begun []time.Duration
		j := join(3, time.Second, func(context.Context, []int) { begun = append(begun, time.Since(start)) })
		for item := range 5 {
			j.do(t.Context(), item, 0)
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		j.all.Wait()
		require.Equal(t, [][]int{{0, 1, 2}, {3, 4}}, j.batches)
		require.Equal(t, []time.Duration{2 * time.Millisecond, 1003 * time.Millisecond}, begun)
		j.requireErrors(t, 5)
	})
}

// TestJoiner_WaitsForNoMoreThanThereCanBe: a batch is full with as many.
func TestJoiner_WaitsForNoMoreThanThereCanBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, start := join(500, time.Hour, nil), time.Now()
		for item := range 4 {
			j.do(t.Context(), item, 2)
		}
		j.all.Wait()
		require.Len(t, j.batches, 2)
		require.Zero(t, time.Since(start))
		j.requireErrors(t, 4)
	})
}

// TestJoiner_AnItemIsHandledOnce, among a thousand calls at a time.
func TestJoiner_AnItemIsHandledOnce(t *testing.T) {
	j := join(37, time.Millisecond, nil)
	for item := range 10_000 {
		j.do(t.Context(), item, 0)
	}
	j.all.Wait()
	j.requireErrors(t, 10_000)
	seen := map[int]bool{}
	for _, items := range j.batches {
		require.LessOrEqual(t, len(items), 37)
		for _, item := range items {
			require.False(t, seen[item])
			seen[item] = true
		}
	}
	require.Len(t, seen, 10_000)
}

// TestJoiner_WhatEndsAsItBeginsIsNotDone: a call whose ctx ended before its batch began has that error,
// also if the batch is done before the call looks.
func TestJoiner_WhatEndsAsItBeginsIsNotDone(t *testing.T) {
	j, cause := join(2, time.Millisecond, nil), errors.New("cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	var all sync.WaitGroup
	defer all.Wait()
	for range 5_000 {
		all.Go(func() { _ = j.Do(t.Context(), 0, 0) })
		if err := j.Do(ctx, 2, 0); !errors.Is(err, cause) {
			t.Fatal("it is not handled:", err)
		}
	}
}

// TestJoiner_WhatEndsBeforeIsNotHandled: Do returns the cause, and the others go on. A batch that
// all have left does not begin.
func TestJoiner_WhatEndsBeforeIsNotHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, cause := join(3, time.Second, nil), errors.New("cause")
		ctx, cancel := context.WithCancelCause(t.Context())
		j.do(ctx, 0, 0)
		synctest.Wait()
		cancel(cause)
		j.all.Wait()
		require.Equal(t, map[int]error{0: cause}, j.errs)
		time.Sleep(500 * time.Millisecond)
		ctx, cancel = context.WithCancelCause(t.Context())
		for item := range 2 {
			j.do(t.Context(), item, 0)
			synctest.Wait()
		}
		time.Sleep(700 * time.Millisecond) // the timer of the batch that was left has no effect
		j.do(ctx, 7, 0)
		synctest.Wait()
		require.Equal(t, [][]int{{0, 1, 7}}, j.batches)
		cancel(nil)
		j.all.Wait()

		ctx, cancel = context.WithCancelCause(t.Context())
		j.do(ctx, 9, 0)
		j.do(t.Context(), 10, 0)
		synctest.Wait()
		cancel(cause)
		j.all.Wait()
		require.Equal(t, []int{10}, j.batches[1])
		require.Equal(t, cause, j.errs[9])
	})
}

// TestJoiner_WhatHasEndedAsTheBatchBeginsIsNotInIt: else it would end the work of all others.
func TestJoiner_WhatHasEndedAsTheBatchBeginsIsNotInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, cause := join(2, time.Hour, nil), errors.New("cause")
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		j.do(t.Context(), 0, 0)
		synctest.Wait()
		j.do(ended, 2, 0) // fills the batch, or has left it before
		synctest.Wait()
		if len(j.batches) == 0 {
			j.do(t.Context(), 4, 0)
		}
		j.all.Wait()
		require.Equal(t, cause, j.errs[2])
		require.NotContains(t, j.batches[0], 2)
	})
}

// TestJoiner_TheContextEndsWithAnyOfThem, with its cause, and has the first deadline. Do waits for
// the batch all the same.
func TestJoiner_TheContextEndsWithAnyOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause, ends := errors.New("cause"), make(chan error, 2)
		var deadline time.Time
		j := join(2, time.Hour, func(ctx context.Context, _ []int) {
			deadline, _ = ctx.Deadline()
			<-ctx.Done()
			time.Sleep(time.Second)
			ends <- context.Cause(ctx)
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		start := time.Now()
		j.do(t.Context(), 0, 0)
		j.do(ctx, 2, 0)
		synctest.Wait()
		cancel(cause)
		j.all.Wait()
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, cause, <-ends)
		j.requireErrors(t, 2)

		long, stopLong := context.WithTimeout(t.Context(), time.Hour)
		short, stopShort := context.WithTimeout(t.Context(), time.Minute)
		defer stopLong()
		defer stopShort()
		j.do(long, 0, 0)
		j.do(short, 2, 0)
		j.all.Wait()
		require.Equal(t, time.Minute+2*time.Second, time.Since(start))
		require.Equal(t, context.DeadlineExceeded, <-ends)
		first, _ := short.Deadline()
		require.Equal(t, first, deadline)
	})
}

// TestJoiner_AllFailTogether where there is not an error for each, and where the function exits.
func TestJoiner_AllFailTogether(t *testing.T) {
	for want, call := range map[string]func(context.Context, []int) []error{
		"a batch of 3 has 2 errors: there must be one for each": func(context.Context, []int) []error { return make([]error, 2) },
		"a batch of 3 has 4 errors: there must be one for each": func(context.Context, []int) []error { return make([]error, 4) },
		"a batch of 3 has 0 errors: there must be one for each": func(context.Context, []int) []error { return nil },
		"exited": func(context.Context, []int) []error { runtime.Goexit(); return nil },
	} {
		j := &joined{errs: map[int]error{}, Joiner: batch.New(3, time.Hour, errExited, call)}
		for item := range 3 {
			j.do(t.Context(), item, 0)
		}
		j.all.Wait()
		for item := range 3 {
			require.EqualError(t, j.errs[item], want)
		}
	}
}

// TestJoiner_Contexts: that of the batch is held if all are, and leads to each.
func TestJoiner_Contexts(t *testing.T) {
	holds := []*lease.Hold{{}, {}}
	j := join(2, time.Hour, func(ctx context.Context, items []int) {
		require.True(t, lease.IsHeld(ctx))
		works, _ := lease.Record(ctx, "of which?")
		require.False(t, works)
		for i, item := range items {
			one, ok := batch.ContextOf(ctx, i)
			require.True(t, ok)
			lease.Record(one, fmt.Sprint(item))
		}
		_, ok := batch.ContextOf(ctx, 2)
		require.False(t, ok)
		holds[1].Last(time.Now().Add(-time.Hour))
		require.False(t, lease.IsHeld(ctx))
	})
	for i, h := range holds {
		h.Last(time.Now().Add(time.Hour))
		j.do(lease.WithHolding(t.Context(), h), i, 0)
	}
	j.all.Wait()
	for i, h := range holds {
		require.Equal(t, fmt.Sprint(i), lease.Recorded(lease.WithHolding(t.Context(), h)))
	}
	_, ok := batch.ContextOf(t.Context(), 0)
	require.False(t, ok)
}
