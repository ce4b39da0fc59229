package sluice

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/store"
)

// Waiting returns how many callers wait in a Locker's queues behind those at the head.
func Waiting(l *Locker) int {
	_, _, queued, _ := l.engine.Len()
	return queued
}

// Names returns how many names a Locker keeps track of, and how many of them are held or
// wanted.
func Names(l *Locker) (names, busy int) {
	names, busy, _, _ = l.engine.Len()
	return names, busy
}

// Clients returns for how many clients of go-redis the Queues' share is registered.
func Clients() int { return clients.Len() }

// Apart returns how many locks a Locker holds outside of its queues.
func Apart(l *Locker) int {
	_, _, _, apart := l.engine.Len()
	return apart
}

// PutNext has a task take the place of another one, as the next occurrence of a periodic task does.
func PutNext(ctx context.Context, q *Queue, e Entry, next Task) error {
	return q.settle(ctx, "put next", store.Disposition{Next: &store.Next{At: next.At, Payload: next.packed()}}, e)
}

// SaysThatAWorkerLives reports whether a command is the one that a Worker sends every 15 seconds.
func SaysThatAWorkerLives(cmd redis.Cmder) bool {
	args := cmd.Args()
	return len(args) > 1 && args[1] == scripts.Digest("seen")
}
