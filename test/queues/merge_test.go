package queues

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// inParallel calls f with 0 to n-1, all at the same time.
func inParallel(n int, f func(i int)) {
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-begin
			f(i)
		})
	}
	close(begin)
	all.Wait()
}

// TestMerge_EachCallerHasItsOwnOutcome has many goroutines enqueue at the same time: tasks of
// their own, and tasks with an ID that others have too.
func TestMerge_EachCallerHasItsOwnOutcome(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for policy, second := range map[sluice.Duplicates]sluice.Outcome{
			sluice.DuplicatesReplace: sluice.OutcomeUpdated, sluice.DuplicatesKeep: sluice.OutcomeKept, sluice.DuplicatesEarliest: sluice.OutcomeKept, sluice.DuplicatesLatest: sluice.OutcomeKept,
		} {
			n := b.Sized(300)
			q := b.On(b.RDB, sluice.WithDuplicates(policy))
			const same = 10 // callers with the same ID
			var outcomes [sluice.OutcomeDeferred + 1]atomic.Int64
			inParallel(n, func(i int) {
				id := strconv.Itoa(i)
				outcome, err := q.Enqueue(b.Context(), sluice.Task{ID: id, Payload: []byte(id), Delay: time.Hour})
				if err != nil || outcome != sluice.OutcomeAdded {
					b.Errorf("%s: %v, %v", id, outcome, err)
				}
				// All at one time, so that only the first counts, with three of the policies.
				outcome, err = q.Enqueue(b.Context(), sluice.Task{ID: "same" + strconv.Itoa(i/same), Payload: []byte(id), At: time.Unix(4_000_000_001, 0)})
				if err != nil {
					b.Error(err)
				}
				outcomes[outcome].Add(1)
			})
			require.EqualValues(b, n/same, outcomes[sluice.OutcomeAdded].Load())
			require.EqualValues(b, n-n/same, outcomes[second].Load())
			require.EqualValues(b, n+n/same, b.Stats().Scheduled)
			for i := range n {
				require.Equal(b, strconv.Itoa(i), string(b.Get(strconv.Itoa(i)).Payload))
			}
			for i := range n / same {
				e := b.Get("same" + strconv.Itoa(i))
				from, err := strconv.Atoi(string(e.Payload))
				require.NoError(b, err)
				require.Equal(b, i, from/same)
				if policy != sluice.DuplicatesReplace { // which moves it by a microsecond, so that no two versions have one receipt
					require.Equal(b, 4_000_000_001.0, e.Score, "it is due when its caller says, to the microsecond")
				}
			}
			require.NoError(b, q.Purge(b.Context()))
		}
	})
}

// TestMerge_NoTaskIsHandedOutTwice has many goroutines claim and finish tasks until there are
// none, some of them in twos and threes, and each with a receipt that is stale beside it.
func TestMerge_NoTaskIsHandedOutTwice(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		n := b.Sized(1000)
		tasks := make([]sluice.Task, n)
		for i := range tasks {
			tasks[i] = sluice.Task{ID: strconv.Itoa(i), Payload: []byte(fmt.Sprint("payload of ", i))}
		}
		_, err := b.Q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		handedOut := make([]atomic.Int64, n)
		inParallel(100, func(caller int) {
			for {
				es, err := b.Q.Claim(b.Context(), 1+caller%3, time.Minute)
				if err != nil || len(es) == 0 {
					if err != nil {
						b.Error(err)
					}
					return
				}
				if len(es) > 1+caller%3 {
					b.Errorf("%d tasks for %d", len(es), 1+caller%3)
				}
				for _, e := range es {
					i, _ := strconv.Atoi(e.ID)
					handedOut[i].Add(1)
					if string(e.Payload) != "payload of "+e.ID || e.Attempt != 1 {
						b.Errorf("%s has attempt %d and %q", e.ID, e.Attempt, e.Payload)
					}
				}
				stale := es[0]
				stale.Score--
				err = b.Q.Dequeue(b.Context(), append(es, stale)...)
				var named *sluice.StaleError
				if !errors.As(err, &named) || len(named.IDs) != 1 || named.IDs[0] != stale.ID {
					b.Errorf("%s: %v", stale.ID, err)
				}
			}
		})
		for i := range handedOut {
			require.EqualValues(b, 1, handedOut[i].Load(), "task %d", i)
		}
		b.RequireDrained()
	})
}

// TestMerge_OneOfTwoFinishes has pairs of callers finish the same entry at the same time.
func TestMerge_OneOfTwoFinishes(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		n := b.Sized(500)
		for i := range n {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: strconv.Itoa(i)})
		}
		es := b.Claim(n, time.Minute)
		require.Len(b, es, n)
		finished := make([]atomic.Int64, n)
		inParallel(2*n, func(i int) {
			e := es[i/2]
			err := b.Q.Dequeue(b.Context(), e)
			var stale *sluice.StaleError
			switch {
			case err == nil:
				finished[i/2].Add(1)
			case !errors.As(err, &stale) || stale.IDs[0] != e.ID:
				b.Errorf("%s: %v", e.ID, err)
			}
		})
		for i := range finished {
			require.EqualValues(b, 1, finished[i].Load())
		}
		b.RequireDrained()
	})
}

// TestMerge_AMixedGroupDefersAndAdds: tasks of a leased ID wait, beside others that do not.
func TestMerge_AMixedGroupDefersAndAdds(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		n := b.Sized(200)
		for i := range n {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: strconv.Itoa(i)})
		}
		es := b.Claim(n, time.Minute)
		require.Len(b, es, n)
		inParallel(2*n, func(i int) {
			want := sluice.OutcomeDeferred
			if i >= n {
				want = sluice.OutcomeAdded
			}
			outcome, err := b.Q.Enqueue(b.Context(), sluice.Task{ID: strconv.Itoa(i), Payload: []byte("new")})
			if err != nil || outcome != want {
				b.Errorf("%d: %v, %v", i, outcome, err)
			}
		})
		inParallel(n, func(i int) {
			if err := b.Q.Dequeue(b.Context(), es[i]); err != nil {
				b.Error(err)
			}
		})
		require.EqualValues(b, 2*n, b.Stats().Due)
		for _, e := range b.Claim(2*n, time.Minute) {
			require.Equal(b, "new", string(e.Payload))
			require.Equal(b, 1, e.Attempt)
		}
	})
}

// TestMerge_EachClaimHasTheLeaseThatItAsksFor: only claims of the same lease are merged.
func TestMerge_EachClaimHasTheLeaseThatItAsksFor(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		const n = 60
		for i := range n {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: strconv.Itoa(i)})
		}
		began := b.Now()
		scores := make([]float64, n)
		inParallel(n, func(i int) {
			es, err := b.Q.Claim(b.Context(), 1, time.Duration(1+i%3)*time.Hour)
			if err != nil || len(es) != 1 {
				b.Errorf("%d tasks, %v", len(es), err)
				return
			}
			scores[i] = es[0].Score
		})
		for i, score := range scores {
			require.InDelta(b, 3600*(1+i%3), score-began, 600)
		}
	})
}
