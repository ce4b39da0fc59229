package taskloop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/store"
)

// TestStop_TasksThatWereNotBegunAreReleased: those that a claim brings which was under way.
func TestStop_TasksThatWereNotBegunAreReleased(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Minute, "a", "b")
		q.latency = time.Second
		w := newWorker(q, 2, 0).run(t)
		time.Sleep(500 * time.Millisecond)
		require.Nil(t, w.end())
		require.Equal(t, 2*time.Second, time.Since(w.start), "the claim, and the exchange that releases")
		require.Empty(t, w.tasks())
		require.Equal(t, [5]int64{0, 0, 0, 2, 0}, w.counts())
		require.Equal(t, []string{"a", "b"}, q.left())
		exchanges, _ := q.sent()
		require.Zero(t, exchanges[1].claim, "nothing more is claimed")
	})
}

func TestStop_TakesBackWhatNoRunnerHasBegun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorker(newQueue(time.Minute), 3, 0)
		l := newLoop(t.Context(), w.config())
		l.runners = 3 // they are late
		var all []*delivery
		for _, id := range numbered(3) {
			d := &delivery{queue: l.queues[0], task: store.Task{ID: id}}
			all = append(all, d)
			l.dispatch(d)
		}
		begun := <-l.work
		l.stop(time.Now())
		require.Equal(t, bag{begun}, l.handling)
		require.Len(t, l.queues[0].pending, 2)
		for _, d := range l.queues[0].pending {
			require.NotSame(t, begun, d)
			require.Equal(t, store.Disposition{Action: store.Release}, d.disposition)
			require.Equal(t, pending, d.state)
		}
		for _, d := range all {
			d.cancel(nil)
		}
		l.close()
	})
}

func TestStop_AnEndedContextClaimsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Minute, "a")
		w := newWorker(q, 1, 0)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Nil(t, Run(ctx, w.config()))
		exchanges, _ := q.sent()
		require.Empty(t, exchanges)
		require.Zero(t, q.waits)
	})
}

func TestStop_AnIdleLoopEndsAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorker(newQueue(time.Minute), 4, 0).run(t)
		synctest.Wait() // it waits for a task
		require.Nil(t, w.end())
		require.Zero(t, time.Since(w.start))
	})
}

// TestStop_HandlersHaveGrace: then their contexts end with context.Canceled, and what they
// return is waited for.
func TestStop_HandlersHaveGrace(t *testing.T) {
	for name, test := range map[string]struct {
		takes time.Duration
		want  [5]int64
		after time.Duration
	}{
		"returns in Grace": {takes: 30 * time.Second, want: [5]int64{1}, after: 29 * time.Second},
		"is interrupted":   {takes: time.Hour, want: [5]int64{0, 0, 0, 1, 0}, after: time.Minute + 100*time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(30*time.Second, "a", "b")
				w := newWorker(q, 1, 0)
				w.handle = func(ctx context.Context, _ store.Task) error {
					if !sleep(ctx, test.takes) {
						require.Equal(t, context.Canceled, context.Cause(ctx))
						require.Equal(t, time.Second+time.Minute, time.Since(w.start))
						time.Sleep(100 * time.Millisecond)
						return ctx.Err()
					}
					return nil
				}
				w.run(t)
				time.Sleep(time.Second)
				require.Nil(t, w.end())
				require.Equal(t, test.after, time.Since(w.start)-time.Second)
				require.Equal(t, test.want, w.counts())
				require.Equal(t, []string{"a"}, w.tasks())
				_, extensions := q.sent()
				require.NotEmpty(t, extensions, "leases are extended to the end")
			})
		})
	}
}

// TestStop_SaysWhatIsUnfinished a second after Grace.
func TestStop_SaysWhatIsUnfinished(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Hour, "a", "b", "c")
		w := newWorker(q, 3, 0)
		w.Grace = time.Second
		release := make(chan struct{})
		w.handle = func(_ context.Context, task store.Task) error {
			if task.ID == "c" {
				<-release
			}
			time.Sleep(5 * time.Second)
			return nil
		}
		q.onExchange = func(n int) fault {
			if n > 1 {
				return fault{request: time.Minute}
			}
			return fault{}
		}
		w.run(t)
		time.Sleep(6 * time.Second)
		require.Equal(t, Unfinished{Running: 1, Unacknowledged: 2, Claims: 1}, *w.end())
		require.Equal(t, 6*time.Second+w.Grace+lastWait, time.Since(w.start))
		close(release)
		time.Sleep(2 * time.Minute) // the handler and the exchange go on, and end
		require.EqualValues(t, 3, w.Counters.Ended[Lost].Load(), "nothing can be done for them any more")
		require.Contains(t, q.left(), "c")
	})
}

// TestStop_WaitsForItsDispositions while Redis fails, and counts those that it did not
// take.
func TestStop_WaitsForItsDispositions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Hour, "a", "b")
		q.onExchange = func(n int) fault {
			if n > 1 {
				return unconnected
			}
			return fault{}
		}
		w := newWorker(q, 2, time.Second).run(t)
		time.Sleep(2 * time.Second)
		require.Equal(t, Unfinished{Unacknowledged: 2}, *w.end())
		require.Equal(t, 2*time.Second+w.Grace+lastWait, time.Since(w.start))

		w = newWorker(q, 2, time.Second).run(t)
		q.set(func() { q.onExchange = nil })
		time.Sleep(time.Hour + 10*time.Second)
		require.Nil(t, w.end())
		require.Empty(t, q.left())
	})
}
