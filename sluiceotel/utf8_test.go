package sluiceotel_test

import (
	"context"
	"errors"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/sluiceotel"
)

// TestTelemetry_IsUTF8, whatever names and IDs are: an exporter refuses the whole batch of spans, or
// all metrics, for one that is not.
func TestTelemetry_IsUTF8(t *testing.T) {
	const odd = "odd\xff"
	r := newTelemetry(t, sluiceotel.WithLockName(func(name string) string { return name }))
	rdb := redistest.Start(t).Client(t)
	q, err := sluice.NewQueue(rdb, odd, sluice.WithQueueHooks(r.QueueHooks()))
	require.NoError(t, err)
	_, err = r.Observe(q)
	require.NoError(t, err)
	require.NoError(t, q.SetStock(t.Context(), odd, 3))
	_, err = r.ObserveStock(q, odd)
	require.NoError(t, err)
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: odd, Kind: odd, Group: odd, Header: map[string]string{odd: odd}, Take: sluice.Take{Item: odd}})
	require.NoError(t, err)
	work(t, q, 1, func(context.Context, sluice.Entry) error { return sluice.Permanent(errors.New(odd)) })
	hooks := r.QueueHooks()
	entry := sluice.Entry{ID: odd, Kind: odd}
	ctx := hooks.TaskStarted(t.Context(), sluice.TaskStarted{Queue: odd, Entry: entry})
	hooks.TaskStuck(ctx, sluice.TaskStuck{Queue: odd, Entry: entry, Running: time.Hour})
	hooks.TaskFinished(ctx, sluice.TaskFinished{Queue: odd, Entry: entry, Disposition: sluice.DispositionBuried, Err: errors.New(odd)})
	locks := r.LockHooks()
	locks.LockAcquired(t.Context(), sluice.LockAcquired{Name: odd})
	spans := r.spans.Ended()
	require.Len(t, spans, 3)
	for _, s := range spans {
		require.True(t, utf8.ValidString(s.Name()), s.Name())
		require.True(t, utf8.ValidString(s.Status().Description))
		for key, value := range attributes(s) {
			require.True(t, utf8.ValidString(value), key)
		}
	}
	points := r.points(t)
	require.Greater(t, len(points), 10)
	for point := range points {
		require.True(t, utf8.ValidString(point), "%q", point)
	}
}

// panics is an error whose own text cannot be had.
type panics struct{}

func (panics) Error() string { panic("no text") }

type wraps struct{ error }

// TestTelemetry_AnErrorThatPanicsEndsItsSpan: a handler's own bug leaves no span open.
func TestTelemetry_AnErrorThatPanicsEndsItsSpan(t *testing.T) {
	r := newTelemetry(t)
	hooks := r.QueueHooks()
	ctx := hooks.TaskStarted(t.Context(), sluice.TaskStarted{Queue: "q"})
	func() {
		defer func() { _ = recover() }()
		hooks.TaskFinished(ctx, sluice.TaskFinished{Queue: "q", Disposition: sluice.DispositionBuried, Err: wraps{panics{}}})
	}()
	func() {
		defer func() { _ = recover() }()
		ctx := hooks.TaskStarted(t.Context(), sluice.TaskStarted{Queue: "q"})
		hooks.TaskFinished(ctx, sluice.TaskFinished{Queue: "q", Disposition: sluice.DispositionBuried, Err: panics{}})
	}()
	require.Len(t, r.named("process q"), 2)
}
