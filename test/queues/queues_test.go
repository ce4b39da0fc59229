package queues

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// newQueues returns n queues of one name.
func newQueues(t *testing.T, rdb redis.UniversalClient, n int, opts ...sluice.QueueOption) sluice.Queues {
	t.Helper()
	qs, err := sluice.NewQueues(rdb, redistest.Name(t), n, opts...)
	require.NoError(t, err)
	require.Len(t, qs, n)
	return qs
}

// TestQueues_BelongByTheirIDs: these numbers are in databases, and other programs count likewise.
func TestQueues_BelongByTheirIDs(t *testing.T) {
	t.Parallel()
	qs, err := sluice.NewQueues(redistest.Mini(t).Client(t), "orders", 6)
	require.NoError(t, err)
	for id, name := range map[string]string{"": "orders:0", "a": "orders:3", "order-42": "orders:4", "订单": "orders:3"} {
		require.Equal(t, name, qs.Of(id).Name(), id)
	}
	counts := map[*sluice.Queue]int{}
	for i := range 60_000 {
		counts[qs.Of(fmt.Sprint("order:", i))]++
	}
	for i, q := range qs {
		require.Equal(t, fmt.Sprint("orders:", i), q.Name())
		require.InEpsilon(t, 10_000, counts[q], 0.05)
	}
}

// TestNewQueues_IsInvalid for numbers and names that NewQueue does not take, and for no queues.
func TestNewQueues_IsInvalid(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	for _, n := range []int{-1, 0, 1025, math.MaxInt} {
		_, err := sluice.NewQueues(rdb, "q", n)
		require.ErrorIs(t, err, sluice.ErrInvalid, n)
	}
	_, err := sluice.NewQueues(rdb, "a{b", 2)
	require.ErrorIs(t, err, sluice.ErrInvalidName)
	_, err = sluice.NewQueues(nil, "q", 2)
	require.ErrorIs(t, err, sluice.ErrInvalid)
	_, err = sluice.Queues{new(sluice.Queue)}.EnqueueBatch(t.Context(), []sluice.Task{{ID: "a"}})
	require.ErrorIs(t, err, sluice.ErrInvalid)
	_, err = sluice.Queues{}.EnqueueBatch(t.Context(), []sluice.Task{{ID: "a"}})
	require.ErrorIs(t, err, sluice.ErrInvalid)
}

// TestQueues_EnqueueBatchOfBadTasksSendsNothing, wherever the bad one is.
func TestQueues_EnqueueBatchOfBadTasksSendsNothing(t *testing.T) {
	t.Parallel()
	m := redistest.Mini(t)
	qs := newQueues(t, m.Client(t), 4)
	tasks := append(tasksNamed("t", 100), sluice.Task{ID: ""})
	outcomes, err := qs.EnqueueBatch(t.Context(), tasks)
	require.ErrorIs(t, err, sluice.ErrInvalid)
	require.Nil(t, outcomes)
	for _, q := range qs {
		stats, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.Zero(t, stats.Due)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = qs.EnqueueBatch(ctx, tasksNamed("t", 5000))
	require.ErrorIs(t, err, context.Canceled)
}

// TestQueues_OutcomesOfABatchAreInItsOrder, also when a queue fails: then its tasks have none, and
// all others theirs.
func TestQueues_OutcomesOfABatchAreInItsOrder(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		qs := newQueues(b.T, b.RDB, 3)
		tasks := tasksNamed("t", 600)
		for i := 0; i < len(tasks); i += 7 {
			_, err := qs.Of(tasks[i].ID).Enqueue(b.Context(), tasks[i])
			require.NoError(b, err)
		}
		outcomes, err := qs.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		for i, outcome := range outcomes {
			want := sluice.OutcomeAdded
			if i%7 == 0 {
				want = sluice.OutcomeUpdated
			}
			require.Equal(b, want, outcome, i)
		}
		for _, q := range qs {
			require.NoError(b, q.Purge(b.Context()))
		}
		require.NoError(b, b.RDB.Set(b.Context(), "Queue:"+qs[1].Name(), "foreign", 0).Err())
		outcomes, err = qs.EnqueueBatch(b.Context(), tasks)
		require.ErrorIs(b, err, sluice.ErrCorrupt)
		require.ErrorContains(b, err, qs[1].Name())
		require.Len(b, outcomes, len(tasks))
		for i, task := range tasks {
			want := sluice.OutcomeAdded
			if qs.Of(task.ID) == qs[1] {
				want = 0
			}
			require.Equal(b, want, outcomes[i])
		}
	})
}

// TestQueues_AnItemIsInOne of them: its orders are enqueued there. By its own ID, an order may go
// to a queue where the item is sold out.
func TestQueues_AnItemIsInOne(t *testing.T) {
	t.Parallel()
	qs := newQueues(t, redistest.Mini(t).Client(t), 3)
	sale := qs.Of("phone")
	require.NoError(t, sale.SetStock(t.Context(), "phone", 2))
	sold := 0
	for _, buyer := range []string{"a", "b", "c", "d"} {
		outcome, err := sale.Enqueue(t.Context(), phone(buyer))
		require.NoError(t, err)
		if outcome == sluice.OutcomeAdded {
			sold++
		}
	}
	require.Equal(t, 2, sold)
	info, err := sale.Stock(t.Context(), "phone")
	require.NoError(t, err)
	require.Equal(t, sluice.StockInfo{Total: 2, Held: 2}, info)
	outcomes, err := qs.EnqueueBatch(t.Context(), []sluice.Task{phone("e"), phone("f"), phone("g"), phone("h"), phone("i")})
	require.NoError(t, err)
	require.Equal(t, slices.Repeat([]sluice.Outcome{sluice.OutcomeSoldOut}, 5), outcomes)
}

// TestQueues_APoolServesAll: with all fields of the Worker that it was given, and each Periodic
// once.
func TestQueues_APoolServesAll(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		qs := newQueues(b.T, b.RDB, 5, sluice.WithPollInterval(50*time.Millisecond))
		var mu sync.Mutex // guards what follows
		handled, used := map[string]int{}, 0
		w := &sluice.Worker{
			Handler: func(_ context.Context, e sluice.Entry) error {
				mu.Lock()
				defer mu.Unlock()
				handled[e.ID]++
				return nil
			},
			Use: []sluice.Middleware{func(next sluice.Handler) sluice.Handler {
				return func(ctx context.Context, e sluice.Entry) error {
					mu.Lock()
					used++
					mu.Unlock()
					return next(ctx, e)
				}
			}},
			Label: "many", Lease: 20 * time.Second, Weight: 3, Concurrency: 7, Timeout: time.Minute, Backoff: systest.After(time.Second),
		}
		for i := range 10 {
			w.Periodic = append(w.Periodic, sluice.Periodic{ID: fmt.Sprint("tick", i), Schedule: sluice.Every(time.Hour)})
		}
		workers := qs.Workers(w)
		require.Len(b, workers, len(qs))
		for i, of := range workers {
			require.Same(b, qs[i], of.Queue)
			require.Equal(b, []any{"many", 20 * time.Second, 3, 7, time.Minute}, []any{of.Label, of.Lease, of.Weight, of.Concurrency, of.Timeout})
			require.Equal(b, time.Second, of.Backoff(1, nil))
			for _, p := range of.Periodic {
				require.Same(b, qs.Of(p.ID), of.Queue)
			}
		}
		tasks := tasksNamed("t", 100)
		_, err := qs.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		stop := systest.StartPool(b.T, &sluice.Pool{Workers: workers, Concurrency: 8})
		b.Eventually(func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(handled) == len(tasks)
		})
		periodic := func() (n int64) {
			for _, q := range qs {
				stats, err := q.Stats(b.Context())
				require.NoError(b, err)
				n += stats.Scheduled
			}
			return n
		}
		b.Eventually(func() bool { return periodic() == 10 })
		require.NoError(b, stop())
		for id, n := range handled {
			require.Equal(b, 1, n, id)
		}
		require.Equal(b, len(tasks), used)
	})
}

// TestQueues_WorkersHaveEveryField of Worker: one that is new is not forgotten.
func TestQueues_WorkersHaveEveryField(t *testing.T) {
	t.Parallel()
	qs := newQueues(t, redistest.Mini(t).Client(t), 1)
	w := new(sluice.Worker)
	fields := reflect.ValueOf(w).Elem()
	for i := range fields.NumField() {
		switch f := fields.Field(i); {
		case !f.CanSet():
		case f.Kind() == reflect.Func:
			f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) []reflect.Value { return nil }))
		case f.Kind() == reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case f.Kind() == reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case f.Kind() == reflect.String:
			f.SetString("x")
		case f.Kind() == reflect.Struct:
			f.Field(0).SetInt(1)
		default:
			f.SetInt(1)
		}
	}
	of := reflect.ValueOf(qs.Workers(w)[0]).Elem()
	for i := range fields.NumField() {
		if fields.Field(i).CanSet() {
			require.False(t, of.Field(i).IsZero(), fields.Type().Field(i).Name)
		}
	}
}
