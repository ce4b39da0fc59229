package sluice

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/groupcommit"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// layout returns the queue's layout. It is the one way to a shard.
func (q *Queue) layout() *layout { return q.current.Load() }

// shard is one of the parts of a queue: a queue for itself, in one slot of a Cluster.
type shard struct {
	queue       *Queue
	executor    *redisexec.Executor
	options     *queueOptions
	keys        []any  // queue, tasks, dead letters, states, leased tasks
	allKeys     []any  // and the pause
	countedKeys []any  // and the count of dropped dead letters
	channel     string // on which waiters are notified of an earlier task
	idle        string // whose subscribers are counted as clients that wait
	canceled    string // on which the IDs of tasks are published that were cancelled while leased
	announce    string // channel, as scripts are given it
	isAlone     bool   // the queue's only one
	watcher     watcher
	trimmer     trimmer
	sighted     atomic.Pointer[sighting] // of several shards: the head
	enqueues    *committer[packedTask]
	dequeues    *committer[[]taskloop.Item]
	claims      *groupcommit.Keyed[time.Duration, int, merged]
}

// replicated has a request that changes the queue wait for the replicas. If there is nothing to change, they are to have what
// has been changed before: perhaps by a call that too few have acknowledged, and this one is its repeat.
func (s *shard) replicated(r redisexec.Request) redisexec.Request {
	if s.options.replicas > 0 {
		mark := scriptMark.Request(s.keys)
		r.Replicas, r.ReplicaWait, r.Mark = s.options.replicas, longestReplicaWait, &mark
	}
	return r
}

// newShard returns the shard of q that has this main key.
func newShard(q *Queue, key string) *shard {
	s := &shard{
		queue: q, executor: q.executor, options: &q.options,
		keys: []any{key, keyspace.Companion(key, keyspace.Tasks), keyspace.Companion(key, keyspace.Dead), keyspace.Companion(key, keyspace.State)},
	}
	s.keys = append(s.keys, s.companion(keyspace.Leased))
	s.allKeys = append(slices.Clip(s.keys), s.companion(keyspace.Paused))
	s.countedKeys = append(slices.Clip(s.allKeys), s.companion(keyspace.Dropped))
	s.useChannelsOf(q, key)
	s.watcher = watcher{shard: s, client: q.client}
	s.enqueues, s.dequeues = newCommitter(s, s.commitEnqueues), newCommitter(s, s.commitDequeues)
	s.claims = groupcommit.NewKeyed(func(lease time.Duration) *committer[int] { return newClaims(s, lease) })
	return s
}

// useChannelsOf sets the channels to those of a main key.
func (s *shard) useChannelsOf(q *Queue, key string) {
	s.channel, s.idle, s.canceled = keyspace.Companion(key, keyspace.Wake), keyspace.Companion(key, keyspace.Idle), keyspace.Companion(key, keyspace.Canceled)
	s.announce = q.client.notifier.Argument(s.channel)
}

// companion returns a key of the shard.
func (s *shard) companion(ending string) string {
	main, _ := s.keys[0].(string)
	return keyspace.Companion(main, ending)
}
