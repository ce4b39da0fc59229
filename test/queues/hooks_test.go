package queues

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

type spanKey struct{}

// traced are hooks that give each send, and each handler, a span: a number in its context, which
// goes along with tasks as a header.
type traced struct {
	mu       sync.Mutex // guards what follows
	spans    int
	sending  []sluice.TasksSending
	sent     []sluice.TasksSent
	claimed  []string
	started  []sluice.TaskStarted
	finished []sluice.TaskFinished
	faults   []string
}

func (tr *traced) span(ctx context.Context) context.Context {
	tr.spans++
	return context.WithValue(ctx, spanKey{}, tr.spans)
}

func (tr *traced) hooks() sluice.QueueHooks {
	return sluice.QueueHooks{
		TasksSending: func(ctx context.Context, i sluice.TasksSending) context.Context {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			ctx = tr.span(ctx)
			tr.sending = append(tr.sending, i)
			for k := range i.Tasks {
				if i.Tasks[k].Header == nil {
					i.Tasks[k].Header = map[string]string{}
				}
				i.Tasks[k].Header["span"] = fmt.Sprint(tr.spans)
			}
			return ctx
		},
		TasksSent: func(ctx context.Context, i sluice.TasksSent) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			if ctx.Value(spanKey{}) == nil {
				tr.faults = append(tr.faults, "TasksSent has another context")
			}
			tr.sent = append(tr.sent, i)
		},
		TasksClaimed: func(i sluice.TasksClaimed) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			tr.claimed = append(tr.claimed, systest.IDs(i.Entries)...)
		},
		TaskStarted: func(ctx context.Context, i sluice.TaskStarted) context.Context {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			if !slices.Contains(tr.claimed, i.Entry.ID) {
				tr.faults = append(tr.faults, i.Entry.ID+" was started before it was claimed")
			}
			tr.started = append(tr.started, i)
			return tr.span(ctx)
		},
		TaskFinished: func(ctx context.Context, i sluice.TaskFinished) {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			if ctx.Value(spanKey{}) == nil || ctx.Err() == nil {
				tr.faults = append(tr.faults, "TaskFinished has another context")
			}
			tr.finished = append(tr.finished, i)
		},
	}
}

func TestQueueHooks_SeeWhatIsSent(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		tr := &traced{}
		q := b.On(b.RDB, sluice.WithQueueHooks(tr.hooks()))
		ctx, mine := b.Context(), map[string]string{"mine": "1"}
		outcome, err := q.Enqueue(ctx, sluice.Task{ID: "a", Payload: []byte("p"), Header: mine})
		require.NoError(b, err)
		require.Equal(b, sluice.OutcomeAdded, outcome)
		outcomes, err := q.EnqueueBatch(ctx, []sluice.Task{{ID: "b"}, {ID: "a", Header: mine}, {ID: "c", Delay: time.Hour}})
		require.NoError(b, err)
		require.Equal(b, map[string]string{"mine": "1"}, mine, "the caller's header")
		require.Equal(b, map[string]string{"mine": "1", "span": "2"}, b.Get("a").Header)
		require.Equal(b, map[string]string{"span": "2"}, b.Get("c").Header)
		_, err = q.Enqueue(ctx, sluice.Task{})
		require.ErrorIs(b, err, sluice.ErrInvalid)
		_, err = q.EnqueueBatch(ctx, nil)
		require.NoError(b, err)
		require.Len(b, tr.sending, 2, "what is not valid, or nothing, is not sent")
		_, err = q.Enqueue(systest.Ended(), sluice.Task{ID: "d"})
		require.ErrorIs(b, err, context.Canceled)

		require.Len(b, tr.sent, 3)
		require.Equal(b, []sluice.Outcome{sluice.OutcomeAdded}, tr.sent[0].Outcomes)
		require.Equal(b, []sluice.Outcome{sluice.OutcomeAdded, sluice.OutcomeUpdated, sluice.OutcomeAdded}, outcomes)
		require.Equal(b, outcomes, tr.sent[1].Outcomes)
		require.Equal(b, []sluice.Outcome{0}, tr.sent[2].Outcomes)
		require.Equal(b, err, tr.sent[2].Err)
		for i, sent := range tr.sent {
			require.Equal(b, q.Name(), sent.Queue)
			require.Equal(b, tr.sending[i].Queue, sent.Queue)
			require.Positive(b, sent.Took)
			require.NotEmpty(b, sent.Tasks[0].Header["span"], "the tasks as they were sent")
		}
		require.Equal(b, "p", string(tr.sent[0].Tasks[0].Payload))
		require.NoError(b, tr.sent[0].Err)
		require.Empty(b, tr.faults)
	})
}

// TestQueueHooks_MakeNoEnqueueFail, whatever they do.
func TestQueueHooks_MakeNoEnqueueFail(t *testing.T) {
	for name, hook := range map[string]func(ctx context.Context, i sluice.TasksSending) context.Context{
		"panics": func(context.Context, sluice.TasksSending) context.Context { panic("no") },
		"nil":    func(context.Context, sluice.TasksSending) context.Context { return nil },
		"invalid": func(ctx context.Context, i sluice.TasksSending) context.Context {
			i.Tasks[0].Header[""] = "v"
			return ctx
		},
		"too large": func(ctx context.Context, i sluice.TasksSending) context.Context {
			i.Tasks[0].Header["k"] = string(make([]byte, 1<<20))
			return ctx
		},
		"other changes": func(ctx context.Context, i sluice.TasksSending) context.Context {
			i.Tasks[0].ID, i.Tasks[0].Delay, i.Tasks[0].Payload = "", -1, make([]byte, 1<<20+1)
			return ctx
		},
	} {
		t.Run(name, func(t *testing.T) {
			systest.EachQueue(t, func(b systest.QueueTest) {
				task := sluice.Task{ID: "a", Payload: []byte("p"), Header: map[string]string{"mine": "1"}}
				q := b.On(b.RDB, sluice.WithQueueHooks(sluice.QueueHooks{
					TasksSending: hook, TasksSent: func(context.Context, sluice.TasksSent) { panic("no") },
				}))
				_, err := q.Enqueue(b.Context(), task)
				require.NoError(b, err)
				_, err = q.EnqueueBatch(b.Context(), []sluice.Task{task})
				require.NoError(b, err)
				e := b.ClaimOne(time.Minute)
				require.Equal(b, task.Header, e.Header)
				require.Equal(b, "p", string(e.Payload))
			})
		})
	}
}

func TestQueueHooks_SeeWhatIsClaimed(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		tr := &traced{}
		q := b.On(b.RDB, sluice.WithQueueHooks(tr.hooks()))
		none, err := q.Claim(b.Context(), 10, time.Minute)
		require.NoError(b, err)
		require.Empty(b, none)
		require.Nil(b, tr.claimed)
		_, err = q.EnqueueBatch(b.Context(), tasksNamed("t", 10))
		require.NoError(b, err)
		claimed, err := q.Claim(b.Context(), 4, time.Minute)
		require.NoError(b, err)
		require.Equal(b, systest.IDs(claimed), tr.claimed)
		all := claimed
		b.Eventually(func() bool { // on a busy machine Claim has some given back that came late
			popped, err := q.Pop(b.Context(), 20)
			require.NoError(b, err)
			all = append(all, popped...)
			require.Equal(b, systest.IDs(all), tr.claimed)
			return len(all) == 10
		})
	})
}

// TestQueueHooks_SeeWhatBecomesOfTasks that a worker has, as WorkerStats counts it.
func TestQueueHooks_SeeWhatBecomesOfTasks(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		tr := &traced{}
		q := b.On(b.RDB, sluice.WithQueueHooks(tr.hooks()))
		for id := range wantEndings {
			_, err := q.Enqueue(b.Context(), sluice.Task{ID: id, Payload: []byte(id)})
			require.NoError(b, err)
		}
		interrupted := make(chan struct{})
		w := &sluice.Worker{Queue: q, Grace: time.Millisecond, Backoff: systest.After(time.Hour), Handler: func(ctx context.Context, e sluice.Entry) error {
			require.NotNil(b, ctx.Value(spanKey{}), "the handler gets the context that TaskStarted returns")
			switch e.ID {
			case "retried":
				return errors.New("no")
			case "discarded":
				return sluice.Discard(errors.New("it is not wanted"))
			case "again":
				return sluice.Again(time.Hour)
			case "panics":
				panic("no")
			case "buried":
				return sluice.Permanent(errors.New("never"))
			case "canceled":
				_, err := b.Q.Cancel(ctx, e.ID)
				require.NoError(b, err)
				<-ctx.Done()
				require.ErrorIs(b, context.Cause(ctx), sluice.ErrCanceled)
			case "lost": // taken from its holder
				taken := sluice.Entry{ID: e.ID, Score: b.RDB.ZScore(ctx, b.Key, e.ID).Val()}
				require.NoError(b, b.Q.Retry(ctx, time.Hour, "failed", taken))
			case "released":
				close(interrupted)
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		stop := systest.StartWorker(b.T, w)
		<-interrupted
		b.Eventually(func() bool {
			s := w.Stats()
			return s.Done+s.Retried+s.Buried+s.Canceled+s.Lost+s.Again+s.Discarded == int64(len(wantEndings)-1)
		})
		require.NoError(b, stop())
		require.Empty(b, tr.faults)
		require.Len(b, tr.started, len(wantEndings))
		got, counted := map[string]sluice.Disposition{}, map[sluice.Disposition]int64{}
		for _, f := range tr.finished {
			require.NotContains(b, got, f.Entry.ID, "told twice")
			got[f.Entry.ID] = f.Disposition
			counted[f.Disposition]++
			require.Equal(b, q.Name(), f.Queue)
			require.Equal(b, f.Entry.ID, string(f.Entry.Payload))
			require.NotEmpty(b, f.Entry.Header["span"])
			require.Positive(b, f.Took)
			require.Equal(b, f.Disposition == sluice.DispositionDone || f.Disposition == sluice.DispositionLost || f.Disposition == sluice.DispositionCanceled, f.Err == nil, f.Entry.ID)
		}
		require.Equal(b, wantEndings, got)
		require.Equal(b, countsOf(w.Stats()), counted)
		require.Len(b, tr.claimed, len(wantEndings))
	})
}

var wantEndings = map[string]sluice.Disposition{
	"done": sluice.DispositionDone, "retried": sluice.DispositionRetried, "panics": sluice.DispositionRetried, "buried": sluice.DispositionBuried,
	"canceled": sluice.DispositionCanceled, "lost": sluice.DispositionLost, "released": sluice.DispositionReleased, "discarded": sluice.DispositionDiscarded, "again": sluice.DispositionAgain,
}

// countsOf returns the counts of a worker that are not zero.
func countsOf(s sluice.WorkerStats) map[sluice.Disposition]int64 {
	counts := map[sluice.Disposition]int64{
		sluice.DispositionDone: s.Done, sluice.DispositionRetried: s.Retried, sluice.DispositionBuried: s.Buried,
		sluice.DispositionCanceled: s.Canceled, sluice.DispositionReleased: s.Released, sluice.DispositionDiscarded: s.Discarded, sluice.DispositionAgain: s.Again, sluice.DispositionLost: s.Lost,
	}
	for d, n := range counts {
		if n == 0 {
			delete(counts, d)
		}
	}
	return counts
}

// TestQueueHooks_HarmNoWorker: what they panic with is dropped.
func TestQueueHooks_HarmNoWorker(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		q := b.On(b.RDB, sluice.WithQueueHooks(sluice.QueueHooks{
			TasksClaimed: func(sluice.TasksClaimed) { panic("no") },
			TaskStarted:  func(context.Context, sluice.TaskStarted) context.Context { panic("no") },
			TaskFinished: func(context.Context, sluice.TaskFinished) { panic("no") },
		}))
		_, err := b.Q.EnqueueBatch(b.Context(), tasksNamed("t", 20))
		require.NoError(b, err)
		w := &sluice.Worker{Queue: q, Handler: func(ctx context.Context, _ sluice.Entry) error { return ctx.Err() }}
		stop := systest.StartWorker(b.T, w)
		b.RequireDrained()
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Done: 20}, w.Stats())
	})
}

// TestQueueHooks_TellTimesExactly, on a fake clock.
func TestQueueHooks_TellTimesExactly(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		tr := &traced{}
		b := systest.NewQueueTest(t, rdb, redistest.Name(t), sluice.WithQueueHooks(tr.hooks()))
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Delay: time.Second})
		time.Sleep(5 * time.Second)
		stop := systest.StartWorker(t, &sluice.Worker{Queue: b.Q, Timeout: time.Minute, Handler: func(ctx context.Context, _ sluice.Entry) error {
			time.Sleep(3 * time.Second)
			return nil
		}})
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		time.Sleep(time.Minute) // so that what lingers has ended
		require.Len(t, tr.started, 1)
		require.Len(t, tr.finished, 1)
		f := tr.finished[0]
		require.Equal(t, 3*time.Second, f.Took)
		require.Equal(t, 4*time.Second, f.Lateness)
		require.Equal(t, tr.started[0].Lateness, f.Lateness)
		require.Equal(t, tr.started[0].Entry, f.Entry)
		require.Empty(t, tr.faults)
	})
}

func tasksNamed(prefix string, n int) []sluice.Task {
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i].ID = fmt.Sprint(prefix, i)
	}
	return tasks
}
