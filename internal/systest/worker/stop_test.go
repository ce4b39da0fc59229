package worker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// A worker is stopped while a claim is under way. It gives back what the claim brings,
// and the attempts do not count.
func TestWorker_StopReleasesWhatWasNotBegun(t *testing.T) {
	w := &sluice.Worker{Handler: func(context.Context, sluice.Entry) error { return errors.New("begun") }}
	onFakeClock(t, w, func(f fixture) {
		f.add("0", "1", "2", "3", "4")
		f.faults.StallFrom(1)
		f.start()
		synctest.Wait() // its claim is under way
		f.cancel()
		synctest.Wait()
		require.Equal(f, 1, f.faults.Scripts())
		f.faults.Resume()
		require.NoError(f, <-f.result)
		require.Equal(f, sluice.WorkerStats{Released: 5}, f.w.Stats())
		es := f.Claim(10, time.Minute)
		require.Len(f, es, 5)
		for _, e := range es {
			require.Equal(f, 1, e.Attempt, "an attempt was used up")
		}
	})
}

// Handlers have all of Grace. Then their contexts end, and an error that a handler
// returns for that reason gives its task back at once, its attempt not counted.
func TestWorker_HandlersHaveAllOfGrace(t *testing.T) {
	const grace = 10 * time.Second
	w := &sluice.Worker{Grace: grace, Handler: func(ctx context.Context, e sluice.Entry) error {
		switch e.ID {
		case "quick":
			time.Sleep(grace - time.Second)
			return ctx.Err()
		case "panics":
			<-ctx.Done()
			panic("boom")
		case "hopeless":
			<-ctx.Done()
			return sluice.Permanent(errors.New("no"))
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	onFakeClock(t, w, func(f fixture) {
		f.start()
		f.add("quick", "long", "panics", "hopeless") // while it starts
		time.Sleep(time.Second)
		start := time.Now()
		require.NoError(f, f.stop())
		require.InDelta(f, grace, time.Since(start), float64(50*time.Millisecond))
		require.Equal(f, sluice.WorkerStats{Done: 1, Released: 1, Retried: 1, Buried: 1}, f.w.Stats())
		e := f.Get("long")
		require.Zero(f, e.Attempt)
		require.LessOrEqual(f, time.Until(e.Due), time.Duration(0))
	})
}

// A handler that ignores its context keeps its lease. Run reports it after Grace and a
// second, and what the handler returns has no effect.
func TestWorker_HandlerThatIgnoresItsContextKeepsItsLease(t *testing.T) {
	w := &sluice.Worker{Grace: 5 * time.Second, Lease: 30 * time.Second, Handler: func(ctx context.Context, e sluice.Entry) error {
		time.Sleep(20 * time.Second)
		return nil
	}}
	onFakeClock(t, w, func(f fixture) {
		f.start()
		f.add("a")
		time.Sleep(time.Second)
		start := time.Now()
		err := f.stop()
		require.Equal(f, 6*time.Second, time.Since(start))
		var left *sluice.UnfinishedError
		require.ErrorAs(f, err, &left)
		require.Equal(f, sluice.UnfinishedError{Running: 1}, *left)
		require.ErrorContains(f, err, "1 handlers still running")
		require.ErrorIs(f, f.w.Run(f.Context()), sluice.ErrInvalid, "its handlers would be more than Concurrency")
		time.Sleep(20 * time.Second)
		require.Equal(f, sluice.WorkerStats{Lost: 1}, f.w.Stats())
		require.Equal(f, 1, f.Get("a").Attempt)
	})
}

// A lease that was lost before Run gave up waiting for the handler counts once.
func TestWorker_CountsALostLeaseOnce(t *testing.T) {
	w := &sluice.Worker{Grace: time.Second, Lease: 2 * time.Second, Handler: func(context.Context, sluice.Entry) error {
		time.Sleep(20 * time.Second)
		return nil
	}}
	onFakeClock(t, w, func(f fixture) {
		f.start()
		f.add("a")
		time.Sleep(time.Second)
		f.server.SetError("LOADING for long")
		time.Sleep(3 * time.Second)
		require.Equal(f, sluice.WorkerStats{Running: 1, Lost: 1}, f.w.Stats())
		var left *sluice.UnfinishedError
		require.ErrorAs(f, f.stop(), &left)
		require.Equal(f, 1, left.Running)
		time.Sleep(20 * time.Second)
		require.Equal(f, sluice.WorkerStats{Lost: 1}, f.w.Stats())
	})
}

// Run counts the results that it could not report.
func TestWorker_StopCountsUnacknowledgedResults(t *testing.T) {
	w := &sluice.Worker{Grace: 5 * time.Second, Lease: time.Minute, Handler: func(ctx context.Context, e sluice.Entry) error {
		time.Sleep(2 * time.Second)
		return nil
	}}
	onFakeClock(t, w, func(f fixture) {
		f.start()
		f.add("a", "b")
		time.Sleep(time.Second)
		f.server.SetError("LOADING for long")
		var left *sluice.UnfinishedError
		require.ErrorAs(f, f.stop(), &left)
		require.Equal(f, sluice.UnfinishedError{Unacknowledged: 2}, *left)
	})
}

// The server hangs when the worker is to stop. When it answers at last, no goroutine of
// the worker is left: the bubble ends only then.
func TestWorker_NothingIsLeftWhenTheServerHangsAtTheStop(t *testing.T) {
	for grace, want := range map[time.Duration]sluice.UnfinishedError{
		time.Millisecond: {Unacknowledged: 1, Claims: 1}, // a claim went out with the result
		10 * time.Second: {Unacknowledged: 1},            // go-redis has given that claim up
	} {
		t.Run(grace.String(), func(t *testing.T) {
			var begun, gate chan struct{}
			w := &sluice.Worker{Grace: grace, Lease: time.Minute, Handler: func(context.Context, sluice.Entry) error {
				close(begun)
				<-gate
				return nil
			}}
			onFakeClock(t, w, func(f fixture) {
				begun, gate = make(chan struct{}), make(chan struct{})
				f.add("a")
				f.start()
				<-begun
				f.faults.Stall()
				close(gate)
				synctest.Wait() // its result is under way
				var left *sluice.UnfinishedError
				require.ErrorAs(f, f.stop(), &left)
				require.Equal(f, want, *left)
				f.faults.Resume()
			})
		})
	}
}
