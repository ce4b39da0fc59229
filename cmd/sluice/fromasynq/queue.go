// Package fromasynq reads the tasks of an asynq queue, and takes those out of it that are elsewhere
// by then. The keys and messages are those of asynq v0.26.0.
//
// asynq's Inspector is not used: it removes a pending task by a search through the whole list, it
// does not tell when a task was archived, and it cannot remove a task on the condition that nothing
// of it has changed.
package fromasynq

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed read.lua
	readScript string
	//go:embed leave.lua
	leaveScript string
)

// State is a state of asynq.
type State string

// The states of tasks. Those in States can be read, and leave.
const (
	Pending     State = "pending"
	Scheduled   State = "scheduled"
	Retry       State = "retry"
	Archived    State = "archived"
	Active      State = "active"
	Aggregating State = "aggregating"
	Completed   State = "completed"
)

// States are those whose tasks can be moved. Those that asynq's servers make pending, even in a
// paused queue, stand before pending, so that a reader in this order overlooks none.
var States = []State{Scheduled, Retry, Pending, Archived}

// Queue is a queue of asynq. It is safe for concurrent use.
type Queue struct {
	rdb          redis.UniversalClient
	name, prefix string
}

// Open returns the queue of a name. It sends nothing.
func Open(rdb redis.UniversalClient, name string) *Queue {
	return &Queue{rdb: rdb, name: name, prefix: "asynq:{" + name + "}:"}
}

// Exists reports whether asynq knows the queue.
func (q *Queue) Exists(ctx context.Context) (bool, error) {
	return q.rdb.SIsMember(ctx, "asynq:queues", q.name).Result()
}

// Paused reports whether no worker of asynq takes tasks.
func (q *Queue) Paused(ctx context.Context) (bool, error) {
	n, err := q.rdb.Exists(ctx, q.prefix+"paused").Result()
	return n > 0, err
}

// Counts returns how many tasks there are in each state.
func (q *Queue) Counts(ctx context.Context) (map[State]int64, error) {
	counts := map[State]*redis.IntCmd{}
	var groups, sets *redis.StringSliceCmd
	if _, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, s := range []State{Pending, Active} {
			counts[s] = p.LLen(ctx, q.prefix+string(s))
		}
		for _, s := range []State{Scheduled, Retry, Archived, Completed} {
			counts[s] = p.ZCard(ctx, q.prefix+string(s))
		}
		groups, sets = p.SMembers(ctx, q.prefix+"groups"), p.ZRange(ctx, q.prefix+"aggregation_sets", 0, -1)
		return nil
	}); err != nil {
		return nil, err
	}
	found := map[State]int64{}
	for s, n := range counts {
		found[s] = n.Val()
	}
	keys := sets.Val() // of the tasks that a server aggregates at this moment
	for _, group := range groups.Val() {
		keys = append(keys, q.prefix+"g:"+group)
	}
	if len(keys) == 0 {
		return found, nil
	}
	sizes, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.ZCard(ctx, key)
		}
		return nil
	})
	for _, size := range sizes {
		if n, ok := size.(*redis.IntCmd); ok {
			found[Aggregating] += n.Val()
		}
	}
	return found, err
}

// idsAtOnce is how many IDs are read at a time.
const idsAtOnce = 1000

// IDs calls found with the IDs of a state, of pending ones those first that would run first. It may
// call it with an ID twice. A task that stays in the state meanwhile is not left out.
func (q *Queue) IDs(ctx context.Context, s State, found func(id string)) error {
	key := q.prefix + string(s)
	if s != Pending {
		var cursor uint64
		for {
			pairs, next, err := q.rdb.ZScan(ctx, key, cursor, "", idsAtOnce).Result()
			if err != nil {
				return err
			}
			for i := 0; i+1 < len(pairs); i += 2 {
				found(pairs[i])
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	// Workers take from the end, and producers add at the beginning: places that count from the end
	// stay.
	for end := int64(-1); ; end -= idsAtOnce {
		ids, err := q.rdb.LRange(ctx, key, end-idsAtOnce+1, end).Result()
		if err != nil {
			return err
		}
		for i := len(ids) - 1; i >= 0; i-- {
			found(ids[i])
		}
		if len(ids) < idsAtOnce {
			return nil
		}
	}
}

// Sizes returns in how many bytes each task's message is stored: 0 if there is no such task.
func (q *Queue) Sizes(ctx context.Context, ids []string) ([]int64, error) {
	sizes := make([]int64, len(ids))
	replies, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, id := range ids {
			p.HStrLen(ctx, q.task(id), "msg")
		}
		return nil
	})
	for i, reply := range replies {
		if n, ok := reply.(*redis.IntCmd); ok {
			sizes[i] = n.Val()
		}
	}
	return sizes, err
}

func (q *Queue) task(id string) string { return q.prefix + "t:" + id }

// keys returns the keys of a script.
func (q *Queue) keys(rest []string) []string {
	return append([]string{q.prefix + "pending", q.prefix + "scheduled", q.prefix + "retry", q.prefix + "archived"}, rest...)
}

// Task is a task that was read.
type Task struct {
	Message
	State State
	// At is when it is due, was archived, or became pending. Zero for a pending task that a server
	// has put back.
	At time.Time
	// Err says that the message cannot be read. Message has the ID alone then.
	Err error

	stored string
}

// Read returns those of the tasks that are there, in any state.
func (q *Queue) Read(ctx context.Context, ids []string) ([]Task, error) {
	hashes, args := make([]string, len(ids)), make([]any, len(ids))
	for i, id := range ids {
		hashes[i], args[i] = q.task(id), id
	}
	replies, err := q.rdb.Eval(ctx, readScript, q.keys(hashes), args...).StringSlice()
	if err == nil && len(replies) != 3*len(ids) {
		err = fmt.Errorf("asynq's server: %d replies for %d tasks", len(replies), len(ids))
	}
	if err != nil {
		return nil, err
	}
	var found []Task
	for i, id := range ids {
		stored, state, at := replies[3*i], State(replies[3*i+1]), replies[3*i+2]
		if stored == "" && state == "" {
			continue
		}
		t := Task{State: state, stored: stored}
		if t.Message, t.Err = Decode(stored); t.Err == nil && t.ID != id {
			t.Err = fmt.Errorf("%w: it has another ID", errMessage)
		}
		t.ID = id
		if n, err := strconv.ParseFloat(at, 64); err == nil && state != Pending {
			t.At = unix(int64(n))
		}
		if n, err := strconv.ParseInt(at, 10, 64); err == nil && state == Pending {
			t.At = time.Unix(0, n)
		}
		found = append(found, t)
	}
	return found, nil
}

// Departure is what became of a task that was to leave.
type Departure int

// The departures.
const (
	// Gone: there is no such task: it has left before.
	Gone Departure = iota
	// Left: the task has left.
	Left
	// Changed: a worker has it, or it is another than the one that was read. It stays.
	Changed
	// NotPaused: the queue hands tasks out, so that a worker may take it. It stays.
	NotPaused
)

// Leave takes tasks out of the queue, with their unique locks, and returns what became of each. To
// call it again after an error is safe.
func (q *Queue) Leave(ctx context.Context, ts []Task) ([]Departure, error) {
	hashes, args := []string{q.prefix + "paused"}, make([]any, 0, 2*len(ts))
	for i := range ts {
		hashes, args = append(hashes, q.task(ts[i].ID)), append(args, ts[i].ID, ts[i].stored)
	}
	replies, err := q.rdb.Eval(ctx, leaveScript, q.keys(hashes), args...).Int64Slice()
	if err == nil && len(replies) != len(ts) {
		err = fmt.Errorf("asynq's server: %d replies for %d tasks", len(replies), len(ts))
	}
	if err != nil {
		return nil, err
	}
	departures := make([]Departure, len(ts))
	for i, reply := range replies {
		departures[i] = Departure(reply)
	}
	return departures, nil
}
