package taskloop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// safeFor is how long a worker relies on a lease of 30 s.
const safeFor = 30*time.Second - 302*time.Millisecond

func TestLease_IsExtendedAtAThird(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(30*time.Second, "a")
		w := newWorker(q, 1, 45*time.Second).run(t)
		time.Sleep(time.Minute)
		exchanges, extensions := q.sent()
		require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second, 30 * time.Second, 40 * time.Second}, times(extensions, w.start))
		require.Equal(t, []string{"r1 a"}, extensions[1].reports[store.ByExchange], "the receipt stays the same")
		require.Equal(t, []string{"r1 a"}, reportedIn(exchanges)[0].reports[store.ByExchange])
		require.Equal(t, 5*time.Second, q.budgets[0], "less than half of what is left")
		require.Equal(t, [5]int64{1}, w.counts())
		require.Nil(t, w.end())
	})
}

// TestLease_OthersAreExtendedAlong: if theirs is due within a tenth.
func TestLease_OthersAreExtendedAlong(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(30*time.Second, "a")
		w := newWorker(q, 3, 12*time.Second).run(t)
		time.Sleep(3 * time.Second)
		q.add("b")
		time.Sleep(time.Second)
		q.add("c")
		time.Sleep(time.Minute)
		_, extensions := q.sent()
		require.Equal(t, []time.Duration{10 * time.Second, 14 * time.Second}, times(extensions, w.start))
		require.ElementsMatch(t, []string{"r1 a", "r2 b"}, extensions[0].reports[store.ByExchange])
		require.Equal(t, []string{"r3 c"}, extensions[1].reports[store.ByExchange])
		require.Nil(t, w.end())
	})
}

// TestLease_IsLostAtItsEnd: an extension that fails is tried again after a 20th of the
// lease, and the handler's context ends when its worker cannot rely on the lease any more.
func TestLease_IsLostAtItsEnd(t *testing.T) {
	for name, f := range map[string]fault{"not sent": unconnected, "rejected": denied, "unknown": requestFails} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(30*time.Second, "a")
				q.onExtend = func(int) fault { return f }
				w := newWorker(q, 1, 0)
				causes, after := make(chan error, 1), make(chan time.Duration, 1)
				w.handle = func(ctx context.Context, _ store.Task) error {
					<-ctx.Done()
					causes <- context.Cause(ctx)
					after <- time.Since(w.start)
					time.Sleep(time.Second)
					return nil
				}
				w.run(t)
				synctest.Wait()
				q.steal("a") // so that it is not claimed again
				time.Sleep(5 * time.Minute)
				require.ErrorIs(t, <-causes, lease.ErrLost)
				require.Equal(t, safeFor, <-after)
				exchanges, extensions := q.sent()
				require.Len(t, extensions, 14, "at 10 s, and each 1.5 s after")
				for i, at := range times(extensions, w.start) {
					require.Equal(t, 10*time.Second+time.Duration(i)*1500*time.Millisecond, at)
				}
				require.Empty(t, reportedIn(exchanges), "nothing more is sent for it")
				require.Equal(t, [5]int64{0, 0, 0, 0, 1}, w.counts())
				require.Equal(t, 1, w.logged(warnLost))
				require.Nil(t, w.end())
			})
		})
	}
}

func TestLease_IsLostWhenItsReceiptIsNotGood(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(30*time.Second, "a")
		w := newWorker(q, 1, 0)
		after := make(chan time.Duration, 1)
		w.handle = func(ctx context.Context, _ store.Task) error {
			<-ctx.Done()
			after <- time.Since(w.start)
			return context.Cause(ctx)
		}
		w.run(t)
		synctest.Wait()
		q.steal("a")
		time.Sleep(time.Minute)
		require.Equal(t, 10*time.Second, <-after)
		require.Equal(t, [5]int64{0, 0, 0, 0, 1}, w.counts())
		require.Nil(t, w.end())
	})
}

// TestLease_ALostReplyCostsNothing: an extension does not change the receipt, so that a
// disposition which is stale after a lost reply of its own was carried out.
func TestLease_ALostReplyCostsNothing(t *testing.T) {
	for name, test := range map[string]struct {
		extension fault
		want      [5]int64
	}{
		"carried out, reply lost": {replyIsLost, [5]int64{1}},
		"abandoned":               {fault{reply: time.Hour}, [5]int64{1}},
		"lost on the way":         {requestFails, [5]int64{1}},
		"not sent":                {unconnected, [5]int64{1}},
		"rejected":                {denied, [5]int64{1}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(30*time.Second, "a")
				q.onExtend = func(int) fault { return test.extension }
				reports := 0
				q.onExchange = func(n int) fault {
					if len(q.exchanges[n-1].reports) == 0 {
						return fault{}
					}
					reports++
					return only(1, replyIsLost)(reports)
				}
				w := newWorker(q, 1, 10500*time.Millisecond).run(t)
				time.Sleep(25 * time.Second)
				require.Equal(t, test.want, w.counts())
				require.Nil(t, w.end())
			})
		})
	}
}

// TestLease_ADispositionWaitsForNoExtension that is under way: the receipt stays the same.
// If the extension comes to the server after it, its answer means nothing.
func TestLease_ADispositionWaitsForNoExtension(t *testing.T) {
	for _, f := range []fault{{reply: 3 * time.Second}, {request: 3 * time.Second}} {
		t.Run("", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(30*time.Second, "a")
				q.onExtend = func(int) fault { return f }
				q.onExchange = func(n int) fault {
					if len(q.exchanges[n-1].reports) == 0 {
						return fault{}
					}
					return fault{reply: 4 * time.Second} // the extension is answered first
				}
				w := newWorker(q, 1, 11*time.Second).run(t)
				time.Sleep(time.Minute)
				exchanges, _ := q.sent()
				require.Equal(t, []exchanged{
					{w.start.Add(11 * time.Second), map[store.Settler][]string{store.ByExchange: {"r1 a"}}, 1},
				}, reportedIn(exchanges))
				require.Equal(t, [5]int64{1}, w.counts())
				require.Zero(t, w.Counters.Ended[Canceled].Load())
				require.Nil(t, w.end())
			})
		})
	}
}

// TestLease_ACancelledTaskIsNoLoss: the next extension, or the disposition, finds it gone.
// After the end of the lease another worker may have finished it: then it is lost.
func TestLease_ACancelledTaskIsNoLoss(t *testing.T) {
	for name, test := range map[string]struct {
		takes    time.Duration // the handler, unless its context ends
		extend   fault
		canceled int64
		cause    error
	}{
		"extension":          {time.Hour, fault{}, 1, ErrCanceled},
		"disposition":        {5 * time.Second, fault{}, 1, nil},
		"extension too late": {time.Hour, fault{request: time.Hour}, 0, lease.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(30*time.Second, "a")
				q.onExtend = func(int) fault { return test.extend }
				w := newWorker(q, 1, 0)
				causes := make(chan error, 1)
				w.handle = func(ctx context.Context, _ store.Task) error {
					sleep(ctx, test.takes)
					causes <- context.Cause(ctx)
					return context.Cause(ctx)
				}
				w.run(t)
				synctest.Wait()
				q.cancel("a")
				time.Sleep(2 * time.Minute)
				require.Equal(t, test.cause, <-causes)
				require.Equal(t, test.canceled, w.Counters.Ended[Canceled].Load())
				require.Equal(t, [5]int64{0, 0, 0, 0, 1 - test.canceled}, w.counts())
				require.Equal(t, int(test.canceled), w.logged("INFO sluice: task canceled"))
				require.Equal(t, 1-int(test.canceled), w.logged(warnLost))
				require.Nil(t, w.end())
			})
		})
	}
}

// TestLease_ACancelledTaskThatIsThereAgainIsNoLoss: it was enqueued again at once, so that
// the receipt is stale, and the task not gone. What says that it was cancelled is the
// message, as long as nothing has refuted it, and the lease is ours.
func TestLease_ACancelledTaskThatIsThereAgainIsNoLoss(t *testing.T) {
	for name, test := range map[string]struct {
		takes    time.Duration // the handler, unless its context ends
		extend   fault
		message  time.Duration // when it comes
		replaced time.Duration // when the task is cancelled and enqueued again
		until    time.Duration // when the delivery is over at the latest
		canceled int64
	}{
		"extension":                   {time.Hour, fault{}, time.Second, 900 * time.Millisecond, time.Second, 1},
		"disposition":                 {2 * time.Second, fault{reply: time.Minute}, time.Second, 900 * time.Millisecond, 2 * time.Second, 1},
		"during an extension":         {time.Hour, fault{reply: 2 * time.Second}, 11 * time.Second, 10900 * time.Millisecond, 14 * time.Second, 1},
		"after the handler":           {time.Second, fault{}, 1500 * time.Millisecond, 900 * time.Millisecond, 2 * time.Second, 1},
		"refuted by an extension":     {time.Hour, fault{}, time.Second, 5 * time.Second, 11 * time.Second, 0},
		"the lease is over meanwhile": {time.Hour, fault{request: time.Hour}, time.Second, 900 * time.Millisecond, 30 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(30*time.Second, "a")
				q.onExtend = func(int) fault { return test.extend }
				q.onExchange = func(n int) fault {
					return fault{request: time.Duration(btoi(len(q.exchanges[n-1].reports) > 0)) * time.Second}
				}
				canceled := make(chan string, 1)
				w := newWorker(q, 1, 0)
				w.Canceled = canceled
				w.handle = func(ctx context.Context, _ store.Task) error {
					sleep(ctx, test.takes)
					return context.Cause(ctx)
				}
				w.run(t)
				time.AfterFunc(test.replaced, func() { q.steal("a") })
				time.AfterFunc(test.message, func() { canceled <- "a" })
				time.Sleep(test.until + 1100*time.Millisecond)
				require.Equal(t, test.canceled, w.Counters.Ended[Canceled].Load())
				require.Equal(t, [5]int64{0, 0, 0, 0, 1 - test.canceled}, w.counts())
				require.Nil(t, w.end())
			})
		})
	}
}

// TestLease_TheMessageIsForEveryDeliveryOfItsID: the new version may come to the same
// worker before the message does.
func TestLease_TheMessageIsForEveryDeliveryOfItsID(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(30*time.Second, "a")
		canceled := make(chan string)
		w := newWorker(q, 3, 0)
		w.Canceled = canceled
		w.handle = func(ctx context.Context, _ store.Task) error {
			sleep(ctx, 5*time.Second)
			return context.Cause(ctx)
		}
		w.run(t)
		synctest.Wait()
		q.cancel("a")
		q.add("a")
		time.Sleep(time.Second)
		require.Equal(t, []string{"a", "a"}, w.tasks())
		canceled <- "a"
		time.Sleep(time.Second)
		require.EqualValues(t, 1, w.Counters.Ended[Canceled].Load())
		time.Sleep(10 * time.Second)
		require.Equal(t, [5]int64{1}, w.counts(), "the new version")
		require.EqualValues(t, 1, w.Counters.Ended[Canceled].Load())
		require.Nil(t, w.end())
	})
}

// TestLease_ALostTaskIsNotBegun: its runner takes it from the channel, and no further.
func TestLease_ALostTaskIsNotBegun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorker(newQueue(time.Minute), 1, 0)
		l := newLoop(t.Context(), w.config())
		d := &delivery{queue: l.queues[0], task: store.Task{ID: "a"}}
		l.runners = 1 // it begins late
		l.dispatch(d)
		l.lose(d)
		require.ErrorIs(t, context.Cause(d.ctx), lease.ErrLost)
		go l.runner()
		<-l.completions.ready
		l.gather()
		require.Empty(t, w.tasks())
		require.Equal(t, lost, d.state)
		require.Empty(t, l.pending)
		l.close()
	})
}

// TestLease_ATaskIsNotBegunAfterIt: a process was stopped between its claim and its runner, and the
// loop has not noticed that the lease has ended.
func TestLease_ATaskIsNotBegunAfterIt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for _, late := range []time.Duration{-time.Nanosecond, 0} {
			w := newWorker(newQueue(time.Minute), 1, 0)
			l := newLoop(t.Context(), w.config())
			d := &delivery{queue: l.queues[0], task: store.Task{ID: "a"}, until: time.Now().Add(time.Minute)}
			l.runners = 1 // it begins late
			l.dispatch(d)
			time.Sleep(time.Minute + late)
			go l.runner()
			<-l.completions.ready
			l.gather()
			if late < 0 {
				require.Equal(t, []string{"a"}, w.tasks())
			} else {
				require.Empty(t, w.tasks())
				require.Equal(t, store.Disposition{Action: store.Release}, d.disposition, "in case it has not ended for the server")
			}
			l.close()
		}
	})
}

// TestHealth_OneWarningAndOneInfoAnOutage: and the pauses grow to a second.
func TestHealth_OneWarningAndOneInfoAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Hour, "a")
		q.onExchange = func(int) fault { return unconnected }
		w := newWorker(q, 1, 0).run(t)
		time.Sleep(time.Minute)
		require.Equal(t, 1, w.logged(warnOutage))
		require.Zero(t, w.logged(infoOver))
		exchanges, _ := q.sent()
		for i := range len(exchanges) - 1 {
			pause, most := exchanges[i+1].at.Sub(exchanges[i].at), min(retryFirst<<min(i, 20), retryLast)
			require.GreaterOrEqual(t, pause, most/2)
			require.LessOrEqual(t, pause, most)
		}
		require.Greater(t, len(exchanges), 60)
		q.set(func() { q.onExchange = nil })
		time.Sleep(time.Second)
		require.Equal(t, 1, w.logged(infoOver))
		require.Equal(t, [5]int64{1}, w.counts())
		require.Nil(t, w.end())
		require.Equal(t, 1, w.logged(warnOutage))
	})
}

// TestHealth_ATaskThatIsDueIsNoSignOfTheServer: a Wait that ends because the earliest task is due
// has asked no server, and does not end an outage.
func TestHealth_ATaskThatIsDueIsNoSignOfTheServer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Hour, "a")
		w := newWorker(q, 2, time.Second).run(t)
		time.Sleep(100 * time.Millisecond) // "a" is being handled, and the other runner waits
		q.set(func() { q.onExchange = func(int) fault { return unconnected } })
		time.Sleep(time.Second)
		require.Equal(t, 1, w.logged(warnOutage))
		q.add("b")
		time.Sleep(time.Minute)
		require.Zero(t, w.logged(infoOver))
		require.Equal(t, 1, w.logged(warnOutage))
		q.set(func() { q.onExchange = nil })
		time.Sleep(time.Minute)
		require.Equal(t, 1, w.logged(infoOver))
		require.Equal(t, [5]int64{2}, w.counts())
	})
}

// TestHealth_APersistentFailureDoesNotFloodTheLog: one activity is denied, and the others
// work.
func TestHealth_APersistentFailureDoesNotFloodTheLog(t *testing.T) {
	for name, spoil := range map[string]func(q *fakeQueue){
		"watching": func(q *fakeQueue) { q.waitErr = errFault },
		"renewing": func(q *fakeQueue) {
			q.add(numbered(200)...)
			q.onExtend = func(int) fault { return fault{outcome: redisexec.Rejected} }
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(30 * time.Second)
				spoil(q)
				w := newWorker(q, 2, 15*time.Second)
				handle := w.handle
				w.handle = func(ctx context.Context, task store.Task) error {
					if task.ID == "t1" {
						time.Sleep(5 * time.Second) // so that the two do not go together
					}
					return handle(ctx, task)
				}
				w.run(t)
				time.Sleep(20 * time.Minute)
				require.Equal(t, 2, w.logged(warnOutage), "the second is the last")
				require.LessOrEqual(t, w.logged(infoOver), 1)
				exchanges, _ := q.sent()
				require.Less(t, len(exchanges), 3000, "with pauses of half a second and more")
				q.set(func() { q.waitErr, q.onExtend = nil, nil })
				time.Sleep(2 * time.Second)
				q.add("last") // a Wait has worked once it has returned
				time.Sleep(2 * time.Minute)
				require.Equal(t, 2, w.logged(infoOver), "it is over")
				require.Nil(t, w.end())
			})
		})
	}
}
