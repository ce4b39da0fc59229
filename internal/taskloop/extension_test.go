package taskloop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/lease"

	"github.com/sluice-go/sluice/internal/store"
)

// TestLease_ManyAreExtendedInBatches, four at a time. One without an answer costs its own leases a
// try, and no other: each has a budget of its own.
func TestLease_ManyAreExtendedInBatches(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const n, tenth = 2000, 3 * time.Second
		q := newQueue(30*time.Second, numbered(n)...)
		q.latency = 100 * time.Millisecond
		q.onExtend = func(i int) fault {
			if i <= 3 {
				return fault{request: time.Hour}
			}
			return fault{}
		}
		w := newWorker(q, n, 25*time.Second).run(t)
		time.Sleep(10*time.Second + tenth)
		_, extensions := q.sent()
		at := times(extensions, w.start)
		require.Len(t, extensions, n/store.MaxGroup)
		extended := map[string]bool{}
		for i, x := range extensions {
			require.LessOrEqual(t, len(x.reports[store.ByExchange]), store.MaxGroup)
			for _, task := range x.reports[store.ByExchange] {
				require.False(t, extended[task])
				extended[task] = true
			}
			if i < mostExtensions {
				require.Equal(t, at[0], at[i], "four at a time")
			} else {
				require.Equal(t, at[0]+time.Duration(i-mostExtensions+1)*q.latency, at[i], "the others by the one that is answered")
			}
		}
		require.Len(t, extended, n)
		q.set(func() {
			for _, budget := range q.budgets {
				require.InDelta(t, lease.Budget(safeFor-10*time.Second), budget, float64(time.Second))
			}
		})
		time.Sleep(time.Minute)
		require.Equal(t, [5]int64{n}, w.counts())
		require.Nil(t, w.end())
	})
}

// TestLease_TheMostPressingIsExtendedFirst, and one whose handler returns meanwhile is not.
func TestLease_TheMostPressingIsExtendedFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Minute)
		l := newLoop(t.Context(), newWorker(q, 1, 0).config())
		now := time.Now()
		for _, d := range []delivery{
			{task: store.Task{ID: "late"}, receipt: "r2", until: now.Add(2 * time.Second)},
			{task: store.Task{ID: "a"}, receipt: "r1", until: now.Add(time.Second)},
			{task: store.Task{ID: "returned"}, until: now.Add(time.Millisecond), state: pending},
			{task: store.Task{ID: "b"}, receipt: "r0", until: now.Add(time.Second)},
			{task: store.Task{ID: "under way"}, until: now.Add(time.Second), extending: true},
			{task: store.Task{ID: "later"}, until: now.Add(time.Minute), renewFrom: now.Add(time.Second), renewAt: now.Add(2 * time.Second)},
		} {
			d.queue, d.hold = l.queues[0], new(lease.Hold)
			l.handling.add(&d)
		}
		l.checkLeases(now)
		l.extend()
		require.Empty(t, l.queues[0].toExtend)
		require.Empty(t, l.lists[extenders])
		require.Equal(t, now.Add(time.Millisecond), l.nextCheck)
		l.handleExtension(<-l.extended)
		_, extensions := q.sent()
		require.Equal(t, []string{"r0 b", "r1 a", "r2 late"}, extensions[0].reports[store.ByExchange])
		for _, d := range l.handling[:5] {
			require.Equal(t, d.task.ID == "under way", d.extending)
		}
	})
}

// TestLease_IsKnownToTheHandlersContext until it ends, by the clock and not by what the loop has
// noticed.
func TestLease_IsKnownToTheHandlersContext(t *testing.T) {
	for name, test := range map[string]struct {
		extend fault // what becomes of extensions, but for those behind the first, if later is set
		later  *fault
		happen func(q *fakeQueue)
		until  time.Duration // when it ends; 0 if it does when the handler returns
	}{
		"extended":                    {fault{}, nil, func(*fakeQueue) {}, 0},
		"not extended":                {unconnected, nil, func(*fakeQueue) {}, safeFor},
		"cancelled":                   {fault{}, nil, func(q *fakeQueue) { q.cancel("a") }, 10 * time.Second},
		"taken over":                  {fault{}, nil, func(q *fakeQueue) { q.steal("a") }, 10 * time.Second},
		"a late answer":               {fault{reply: 2 * time.Second}, nil, func(*fakeQueue) {}, 0},
		"a late answer, and no other": {fault{reply: 2 * time.Second}, &unconnected, func(*fakeQueue) {}, 10*time.Second + safeFor},
		"and it returns":              {fault{}, nil, func(*fakeQueue) {}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(30*time.Second, "a")
				q.onExtend = func(n int) fault {
					if n > 1 && test.later != nil {
						return *test.later
					}
					return test.extend
				}
				w := newWorker(q, 1, 0)
				handlers := make(chan context.Context, 9)
				w.handle = func(ctx context.Context, _ store.Task) error {
					handlers <- ctx
					time.Sleep(time.Minute) // whatever its context says
					return nil
				}
				w.run(t)
				ctx := <-handlers
				ctx, cancel := context.WithCancel(ctx)
				cancel() // which is no word on the lease
				test.happen(q)
				end := time.Minute
				if test.until > 0 {
					end = test.until
				}
				for at := w.start; at.Before(w.start.Add(end)); at = at.Add(100 * time.Millisecond) {
					time.Sleep(time.Until(at))
					require.True(t, lease.IsHeld(ctx), at.Sub(w.start))
				}
				time.Sleep(time.Until(w.start.Add(end - time.Nanosecond)))
				require.True(t, lease.IsHeld(ctx))
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.False(t, lease.IsHeld(ctx))
				time.Sleep(2 * time.Minute)
				require.False(t, lease.IsHeld(ctx))
				require.Nil(t, w.end())
			})
		})
	}
}

// TestLease_ALoopThatStandsStillMakesNoneValid: a process was stopped, and the loop has noticed
// nothing yet.
func TestLease_ALoopThatStandsStillMakesNoneValid(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := newLoop(t.Context(), newWorker(newQueue(30*time.Second), 1, 0).config())
		d := &delivery{queue: l.queues[0], task: store.Task{ID: "a"}}
		sent := time.Now()
		d.leased(sent, l.queues[0].Lease)
		l.runners = 1 // there is none
		l.dispatch(d)
		require.True(t, lease.IsHeld(d.ctx))
		time.Sleep(safeFor)
		require.False(t, lease.IsHeld(d.ctx))
		require.NoError(t, d.ctx.Err())
		d.leased(sent.Add(10*time.Second), l.queues[0].Lease)
		require.True(t, lease.IsHeld(d.ctx), "an answer that was on its way says that it goes on")
		d.hold.End()
		d.leased(time.Now(), l.queues[0].Lease)
		require.False(t, lease.IsHeld(d.ctx))
		require.False(t, lease.IsHeld(t.Context()))
		l.close()
	})
}
