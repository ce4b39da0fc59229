package sluice

import (
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// queueKeys are the keys and channels of a queue. All scripts have the keys in one order, and each is given as many of the
// first ones as it needs.
type queueKeys struct {
	tasks  []any // queue, tasks, dead letters, states, leased tasks
	errors []any // and the line of idle clients, the last errors
	counts []any // and the pause, the counts
	done   []any // and what is done, with its results
	all    []any // and the workers

	wake     string // the channel on which idle clients are notified
	canceled string // on which the IDs of tasks are published that were cancelled while leased
}

// newQueueKeys returns the keys of a queue that has this main key.
func newQueueKeys(main string) queueKeys {
	all := []any{main}
	for _, ending := range []string{
		keyspace.Tasks, keyspace.Dead, keyspace.State, keyspace.Leased, keyspace.Line, keyspace.Errors, keyspace.Paused, keyspace.Counts,
		keyspace.Done, keyspace.Results, keyspace.Workers,
	} {
		all = append(all, keyspace.Companion(main, ending))
	}
	return queueKeys{
		tasks: all[:5:5], errors: all[:7:7], counts: all[:9:9], done: all[:11:11], all: all,
		wake: keyspace.Companion(main, keyspace.Wake), canceled: keyspace.Companion(main, keyspace.Canceled),
	}
}

// main is the key of the sorted set of tasks, whose name the other keys have.
func (k *queueKeys) main() string {
	main, _ := k.all[0].(string)
	return main
}

// replicated has a request that changes the queue wait for the replicas. If there is nothing to change, they are to have what
// has been changed before: perhaps by a call that too few have acknowledged, and this one is its repeat.
func (q *Queue) replicated(r redisexec.Request) redisexec.Request {
	if q.options.replicas > 0 {
		mark := scripts.Mark.Request(q.keys.tasks)
		r.Replicas, r.ReplicaWait, r.Mark = q.options.replicas, longestReplicaWait, &mark
	}
	return r
}
