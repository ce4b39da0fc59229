package sluice

import (
	"context"
	"errors"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/locks"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/taskloop"
)

type contextKey string

// every makes happen what each of the hooks is told, and returns the contexts of the two that
// return one.
func every(ctx context.Context, l lockOptions, tasks hookList[QueueHooks]) (sending, started context.Context) {
	for _, what := range []locks.What{locks.WaitFailed, locks.Acquired, locks.Released, locks.Lost} {
		for _, hook := range l.Hooks {
			hook(ctx, locks.Event{What: what})
		}
	}
	q := &Queue{options: queueOptions{hooks: tasks}}
	_, _ = q.sendTasks(ctx, []Task{{ID: "a"}}, func(ctx context.Context, _ []Task) ([]Outcome, error) {
		sending = ctx
		return nil, nil
	})
	q.noteClaimed([]Entry{{ID: "a"}})
	w := q.newWorkObserver(0)
	started = w.Started(ctx, store.Task{})
	w.Finished(ctx, store.Task{}, taskloop.Finished{})
	return sending, started
}

// allHooks is hooks of both kinds.
type allHooks struct {
	locks LockHooks
	tasks QueueHooks
}

// all returns hooks each of which calls do.
func all(do func(ctx context.Context, name string) context.Context) allHooks {
	bg := context.Background()
	return allHooks{LockHooks{
		LockWaitFailed: func(ctx context.Context, _ LockWaitFailed) { do(ctx, "ended") },
		LockAcquired:   func(ctx context.Context, _ LockAcquired) { do(ctx, "acquired") },
		LockReleased:   func(LockReleased) { do(bg, "released") },
		LockLost:       func(LockLost) { do(bg, "lost") },
	}, QueueHooks{
		TasksSending: func(ctx context.Context, _ TasksSending) context.Context { return do(ctx, "sending") },
		TasksSent:    func(ctx context.Context, _ TasksSent) { do(ctx, "sent") },
		TasksClaimed: func(TasksClaimed) { do(bg, "claimed") },
		TaskStarted:  func(ctx context.Context, _ TaskStarted) context.Context { return do(ctx, "started") },
		TaskFinished: func(ctx context.Context, _ TaskFinished) { do(ctx, "finished") },
	}}
}

// TestHooks_SeveralAreCalledInOrder: each hook of the first, of one that panics, and of the second;
// what returns no context keeps the one before it.
func TestHooks_SeveralAreCalledInOrder(t *testing.T) {
	t.Parallel()
	var calls []string
	noting := func(of string) allHooks {
		return all(func(ctx context.Context, name string) context.Context {
			calls = append(calls, of+" "+name)
			return context.WithValue(ctx, contextKey(of), name)
		})
	}
	panicking := all(func(context.Context, string) context.Context { panic(errors.New("in a hook")) })
	forgetting := all(func(context.Context, string) context.Context { return nil })
	var l lockOptions
	var q queueOptions
	for _, h := range []allHooks{noting("1"), panicking, {}, forgetting, noting("2")} {
		WithLockHooks(h.locks)(&l)
		WithQueueHooks(h.tasks)(&q)
	}
	sending, started := every(t.Context(), l, q.hooks)
	require.Equal(t, []string{
		"1 ended", "2 ended", "1 acquired", "2 acquired", "1 released", "2 released", "1 lost", "2 lost", "1 sending", "2 sending",
		"1 sent", "2 sent", "1 claimed", "2 claimed", "1 started", "2 started", "1 finished", "2 finished",
	}, calls)
	for of, name := range map[context.Context]string{sending: "sending", started: "started"} {
		require.Equal(t, name, of.Value(contextKey("1")))
		require.Equal(t, name, of.Value(contextKey("2")))
	}

	sending, started = every(t.Context(), lockOptions{Hooks: []locks.Hook{panicking.locks.tell}}, hookList[QueueHooks]{&panicking.tasks})
	require.Equal(t, []context.Context{t.Context(), t.Context()}, []context.Context{sending, started})
}

// TestHooks_NoneCostNothing: options without a hook have none, and a Lock is no larger than it was.
func TestHooks_NoneCostNothing(t *testing.T) {
	t.Parallel()
	var o lockOptions
	WithLockHooks(LockHooks{})(&o)
	require.Nil(t, o.Hooks)
	var q queueOptions
	WithQueueHooks(QueueHooks{})(&q)
	require.Nil(t, q.hooks)
	if unsafe.Sizeof(uintptr(0)) == 8 {
		require.LessOrEqual(t, unsafe.Sizeof(Lock{}), uintptr(192), "each hand-over makes one, and 192 bytes are a size class")
	}
}

// TestDisposition_HasANameForEach count of WorkerStats.
func TestDisposition_HasANameForEach(t *testing.T) {
	t.Parallel()
	for d, name := range map[Disposition]string{
		DispositionDone: "done", DispositionRetried: "retried", DispositionBuried: "buried", DispositionCanceled: "canceled", DispositionReleased: "released", DispositionDiscarded: "discarded", DispositionAgain: "again", DispositionLost: "lost", DispositionExpired: "expired",
		0: "unknown", -1: "unknown", DispositionExpired + 1: "unknown",
	} {
		require.Equal(t, name, d.String())
	}
}

// TestDecodeInspected_ShowsLabelsOnly: what is none is left out, and what the script does not give
// is refused.
func TestDecodeInspected_ShowsLabelsOnly(t *testing.T) {
	t.Parallel()
	labels := func(all ...any) []any { return all }
	for _, c := range []struct {
		value any
		want  LockInfo
		ok    bool
	}{
		{[]any{int64(-2), labels(), int64(0), int64(0), labels()}, LockInfo{}, true},
		{[]any{int64(-2), labels(), int64(0), int64(3), labels()}, LockInfo{Waiting: 3}, true},
		{[]any{int64(-1), labels(), int64(1), int64(2), labels()}, LockInfo{Held: true, TTL: -time.Millisecond, Holders: 1, Waiting: 2}, true},
		{[]any{int64(7), labels("host 1"), int64(1), int64(2), labels()}, LockInfo{Held: true, TTL: 7 * time.Millisecond, Owner: "host 1", Owners: []string{"host 1"}, Holders: 1, Waiting: 2}, true},
		{[]any{int64(7), labels(), int64(1000), int64(2), labels()}, LockInfo{Held: true, TTL: 7 * time.Millisecond, Holders: 1000, Waiting: 2}, true},
		{[]any{int64(7), labels("a\nb"), int64(1), int64(2), labels()}, LockInfo{Held: true, TTL: 7 * time.Millisecond, Holders: 1, Waiting: 2}, true},
		{[]any{int64(7), labels("\xff"), int64(1), int64(2), labels()}, LockInfo{Held: true, TTL: 7 * time.Millisecond, Holders: 1, Waiting: 2}, true},
		{[]any{int64(7), labels(string(make([]byte, 65))), int64(1), int64(2), labels()}, LockInfo{Held: true, TTL: 7 * time.Millisecond, Holders: 1, Waiting: 2}, true},
		{[]any{int64(7), labels("a", "b\n", "c"), int64(4), int64(2), labels()}, LockInfo{Held: true, TTL: 7 * time.Millisecond, Owners: []string{"a", "c"}, Holders: 4, Waiting: 2}, true},
		{[]any{int64(-2), labels(), int64(0), int64(3), labels("a", "b\n", "c", int64(4))}, LockInfo{Waiting: 3, WaitingOwners: []string{"a", "c"}}, true},
		{[]any{int64(7), labels("a"), int64(1), int64(0)}, LockInfo{}, false},
		{[]any{int64(7), labels("a"), int64(1), int64(0), int64(7)}, LockInfo{}, false},
		{int64(5), LockInfo{}, false},
		{int64(-2), LockInfo{}, false},
		{[]any{int64(-3), labels(), int64(1), int64(0), labels()}, LockInfo{}, false},
		{[]any{int64(7), labels(), int64(-1), int64(0), labels()}, LockInfo{}, false},
		{[]any{int64(7), labels(), int64(1), int64(-1), labels()}, LockInfo{}, false},
		{[]any{int64(7), labels(), int64(1001), int64(0), labels()}, LockInfo{}, false},
		{[]any{int64(7), labels()}, LockInfo{}, false},
		{[]any{int64(7), labels("a"), "1", int64(0), labels()}, LockInfo{}, false},
		{[]any{int64(7), labels("a"), int64(1), "1", labels()}, LockInfo{}, false},
		{[]any{"7", labels("a"), int64(1), int64(0), labels()}, LockInfo{}, false},
		{[]any{int64(7), int64(7), int64(1), int64(0), labels()}, LockInfo{}, false},
		{"secret", LockInfo{}, false},
		{nil, LockInfo{}, false},
	} {
		i, err := store.DecodeInspected(c.value)
		if !c.ok {
			require.ErrorIs(t, err, ErrCorrupt)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, lockInfo(i))
	}
}
