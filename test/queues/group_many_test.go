package queues

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestGroup_ALargerLimitLetsSomeInAtATime: a script puts some 250 tasks into play, however many wait,
// of many groups or of one; and all get their turn.
func TestGroup_ALargerLimitLetsSomeInAtATime(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		const groups, each = 20, 100
		var tasks []sluice.Task
		for i := range groups * each {
			tasks = append(tasks, of(fmt.Sprint("g", i%groups), fmt.Sprint(i)))
		}
		_, err := g.Q.EnqueueBatch(g.Context(), tasks)
		require.NoError(g, err)
		inPlay := func() int64 {
			s, err := g.Q.Stats(g.Context())
			require.NoError(g, err)
			return s.Due + s.Leased + s.Scheduled
		}
		require.EqualValues(g, groups, inPlay())
		require.NoError(g, g.Q.SetLimits(g.Context(), sluice.Limits{PerGroup: 1000}))
		ended := g.Claim(groups, time.Minute)
		require.Len(g, ended, groups)
		require.NoError(g, g.Q.Dequeue(g.Context(), ended...))
		n := inPlay()
		require.LessOrEqual(g, n, int64(250+groups))
		require.GreaterOrEqual(g, n, int64(250))
		for left := groups*each - groups; left > 0; {
			es := g.Claim(250, time.Minute)
			require.NotEmpty(g, es)
			require.NoError(g, g.Q.Dequeue(g.Context(), es...))
			left -= len(es)
		}
		g.requireWaiting()
		g.RequireDrained()
	})
}

// TestGroup_OfThousandsAForeignConsumerHoldsNoneUp: a worker looks at a thousand of them at a time.
func TestGroup_OfThousandsAForeignConsumerHoldsNoneUp(t *testing.T) {
	t.Parallel()
	b := systest.NewQueueTest(t, redistest.Start(t).Client(t), "q")
	var tasks []sluice.Task
	for i := range 2 * 2200 {
		tasks = append(tasks, of(fmt.Sprintf("g%04d", i/2), fmt.Sprint(i)))
	}
	_, err := b.Q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	require.NoError(t, b.RDB.ZRem(t.Context(), b.Key, "4398").Err())
	grouped{b}.requireState(sluice.StateWaiting, "4399")
	for range 2 {
		seen(b)
	}
	grouped{b}.requireState(sluice.StateDue, "4399")
}

// TestGroup_ManyThatEndTogetherAreLookedAtOnceAGroup: what a script does does not grow with how the
// tasks of several groups alternate.
func TestGroup_ManyThatEndTogetherAreLookedAtOnceAGroup(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), redistest.Start(t)
	rdb := s.Client(t)
	q := systest.NewQueue(t, rdb)
	require.NoError(t, q.SetLimits(ctx, sluice.Limits{PerGroup: 100}))
	var tasks []sluice.Task
	for i := range 400 {
		tasks = append(tasks, of(fmt.Sprint("g", i%2), fmt.Sprint(i)))
	}
	_, err := q.EnqueueBatch(ctx, tasks)
	require.NoError(t, err)
	es, err := q.Claim(ctx, 200, time.Minute)
	require.NoError(t, err)
	require.Len(t, es, 200)
	before := redistest.Calls(t, rdb, "zmscore")
	require.NoError(t, q.Dequeue(ctx, es...))
	require.LessOrEqual(t, redistest.Calls(t, rdb, "zmscore")-before, 10)
}

// TestGroup_AsManyComeAsAreBuried: what a claim frees by burying is filled by the same script, however much that is.
func TestGroup_AsManyComeAsAreBuried(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		const groups = 300
		require.NoError(g, g.Q.SetLimits(g.Context(), sluice.Limits{PerGroup: 2}))
		var tasks []sluice.Task
		for i := range groups {
			for n, delay := range []time.Duration{0, time.Hour, 2 * time.Hour} {
				task := of(fmt.Sprint("g", i), fmt.Sprint(n, "-", i))
				task.Delay = delay
				tasks = append(tasks, task)
			}
		}
		_, err := g.Q.EnqueueBatch(g.Context(), tasks)
		require.NoError(g, err)
		first := g.Claim(groups, time.Minute)
		require.Len(g, first, groups)
		require.NoError(g, g.Q.Retry(g.Context(), 0, "no", first...))
		stats, err := g.Q.Stats(g.Context())
		require.NoError(g, err)
		require.EqualValues(g, groups, stats.GroupWaiting)

		strict := g.On(g.RDB, sluice.WithMaxAttempts(1))
		_, err = strict.Enqueue(g.Context(), of("other", "other")) // it knows of groups from here on
		require.NoError(g, err)
		_, err = strict.Claim(g.Context(), 1, time.Minute)
		require.NoError(g, err)
		stats, err = g.Q.Stats(g.Context())
		require.NoError(g, err)
		require.EqualValues(g, groups, stats.Dead)
		require.Zero(g, stats.GroupWaiting)
	})
}
