// Package sluice provides distributed locks and a delayed task queue on Redis.
//
// Use [Locker.Do] to run a function under a lock, and [Queue.Enqueue] with a [Worker] to run tasks
// later.
//
// [Locker] makes named locks that hold across processes. A lock has a TTL, so that a holder that
// crashed blocks the others for that long at most. It notifies its holder when it is lost: see
// [Lock.Context] and [Lock.Valid].
//
// [Queue] keeps tasks until they are due, by the server's clock, and hands each to one worker at a
// time: at least once with [Queue.Claim], at most once with [Queue.Pop]. [Worker] runs a function
// for each task, retries those that fail, and keeps those that will not succeed as dead letters:
// see [StateDead]. A [Mux] has a handler for each kind of tasks, and [Typed] makes payloads of Go
// values.
//
// # Errors
//
// If an operation returns nil, it was done. If it returns an error, nothing was changed, except:
//
//   - [ErrUnknown]: the reply was lost. The operation's doc says what is safe.
//   - [ErrUnderReplicated] from a Queue: the change was made, but too few replicas have
//     acknowledged it.
//   - a [*StaleError]: all other tasks were settled.
//   - an operation on many tasks: its earlier steps stay done.
//   - an Unlock: it goes on in the background. So does the release of what a failed acquisition may
//     have taken.
//   - Do, DoAll and KeepAlive: they may have called your function.
//
// A command is retried only if its script is safe to run twice; the script's header says why.
//
// A call that only talks to Redis returns within 50ms of the end of its context, even if Redis
// hangs. Do, DoAll and KeepAlive also wait for your function, and Run for Worker.Grace and one
// second.
//
// # What ends the promises
//
// A lock is exclusive on one Redis primary that loses no data. A failover, lost persistence, or a
// jump of the server's clock can give it to a second holder. So can a holder that does not check: a
// process that was stopped for longer than the TTL has to ask Valid before it goes on. What must
// not go wrong even then has to be checked where it is stored, in a conditional UPDATE for
// instance.
//
// # How it works
//
// A lock is held by the client that knows its token, a task by the client that knows its score.
// Every change compares first and acts then, in one script.
package sluice
