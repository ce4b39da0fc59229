package queues

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// laterNote is one that a pattern for numbers might take for its own.
const laterNote = "1e5+7/-3.=~;!"

// A noted is a queue with a task "a" in whose state field a later version has noted something.
type noted struct{ systest.QueueTest }

func (b noted) states() string { return "{" + b.Key + "}:state" }

// field returns the state field of "a", "" for none.
func (b noted) field() string { return b.RDB.HGet(b.Context(), b.states(), "a").Val() }

// write notes something of "a".
func (b noted) write(text string) {
	b.Helper()
	parts := append(strings.Split(b.field(), ":"), "", "")
	require.NoError(b, b.RDB.HSet(b.Context(), b.states(), "a", strings.Join(parts[:3], ":")+":"+text).Err())
}

// foreignAdd moves "a" as a producer that writes only the sorted set.
func (b noted) foreignAdd(score float64) {
	b.Helper()
	require.NoError(b, b.RDB.ZAdd(b.Context(), b.Key, redis.Z{Score: score, Member: "a"}).Err())
}

// claim claims "a", as attempt n.
func (b noted) claim(n int) {
	b.Helper()
	e := b.ClaimOne(time.Hour)
	require.Equal(b, "a", e.ID)
	require.Equal(b, n, e.Attempt)
}

// The states in which "a" is when the note is written. Each returns the last receipt, if there is
// one.

func (b noted) scheduled() (e sluice.Entry) {
	b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Delay: time.Hour})
	return e
}

func (b noted) due() (e sluice.Entry) {
	b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
	return e
}

func (b noted) claimed() sluice.Entry {
	b.due()
	return b.ClaimOne(time.Hour)
}

func (b noted) retried() sluice.Entry {
	e := b.claimed()
	require.NoError(b, b.Q.Retry(b.Context(), 0, "failed", e))
	return e
}

func (b noted) claimedAgain() sluice.Entry {
	b.retried()
	return b.ClaimOne(time.Hour)
}

// deferred has a version that waits behind the lease.
func (b noted) deferred() sluice.Entry {
	e := b.claimed()
	b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a", Payload: []byte("next"), Delay: time.Hour})
	return e
}

// unseen has a lease that has ended, and nothing was heard of its holder.
func (b noted) unseen() sluice.Entry {
	e := b.claimed()
	b.EndLeaseUnseen(e)
	return e
}

// expired has a lease that was extended, and has ended.
func (b noted) expired() sluice.Entry {
	e := b.claimed()
	b.EndLeaseSoon(e)
	b.Eventually(func() bool { return b.Stats().Leased == 0 })
	return e
}

// overtaken has a version that waited, and is due since the lease has ended.
func (b noted) overtaken() sluice.Entry {
	e := b.claimed()
	b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a"})
	b.EndLeaseUnseen(e)
	return e
}

// dead was noted before it died.
func (b noted) dead() sluice.Entry {
	e := b.claimed()
	b.write(laterNote)
	b.Bury(e, "why")
	return e
}

// TestQueue_KeepsWhatALaterVersionNotes has each script that reads or writes state fields meet one
// with a fourth part that is not this version's: it is accepted and, until the lease ends or
// another one begins, kept as it is.
func TestQueue_KeepsWhatALaterVersionNotes(t *testing.T) {
	type act = func(ctx context.Context, b noted, e sluice.Entry) error
	enqueue := func(policy sluice.Duplicates, want sluice.Outcome, delay time.Duration, others ...string) act {
		return func(ctx context.Context, b noted, _ sluice.Entry) error {
			tasks := []sluice.Task{{ID: "a", Payload: []byte("new"), Delay: delay}}
			for _, id := range others {
				tasks = append(tasks, sluice.Task{ID: id, Delay: time.Hour})
			}
			outcomes, err := b.On(b.RDB, sluice.WithDuplicates(policy)).EnqueueBatch(ctx, tasks)
			require.Equal(b, want, outcomes[0])
			return err
		}
	}
	reschedule := func(ctx context.Context, b noted, _ sluice.Entry) error {
		found, err := b.Q.Reschedule(ctx, "a", 30*time.Minute)
		require.True(b, found)
		return err
	}
	cancel := func(ctx context.Context, b noted, _ sluice.Entry) error { _, err := b.Q.Cancel(ctx, "a"); return err }
	dequeue := func(ctx context.Context, b noted, e sluice.Entry) error { return b.Q.Dequeue(ctx, e) }
	retry := func(ctx context.Context, b noted, e sluice.Entry) error {
		return b.Q.Retry(ctx, time.Hour, "failed", e)
	}
	release := func(ctx context.Context, b noted, e sluice.Entry) error { return b.Q.Release(ctx, e) }
	extend := func(ctx context.Context, b noted, e sluice.Entry) error { return b.Q.Extend(ctx, e, 2*time.Hour) }
	bury := func(ctx context.Context, b noted, e sluice.Entry) error { return b.Q.Bury(ctx, "why", e) }
	claim := func(n int) act {
		return func(_ context.Context, b noted, _ sluice.Entry) error { b.claim(n); return nil }
	}
	putNext := func(ctx context.Context, b noted, e sluice.Entry) error {
		return b.PutNext(ctx, e, sluice.Task{ID: "a", At: time.Now().Add(time.Hour), Payload: []byte("next")})
	}
	list := func(s sluice.State) act {
		return func(ctx context.Context, b noted, _ sluice.Entry) error {
			es, err := b.Q.List(ctx, s, sluice.TaskInfo{}, 10)
			require.Equal(b, []string{"a"}, systest.IDs(es))
			return err
		}
	}
	const kept, gone = true, false
	for name, c := range map[string]struct {
		state func(noted) sluice.Entry
		act   act
		kept  bool
	}{
		"get: due":        {noted.retried, func(ctx context.Context, b noted, _ sluice.Entry) error { _, err := b.Q.Get(ctx, "a"); return err }, kept},
		"list: scheduled": {noted.scheduled, list(sluice.StateScheduled), kept},
		"list: leased":    {noted.deferred, list(sluice.StateLeased), kept},
		"peek: due":       {noted.retried, list(sluice.StateDue), kept},

		"claim: never claimed":       {noted.due, claim(1), gone},
		"claim: retried":             {noted.retried, claim(2), gone},
		"claim: lease ran out":       {noted.expired, claim(2), gone},
		"claim: delivery not seen":   {noted.unseen, claim(1), gone},
		"claim: a version took over": {noted.overtaken, claim(1), gone},
		"claim: a lease that a foreign producer moved": {noted.claimed, func(_ context.Context, b noted, _ sluice.Entry) error {
			b.foreignAdd(1)
			require.Empty(b, b.Claim(10, time.Hour))
			return nil
		}, kept},
		"claim: attempts used up": {noted.retried, func(ctx context.Context, b noted, _ sluice.Entry) error {
			es, err := b.On(b.RDB, sluice.WithMaxAttempts(1)).Claim(ctx, 1, time.Hour)
			require.Empty(b, es)
			require.Equal(b, "attempts used up", b.Dead(1)[0].Reason)
			return err
		}, gone},
		"pop": {noted.retried, func(ctx context.Context, b noted, _ sluice.Entry) error {
			es, err := b.Q.Pop(ctx, 1)
			require.Equal(b, []string{"a"}, systest.IDs(es))
			return err
		}, gone},

		"extend":                     {noted.claimed, extend, kept},
		"extend: lease ran out":      {noted.expired, extend, kept},
		"extend: a version waits":    {noted.deferred, extend, kept},
		"dequeue":                    {noted.claimed, dequeue, gone},
		"dequeue: a version waits":   {noted.deferred, dequeue, gone},
		"dequeue: lease ran out":     {noted.expired, dequeue, gone},
		"retry":                      {noted.claimed, retry, gone},
		"retry: a version waits":     {noted.deferred, retry, gone},
		"release: first attempt":     {noted.claimed, release, gone},
		"release: second attempt":    {noted.claimedAgain, release, gone},
		"release: a version waits":   {noted.deferred, release, gone},
		"next occurrence":            {noted.claimed, putNext, gone},
		"bury":                       {noted.claimed, bury, gone},
		"bury: a version waits":      {noted.deferred, bury, gone},
		"reschedule: scheduled":      {noted.scheduled, reschedule, kept},
		"reschedule: leased":         {noted.claimed, reschedule, kept},
		"reschedule: retried":        {noted.retried, reschedule, kept},
		"reschedule: lease ran out":  {noted.expired, reschedule, gone},
		"reschedule: version waits":  {noted.deferred, reschedule, kept},
		"reschedule: it took over":   {noted.overtaken, reschedule, gone},
		"cancel: due":                {noted.retried, cancel, gone},
		"cancel: leased":             {noted.claimed, cancel, gone},
		"enqueue: replaces":          {noted.retried, enqueue(sluice.DuplicatesReplace, sluice.OutcomeUpdated, 0), gone},
		"enqueue: keeps":             {noted.retried, enqueue(sluice.DuplicatesKeep, sluice.OutcomeKept, 0), kept},
		"enqueue: earlier":           {noted.scheduled, enqueue(sluice.DuplicatesEarliest, sluice.OutcomeUpdated, 0), gone},
		"enqueue: later, leased":     {noted.claimed, enqueue(sluice.DuplicatesLatest, sluice.OutcomeDeferred, 0), kept},
		"enqueue: deferred":          {noted.claimed, enqueue(sluice.DuplicatesReplace, sluice.OutcomeDeferred, 0), kept},
		"enqueue: deferred again":    {noted.deferred, enqueue(sluice.DuplicatesEarliest, sluice.OutcomeDeferred, 0), kept},
		"enqueue: it took over":      {noted.overtaken, enqueue(sluice.DuplicatesReplace, sluice.OutcomeUpdated, 0), gone},
		"enqueue: batch, replaces":   {noted.retried, enqueue(sluice.DuplicatesReplace, sluice.OutcomeUpdated, 0, "b", "c"), gone},
		"enqueue: batch, deferred":   {noted.claimed, enqueue(sluice.DuplicatesReplace, sluice.OutcomeDeferred, 0, "b", "c"), kept},
		"enqueue: twice in a batch":  {noted.claimed, enqueue(sluice.DuplicatesReplace, sluice.OutcomeDeferred, 0, "b", "a"), kept},
		"revive":                     {noted.dead, func(_ context.Context, b noted, _ sluice.Entry) error { b.Revive(1, "a"); return nil }, gone},
		"drop":                       {noted.dead, func(ctx context.Context, b noted, _ sluice.Entry) error { _, err := b.Q.Drop(ctx, "a"); return err }, gone},
		"purge":                      {noted.claimed, func(ctx context.Context, b noted, _ sluice.Entry) error { return b.Q.Purge(ctx) }, gone},
		"a foreign producer's ZADD":  {noted.retried, func(_ context.Context, b noted, _ sluice.Entry) error { b.foreignAdd(1); b.claim(2); return nil }, gone},
		"back from the dead letters": {noted.dead, func(_ context.Context, b noted, _ sluice.Entry) error { b.foreignAdd(1); b.claim(1); return nil }, gone},
	} {
		t.Run(name, func(t *testing.T) {
			systest.EachQueue(t, func(q systest.QueueTest) {
				b := noted{q}
				e := c.state(b)
				if wasDead := strings.Contains(b.field(), ":dead:"); !wasDead {
					b.write(laterNote)
				}
				_, err := b.Q.Get(b.Context(), "a")
				require.NoError(b, err)
				before := b.field()
				require.NoError(b, c.act(b.Context(), b, e))
				if !c.kept {
					require.NotContains(b, b.field(), laterNote, "before: %s", before)
					return
				}
				require.True(b, strings.HasSuffix(b.field(), ":"+laterNote), "%s, before: %s", b.field(), before)
				require.Equal(b, 3, strings.Count(b.field(), ":"), b.field())
			})
		})
	}
}

// TestQueue_ANoteHasALimitedForm: 1 to 128 printable ASCII characters, no space and no colon. What
// has another is malformed, as is a fifth part.
func TestQueue_ANoteHasALimitedForm(t *testing.T) {
	systest.EachQueue(t, func(q systest.QueueTest) {
		b := noted{q}
		b.claimed()
		all := ""
		for c := '!'; c <= '~'; c++ {
			if c != ':' {
				all += string(c)
			}
		}
		for _, good := range []string{"0", "/", "+", "-1.5e3", all, strings.Repeat("n", 128)} {
			b.write(good)
			require.Equal(b, 1, b.Get("a").Attempt, good)
		}
		for _, bad := range []string{"", strings.Repeat("n", 129), "a b", " ", "a:b", ":", "a:", "a\x7f", "\x1f", "é", "\x00", "a\n"} {
			b.write(bad)
			_, err := b.Q.Get(b.Context(), "a")
			require.ErrorIs(b, err, sluice.ErrCorrupt, "%q", bad)
		}
	})
}
