package workers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

var errFailed = errors.New("failed")

// muxTest is a Mux in a Worker, which ends once as many tasks were handed to it as are wanted.
type muxTest struct {
	systest.QueueTest
	*sluice.Mux
	worker *sluice.Worker
	log    *systest.Buffer
	ended  chan sluice.TaskFinished
}

func onMux(t *testing.T, test func(m muxTest), opts ...sluice.QueueOption) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		m := muxTest{QueueTest: b, Mux: &sluice.Mux{}, log: &systest.Buffer{}, ended: make(chan sluice.TaskFinished, 100)}
		hooks := sluice.QueueHooks{TaskFinished: func(_ context.Context, i sluice.TaskFinished) { m.ended <- i }}
		m.worker = &sluice.Worker{
			Queue: b.On(b.RDB, append(opts, sluice.WithQueueHooks(hooks))...), Handler: m.Serve, Logger: systest.LogTo(m.log),
			Backoff: systest.After(time.Hour),
		}
		test(m)
	})
}

// run hands tasks to the worker, and returns how each ended, by ID, once all have.
func (m muxTest) run(tasks ...sluice.Task) map[string]sluice.TaskFinished {
	m.Helper()
	_, err := m.Q.EnqueueBatch(m.Context(), tasks)
	require.NoError(m, err)
	stop := systest.StartWorker(m.T, m.worker)
	ended := map[string]sluice.TaskFinished{}
	for len(ended) < len(tasks) {
		select {
		case i := <-m.ended: // perhaps once more
			ended[i.Entry.ID] = i
		case <-time.After(time.Minute):
			require.Fail(m, "a task has not ended")
		}
	}
	require.NoError(m, stop())
	return ended
}

// TestMux_HandsEachTaskToTheHandlerOfItsKind, with the middleware around it; one of an unknown kind
// is put off, with no attempt used up.
func TestMux_HandsEachTaskToTheHandlerOfItsKind(t *testing.T) {
	onMux(t, func(m muxTest) {
		var mu sync.Mutex
		var calls []string
		note := func(s string) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, s)
		}
		around := func(name string) sluice.Middleware {
			return func(next sluice.Handler) sluice.Handler {
				return func(ctx context.Context, e sluice.Entry) error {
					note(name + " " + e.Kind)
					return next(context.WithValue(ctx, traceKey{}, name), e)
				}
			}
		}
		for _, kind := range []string{"email", "report"} {
			m.Handle(kind, func(ctx context.Context, e sluice.Entry) error {
				note(kind + ": " + e.ID + fmt.Sprint(" in ", ctx.Value(traceKey{})))
				return nil
			})
		}
		m.Use(around("1"))
		m.Use(around("2"), around("3"))
		m.worker.Use, m.worker.Concurrency = []sluice.Middleware{around("0")}, 1
		ended := m.run(
			sluice.Task{ID: "a", Kind: "email"}, sluice.Task{ID: "b", Kind: "report"}, sluice.Task{ID: "c", Kind: "later"}, sluice.Task{ID: "d"},
		)
		require.Equal(m, []string{
			"0 email", "1 email", "2 email", "3 email", "email: a in 3",
			"0 report", "1 report", "2 report", "3 report", "report: b in 3",
			"0 later", "1 later", "2 later", "3 later", "0 ", "1 ", "2 ", "3 ",
		}, calls)
		require.Equal(m, sluice.DispositionDone, ended["a"].Disposition)
		require.Equal(m, "email", ended["a"].Entry.Kind)
		for _, id := range []string{"c", "d"} {
			require.Equal(m, sluice.DispositionAgain, ended[id].Disposition)
			require.ErrorContains(m, ended[id].Err, "no handler of kind")
			left := m.Get(id)
			require.Equal(m, sluice.StateScheduled, left.State)
			require.Zero(m, left.Attempt)
			require.WithinRange(m, left.Due, time.Now().Add(5*time.Second), time.Now().Add(30*time.Second))
		}
		require.Equal(m, 2, m.log.Count("no handler for the kind: task put off; mux.Handle it, or correct Task.Kind"), "of each kind")
		require.Equal(m, 1, m.log.Count(`kind=later known="[email report]"`), m.log)
	})
}

// TestMux_TellsOfUnknownKindsOnceAMinute: of each, and puts the task off each time.
func TestMux_TellsOfUnknownKindsOnceAMinute(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q", sluice.WithMaxAttempts(2))
		require.NoError(t, err)
		_, err = q.EnqueueBatch(t.Context(), []sluice.Task{{ID: "a", Kind: "later"}, {ID: "b", Kind: "another"}, {ID: "c", Kind: "later"}})
		require.NoError(t, err)
		var mux sluice.Mux
		log := &systest.Buffer{}
		w := &sluice.Worker{Queue: q, Handler: mux.Serve, Logger: systest.LogTo(log)}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		time.Sleep(10*time.Minute - time.Second)
		again := w.Stats().Again
		require.InDelta(t, 3*27, again, 3*13, "each 15 to 30 seconds")
		for _, kind := range []string{"later", "another"} {
			require.GreaterOrEqual(t, log.Count("kind="+kind), 6)
			require.LessOrEqual(t, log.Count("kind="+kind), 10)
		}
		stop()
		require.NoError(t, <-ended)
		require.Equal(t, sluice.WorkerStats{Again: again}, w.Stats())
		time.Sleep(time.Minute)
	})
}

// TestMux_KindsHaveTheirOwnRules in a Worker: timeout and attempts if they are stricter, backoff
// instead of its own.
func TestMux_KindsHaveTheirOwnRules(t *testing.T) {
	onMux(t, func(m muxTest) {
		fails := func(context.Context, sluice.Entry) error { return errFailed }
		hangs := func(ctx context.Context, _ sluice.Entry) error {
			<-ctx.Done()
			return ctx.Err()
		}
		m.Handle("once", fails, sluice.KindMaxAttempts(1))
		m.Handle("panics", func(context.Context, sluice.Entry) error { panic("boom") }, sluice.KindMaxAttempts(1))
		m.Handle("exits", func(context.Context, sluice.Entry) error { runtime.Goexit(); return nil }, sluice.KindMaxAttempts(1))
		m.Handle("often", fails, sluice.KindMaxAttempts(9), sluice.KindTimeout(-1))
		m.Handle("no limit", fails, sluice.KindMaxAttempts(-1))
		m.Handle("soon", fails, sluice.KindBackoff(func(attempt int, err error) time.Duration {
			require.Equal(m, 1, attempt)
			require.Equal(m, errFailed, err)
			return 2 * time.Hour
		}))
		m.Handle("bad backoff", fails, sluice.KindBackoff(func(int, error) time.Duration { panic("boom") }))
		m.Handle("hangs", hangs, sluice.KindTimeout(10*time.Millisecond))
		m.Handle("hangs too", hangs, sluice.KindTimeout(time.Hour))
		m.worker.Timeout = time.Second
		var tasks []sluice.Task
		for _, kind := range []string{"once", "panics", "exits", "often", "no limit", "soon", "bad backoff", "hangs", "hangs too"} {
			tasks = append(tasks, sluice.Task{ID: kind, Kind: kind})
		}
		ended := m.run(tasks...)
		for id, reason := range map[string]string{"once": "failed", "panics": "panic: boom", "exits": "runtime.Goexit", "often": "", "no limit": ""} {
			left := m.Get(id)
			if reason == "" {
				require.Equal(m, sluice.StateScheduled, left.State, id)
				continue
			}
			require.Equal(m, sluice.StateDead, left.State, id)
			require.Contains(m, left.Reason, reason)
		}
		require.WithinDuration(m, time.Now().Add(2*time.Hour), m.Get("soon").Due, time.Minute)
		require.WithinDuration(m, time.Now(), m.Get("bad backoff").Due, time.Minute)
		require.WithinDuration(m, time.Now().Add(time.Hour), m.Get("often").Due, time.Minute)
		for _, id := range []string{"hangs", "hangs too"} {
			require.ErrorIs(m, ended[id].Err, context.DeadlineExceeded, id)
		}
		require.Less(m, ended["hangs"].Took, time.Second)
	}, sluice.WithMaxAttempts(5))
}

// TestMux_TheQueuesLimitCounts, if it is lower; and a task that was claimed more often than its
// kind allows is not handed out.
func TestMux_TheQueuesLimitCounts(t *testing.T) {
	onMux(t, func(m muxTest) {
		calls := 0
		m.Handle("a", func(context.Context, sluice.Entry) error { calls++; return errFailed }, sluice.KindMaxAttempts(9))
		m.Handle("b", func(context.Context, sluice.Entry) error { calls++; return errFailed }, sluice.KindMaxAttempts(1))
		m.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "b", Kind: "b"})
		e := m.ClaimOne(time.Hour)
		require.NoError(m, m.Q.Extend(m.Context(), e, time.Hour)) // else it counts as one that no handler saw
		m.EndLeaseSoon(m.Get("b").Entry)
		ended := m.run(sluice.Task{ID: "a", Kind: "a"})
		require.Equal(m, sluice.DispositionBuried, ended["a"].Disposition)
		require.Equal(m, 1, calls)
	}, sluice.WithMaxAttempts(1))
}

// TestRetryIn_SaysWhenAFailedTaskIsDue, whatever Backoff says; not on the last attempt, and not
// beside Permanent or Again.
func TestRetryIn_SaysWhenAFailedTaskIsDue(t *testing.T) {
	onMux(t, func(m muxTest) {
		results := map[string]error{
			"retry":     sluice.RetryIn(3*time.Hour, errFailed),
			"wrapped":   fmt.Errorf("wrapped: %w", sluice.RetryIn(3*time.Hour, errFailed)),
			"now":       sluice.RetryIn(-time.Second, errFailed),
			"permanent": sluice.RetryIn(3*time.Hour, sluice.Permanent(errFailed)),
			"again":     sluice.RetryIn(3*time.Hour, sluice.Again(2*time.Hour)),
			"last":      sluice.RetryIn(3*time.Hour, errFailed),
		}
		m.Handle("last", func(context.Context, sluice.Entry) error { return results["last"] }, sluice.KindMaxAttempts(1))
		m.Handle("any", func(_ context.Context, e sluice.Entry) error {
			if e.Attempt > 1 {
				return nil
			}
			return results[e.ID]
		})
		var tasks []sluice.Task
		for id := range results {
			task := sluice.Task{ID: id, Kind: "any"}
			if id == "last" {
				task.Kind = "last"
			}
			tasks = append(tasks, task)
		}
		m.run(tasks...)
		for id, due := range map[string]time.Duration{"retry": 3 * time.Hour, "wrapped": 3 * time.Hour, "again": 2 * time.Hour} {
			require.WithinDuration(m, time.Now().Add(due), m.Get(id).Due, time.Minute, id)
		}
		require.Equal(m, sluice.StateDead, m.Get("permanent").State)
		require.Equal(m, sluice.StateDead, m.Get("last").State)
		require.Equal(m, "failed", m.Get("last").Reason)
	})
	require.NoError(t, sluice.RetryIn(time.Second, nil))
	require.Equal(t, "failed", sluice.RetryIn(time.Second, errFailed).Error())
	require.ErrorIs(t, sluice.RetryIn(time.Second, errFailed), errFailed)
}

// TestMux_HandlesTasksWithoutAKind, such as those of a foreign producer.
func TestMux_HandlesTasksWithoutAKind(t *testing.T) {
	onMux(t, func(m muxTest) {
		m.Handle("", func(context.Context, sluice.Entry) error { return nil })
		m.Handle("mail", func(context.Context, sluice.Entry) error { return errFailed })
		ended := m.run(sluice.Task{ID: "mail", Kind: "mail"}, sluice.Task{ID: "plain"})
		require.NoError(m, ended["plain"].Err)
		require.ErrorIs(m, ended["mail"].Err, errFailed)
	})
}

// TestMux_PanicsIfItIsMisused, since the program is wrong.
func TestMux_PanicsIfItIsMisused(t *testing.T) {
	t.Parallel()
	h := func(context.Context, sluice.Entry) error { return nil }
	mw := func(next sluice.Handler) sluice.Handler { return next }
	for text, misuse := range map[string]func(m *sluice.Mux){
		"kind has 256 bytes at most": func(m *sluice.Mux) { m.Handle(strings.Repeat("k", 257), h) },
		`kind "there" is there`:      func(m *sluice.Mux) { m.Handle("there", h) },
		`nil handler of kind "k"`:    func(m *sluice.Mux) { m.Handle("k", nil) },
		"nil option":                 func(m *sluice.Mux) { m.Handle("k", h, nil) },
		"nil Middleware":             func(m *sluice.Mux) { m.Use(mw, nil) },
		"Mux.Handle: it serves":      func(m *sluice.Mux) { _ = m.Serve(t.Context(), sluice.Entry{Kind: "there"}); m.Handle("k", h) },
		"Mux.Use: it serves":         func(m *sluice.Mux) { _ = m.Serve(t.Context(), sluice.Entry{Kind: "?"}); m.Use(mw) },
		"Middleware that returns no H": func(m *sluice.Mux) {
			m.Use(func(sluice.Handler) sluice.Handler { return nil })
			_ = m.Serve(t.Context(), sluice.Entry{})
		},
	} {
		var mux sluice.Mux
		mux.Handle("there", h)
		func() {
			defer func() { require.Contains(t, fmt.Sprint(recover()), text) }()
			misuse(&mux)
		}()
	}
}

type order struct {
	Item  string
	Count int
}

// TestTyped_HandsOverValues: what is enqueued is what the handler gets. A payload that is no value
// is buried, and its reason says nothing of it.
func TestTyped_HandsOverValues(t *testing.T) {
	onMux(t, func(m muxTest) {
		orders := sluice.Typed[order]{Queue: m.Q, Kind: "order"}
		got := make(chan order, 10)
		orders.Handle(m.Mux, func(_ context.Context, e sluice.Entry, v order) error {
			require.Equal(m, v.Item, e.ID)
			got <- v
			return nil
		}, sluice.KindMaxAttempts(1))
		backwards := sluice.Typed[string]{
			Queue: m.Q, Kind: "text",
			Encode: func(v string) ([]byte, error) { return []byte(">" + v), nil },
			Decode: func(p []byte) (string, error) {
				if text, ok := strings.CutPrefix(string(p), ">"); ok {
					return text, nil
				}
				panic(string(p))
			},
		}
		m.Handle("text", backwards.Handler(func(_ context.Context, _ sluice.Entry, v string) error {
			got <- order{Item: v}
			return nil
		}))
		outcome, err := orders.Enqueue(m.Context(), sluice.Task{ID: "a"}, order{"a", 1})
		require.NoError(m, err)
		require.Equal(m, sluice.OutcomeAdded, outcome)
		outcomes, err := orders.EnqueueBatch(m.Context(), []sluice.Task{{ID: "b", Kind: "order"}, {ID: "c"}}, []order{{"b", 2}, {"c", 3}})
		require.NoError(m, err)
		require.Equal(m, []sluice.Outcome{sluice.OutcomeAdded, sluice.OutcomeAdded}, outcomes)
		task, err := backwards.Task(sluice.Task{ID: "d"}, "") // for a batch of several kinds
		require.NoError(m, err)
		require.Equal(m, sluice.Task{ID: "d", Kind: "text", Payload: []byte(">")}, task)
		m.Enqueue(sluice.OutcomeAdded, task)
		bad := map[string]sluice.Task{
			"the payload is no workers.order: *json.SyntaxError":        {ID: "x", Kind: "order", Payload: []byte("s3cret")},
			"the payload is no workers.order: *json.UnmarshalTypeError": {ID: "y", Kind: "order", Payload: []byte(`{"Count": "s3cret"}`)},
			"the payload is no string: Decode panicked with a string":   {ID: "z", Kind: "text", Payload: []byte("s3cret")},
		}
		stop := systest.StartWorker(m.T, m.worker)
		var all []order
		for range 4 {
			all = append(all, <-got)
		}
		require.ElementsMatch(m, []order{{"a", 1}, {"b", 2}, {"c", 3}, {}}, all)
		for reason, task := range bad {
			m.Enqueue(sluice.OutcomeAdded, task)
			m.Eventually(func() bool {
				left, err := m.Q.Get(m.Context(), task.ID)
				return err == nil && left.State == sluice.StateDead
			})
			require.Equal(m, reason, m.Get(task.ID).Reason)
		}
		require.NoError(m, stop())
		require.NotContains(m, m.log.String(), "s3cret")
	})
}

// TestTyped_BadInputSendsNothing, and the error says what is wrong.
func TestTyped_BadInputSendsNothing(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		orders := sluice.Typed[order]{Queue: b.Q, Kind: "order"}
		for text, enqueue := range map[string]func() error{
			"Task.Payload is set: leave it nil": func() error {
				_, err := orders.Enqueue(b.Context(), sluice.Task{ID: "a", Payload: []byte{}}, order{})
				return err
			},
			`Task.Kind is "other" and the Typed's Kind "order": leave Task.Kind empty`: func() error {
				_, err := orders.Enqueue(b.Context(), sluice.Task{ID: "a", Kind: "other"}, order{})
				return err
			},
			`sluice: task: invalid argument: Task.Kind is "other"`: func() error {
				task, err := orders.Task(sluice.Task{ID: "a", Kind: "other"}, order{})
				require.Zero(b, task)
				return err
			},
			"2 tasks in ts and 1 values in vs": func() error {
				_, err := orders.EnqueueBatch(b.Context(), []sluice.Task{{ID: "a"}, {ID: "b"}}, []order{{}})
				return err
			},
			`ts[1]: invalid argument: Task.Kind is "other" and`: func() error {
				_, err := orders.EnqueueBatch(b.Context(), []sluice.Task{{ID: "a"}, {ID: "b", Kind: "other"}}, []order{{}, {}})
				return err
			},
			"Queue not made by NewQueue": func() error {
				_, err := sluice.Typed[order]{Kind: "order"}.Enqueue(b.Context(), sluice.Task{ID: "a"}, order{})
				return err
			},
			"Kind must be 256 bytes at most": func() error {
				_, err := sluice.Typed[order]{Queue: b.Q, Kind: strings.Repeat("k", 257)}.Enqueue(b.Context(), sluice.Task{ID: "a"}, order{})
				return err
			},
		} {
			err := enqueue()
			require.ErrorIs(b, err, sluice.ErrInvalid, text)
			require.ErrorContains(b, err, text)
		}
		_, err := sluice.Typed[chan int]{Queue: b.Q}.Enqueue(b.Context(), sluice.Task{ID: "a"}, nil)
		var unsupported *json.UnsupportedTypeError
		require.ErrorAs(b, err, &unsupported)
		b.RequireClean()
		require.PanicsWithValue(b, "sluice: Typed.Handler: nil function", func() { orders.Handler(nil) })
		var mux sluice.Mux
		require.PanicsWithValue(b, "sluice: Typed.Handler: nil function", func() { orders.Handle(&mux, nil) })
		require.PanicsWithValue(b, "sluice: Mux.Handle: nil Mux", func() { orders.Handle(nil, func(context.Context, sluice.Entry, order) error { return nil }) })
		require.PanicsWithValue(b, "sluice: Mux.Use: nil Mux", func() { (*sluice.Mux)(nil).Use() })
		handle := func() { orders.Handle(&mux, func(context.Context, sluice.Entry, order) error { return nil }) }
		handle()
		require.PanicsWithValue(b, `sluice: Mux.Handle: kind "order" is there already`, handle)
	})
}

// TestMux_KindsHaveTheirRulesAlsoWhereUseFails before their handlers: the last attempt is buried with
// that error, not one more with another.
func TestMux_KindsHaveTheirRulesAlsoWhereUseFails(t *testing.T) {
	onMux(t, func(m muxTest) {
		m.Use(func(sluice.Handler) sluice.Handler {
			return func(context.Context, sluice.Entry) error { return errFailed }
		})
		nothing := func(context.Context, sluice.Entry) error { return nil }
		m.Handle("once", nothing, sluice.KindMaxAttempts(1))
		m.Handle("later", nothing, sluice.KindBackoff(func(int, error) time.Duration { return 2 * time.Hour }))
		m.run(sluice.Task{ID: "once", Kind: "once"}, sluice.Task{ID: "later", Kind: "later"})
		require.Equal(m, sluice.StateDead, m.Get("once").State)
		require.Equal(m, "failed", m.Get("once").Reason)
		require.WithinDuration(m, time.Now().Add(2*time.Hour), m.Get("later").Due, time.Minute)
	})
}
