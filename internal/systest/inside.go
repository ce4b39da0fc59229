// This file looks inside the library, for what no exported name tells: tests of the promises ask
// for it, users do not.

package systest

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/locks"
	"github.com/sluice-go/sluice/internal/queues"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// Scripts are the library's scripts, read from lua/.
var Scripts = sync.OnceValue(func() *store.Scripts {
	root, err := moduleRoot()
	if err != nil {
		panic(err)
	}
	return store.Load(os.DirFS(filepath.Join(root, "lua")))
})

func engineOf(l *sluice.Locker) *locks.Engine {
	return (*locks.Engine)(reflect.ValueOf(l).Elem().FieldByName("engine").UnsafePointer())
}

// EngineOf returns the engine of a queue.
func EngineOf(q *sluice.Queue) *queues.Queue {
	return (*queues.Queue)(reflect.ValueOf(q).Elem().FieldByName("engine").UnsafePointer())
}

// Waiting returns how many callers wait in a Locker's queues behind those at the head.
func Waiting(l *sluice.Locker) int {
	_, _, queued, _ := engineOf(l).Len()
	return queued
}

// Names returns how many names a Locker keeps track of, and how many of them are held or
// wanted.
func Names(l *sluice.Locker) (names, busy int) {
	names, busy, _, _ = engineOf(l).Len()
	return names, busy
}

// Apart returns how many locks a Locker holds outside of its queues.
func Apart(l *sluice.Locker) int {
	_, _, _, apart := engineOf(l).Len()
	return apart
}

// PutNext has a task take the place of another one, as a worker does with the next occurrence of a
// periodic task.
func (b QueueTest) PutNext(ctx context.Context, e sluice.Entry, next sluice.Task) error {
	b.Helper()
	items := []store.Item{{ID: e.ID, Receipt: store.ScoreText(e.Score), Disposition: store.Disposition{
		Next: &store.Next{At: next.At, Payload: store.Pack(next.Kind, next.Header, next.Expires, next.Payload)},
	}}}
	reply, err := redisexec.New(b.RDB).Run(ctx, store.NewQueue(Scripts(), b.Key, store.QueueOptions{}).Report(items))
	if err != nil {
		return err
	}
	answers, err := store.DecodeReport(reply.Value, items)
	switch {
	case err != nil:
		return err
	case answers[0] == store.Malformed:
		return sluice.ErrCorrupt
	case !answers[0].IsAccepted():
		return sluice.ErrStale
	}
	return nil
}

// SaysThatAWorkerLives reports whether a command is the one that a Worker sends every 15 seconds.
func SaysThatAWorkerLives(cmd redis.Cmder) bool {
	args := cmd.Args()
	return len(args) > 1 && args[1] == Scripts().Digest("presence")
}
