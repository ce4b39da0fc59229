package workers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

type traceKey struct{}

// TestWorker_UseIsAroundTheHandler: the first outermost, for each task; what it returns is what
// counts, and it may hand on another context. A panic of one is that of the handler.
func TestWorker_UseIsAroundTheHandler(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, stop := context.WithCancel(b.Context())
		defer stop()
		var order []string
		around := func(name string) sluice.Middleware {
			return func(next sluice.Handler) sluice.Handler {
				return func(ctx context.Context, e sluice.Entry) error {
					order = append(order, name)
					ctx = context.WithValue(ctx, traceKey{}, name)
					defer func() { order = append(order, "/"+name) }()
					return next(ctx, e)
				}
			}
		}
		forgiving := func(next sluice.Handler) sluice.Handler {
			return func(ctx context.Context, e sluice.Entry) error {
				if err := next(ctx, e); err != nil && e.ID == "forgiven" {
					return nil
				}
				if e.ID == "panics" {
					panic("in a middleware")
				}
				return nil
			}
		}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "forgiven"})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "panics", At: time.Now().Add(-time.Second)})
		w := &sluice.Worker{
			Queue: b.Q, Concurrency: 1, Use: []sluice.Middleware{around("1"), forgiving, around("2")},
			Backoff: func(int, error) time.Duration { return time.Hour },
			Handler: func(ctx context.Context, e sluice.Entry) error {
				order = append(order, e.ID)
				require.Equal(b, "2", ctx.Value(traceKey{}))
				require.True(b, sluice.LeaseValid(ctx))
				if e.ID == "forgiven" {
					stop()
				}
				return errors.New("failed")
			},
		}
		require.NoError(b, w.Run(ctx))
		require.Equal(b, []string{"1", "2", "panics", "/2", "/1", "1", "2", "forgiven", "/2", "/1"}, order)
		require.Equal(b, sluice.WorkerStats{Done: 1, Retried: 1}, w.Stats())
	})
}

// TestWorker_UseIsChecked: Run and Check say what is wrong with it, and no task is taken.
func TestWorker_UseIsChecked(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		for what, middleware := range map[string]sluice.Middleware{"nil": nil, "returns nil": func(sluice.Handler) sluice.Handler { return nil }} {
			w := &sluice.Worker{Queue: b.Q, Use: []sluice.Middleware{middleware}, Handler: func(context.Context, sluice.Entry) error { return nil }}
			require.ErrorIs(b, w.Run(b.Context()), sluice.ErrInvalid, what)
			require.ErrorIs(b, w.Check(b.Context()), sluice.ErrInvalid, what)
		}
		require.Equal(b, int64(1), b.Stats().Due)
	})
}
