package workers

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestExpires_NoHandlerGetsIt: a task that has expired is removed, its units are put back, and the
// hook, the count and the log say so. The next of its group goes on.
func TestExpires_NoHandlerGetsIt(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		var told atomic.Int64
		hooks := sluice.WithQueueHooks(sluice.QueueHooks{TaskFinished: func(_ context.Context, f sluice.TaskFinished) {
			if f.Disposition == sluice.DispositionExpired && f.Err != nil {
				told.Add(1)
			}
		}})
		log := &systest.Buffer{}
		q := b.On(b.RDB, hooks, sluice.WithRetention(time.Hour))
		require.NoError(b, q.SetStock(b.Context(), "phone", 9))
		past, later := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
		for _, task := range []sluice.Task{
			{ID: "a", Expires: past}, {ID: "b", Kind: "k", Expires: past, Take: sluice.Take{Item: "phone", Units: 4}},
			{ID: "c", Expires: past, Group: "g"}, {ID: "d", Group: "g"}, {ID: "e", Expires: later}, {ID: "f", Expires: past},
		} {
			_, err := q.Enqueue(b.Context(), task)
			require.NoError(b, err)
		}
		handled := make(chan sluice.Entry, 6)
		w := &sluice.Worker{Queue: q, Logger: systest.LogTo(log), Handler: func(_ context.Context, e sluice.Entry) error {
			handled <- e
			return nil
		}}
		stop := systest.StartWorker(b.T, w)
		b.Eventually(func() bool { return w.Stats().Expired+w.Stats().Done == 6 })
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Expired: 4, Done: 2}, w.Stats())
		require.EqualValues(b, 4, told.Load())
		require.Equal(b, 2, log.Count("expired before a handler had it"), "once for each kind")
		for range 2 {
			e := <-handled
			require.Contains(b, "de", e.ID)
			require.Equal(b, e.ID == "e", e.Expires.Equal(later.Truncate(time.Microsecond)))
		}
		info, err := q.Stock(b.Context(), "phone")
		require.NoError(b, err)
		require.Equal(b, sluice.StockInfo{Total: 9, Left: 9}, info)
		_, err = q.Get(b.Context(), "a")
		require.ErrorIs(b, err, sluice.ErrNotFound)
	})
}

// TestExpires_ARetryExpires: what is to be tried again after that is not. A loop of one's own sees
// when a task expires.
func TestExpires_ARetryExpires(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		expires := time.Now().Add(3 * time.Second).Truncate(time.Microsecond)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Header: map[string]string{"h": "v"}, Payload: []byte("p"), Expires: expires})
		require.True(b, expires.Equal(b.Get("a").Expires))
		require.Equal(b, map[string]string{"h": "v"}, b.Get("a").Header)
		var calls atomic.Int64
		w := &sluice.Worker{
			Queue:   b.On(b.RDB),
			Backoff: func(int, error) time.Duration { return 3100 * time.Millisecond },
			Handler: func(context.Context, sluice.Entry) error {
				calls.Add(1)
				return errors.New("no luck")
			},
		}
		stop := systest.StartWorker(b.T, w)
		b.Eventually(func() bool { return w.Stats().Expired == 1 })
		require.NoError(b, stop())
		require.EqualValues(b, 1, calls.Load())
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Expires: expires})
		require.True(b, expires.Equal(b.ClaimOne(time.Minute).Expires))
	})
}

// TestExpires_IsTheServersTime: as of the claim, not as of the worker's clock or of an extension.
func TestExpires_IsTheServersTime(t *testing.T) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer func() { require.NoError(t, rdb.Close()) }()
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	at := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	m.SetTime(at)
	for id, expires := range map[string]time.Time{"then": at, "after": at.Add(time.Microsecond)} {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: id, At: at.Add(-time.Hour), Expires: expires})
		require.NoError(t, err)
	}
	w := &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { return nil }}
	stop := systest.StartWorker(t, w)
	require.Eventually(t, func() bool { return w.Stats() == sluice.WorkerStats{Expired: 1, Done: 1} }, 10*time.Second, time.Millisecond)
	require.NoError(t, stop())
}

// TestExpires_IsChecked: no time that is none.
func TestExpires_IsChecked(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer func() { require.NoError(t, rdb.Close()) }()
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	at, header := time.Now(), map[string]string{}
	for i := range 64 {
		header[string(rune('a'+i))] = ""
	}
	for name, task := range map[string]sluice.Task{
		"before 1970":  {ID: "a", Expires: time.Unix(-1, 0)},
		"after 2200":   {ID: "a", Expires: time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)},
		"not after At": {ID: "a", At: at, Expires: at},
		"a header":     {ID: "a", Header: map[string]string{"sluice-expires": "1"}},
		"many headers": {ID: "a", Header: header, Expires: at},
	} {
		_, err := q.Enqueue(t.Context(), task)
		require.ErrorIs(t, err, sluice.ErrInvalid, name)
	}
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a", Header: header})
	require.NoError(t, err)
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "epoch", Expires: time.Unix(0, 0)})
	require.NoError(t, err)
	found, err := q.Get(t.Context(), "epoch")
	require.NoError(t, err)
	require.Empty(t, found.Header)
	require.True(t, found.Expires.Equal(time.Unix(0, 0)))
}
