// Package sluice provides distributed locks and a delayed task queue on Redis.
//
// A lock is held by the client that knows its token, a task by the client that knows its
// score. Every change compares first and acts then, in one script.
//
// [Locker] makes named locks that hold across processes. A lock has a TTL, so that a
// holder that crashed blocks the others for that long at most. It notifies its holder
// when it is lost: see [Lock.Context] and [Lock.Valid].
//
// [Queue] keeps tasks until they are due, by the server's clock, and hands each to one
// worker at a time: at least once with [Queue.Claim], at most once with [Queue.Pop].
// [Worker] runs a function for each task, retries those that fail, and keeps those that
// will not succeed as dead letters: see [StateDead]. A [Mux] has a handler for each kind of tasks,
// and [Typed] makes payloads of Go values.
//
// # Errors
//
// An operation that returns nil was done. One that returns an error was not done, with two
// exceptions. [ErrUnknown]: a reply was lost, and the operation's doc says what is safe.
// [ErrUnderReplicated], which only [WithQueueReplicas] brings to a queue: it was done, and
// too few replicas know of it. [Locker.Do] and [Locker.DoAll] may have called the function: what
// that has done is done, also if the lock was lost meanwhile, which their error says.
//
// A command is retried only if its script is safe to run twice; the script's header says why. A
// call returns within 50ms of the end of its context, even when Redis hangs.
//
// # What ends the promises
//
// A lock is exclusive on one Redis primary that loses no data. A failover, lost
// persistence, or a jump of the server's clock can give it to a second holder. So can a
// holder that does not check: a process that was stopped for longer than the TTL has to
// ask Valid before it goes on. What must not go wrong even then has to be checked where
// it is stored, in a conditional UPDATE for instance.
package sluice
