// Package model says in plain Go what a lock and a queue are, and tests the
// library against it in two ways.
//
//	queue.go, lock.go   the model: what the server holds, and what each operation
//	                    makes of it, written from the documentation
//	*_machine_test.go   random operations of the public API, on miniredis and on a
//	                    real server; each result and all that the server holds is
//	                    compared with the model
//	walk.go             visits every state that can be reached
//	walk_lock.go        the protocol of the lock's clients, to be walked
//	walk_queue.go       that of a queue's producers and workers
//	*_walk_test.go      the walks, and broken protocols in which they have to find
//	                    the mistake
//
// The walks take the model for the server. That is sound as far as the machines
// go: a script is one atomic step, and they have compared the reply of each, and
// everything that it left behind, with the model's; of fences, that they rise, and
// not the counter. What they leave out (hostile data, a server that is full or fails
// over) is left out of the walks too, and so are fences.
//
//	go test -race ./model    # a minute or so: each machine makes 1,000 cases
//	make model               # 100,000 cases each, and the larger walks: -full
//	go test ./model -run WalkFinds -v    # what each mistake leads to
//
// A machine that finds a difference shrinks it and prints the operations that led
// to it, and how to have them again (-rapid.seed or -rapid.failfile).
package model
