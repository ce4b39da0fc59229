package queues

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestCancelUnchanged_LeavesWhatHasChanged: of two tasks in each state, one changes after both were
// read, and that one stays as it is then.
func TestCancelUnchanged_LeavesWhatHasChanged(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		q, err := sluice.NewQueue(b.RDB, b.Q.Name(), sluice.WithRetention(time.Hour), sluice.WithDuplicates(sluice.DuplicatesReplace))
		require.NoError(b, err)
		at := b.RDB.Time(ctx).Val().Add(-time.Hour)
		enqueue := func(id string, t sluice.Task) {
			t.ID = id
			_, err := q.Enqueue(ctx, t)
			require.NoError(b, err)
		}
		claimed := func(id string) sluice.Entry {
			es, err := q.Claim(ctx, 1, time.Hour)
			require.NoError(b, err)
			require.Len(b, es, 1)
			require.Equal(b, id, es[0].ID)
			return es[0]
		}
		for _, which := range []string{"same", "changed"} {
			enqueue("dead-"+which, sluice.Task{At: at})
			require.NoError(b, q.Bury(ctx, "why", claimed("dead-"+which)))
			enqueue("done-"+which, sluice.Task{At: at})
			require.NoError(b, q.Dequeue(ctx, claimed("done-"+which)))
			enqueue("due-"+which, sluice.Task{At: at.Add(time.Minute)})
			enqueue("scheduled-"+which, sluice.Task{Delay: time.Hour})
			enqueue("play-"+which, sluice.Task{At: at.Add(2 * time.Minute), Group: which})
			enqueue("waiting-"+which, sluice.Task{At: at.Add(3 * time.Minute), Group: which})
		}
		var read []sluice.TaskInfo
		for _, state := range []string{"dead", "done", "due", "scheduled", "waiting"} {
			for _, which := range []string{"same", "changed"} {
				t, err := q.Get(ctx, state+"-"+which)
				require.NoError(b, err)
				require.Equal(b, state, t.State.String())
				read = append(read, t)
			}
		}

		enqueue("dead-changed", sluice.Task{At: at})
		require.NoError(b, q.Bury(ctx, "again", claimed("dead-changed"))) // dead, but another one
		enqueue("done-changed", sluice.Task{At: at})
		require.Equal(b, "done-changed", claimed("done-changed").ID)
		enqueue("scheduled-changed", sluice.Task{Delay: 2 * time.Hour})
		enqueue("waiting-changed", sluice.Task{At: at.Add(4 * time.Minute), Group: "changed"})
		require.NoError(b, q.Release(ctx, claimed("due-changed"))) // due at another time

		states, err := q.CancelUnchanged(ctx, read...)
		require.NoError(b, err)
		require.Equal(b, []sluice.State{
			sluice.StateDead, sluice.StateAbsent, sluice.StateDone, sluice.StateAbsent, sluice.StateDue, sluice.StateAbsent,
			sluice.StateScheduled, sluice.StateAbsent, sluice.StateWaiting, sluice.StateAbsent,
		}, states)
		for i, t := range read {
			now, err := q.Get(ctx, t.ID)
			if states[i] != sluice.StateAbsent {
				require.ErrorIs(b, err, sluice.ErrNotFound, t.ID)
				continue
			}
			require.NoError(b, err, t.ID)
			require.NotEqual(b, t.Score, now.Score, t.ID)
		}
		states, err = q.CancelUnchanged(ctx, read...)
		require.NoError(b, err)
		require.Equal(b, make([]sluice.State, len(read)), states)

		leased, err := q.Get(ctx, "done-changed")
		require.NoError(b, err)
		for _, wrong := range []sluice.TaskInfo{leased, {}, {Entry: sluice.Entry{ID: "a", Score: 1}}} {
			_, err = q.CancelUnchanged(ctx, read[0], wrong)
			require.ErrorIs(b, err, sluice.ErrInvalid)
		}
	})
}
