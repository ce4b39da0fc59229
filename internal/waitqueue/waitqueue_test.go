package waitqueue

import (
	"cmp"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// thing is a Holder that does as it is told.
type thing struct {
	deadline  time.Time
	accepts   bool // TakeOver succeeds
	from      *thing
	forbidden bool
	interval  time.Duration // an hour if it is 0
	inspected int
}

func (h *thing) Deadline() time.Time { return h.deadline }
func (h *thing) ForbidHandOver()     { h.forbidden = true }
func (h *thing) Inspect()            { h.inspected++ }

func (h *thing) RetryInterval() time.Duration { return cmp.Or(h.interval, time.Hour) }

func (h *thing) TakeOver(from Holder) (time.Time, bool) {
	h.from, _ = from.(*thing)
	return h.deadline, h.accepts
}

// caller is a waiter and what it acts for.
type caller struct {
	Waiter[string]
	thing
}

func newCaller() *caller {
	return &caller{thing: thing{deadline: time.Now().Add(time.Minute), accepts: true}}
}

func (c *caller) join(t *testing.T, s *Set[string], try bool) Turn {
	t.Helper()
	var value string
	turn, err := s.Join("", "a", &c.Waiter, &c.thing, try, &value)
	require.NoError(t, err)
	require.Equal(t, "value", value)
	return turn
}

func valueOf(string, string) (string, error) { return "value", nil }

// TestSet_CloseTellsAllThatWait: those that are queued, and those that come later.
func TestSet_CloseTellsAllThatWait(t *testing.T) {
	t.Parallel()
	s := New(valueOf)
	head, first, second := newCaller(), newCaller(), newCaller()
	require.Equal(t, Acquire, head.join(t, s, false))
	require.Equal(t, Queued, first.join(t, s, false))
	require.Equal(t, Queued, second.join(t, s, false))
	s.Close()
	require.Equal(t, Closed, <-first.Turn())
	require.Equal(t, Closed, <-second.Turn())
	require.False(t, s.Leave(&first.Waiter))
	turn, err := s.Join("", "a", &newCaller().Waiter, &thing{}, false, new(string))
	require.NoError(t, err)
	require.Equal(t, Closed, turn)
	require.False(t, s.Hold(&head.Waiter))
	s.PromoteNext(&head.Waiter)
	_, busy, queued := s.Len()
	require.Zero(t, busy+queued)
}

// TestSet_ReachesEveryName: what is done to all names is done in each stripe, and a name is
// always in the same one.
func TestSet_ReachesEveryName(t *testing.T) {
	t.Parallel()
	const n = 50 * stripes // so that no stripe is without a name
	s := New(valueOf)
	var holders []Holder
	var queued []*caller
	for i := range n {
		name, holder, next := strconv.Itoa(i), newCaller(), newCaller()
		for _, c := range []*caller{holder, next} {
			_, err := s.Join("prefix of ", name, &c.Waiter, &c.thing, false, new(string))
			require.NoError(t, err)
		}
		require.True(t, s.Hold(&holder.Waiter))
		require.Same(t, &holder.thing, s.Holder("prefix of "+name))
		s.ForbidHandOver("prefix of " + name)
		require.True(t, holder.forbidden)
		holders, queued = append(holders, &holder.thing), append(queued, next)
	}
	names, busy, waiting := s.Len()
	require.Equal(t, []int{n, n, n}, []int{names, busy, waiting})
	s.Close()
	for _, c := range queued {
		require.Equal(t, Closed, <-c.Turn())
	}
	require.ElementsMatch(t, holders, s.Holders())
}

// TestSet_HandsOverManyTimes: waiters wait on channels that others have used before. Each
// learns one turn, in its order, also where others leave meanwhile.
func TestSet_HandsOverManyTimes(t *testing.T) {
	t.Parallel()
	s := New(valueOf)
	holder := newCaller()
	require.Equal(t, Acquire, holder.join(t, s, false))
	require.True(t, s.Hold(&holder.Waiter))
	var queued []*caller
	for i := range 1000 {
		for len(queued) < 5 {
			c := newCaller()
			require.Equal(t, Queued, c.join(t, s, false))
			queued = append(queued, c)
		}
		if i%3 == 0 {
			require.True(t, s.Leave(&queued[2].Waiter))
			queued = slices.Delete(queued, 2, 3)
		}
		require.True(t, s.HandOver(&holder.Waiter))
		late := newCaller() // before the new holder has read its turn
		require.Equal(t, Queued, late.join(t, s, false))
		queued = append(queued, late)
		for _, c := range queued[1:] {
			require.Empty(t, c.Turn())
		}
		require.Equal(t, Granted, <-queued[0].Turn())
		holder, queued = queued[0], queued[1:]
	}
}

// TestSet_WatchesForTheFirst: an alarm that was set for one that tried is too late for the first
// that waits.
func TestSet_WatchesForTheFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(valueOf)
		holder, tried, first := newCaller(), newCaller(), newCaller()
		tried.interval, first.interval = 30*time.Second, time.Second
		require.Equal(t, Acquire, holder.join(t, s, false))
		require.True(t, s.Hold(&holder.Waiter))
		require.Equal(t, Busy, tried.join(t, s, true))
		require.Equal(t, Queued, first.join(t, s, false))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Positive(t, holder.inspected)
		s.PromoteNext(&holder.Waiter)
	})
}

// TestSet_PassesByAHeadWhoseDeadlineIsOver: at once, whether an alarm is set or not.
func TestSet_PassesByAHeadWhoseDeadlineIsOver(t *testing.T) {
	t.Parallel()
	for _, try := range []bool{false, true} {
		s := New(valueOf)
		holder, next := newCaller(), newCaller()
		require.Equal(t, Acquire, holder.join(t, s, false))
		require.True(t, s.Hold(&holder.Waiter))
		if try {
			require.Equal(t, Busy, newCaller().join(t, s, true)) // which sets an alarm, in a minute
		}
		holder.deadline = time.Now()
		require.Equal(t, Acquire, next.join(t, s, try))
		s.PromoteNext(&next.Waiter)
	}
}

// TestSet_WatchesForTheNewFirst: when the first waiter leaves, the next one's interval counts.
func TestSet_WatchesForTheNewFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(valueOf)
		holder, first, second := newCaller(), newCaller(), newCaller()
		first.interval, second.interval = 30*time.Second, time.Second
		require.Equal(t, Acquire, holder.join(t, s, false))
		require.True(t, s.Hold(&holder.Waiter))
		require.Equal(t, Queued, first.join(t, s, false))
		require.Equal(t, Queued, second.join(t, s, false))
		require.True(t, s.Leave(&first.Waiter))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Positive(t, holder.inspected)
		s.PromoteNext(&holder.Waiter)
	})
}

func TestSet_HandsOverInTheOrderOfComing(t *testing.T) {
	t.Parallel()
	s := New(valueOf)
	all := []*caller{newCaller(), newCaller(), newCaller(), newCaller()}
	require.Equal(t, Acquire, all[0].join(t, s, false))
	require.True(t, s.Hold(&all[0].Waiter))
	for _, c := range all[1:] {
		require.Equal(t, Queued, c.join(t, s, false))
	}
	for i, c := range all[1:] {
		require.True(t, s.HandOver(&all[i].Waiter))
		require.Equal(t, Granted, <-c.Turn())
		require.Same(t, &all[i].thing, c.from)
	}
	require.False(t, s.HandOver(&all[0].Waiter), "it gave that away long ago")
	require.False(t, s.HandOver(&all[3].Waiter), "no caller waits")
}

// TestSet_NothingOvertakesTheWayBack: while what the head held is being given back, a caller that
// comes waits behind it, and is to acquire once it is there.
func TestSet_NothingOvertakesTheWayBack(t *testing.T) {
	t.Parallel()
	s := New(valueOf)
	first, next := newCaller(), newCaller()
	require.Equal(t, Acquire, first.join(t, s, false))
	require.True(t, s.Hold(&first.Waiter))
	require.False(t, s.HandOver(&first.Waiter))
	require.Equal(t, Queued, next.join(t, s, false))
	s.PromoteNext(&first.Waiter)
	require.Equal(t, Acquire, <-next.Turn())
}

func TestSet_HandOverThatIsNotSafeGoesTheLongWay(t *testing.T) {
	t.Parallel()
	s := New(valueOf)
	first, next := newCaller(), newCaller()
	next.accepts = false
	require.Equal(t, Acquire, first.join(t, s, false))
	require.True(t, s.Hold(&first.Waiter))
	require.Equal(t, Queued, next.join(t, s, false))
	require.False(t, s.HandOver(&first.Waiter))
	require.Equal(t, Busy, newCaller().join(t, s, true), "it is not free yet")
	s.PromoteNext(&first.Waiter)
	require.Equal(t, Acquire, <-next.Turn())
}

// TestSet_ATryIsBusyBehindAnyHead: one that acquires, holds, gives back, or has been made the head
// after those. It joins no queue, and the caller behind the head has its turn as before. Without a
// head it acquires.
func TestSet_ATryIsBusyBehindAnyHead(t *testing.T) {
	t.Parallel()
	s := New(valueOf)
	head, next := newCaller(), newCaller()
	head.accepts, next.accepts = false, false
	busy := func(heads string) {
		t.Helper()
		require.Equal(t, Busy, newCaller().join(t, s, true), heads)
	}
	require.Equal(t, Acquire, head.join(t, s, false))
	busy("acquires")
	require.Equal(t, Queued, next.join(t, s, false))
	busy("acquires, and another one waits")
	require.True(t, s.Hold(&head.Waiter))
	busy("holds")
	require.False(t, s.HandOver(&head.Waiter))
	busy("gives back")
	s.PromoteNext(&head.Waiter)
	busy("was promoted")
	require.Equal(t, Acquire, <-next.Turn())
	s.GiveUp(&next.Waiter, func(last bool) { require.True(t, last) })
	try := newCaller()
	require.Equal(t, Acquire, try.join(t, s, true))
	busy("tries too")
	s.GiveUp(&try.Waiter, func(last bool) { require.True(t, last) })
	_, heads, queued := s.Len()
	require.Zero(t, heads+queued)
}

// TestSet_ForgottenHolderKeepsNoCallerWaiting: one that never gives back is passed by at
// its deadline, which may have moved meanwhile.
func TestSet_ForgottenHolderKeepsNoCallerWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(valueOf)
		first, next := newCaller(), newCaller()
		require.Equal(t, Acquire, first.join(t, s, false))
		require.True(t, s.Hold(&first.Waiter))
		require.Equal(t, Queued, next.join(t, s, false))
		start := time.Now()
		mu := first.queue.lock() // under which the set reads it
		first.deadline = start.Add(2 * time.Minute)
		mu.Unlock()
		require.Equal(t, Acquire, <-next.Turn())
		require.Equal(t, 2*time.Minute, time.Since(start))
		s.PromoteNext(&first.Waiter) // too late: next is the head
		last := newCaller()
		require.Equal(t, Queued, last.join(t, s, false))
		s.PromoteNext(&next.Waiter)
		require.Equal(t, Acquire, <-last.Turn())
	})
}

// TestSet_DroppedHolderTakesNothingFromALaterOne: a holder whose queue was dropped as
// forgotten must not take the newer queue of its name away when it gives back at last.
func TestSet_DroppedHolderTakesNothingFromALaterOne(t *testing.T) {
	t.Parallel()
	s := New(valueOf)
	old := newCaller()
	old.deadline = time.Now() // and it has passed
	require.Equal(t, Acquire, old.join(t, s, false))
	require.True(t, s.Hold(&old.Waiter))
	for i := range 8 * enough * stripes { // others come
		c := newCaller()
		_, err := s.Join("", time.Duration(i).String(), &c.Waiter, &c.thing, false, new(string))
		require.NoError(t, err)
		s.PromoteNext(&c.Waiter)
	}
	_, busy, _ := s.Len()
	require.Zero(t, busy, "it is not dropped")
	later := newCaller()
	require.Equal(t, Acquire, later.join(t, s, false))
	require.True(t, s.Hold(&later.Waiter))
	s.PromoteNext(&old.Waiter)
	require.Equal(t, []Holder{&later.thing}, s.Holders())
}

func TestSet_DropsIdleQueues(t *testing.T) {
	t.Parallel()
	s := New(valueOf)
	for i := range 10_000 {
		c := newCaller()
		turn, err := s.Join("", time.Duration(i).String(), &c.Waiter, &c.thing, false, new(string))
		require.NoError(t, err)
		require.Equal(t, Acquire, turn)
		s.PromoteNext(&c.Waiter)
	}
	names, busy, _ := s.Len()
	require.Less(t, names, 200)
	require.Zero(t, busy)
}

// TestSet_GivesMemoryBackAfterAPeak: whether the names become idle in the order in which
// they came or the other way round. Those that are still held stay.
func TestSet_GivesMemoryBackAfterAPeak(t *testing.T) {
	// Not parallel: it measures the heap.
	const n = 30_000
	for name, at := range map[string]func(i int) int{
		"in order": func(i int) int { return i }, "the other way round": func(i int) int { return n - 1 - i },
	} {
		t.Run(name, func(t *testing.T) {
			s, before := New(valueOf), heap()
			callers := make([]*caller, n)
			for i := range callers {
				c := newCaller()
				_, err := s.Join("", strconv.Itoa(i), &c.Waiter, &c.thing, false, new(string))
				require.NoError(t, err)
				require.True(t, s.Hold(&c.Waiter))
				callers[i] = c
			}
			peak := heap() - before
			for i := range n - 100 {
				s.PromoteNext(&callers[at(i)].Waiter)
				callers[at(i)] = nil
			}
			names, busy, _ := s.Len()
			require.Equal(t, 100, busy)
			require.LessOrEqual(t, names, 1000)
			clear(callers)
			require.Less(t, heap()-before, peak/20, "%d at the peak", peak)
			runtime.KeepAlive(s)
		})
	}
}

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestSet_ClosedSetGrantsNothing(t *testing.T) {
	t.Parallel()
	s := New(valueOf)
	first, next, other := newCaller(), newCaller(), newCaller()
	require.Equal(t, Acquire, first.join(t, s, false))
	require.True(t, s.Hold(&first.Waiter))
	require.Equal(t, Queued, next.join(t, s, false))
	turn, err := s.Join("", "b", &other.Waiter, &other.thing, false, new(string))
	require.NoError(t, err)
	require.Equal(t, Acquire, turn)
	s.Close()
	require.False(t, s.Hold(&other.Waiter))
	require.False(t, s.HandOver(&first.Waiter))
}

func TestSet_ForbidHandOverReachesTheHead(t *testing.T) {
	t.Parallel()
	s := New(valueOf)
	s.ForbidHandOver("a") // there is none
	head, next := newCaller(), newCaller()
	require.Equal(t, Acquire, head.join(t, s, false))
	require.Equal(t, Queued, next.join(t, s, false))
	s.ForbidHandOver("a")
	require.True(t, head.forbidden)
	require.False(t, next.forbidden)
}

// TestSet_TheLastToGiveUpIsTold that it is, before another waiter can be the head.
func TestSet_TheLastToGiveUpIsTold(t *testing.T) {
	t.Parallel()
	s := New(valueOf)
	first, next := newCaller(), newCaller()
	var told []bool
	end := func(last bool) { told = append(told, last); require.Empty(t, next.Turn()) }
	require.Equal(t, Acquire, first.join(t, s, false))
	require.Equal(t, Queued, next.join(t, s, false))
	s.GiveUp(&first.Waiter, end)
	require.Equal(t, Acquire, <-next.Turn())
	s.GiveUp(&next.Waiter, end)
	s.GiveUp(&next.Waiter, end) // it is not the head any more
	require.Equal(t, []bool{false, true, false}, told)
}
