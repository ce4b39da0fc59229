package queues

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/systest"
)

// listed are the states that List lists.
var listed = []sluice.State{sluice.StateScheduled, sluice.StateDue, sluice.StateLeased, sluice.StateDead}

// TestQueue_ListsTasksByState, as Get sees them, and counts them by state.
func TestQueue_ListsTasksByState(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		for i := range 4 {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint("dead", i), Payload: []byte("p")})
			b.Bury(b.ClaimOne(time.Minute), "why")
		}
		for i := range 4 {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint("leased", i), Payload: []byte("p")})
			b.ClaimOne(time.Hour)
		}
		for i := range 4 {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint("scheduled", i), Delay: time.Hour, Payload: []byte("p")})
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint("due", i), Payload: []byte("p")})
		}
		b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "leased1", Payload: []byte("p")})
		stats := b.Stats()
		stats.Lateness, stats.NextDue = 0, time.Time{}
		require.Equal(b, sluice.Stats{Due: 4, Scheduled: 4, Leased: 4, Dead: 4}, systest.Standing(stats))
		for _, s := range listed {
			es, err := b.Q.List(ctx, s, sluice.TaskInfo{}, 10)
			require.NoError(b, err)
			require.Len(b, es, 4, s)
			for i, e := range es {
				require.Equal(b, s.String()+fmt.Sprint(i), e.ID)
				e2, err := b.Q.Get(ctx, e.ID)
				require.NoError(b, err)
				require.Equal(b, e2, e)
			}
			rest, err := b.Q.List(ctx, s, es[1], 10)
			require.NoError(b, err)
			require.Equal(b, es[2:], rest)
		}
		_, err := b.Q.List(ctx, sluice.StateAbsent, sluice.TaskInfo{}, 1)
		require.ErrorIs(b, err, sluice.ErrInvalid)
	})
}

// TestQueue_LeavesOutPayloads: Get, List and All leave out all of them, or those that are too
// large, if they are told to. The rest of the entries is as ever.
func TestQueue_LeavesOutPayloads(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, header := b.Context(), map[string]string{"k": "v"}
		tasks := []sluice.Task{{ID: "large", Payload: make([]byte, 100), Header: header}, {ID: "small", Payload: []byte("p"), Header: header}, {ID: "void"}}
		const frame, pair = 6, 4 // bytes around a header, and of this one
		for _, s := range []sluice.State{sluice.StateDead, sluice.StateLeased, sluice.StateDue, sluice.StateScheduled} {
			for i := range tasks {
				if tasks[i].ID += s.String(); s == sluice.StateScheduled {
					tasks[i].Delay = time.Hour
				}
			}
			_, err := b.Q.EnqueueBatch(ctx, tasks)
			require.NoError(b, err)
			if s == sluice.StateDead || s == sluice.StateLeased {
				claimed := b.Claim(len(tasks), time.Hour)
				require.Len(b, claimed, len(tasks))
				for _, e := range claimed {
					if s == sluice.StateDead {
						b.Bury(e, "why")
					}
				}
			}
			whole, err := b.Q.List(ctx, s, sluice.TaskInfo{}, 9)
			require.NoError(b, err)
			require.Len(b, whole, len(tasks))
			for most, omitted := range map[int]map[string]int{
				0: {}, 1: {"large": frame + pair + 100, "small": frame + pair + 1}, frame + pair: {"large": frame + pair + 100, "small": frame + pair + 1},
				frame + pair + 1: {"large": frame + pair + 100}, 1 << 20: {},
			} {
				want, option := slices.Clone(whole), sluice.WithoutPayloads()
				if most > 0 {
					option = sluice.WithPayloadsUpTo(most)
				}
				for i := range want {
					if want[i].Omitted = omitted[want[i].ID[:5]]; most == 0 || want[i].Omitted > 0 {
						want[i].Payload, want[i].Header = nil, nil
					}
					got, err := b.Q.Get(ctx, want[i].ID, option)
					require.NoError(b, err)
					require.Equal(b, want[i], got, "%d", most)
				}
				got, err := b.Q.List(ctx, s, sluice.TaskInfo{}, 9, option)
				require.NoError(b, err)
				require.Equal(b, want, got, "%d", most)
				got = nil
				for task, err := range b.Q.All(ctx, s, option) {
					require.NoError(b, err)
					got = append(got, task)
				}
				require.Equal(b, want, got, "%d", most)
			}
		}
	})
}

// TestQueue_PagesWithoutPayloadsAreFull: what is not read does not end a step early.
func TestQueue_PagesWithoutPayloadsAreFull(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		q, ctx := systest.NewQueue(t, rdb), t.Context()
		const n, size = 24, 200_000
		check := func(s sluice.State) {
			t.Helper()
			before := faults.Scripts()
			for _, option := range []sluice.ReadOption{sluice.WithoutPayloads(), sluice.WithPayloadsUpTo(1000)} {
				es, err := q.List(ctx, s, sluice.TaskInfo{}, 250, option)
				require.NoError(t, err)
				require.Len(t, es, n)
			}
			require.LessOrEqual(t, faults.Scripts()-before, 1+n*size>>20+1, "%s: one, and one for each megabyte that is read", s)
		}
		for i := range n {
			_, err := q.Enqueue(ctx, sluice.Task{ID: fmt.Sprint(i), Payload: make([]byte, size)})
			require.NoError(t, err)
		}
		check(sluice.StateDue)
		leased, err := q.Claim(ctx, n, time.Hour)
		require.NoError(t, err)
		require.Len(t, leased, n)
		check(sluice.StateLeased)
		for _, e := range leased {
			require.NoError(t, q.Bury(ctx, "why", e))
		}
		check(sluice.StateDead)
	})
}

// pages walks through a state in pages of n, with something done before each.
func pages(t testing.TB, q *sluice.Queue, s sluice.State, n int, between func()) (all []sluice.TaskInfo) {
	t.Helper()
	for {
		var after sluice.TaskInfo
		if len(all) > 0 {
			after = all[len(all)-1]
		}
		page, err := q.List(t.Context(), s, after, n)
		require.NoError(t, err)
		if all = append(all, page...); len(page) < n {
			return all
		}
		between()
	}
}

// TestQueue_ListsOnceWhatStays: others come and go between the pages, in all states, at the same
// times. A lot of leased tasks stand between scheduled ones.
func TestQueue_ListsOnceWhatStays(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		q, err := sluice.NewQueue(s.Client(t), redistest.Name(t))
		require.NoError(t, err)
		w := &walkers{t: t, q: q, rand: rand.New(rand.NewPCG(1, 7)), at: time.Now().Add(time.Hour).Truncate(time.Second)}
		w.fill(24)
		for _, state := range listed {
			before := pages(t, q, state, 50, func() {})
			require.True(t, slices.IsSortedFunc(before, func(a, b sluice.TaskInfo) int {
				return cmp.Or(cmp.Compare(a.Score, b.Score), a.LeaseEnds.Compare(b.LeaseEnds), cmp.Compare(a.ID, b.ID))
			}))
			require.NotEmpty(t, before, state)
			for size := 1; size < 12; size += 5 {
				found := map[string]int{}
				for _, e := range pages(t, q, state, size, w.disturb) {
					found[e.ID]++
				}
				before = slices.DeleteFunc(before, func(e sluice.TaskInfo) bool {
					if w.stays(e) {
						require.Equal(t, 1, found[e.ID], "%s %s (%v) in pages of %d, %v", state, e.ID, e.Score, size, found)
						return false
					}
					delete(found, e.ID)
					return true
				})
				require.NotEmpty(t, before, state)
				for id, n := range found {
					require.Equal(t, 1, n, "%s %s", state, id)
				}
			}
			w.clean()
		}
	})
}

// walkers changes a queue beside what stays in it.
type walkers struct {
	t    *testing.T
	q    *sluice.Queue
	rand *rand.Rand
	at   time.Time
	made []string
	next int
}

// fill puts n tasks into each state, many with the same score.
func (w *walkers) fill(n int) {
	for i := range n {
		w.enter("stay"+fmt.Sprint(i), sluice.State(1+i%4))
	}
}

// stays says whether a task has kept its place.
func (w *walkers) stays(before sluice.TaskInfo) bool {
	now, err := w.q.Get(w.t.Context(), before.ID)
	require.NoError(w.t, err)
	return now.Score == before.Score && now.LeaseEnds.Equal(before.LeaseEnds)
}

// enter brings a task into a state.
func (w *walkers) enter(id string, s sluice.State) {
	ctx, task := w.t.Context(), sluice.Task{ID: id, At: w.at.Add(time.Duration(w.rand.IntN(3)) * time.Second)}
	if s != sluice.StateScheduled {
		task.At = time.Unix(1_500_000_000+w.rand.Int64N(3), 123_456_000) // miniredis does not read 1e+09 as a number
	}
	if s == sluice.StateLeased || s == sluice.StateDead {
		task.At = time.Unix(1, 0) // the first that is claimed
	}
	_, err := w.q.Enqueue(ctx, task)
	require.NoError(w.t, err)
	if s != sluice.StateLeased && s != sluice.StateDead {
		return
	}
	for { // another one may come first
		es, err := w.q.Claim(ctx, 1, time.Hour+time.Duration(w.rand.IntN(3))*time.Second)
		require.NoError(w.t, err)
		require.Len(w.t, es, 1)
		if es[0].ID == id {
			if s == sluice.StateDead {
				require.NoError(w.t, w.q.Bury(ctx, "", es[0]))
			}
			return
		}
		defer func(e sluice.Entry) {
			_, err := w.q.Cancel(ctx, e.ID)
			require.NoError(w.t, err)
			_, err = w.q.Enqueue(ctx, sluice.Task{ID: e.ID, At: e.Due})
			require.NoError(w.t, err)
		}(es[0])
	}
}

// disturb adds and removes tasks that do not stay.
func (w *walkers) disturb() {
	for range 3 {
		if len(w.made) > 5 && w.rand.IntN(2) == 0 {
			i := w.rand.IntN(len(w.made))
			_, err := w.q.Cancel(w.t.Context(), w.made[i])
			require.NoError(w.t, err)
			w.made = slices.Delete(w.made, i, i+1)
			continue
		}
		w.next++
		w.made = append(w.made, fmt.Sprint("come", w.next%7, "-", w.next))
		w.enter(w.made[len(w.made)-1], sluice.State(1+w.rand.IntN(4)))
	}
}

func (w *walkers) clean() {
	for _, id := range w.made {
		_, err := w.q.Cancel(w.t.Context(), id)
		require.NoError(w.t, err)
	}
	w.made = nil
}

// TestQueue_ListsWhatStandsBehindManyLeases: scheduled tasks before and behind more leased ones
// than a step reads.
func TestQueue_ListsWhatStandsBehindManyLeases(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		const leased = 2300
		var tasks []sluice.Task
		for i := range leased {
			tasks = append(tasks, sluice.Task{ID: fmt.Sprint(i)})
		}
		_, err := b.Q.EnqueueBatch(ctx, tasks)
		require.NoError(b, err)
		require.Len(b, b.Claim(leased, time.Hour), leased)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "before", Delay: time.Minute})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "behind", Delay: 2 * time.Hour})
		es, err := b.Q.List(ctx, sluice.StateScheduled, sluice.TaskInfo{}, 10)
		require.NoError(b, err)
		require.Equal(b, []string{"before", "behind"}, systest.IDs(es))
		es, err = b.Q.List(ctx, sluice.StateScheduled, es[0], 1)
		require.NoError(b, err)
		require.Equal(b, []string{"behind"}, systest.IDs(es))
		es, err = b.Q.List(ctx, sluice.StateLeased, sluice.TaskInfo{}, 5000)
		require.NoError(b, err)
		require.Len(b, es, leased)
	})
}

// TestQueue_LeasedHealsAfterForeignClients: what they leave in the list of leased tasks does not
// outlive the lease.
func TestQueue_LeasedHealsAfterForeignClients(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		for _, id := range []string{"removed", "other"} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id})
		}
		require.Len(b, b.Claim(2, 2*time.Second), 2)
		require.NoError(b, b.RDB.ZRem(ctx, b.Key, "removed").Err())
		es, err := b.Q.List(ctx, sluice.StateLeased, sluice.TaskInfo{}, 10)
		require.NoError(b, err)
		require.Equal(b, []string{"other"}, systest.IDs(es), "it is gone")
		require.Eventually(b, func() bool { return b.Stats().Leased == 0 }, time.Minute, 10*time.Millisecond)
		require.Equal(b, "other", b.ClaimOne(time.Minute).ID)
		require.Equal(b, []string{"other"}, b.RDB.ZRange(ctx, "{"+b.Key+"}:leased", 0, -1).Val(), "a claim has swept it away")
	})
}

// TestQueue_LeasedIsExact while many goroutines do all that a lease can come to: the list of
// leased tasks is what the tasks themselves say.
func TestQueue_LeasedIsExact(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		var all sync.WaitGroup
		for g := range 4 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(g), 3))
				for range 60 {
					id := fmt.Sprint(r.IntN(20))
					if r.IntN(2) == 0 {
						_, _ = b.Q.Enqueue(ctx, sluice.Task{ID: id, Payload: []byte("p")})
					}
					es, _ := b.Q.Claim(ctx, 1+r.IntN(3), time.Hour)
					for _, e := range es {
						switch r.IntN(9) {
						case 0, 1:
							_ = b.Q.Dequeue(ctx, e)
						case 2:
							_ = b.Q.Retry(ctx, 0, "failed", e)
						case 3:
							_ = b.Q.Bury(ctx, "", e)
						case 4:
							_ = b.Q.Extend(ctx, e, 2*time.Hour)
						case 5:
							_, _ = b.Q.Cancel(ctx, e.ID)
						case 6:
							_, _ = b.Q.Reschedule(ctx, e.ID, 0)
						case 7:
							_ = b.Q.Release(ctx, e)
						}
					}
				}
			})
		}
		all.Wait()
		want := map[string]float64{}
		for i := range 20 {
			if e, err := b.Q.Get(ctx, fmt.Sprint(i)); err == nil && e.State == sluice.StateLeased {
				want[e.ID] = store.ScoreOf(e.LeaseEnds)
			}
		}
		is := map[string]float64{}
		listed, err := b.RDB.ZRangeWithScores(ctx, "{"+b.Key+"}:leased", 0, -1).Result()
		require.NoError(b, err)
		for _, z := range listed {
			is[z.Member.(string)] = z.Score
		}
		require.Equal(b, want, is)
		require.EqualValues(b, len(want), b.Stats().Leased)
	})
}

// TestQueue_ListLeavesOutWhatWaitsBehindAnEndedLease: the place of such a version in the queue is
// not its own yet. If it is due earlier than that place says, it would be on each page again; if
// later, others would be left out.
func TestQueue_ListLeavesOutWhatWaitsBehindAnEndedLease(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "earlier"})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "later"})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "much later"})
		leased := b.Claim(3, time.Hour)
		require.Len(b, leased, 3)
		b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "earlier", At: time.Unix(1, 0)})
		b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "later"})
		at := time.Now().Add(time.Hour).Truncate(time.Second)
		b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "much later", At: at})
		for _, e := range leased {
			b.EndLeaseUnseen(e)
			state := b.Get(e.ID).State
			require.Equal(b, e.ID == "much later", state == sluice.StateScheduled)
			require.Equal(b, e.ID != "much later", state == sluice.StateDue)
		}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "b", At: time.Now().Add(-time.Second / 2)})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "c", At: time.Now().Add(-time.Second / 4)})
		var listed []string
		for after := (sluice.TaskInfo{}); len(listed) < 10; {
			page, err := b.Q.List(b.Context(), sluice.StateDue, after, 1)
			require.NoError(b, err)
			if len(page) == 0 {
				break
			}
			after, listed = page[0], append(listed, page[0].ID)
		}
		require.Equal(b, []string{"b", "c"}, listed)
		seen, err := b.Q.Peek(b.Context(), 10)
		require.NoError(b, err)
		require.Len(b, seen, 4)
		require.Empty(b, ids(b, b.Q.All(b.Context(), sluice.StateScheduled)))
		all := map[string]time.Time{}
		for t, err := range b.Q.All(b.Context(), sluice.StateDue) {
			require.NoError(b, err)
			require.Zero(b, t.Attempt, "by that a reader knows that it need not be in order")
			all[t.ID] = t.Due
		}
		require.Len(b, all, 5, "what reads on to the end leaves out none")
		require.Equal(b, at.UTC(), all["much later"].UTC())
		require.Equal(b, int64(5), b.Stats().Due)
	})
}

// TestQueue_ListsDueTasksOnly: what is due later is not read for it, however much there is.
func TestQueue_ListsDueTasksOnly(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		q := systest.NewQueue(t, rdb)
		tasks := []sluice.Task{{ID: "due", At: time.Unix(1, 0)}}
		for i := range 1500 {
			tasks = append(tasks, sluice.Task{ID: fmt.Sprint(i), Delay: time.Hour})
		}
		_, err := q.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		before := faults.Scripts()
		listed, err := q.List(t.Context(), sluice.StateDue, sluice.TaskInfo{}, 100)
		require.NoError(t, err)
		require.Len(t, listed, 1)
		seen, err := q.Peek(t.Context(), 100)
		require.NoError(t, err)
		require.Equal(t, []string{"due"}, systest.IDs(seen))
		require.LessOrEqual(t, faults.Scripts()-before, 4, "one each, which may be sent twice")
	})
}
