package main

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// keyspace is what the server holds of the library's keys, replayed from the log.
type keyspace struct {
	locks    map[string]lockKey // by name, and those of permits by name and token
	reserved map[string]reservation
	fences   map[string]int64
	tasks    map[taskKey]task
	leases   map[taskKey]float64      // the list of leased tasks
	memories map[taskKey]memory       // of what is done
	paused   map[string]time.Duration // by queue: until when, by the server's clock
	limits   map[string]*reign        // by queue
	stocks   map[stockKey]stock
	groups   map[groupKey]*group
	lines    lines
	idlers   queueLines
}

type lockKey struct {
	token uint64
	until time.Duration // by the server's clock
	hold  int           // its index in replayed.holds
	seen  span          // when a command last found it there
}

// reservation is a lock's key that keeps the lock for a process in line.
type reservation struct {
	until time.Duration // by the server's clock
	index int           // in replayed.reservations
}

type taskKey struct{ queue, id string }

// task is everything that a queue has under one ID.
type task struct {
	queued bool // the ID is in the sorted set
	score  float64
	dead   bool // the ID is in the list of dead letters
	stored bool // the ID has a payload
	kept   bool // the ID has a state field, whose parts follow
	field
	version  string  // the payload's
	writes   int     // of the payload, so far
	delivery float64 // the first receipt of the last claim
}

// field is a decoded state field.
type field struct {
	attempt int
	unseen  int     // deliveries that were not counted as attempts
	lease   float64 // 0 for none
	token   float64 // the receipt of the claim; 0 for none
	due     float64 // of the waiting version; 0 for none
	note    string  // a later version's; "" for none
	buried  bool
	broken  bool
	units   units
	ended   bool // the task is no more, and its units are to be moved
	isSold  bool // they are sold then
	group   string
	had     bool    // a worker has had the task of a group, which was given back without an attempt
	waits   float64 // until when at least, in its group, instead of in the queue; 0 if it does not
}

func newKeyspace() keyspace {
	return keyspace{map[string]lockKey{}, map[string]reservation{}, map[string]int64{}, map[taskKey]task{}, map[taskKey]float64{}, map[taskKey]memory{}, map[string]time.Duration{}, map[string]*reign{}, map[stockKey]stock{}, map[groupKey]*group{}, newLines(), newQueueLines()}
}

func (k keyspace) clone() keyspace {
	return keyspace{maps.Clone(k.locks), maps.Clone(k.reserved), maps.Clone(k.fences), maps.Clone(k.tasks), maps.Clone(k.leases), maps.Clone(k.memories), maps.Clone(k.paused), maps.Clone(k.limits), maps.Clone(k.stocks), cloneGroups(k.groups), k.lines.clone(), k.idlers.clone()}
}

// leased says whether the task has a lease, which may have ended.
func (t task) leased() bool { return t.queued && t.lease != 0 && t.lease == t.score }

// there says whether the queue has anything under the ID.
func (t task) there() bool { return t.queued || t.dead || t.stored || t.kept }

// alive returns the task, or nothing of one of which only the units are left.
func (t task) alive() task {
	if t.ended && !t.queued && !t.dead && !t.stored {
		return task{}
	}
	return t
}

// afterLease returns the task after its lease has ended: a waiting version has taken over.
func (t task) afterLease() task {
	if t.due != 0 {
		t.score, t.attempt, t.unseen, t.lease, t.token, t.due, t.note = t.due, 0, 0, 0, 0, 0, ""
	}
	return t
}

// lockName returns the lock that a key belongs to, if it is a lock's.
func lockName(key string) (name string, ok bool) { return strings.CutPrefix(key, "Lock:") }

// fenceName returns the lock that a fence counter belongs to.
func fenceName(key string) (name string, ok bool) {
	name, ok = strings.CutPrefix(key, "{Lock:")
	if ok {
		name, ok = strings.CutSuffix(name, "}:fence")
	}
	return name, ok
}

// queueName returns the queue that a key belongs to, and which of the queue's keys it is. Both are
// "" for another key.
func queueName(key string) (name, which string) {
	if rest, ok := strings.CutPrefix(key, "Queue:"); ok {
		return rest, "queue"
	}
	if rest, ok := strings.CutPrefix(key, "{Queue:"); ok {
		name, which, _ = strings.Cut(rest, "}:")
	}
	return name, which
}

// change carries out a command on a queue. It calls touch for every ID before it changes the
// ID.
func (k keyspace) change(command []string, touch func(taskKey)) {
	name, which := queueName(command[1])
	if name == "" {
		return
	}
	edit := func(id string, f func(t *task)) {
		key := taskKey{name, id}
		touch(key)
		k.edit(key, f)
	}
	verb, args := strings.ToUpper(command[0]), command[2:]
	switch {
	case which == "leased":
		k.list(name, verb, args, touch)
	case which == "done", which == "results":
		k.remember(name, which, verb, args, touch)
	case which == "line": // see idling
	case which == "counts", which == "workers": // they are of no task
	case which == "stock":
		k.trade(name, verb, args)
	case which == "groups":
		k.regroup(name, verb, args)
	case which == "errors": // see quiet
	case which == "paused":
		k.pause(name, verb, args)
	case verb == "ZADD" && (which == "queue" || which == "dead"):
		for score, id := range scored(args) {
			edit(id, func(t *task) { t.add(which, score) })
		}
	case verb == "HSET" && (which == "tasks" || which == "state"):
		for i := 0; i+1 < len(args); i += 2 {
			edit(args[i], func(t *task) { t.write(which, args[i], args[i+1]) })
		}
	case (verb == "ZREM" || verb == "HDEL") && slices.Contains([]string{"queue", "dead", "tasks", "state"}, which):
		for _, id := range args {
			edit(id, func(t *task) { t.remove(which) })
		}
	default: // DEL, UNLINK, and commands that are not expected here
		for key := range k.tasks {
			if key.queue == name {
				edit(key.id, func(t *task) { *t = task{} })
			}
		}
	}
}

// list carries out a command on the list of leased tasks.
func (k keyspace) list(queue, verb string, args []string, touch func(taskKey)) {
	switch verb {
	case "ZADD":
		for end, id := range scored(args) {
			touch(taskKey{queue, id})
			k.leases[taskKey{queue, id}] = end
		}
	case "ZREM":
		for _, id := range args {
			touch(taskKey{queue, id})
			delete(k.leases, taskKey{queue, id})
		}
	}
}

// add puts the ID into a sorted set.
func (t *task) add(which string, score float64) {
	if which == "queue" {
		t.queued, t.score = true, score
	} else {
		t.dead = true
	}
}

// write writes the ID's field of a hash.
func (t *task) write(which, id, value string) {
	if which == "tasks" {
		t.stored, t.version, t.writes = true, versionOf(id, value), t.writes+1
	} else {
		t.kept, t.field = true, decodeField(value)
	}
}

// remove takes the ID out of a key.
func (t *task) remove(which string) {
	switch which {
	case "queue":
		t.queued, t.score = false, 0
	case "dead":
		t.dead = false
	case "tasks":
		t.stored = false
	case "state":
		t.kept = false
	}
}

func (k keyspace) edit(key taskKey, f func(t *task)) {
	t := k.tasks[key]
	f(&t)
	if !t.there() {
		delete(k.tasks, key)
		return
	}
	if !t.kept {
		t.field = field{}
	}
	if !t.stored {
		t.version = key.id
	}
	k.tasks[key] = t
}

// scored iterates over the scores and members of a ZADD.
func scored(args []string) func(yield func(float64, string) bool) {
	if args[0] == "NX" {
		args = args[1:]
	}
	return func(yield func(float64, string) bool) {
		for i := 0; i+1 < len(args); i += 2 {
			score, _ := strconv.ParseFloat(args[i], 64)
			if !yield(score, args[i+1]) {
				return
			}
		}
	}
}

// decodeField reads "<attempt>+<unseen>:<lease>/<token>:<due>", perhaps with ":<note>" behind it,
// or, of a dead letter, "<attempt>:dead:<reason>". In front of that stand the units that the task
// holds, and its group; nothing, or "$", is behind them if it is no more. Of a task that waits in
// its group nothing but "::<due>" is behind that.
func decodeField(text string) (f field) {
	if f.units, text = cutUnits(text); f.units != (units{}) && (text == "" || text == "$") {
		f.ended, f.isSold = true, text == "$"
		return f
	}
	if f.group, text = cutGroup(text); f.group != "" && (text == "" || text == "$") {
		f.ended, f.isSold = true, text == "$"
		return f
	}
	parts := strings.SplitN(text, ":", 3)
	if len(parts) < 3 {
		return field{broken: true, units: f.units, group: f.group}
	}
	number := func(s string) float64 {
		if s == "" {
			return 0
		}
		x, err := strconv.ParseFloat(s, 64)
		f.broken = f.broken || err != nil
		return x
	}
	attempt, unseen, _ := strings.Cut(parts[0], "+")
	f.attempt, f.unseen, f.had = int(number(attempt)), int(number(unseen)), attempt == "0" && f.group != ""
	if parts[1] == "dead" {
		f.buried, f.had = true, false
		return f
	}
	end, token, extended := strings.Cut(parts[1], "/")
	due, note, _ := strings.Cut(parts[2], ":")
	f.lease, f.token, f.due, f.note = number(end), number(end), number(due), note
	if extended {
		f.token = number(token)
	}
	if f.group != "" && f == (field{units: f.units, group: f.group, due: f.due}) { // else it is of a version behind a lease
		f.waits, f.due = f.due, 0
	}
	return f
}

// seconds returns a score as a time since 1970.
func seconds(score float64) time.Duration {
	return time.Duration(score*1e6) * time.Microsecond
}
