package exporter_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/exporter"
	"github.com/sluice-go/sluice/cmd/sluice/report"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// get asks an exporter.
func get(t testing.TB, h http.Handler, path string) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func newQueue(t *testing.T, rdb redis.UniversalClient, name string, opts ...sluice.QueueOption) *sluice.Queue {
	t.Helper()
	q, err := sluice.NewQueue(rdb, name, opts...)
	require.NoError(t, err)
	return q
}

func enqueue(t *testing.T, q *sluice.Queue, ids ...string) {
	t.Helper()
	for _, id := range ids {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: id, Payload: []byte("payload of " + id)})
		require.NoError(t, err)
	}
}

func newServer(t *testing.T) (*miniredis.Miniredis, *redis.Client) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	return m, rdb
}

// TestMetrics_StuckHandlers, as the Workers say.
func TestMetrics_StuckHandlers(t *testing.T) {
	_, rdb := newServer(t)
	q := newQueue(t, rdb, "orders")
	enqueue(t, q, "a")
	hangs := make(chan struct{})
	w := &sluice.Worker{Queue: q, Timeout: 20 * time.Millisecond, Grace: time.Millisecond, Handler: func(context.Context, sluice.Entry) error {
		<-hangs
		return nil
	}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }() // it ends below
	e := exporter.New(rdb, exporter.Options{})
	require.Eventually(t, func() bool {
		_, body := get(t, e, "/metrics")
		return strings.Contains(body, `sluice_queue_stuck{messaging_destination_name="orders",messaging_system="sluice"} 1`)
	}, time.Minute, 50*time.Millisecond)
	close(hangs)
	stop()
	require.NoError(t, <-ended)
}

// TestMetrics_AnyNameAndADamagedQueue: names that are no UTF-8, also two that would look the same, cost no metric of
// others, and neither does a queue whose keys hold something else.
func TestMetrics_AnyNameAndADamagedQueue(t *testing.T) {
	_, rdb := newServer(t)
	for _, name := range []string{"plain", "a\xff", "a\xfe", "quo\"te\n"} {
		q := newQueue(t, rdb, name)
		enqueue(t, q, "a\xff")
		require.NoError(t, q.SetStock(t.Context(), "i\xff", 1))
		require.NoError(t, q.SetStock(t.Context(), "i\xfe", 1))
	}
	require.NoError(t, rdb.Set(t.Context(), "{Queue:damaged}:leased", "x", 0).Err())
	require.NoError(t, rdb.ZAdd(t.Context(), "Queue:damaged", redis.Z{Score: 1, Member: "a"}).Err())
	e := exporter.New(rdb, exporter.Options{Stock: true})
	code, body := get(t, e, "/metrics")
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, body, `sluice_queue_workers{messaging_destination_name="plain",messaging_system="sluice"} 0`)
	require.Contains(t, body, `sluice_queue_workers{messaging_destination_name="quo\"te\n",messaging_system="sluice"} 0`)
	require.Contains(t, body, "sluice_exporter_unread_queues 2", "the damaged one, and one that looks like another")
	require.NotContains(t, body, "payload of")

	code, body = get(t, e, "/api/queues")
	require.Equal(t, http.StatusOK, code)
	var all report.Queues
	require.NoError(t, json.Unmarshal([]byte(body), &all))
	require.Len(t, all.Queues, 5)
	failed := 0
	for _, q := range all.Queues {
		if q.Error != "" {
			failed++
		}
	}
	require.Equal(t, 1, failed)
	require.False(t, all.Complete)
	require.NotContains(t, body, "WRONGTYPE")
	_, behind, _ := strings.Cut(body, `"name": "damaged"`)
	behind, _, _ = strings.Cut(behind, "}")
	require.NotContains(t, behind, "0", "what is not known is not 0")
}

// TestExporter_NeverSaysZeroForWhatItDoesNotKnow: an autoscaler would stop all workers.
func TestExporter_NeverSaysZeroForWhatItDoesNotKnow(t *testing.T) {
	m, rdb := newServer(t)
	enqueue(t, newQueue(t, rdb, "orders"), "a", "b")
	e := exporter.New(rdb, exporter.Options{})
	code, body := get(t, e, "/api/queues/orders")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, `"due": 2`)
	code, body = get(t, e, "/api/queues/none")
	require.Equal(t, http.StatusOK, code, "a queue that is empty has no key")
	require.Contains(t, body, `"due": 0`)
	code, _ = get(t, e, "/api/queues/%00")
	require.Equal(t, http.StatusOK, code)
	code, _ = get(t, e, "/healthz")
	require.Equal(t, http.StatusOK, code)
	m.SetError("LOADING Redis is loading the dataset in memory")
	for _, path := range []string{"/api/queues/orders", "/api/queues", "/healthz"} {
		code, body = get(t, e, path)
		require.Equal(t, http.StatusServiceUnavailable, code, path)
		require.NotContains(t, body, m.Addr(), path)
	}
	code, body = get(t, e, "/metrics")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "\nsluice_exporter_up 0")
	require.NotContains(t, body, "\nsluice_queue_")
	m.SetError("")
	_, body = get(t, e, "/metrics")
	require.Contains(t, body, "\nsluice_exporter_up 1", "it goes on by itself")
}

// TestExporter_SearchesOnceInAWhile: the keys are searched once in Search, for all requests together.
func TestExporter_SearchesOnceInAWhile(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		q := newQueue(t, rdb, redistest.Name(t)+".first")
		enqueue(t, q, "a")
		e := exporter.New(rdb, exporter.Options{Search: time.Hour})
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				_, body := get(t, e, "/metrics")
				require.Contains(t, body, q.Name())
			})
		}
		all.Wait()
		later := newQueue(t, rdb, redistest.Name(t)+".later")
		enqueue(t, later, "a")
		_, body := get(t, e, "/metrics")
		require.NotContains(t, body, later.Name())
		soon := exporter.New(rdb, exporter.Options{Search: time.Nanosecond})
		_, body = get(t, soon, "/metrics")
		require.Contains(t, body, later.Name())
		third := newQueue(t, rdb, redistest.Name(t)+".third")
		enqueue(t, third, "a")
		require.Eventually(t, func() bool {
			_, body := get(t, soon, "/metrics")
			return strings.Contains(body, third.Name())
		}, 2*time.Minute, 10*time.Millisecond)
	})
}

// TestExporter_ASearchThatTakesMinutes is waited for. Redis is not down during those behind the first one,
// which are not made at once: a server has other things to do.
func TestExporter_ASearchThatTakesMinutes(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		enqueue(t, newQueue(t, rdb, "orders"), "a")
		searches := slow{takes: 2 * time.Minute}
		rdb.AddHook(&searches)
		e := exporter.New(rdb, exporter.Options{})
		_, body := get(t, e, "/metrics")
		require.Contains(t, body, "\nsluice_exporter_up 0", "it knows nothing yet")
		time.Sleep(6 * time.Minute)
		each := searches.n.Load()
		for range 120 {
			_, body = get(t, e, "/metrics")
			require.Contains(t, body, "\nsluice_exporter_up 1")
			require.Contains(t, body, "orders")
			time.Sleep(time.Minute)
		}
		require.LessOrEqual(t, searches.n.Load(), 9*each) // in two hours, and not sixty
		time.Sleep(6 * time.Minute)                       // the last one ends
	})
}

// TestExporter_TheFirstSearchMayTakeLong, as it is all that the exporter will know.
func TestExporter_TheFirstSearchMayTakeLong(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		enqueue(t, newQueue(t, rdb, "orders"), "a")
		search := slow{takes: 15 * time.Minute}
		rdb.AddHook(&search)
		e := exporter.New(rdb, exporter.Options{})
		_, body := get(t, e, "/metrics")
		require.Contains(t, body, "\nsluice_exporter_up 0", "it knows nothing yet")
		time.Sleep(16 * time.Minute)
		steps := search.n.Load()
		for range 10 {
			_, body = get(t, e, "/metrics")
			require.Contains(t, body, "\nsluice_exporter_up 1")
			require.Contains(t, body, "orders")
			time.Sleep(time.Minute)
		}
		require.Equal(t, steps, search.n.Load(), "the server has other things to do")
	})
}

// slow is a hook that has each step of a search take so long.
type slow struct {
	takes time.Duration
	n     atomic.Int64
}

func (s *slow) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *slow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "scan" {
			s.n.Add(1)
			select {
			case <-time.After(s.takes):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return next(ctx, cmd)
	}
}

func (s *slow) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestExporter_TellsOfNoQueueThatIsGone, however long a list is good: an alert waits for that. It searches
// anew then.
func TestExporter_TellsOfNoQueueThatIsGone(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	gone, empty := newQueue(t, rdb, "gone"), newQueue(t, rdb, "empty")
	enqueue(t, gone, "a")
	enqueue(t, empty, "a")
	e := exporter.New(rdb, exporter.Options{Search: time.Hour})
	_, body := get(t, e, "/metrics")
	require.Contains(t, body, `"gone"`)
	require.NoError(t, rdb.FlushAll(t.Context()).Err())
	require.NoError(t, empty.Pause(t.Context(), time.Hour)) // it has no task, and a key
	enqueue(t, newQueue(t, rdb, "later"), "a")
	_, body = get(t, e, "/metrics")
	require.NotContains(t, body, `"gone"`)
	require.Contains(t, body, `"empty"`)
	_, body = get(t, e, "/metrics")
	require.Contains(t, body, `"later"`)
}

// TestExporter_ManyQueues: a scrape takes one script a queue, where no Worker runs, and no search.
func TestExporter_ManyQueues(t *testing.T) {
	rdb := redistest.Start(t).Direct(t)
	for i := range 1000 {
		enqueue(t, newQueue(t, rdb, fmt.Sprintf("q%03d", i)), "a")
	}
	e := exporter.New(rdb, exporter.Options{Search: time.Hour})
	_, body := get(t, e, "/metrics")
	require.Equal(t, 1000, strings.Count(body, "\nsluice_queue_workers{"))
	var sent counter
	rdb.AddHook(&sent)
	_, body = get(t, e, "/metrics")
	require.Equal(t, 1000, strings.Count(body, "\nsluice_queue_workers{"))
	require.GreaterOrEqual(t, sent.n.Load(), int64(1000))
	require.LessOrEqual(t, sent.n.Load(), int64(1010))
}

// counter is a hook that counts the commands which are sent.
type counter struct{ n atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// TestExporter_IsDownWhileRedisHangs from the beginning on, also after a search has ended in vain.
func TestExporter_IsDownWhileRedisHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		defer rdb.Close()
		e := exporter.New(rdb, exporter.Options{})
		for range 3 {
			_, body := get(t, e, "/metrics")
			require.Contains(t, body, "\nsluice_exporter_up 0")
			time.Sleep(2 * time.Minute)
		}
	})
}
