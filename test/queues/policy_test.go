package queues

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestTask_DuplicatesIsForOneEnqueue, whatever the queue's policy is; 0 is the queue's.
func TestTask_DuplicatesIsForOneEnqueue(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		for _, policy := range []sluice.Duplicates{sluice.DuplicatesReplace, sluice.DuplicatesKeep} {
			q := b.On(b.RDB, sluice.WithDuplicates(policy), sluice.WithDuplicates(0), sluice.WithRetention(time.Hour))
			enqueue := func(id, payload string, d sluice.Duplicates, delay time.Duration) sluice.Outcome {
				outcome, err := q.Enqueue(ctx, sluice.Task{ID: id, Payload: []byte(payload), Delay: delay, Duplicates: d})
				require.NoError(b, err)
				return outcome
			}
			require.Equal(b, sluice.OutcomeAdded, enqueue("a", "1", 0, time.Hour))
			require.Equal(b, sluice.OutcomeKept, enqueue("a", "2", sluice.DuplicatesKeep, 0))
			require.Equal(b, sluice.OutcomeKept, enqueue("a", "2", sluice.DuplicatesOnce, 0))
			require.Equal(b, sluice.OutcomeKept, enqueue("a", "2", sluice.DuplicatesEarliest, 2*time.Hour))
			require.Equal(b, sluice.OutcomeUpdated, enqueue("a", "3", sluice.DuplicatesLatest, 2*time.Hour))
			require.Equal(b, sluice.OutcomeUpdated, enqueue("a", "4", sluice.DuplicatesKeepDue, 3*time.Hour))
			require.WithinDuration(b, time.Now().Add(2*time.Hour), b.Get("a").Due, time.Minute)
			require.Equal(b, sluice.OutcomeUpdated, enqueue("a", "5", sluice.DuplicatesReplace, 0))
			require.Equal(b, "5", string(b.Get("a").Payload))
			want := map[sluice.Duplicates]sluice.Outcome{sluice.DuplicatesReplace: sluice.OutcomeUpdated, sluice.DuplicatesKeep: sluice.OutcomeKept}[policy]
			require.Equal(b, want, enqueue("a", "6", 0, 0))
			require.NoError(b, q.Dequeue(ctx, b.ClaimOne(time.Minute)))
			require.Equal(b, sluice.OutcomeDone, enqueue("a", "7", sluice.DuplicatesOnce, 0))
			require.Equal(b, sluice.OutcomeAdded, enqueue("a", "8", 0, 0))
			require.NoError(b, q.Purge(ctx))
		}
	})
}

// TestTask_DuplicatesInABatch: each task has its own policy, in the order given, and keeps its place
// among those that are due with it.
func TestTask_DuplicatesInABatch(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		q := b.On(b.RDB, sluice.WithRetention(time.Hour))
		policies := []sluice.Duplicates{0, sluice.DuplicatesKeep, sluice.DuplicatesKeep, sluice.DuplicatesReplace, sluice.DuplicatesOnce}
		var tasks []sluice.Task
		var want []sluice.Outcome
		var order []string
		for i, policy := range policies {
			id := "new" + strconv.Itoa(i)
			tasks = append(tasks, sluice.Task{ID: id, Duplicates: policy}, sluice.Task{ID: "same", Payload: []byte(id), Duplicates: policy, At: time.Unix(4_000_000_001, 0)})
			want = append(want, sluice.OutcomeAdded, []sluice.Outcome{sluice.OutcomeAdded, sluice.OutcomeKept, sluice.OutcomeKept, sluice.OutcomeUpdated, sluice.OutcomeKept}[i])
			order = append(order, id)
		}
		outcomes, err := q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		require.Equal(b, want, outcomes)
		require.Equal(b, "new3", string(b.Get("same").Payload))
		require.Equal(b, order, systest.IDs(b.Claim(10, time.Minute)))
	})
}

// TestTask_DuplicatesIsChecked before anything is sent.
func TestTask_DuplicatesIsChecked(t *testing.T) {
	t.Parallel()
	ctx, rdb := t.Context(), redistest.Mini(t).Client(t)
	qs, err := sluice.NewQueues(rdb, redistest.Name(t), 2)
	require.NoError(t, err)
	for _, policy := range []sluice.Duplicates{-1, sluice.DuplicatesOnce, sluice.DuplicatesOnce + 1} { // without a retention
		task := sluice.Task{ID: "a", Duplicates: policy}
		_, err := qs[0].Enqueue(ctx, task)
		require.ErrorIs(t, err, sluice.ErrInvalid)
		_, err = qs[0].EnqueueBatch(ctx, []sluice.Task{{ID: "b"}, task})
		require.ErrorIs(t, err, sluice.ErrInvalid)
		_, err = qs.EnqueueBatch(ctx, []sluice.Task{{ID: "b"}, task})
		require.ErrorIs(t, err, sluice.ErrInvalid)
	}
	s, err := qs[0].Stats(ctx)
	require.NoError(t, err)
	require.Zero(t, s.Due)
}

// TestMerge_EachCallHasItsPolicy: calls that are sent together keep apart what they ask for.
func TestMerge_EachCallHasItsPolicy(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		q := b.On(b.RDB, sluice.WithRetention(time.Hour))
		const same, n = 20, 200 // tasks, and callers
		outcomes := make([]sluice.Outcome, n)
		policies := []sluice.Duplicates{0, sluice.DuplicatesKeep, sluice.DuplicatesOnce, sluice.DuplicatesReplace}
		inParallel(n, func(i int) {
			var err error
			outcomes[i], err = q.Enqueue(b.Context(), sluice.Task{ID: strconv.Itoa(i % same), Payload: []byte(strconv.Itoa(i)), Delay: time.Hour, Duplicates: policies[i/same%4]})
			if err != nil {
				b.Error(err)
			}
		})
		added := map[int]int{}
		for i, outcome := range outcomes {
			if outcome == sluice.OutcomeAdded {
				added[i%same]++
				continue
			}
			want := []sluice.Outcome{sluice.OutcomeUpdated, sluice.OutcomeKept, sluice.OutcomeKept, sluice.OutcomeUpdated}[i/same%4]
			require.Equal(b, want, outcome, "call %d", i)
		}
		for id := range same {
			require.Equal(b, 1, added[id])
			last, err := strconv.Atoi(string(b.Get(strconv.Itoa(id)).Payload))
			require.NoError(b, err)
			require.Equal(b, id, last%same)
			require.NotEqual(b, sluice.OutcomeKept, outcomes[last], "what was dropped was written")
		}
	})
}
