package taskloop

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/wire"
)

// newShards returns a queue of n shards, with a round trip of a millisecond.
func newShards(lease time.Duration, n int, ids ...string) *fakeQueue {
	q := newQueue(lease, ids...)
	q.shards, q.latency = n, time.Millisecond
	return q
}

// feed adds a task to each of these shards, every so often, until ctx ends.
func (q *fakeQueue) feed(ctx context.Context, every time.Duration, shards ...int) {
	for n := 1; sleep(ctx, every); n++ {
		for _, shard := range shards {
			q.add(fmt.Sprintf("%d/%d", shard, n))
		}
	}
}

// claims returns how many claims there were of each shard, and how many tasks they were for.
func claims(exchanges []exchanged) (count, tasks map[int]int) {
	count, tasks = map[int]int{}, map[int]int{}
	for _, x := range exchanges {
		if x.claim > 0 {
			count[x.shard]++
			tasks[x.shard] += x.claim
		}
	}
	return count, tasks
}

// TestShards_AllAreWorkedOff, and groups are no smaller than those of one shard by much: each
// claim costs the server a script.
func TestShards_AllAreWorkedOff(t *testing.T) {
	for _, shards := range []int{1, 4, 16, 64} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newShards(time.Minute, shards)
				for shard := range shards {
					q.add(of(shard, 3200/shards)...)
				}
				w := newWorker(q, 64, 500*time.Microsecond).run(t)
				time.Sleep(5 * time.Second)
				require.Empty(t, q.left())
				require.Equal(t, [5]int64{3200}, w.counts())
				exchanges, _ := q.sent()
				t.Logf("%d shards: %d exchanges", shards, len(exchanges))
				require.Less(t, len(exchanges), 3200/8+2*shards)
				require.Nil(t, w.end())
			})
		})
	}
}

// TestShards_OldestHeadFirst as far as is known: a shard that is behind is caught up with first.
func TestShards_OldestHeadFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newShards(time.Minute, 4, of(2, 200)...)
		time.Sleep(10 * time.Second)
		for _, shard := range []int{0, 1, 3} {
			q.add(of(shard, 200)...)
		}
		w := newWorker(q, 4, 10*time.Millisecond)
		w.Poll = time.Hour // no other is asked because it is its turn
		w.run(t)
		time.Sleep(400 * time.Millisecond)
		count := map[int]int{}
		for _, id := range w.tasks() {
			count[shardOf(id, 4)]++
		}
		require.Greater(t, count[2], count[0]+count[1]+count[3], "which are asked while it is")
		time.Sleep(10 * time.Second)
		require.Empty(t, q.left())
		require.Nil(t, w.end())
	})
}

// TestShards_SkewCostsNothing: where all tasks are of one shard, no runner is idle.
func TestShards_SkewCostsNothing(t *testing.T) {
	for _, shards := range []int{1, 16} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newShards(time.Minute, shards)
				w := newWorker(q, 64, 10*time.Millisecond).run(t)
				time.Sleep(time.Second)
				q.add(of(shards/2, 3200)...)
				time.Sleep(600 * time.Millisecond)
				require.Empty(t, q.left())
				require.Nil(t, w.end())
			})
		})
	}
}

// TestShards_NoneStarves, whatever replies say: here, that one shard's head is the oldest.
func TestShards_NoneStarves(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newShards(time.Minute, 8)
		q.head = func(shard int) time.Time {
			if shard == 0 {
				return time.Now().Add(-time.Hour)
			}
			return time.Now().Add(-time.Second)
		}
		q.add(of(0, 2500)...)
		for shard := range 8 {
			q.add(of(shard, 300)...)
		}
		w := newWorker(q, 8, 20*time.Millisecond).run(t)
		time.Sleep(5 * time.Second)
		last := map[int]time.Time{}
		exchanges, _ := q.sent()
		for _, x := range exchanges {
			if x.claim > 0 {
				if before, ok := last[x.shard]; ok {
					require.LessOrEqual(t, x.at.Sub(before), w.Poll+100*time.Millisecond, "shard %d", x.shard)
				}
				last[x.shard] = x.at
			}
		}
		for shard := range 8 {
			require.WithinDuration(t, time.Now(), last[shard], w.Poll+100*time.Millisecond, "shard %d", shard)
		}
		w.stop()
	})
}

// TestShards_ABusyWorkerLooksAtTheOthers: nothing is watched while no runner is free.
func TestShards_ABusyWorkerLooksAtTheOthers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newShards(time.Minute, 16, of(0, 3_000)...)
		w := newWorker(q, 8, 20*time.Millisecond).run(t)
		time.Sleep(5*time.Second + 500*time.Millisecond)
		q.add(of(11, 3)...)
		time.Sleep(w.Poll + 100*time.Millisecond)
		require.Equal(t, 3, w.tasksNamed("11/1")+w.tasksNamed("11/2")+w.tasksNamed("11/3"))
		w.stop()
	})
}

// TestShards_AHungOneCostsItsOwnTasksOnly: the others' are claimed as soon as without it, and the
// log says so once.
func TestShards_AHungOneCostsItsOwnTasksOnly(t *testing.T) {
	for _, concurrency := range []int{4, 16, 64} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newShards(10*time.Second, 6)
				w := newWorker(q, concurrency, time.Millisecond).run(t)
				ctx, cancel := context.WithCancel(t.Context())
				go q.feed(ctx, 10*time.Millisecond, 0, 1, 2, 3, 4, 5)
				time.Sleep(2 * time.Second)
				for shard := range 6 {
					require.Less(t, q.latest(shard), 30*time.Millisecond, "shard %d", shard)
				}
				q.set(func() { q.hung[1], q.hung[4] = true, true })
				time.Sleep(8 * time.Second)
				for _, shard := range []int{0, 2, 3, 5} {
					require.Less(t, q.latest(shard), 50*time.Millisecond, "shard %d", shard)
				}
				require.LessOrEqual(t, w.logged(warnOutage), 1, "of two shards")
				q.set(func() { q.hung[1], q.hung[4] = false, false })
				cancel()
				time.Sleep(time.Minute)
				require.Empty(t, q.left(), "what was leased by claims without an answer too")
				require.LessOrEqual(t, w.logged(infoOver), w.logged(warnOutage))
				require.Positive(t, w.logged(infoOver), "%v", w.lines)
				require.Nil(t, w.end())
			})
		})
	}
}

// TestShards_ALateReplyIsHandedOut while a runner is free. Others have got those that were kept for
// it.
func TestShards_ALateReplyIsHandedOut(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprint(busy), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newShards(time.Minute, 2, of(1, 4)...)
				q.onExchange = func(n int) fault {
					if q.exchanges[n-1].shard == 1 && n < 3 {
						return fault{reply: 800 * time.Millisecond}
					}
					return fault{}
				}
				w := newWorker(q, 4, time.Second).run(t)
				time.Sleep(500 * time.Millisecond)
				if busy {
					q.add(of(0, 4)...)
				}
				time.Sleep(350 * time.Millisecond)
				if busy {
					require.NotContains(t, w.tasks(), "1/1", "there is no runner")
					require.Len(t, w.tasks(), 4, "the others have them")
					require.Positive(t, w.counts()[3], "it is given back")
				} else {
					require.Contains(t, w.tasks(), "1/1")
				}
				time.Sleep(10 * time.Second)
				require.Empty(t, q.left())
				require.LessOrEqual(t, w.peak(), 4)
				require.Nil(t, w.end())
			})
		})
	}
}

// TestShards_ExtensionsDoNotWaitForEachOther: where one shard does not answer.
func TestShards_ExtensionsDoNotWaitForEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newShards(3*time.Second, 3, "0/1", "1/1", "2/1")
		w := newWorker(q, 3, time.Minute)
		lost := make(chan string, 3)
		w.handle = func(ctx context.Context, task wire.Task) error {
			if !sleep(ctx, time.Minute) {
				lost <- task.ID
			}
			return ctx.Err()
		}
		w.run(t)
		time.Sleep(500 * time.Millisecond)
		q.set(func() { q.hung[1] = true })
		time.Sleep(20 * time.Second)
		require.Equal(t, "1/1", <-lost)
		require.Empty(t, lost)
		require.EqualValues(t, 1, w.Counters.Ended[Lost].Load())
		_, extensions := q.sent()
		last := map[int]time.Duration{}
		for _, x := range extensions {
			if x.shard != 1 {
				require.InDelta(t, 850*time.Millisecond, x.at.Sub(w.start)-last[x.shard], float64(200*time.Millisecond))
				last[x.shard] = x.at.Sub(w.start)
			}
		}
		q.set(func() { q.hung[1] = false })
		w.stop()
	})
}

// TestShards_StopWithAHungOne: what the others are told is told at once, and only what the hung one
// has not acknowledged is left.
func TestShards_StopWithAHungOne(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newShards(time.Minute, 4)
		for shard := range 4 {
			q.add(of(shard, 3)...)
		}
		w := newWorker(q, 16, time.Second)
		w.Grace = 5 * time.Second
		w.run(t)
		time.Sleep(500 * time.Millisecond)
		q.set(func() { q.hung[2] = true })
		w.stop()
		time.Sleep(600 * time.Millisecond)
		require.ElementsMatch(t, of(2, 3), q.left())
		require.Equal(t, Unfinished{Unacknowledged: 3}, *<-w.ended)
		require.Equal(t, 500*time.Millisecond+w.Grace+lastWait, time.Since(w.start))
		time.Sleep(5 * time.Second) // the exchange that has no answer ends
	})
}

// TestShards_ExtensionsThatComeAfterTheEnd have no caller to wait for: what runs them ends, too. (Else the bubble finds it.)
func TestShards_ExtensionsThatComeAfterTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newShards(time.Minute, 4)
		for shard := range 4 {
			q.add(of(shard, 1)...)
		}
		w := newWorker(q, 16, time.Minute)
		w.Grace = time.Second
		w.run(t)
		time.Sleep(19500 * time.Millisecond)
		q.set(func() {
			for shard := range 4 {
				q.hung[shard] = true
			}
		})
		w.stop()
		require.Equal(t, 4, (<-w.ended).Running)
		_, extended := q.sent()
		require.Len(t, extended, 4, "they are under way")
		time.Sleep(time.Minute) // the handlers return
	})
}

// TestShards_EachIsWatched while nothing is due, and none costs anything.
func TestShards_EachIsWatched(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newShards(time.Minute, 64)
		w := newWorker(q, 4, 0).run(t)
		time.Sleep(time.Second)
		before, _ := q.sent()
		require.Len(t, before, 64, "each is asked once")
		time.Sleep(time.Minute)
		after, _ := q.sent()
		require.Len(t, after, 64)
		q.add("17/1")
		synctest.Wait()
		time.Sleep(5 * time.Millisecond)
		require.Equal(t, []string{"17/1"}, w.tasks())
		count, _ := claims(after)
		require.Len(t, count, 64)
		require.Nil(t, w.end())
	})
}

// TestShards_EachHasItsOwnBatchOfExtensions, also while another one's has no answer.
func TestShards_EachHasItsOwnBatchOfExtensions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newShards(time.Minute, 2)
		l := newLoop(t.Context(), newWorker(q, 2, 0).config())
		for _, id := range []string{"0/1", "1/1"} {
			l.handling.add(&delivery{feed: l.queues[0].feedOf(id), task: wire.Task{ID: id}, until: time.Now().Add(time.Minute), hold: new(lease.Hold)})
		}
		l.feeds[0].extensions, l.extensions = 1, 1
		l.checkLeases(time.Now())
		l.extend()
		require.Equal(t, 1, l.feeds[0].extensions)
		require.Equal(t, 1, l.feeds[1].extensions)
		require.Equal(t, 2, l.extensions)
		l.handleExtension(<-l.extended)
	})
}

// TestFeed_AnOutageIsNotUsual: runners are not kept for longer because one exchange has hung.
func TestFeed_AnOutageIsNotUsual(t *testing.T) {
	t.Parallel()
	f, l := &feed{queue: &queue{client: new(client)}}, &loop{queues: make([]*queue, 1)}
	require.Equal(t, firstLapse, l.lapsesAfter(f))
	f.noteTook(time.Millisecond)
	f.noteTook(3 * time.Second)
	require.Equal(t, minLapse, l.lapsesAfter(f))
	for range 100 {
		f.noteTook(40 * time.Millisecond)
	}
	require.InDelta(t, 160*time.Millisecond, l.lapsesAfter(f), float64(5*time.Millisecond))
}
