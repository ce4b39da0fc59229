// Package model defines in plain Go what a lock and a queue are, and tests the library
// against this definition in two ways.
//
//	lock.go, permits.go, the model: what the server holds, and how each operation
//	queue.go, …          changes it, written from the documentation
//	*_machine*_test.go   random operations of the public API, on miniredis and on a
//	                     real server; each result, and everything that the server
//	                     holds, is compared with the model
//	walk.go              a walk visits every state that a protocol can reach
//	walk_lock*.go        the protocol of the lock's clients
//	walk_line*.go        the protocol of processes that wait in line for a lock
//	walk_idle*.go        the protocol of clients that wait in line for a queue's tasks
//	walk_permits.go      the protocol of those that want one of several permits
//	walk_queue*.go       the protocol of a queue's producers and workers
//	*_walk_test.go       the walks of all, and of protocols with a mistake, which the
//	                     walks must find
//
// A walk uses the model in place of the server. The machines justify that: a script is one
// atomic step, and they have compared the reply of each script, and everything that it
// wrote, with the model's. Of fences they compare that they rise, and not the counter.
// The walks of locks, lines and queues leave out fences, and those of queues groups. All leave out
// what the machines leave out: malformed data, a full server, failovers; the walk of the line loses
// the line.
//
//	go test -race ./model                # a minute or so: 1,000 cases for each machine
//	make model                           # 100,000 cases each, and the larger walks (-full)
//	go test ./model -run Mistake -v      # what each mistake leads to
//
// A machine that finds a difference shrinks it to the fewest operations and prints them,
// with the flag that repeats them (-rapid.seed or -rapid.failfile).
package model
