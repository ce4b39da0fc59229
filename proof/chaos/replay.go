package main

import (
	"strconv"
	"strings"
	"time"
)

// hold is a stay of a lock's key on the server.
type hold struct {
	name  string
	token uint64
	begun span
	ended span
	// until is its end at the latest, by the monotonic clock: when it was released, or
	// when it expires.
	until, expires time.Duration
	// struck says why the server, through no fault of the library, may have broken
	// its word: the clock was set, or data was lost. at is when, at the latest.
	struck string
	at     time.Duration
}

// move is a change of one task.
type move struct {
	span
	taskKey
	kind moveKind
	was  task
	is   task
}

type moveKind string

// What may become of a task.
const (
	added    moveKind = "added"
	replaced moveKind = "replaced"
	deferred moveKind = "deferred"
	claimed  moveKind = "claimed"
	extended moveKind = "extended"
	tookOver moveKind = "taken over by what was deferred"
	retried  moveKind = "given back"
	released moveKind = "given back unbegun"
	shifted  moveKind = "rescheduled"
	removed  moveKind = "removed"
	buried   moveKind = "buried"
	revived  moveKind = "revived"
	digUp    moveKind = "removed from the dead"
	strange  moveKind = "changed in a way that no operation does"
)

// testimony is what the witness says.
type testimony struct {
	holds     []hold
	moves     []move
	setBacks  []setBack
	overtaken []hold          // a key that was given to another token while it was held
	versions  map[string]bool // every version that was ever written: true if one is not lost
	expiries  []expiry
	lost      int // entries that were cut off
	end       keyspace
}

// setBack is a fence that the server has forgotten.
type setBack struct {
	span
	name string
}

// expiry is a TTL that a token was given.
type expiry struct {
	span
	token uint64
	until time.Duration // by the server's clock
}

// replayer replays a log.
type replayer struct {
	*testimony
	keyspace
	clock serverClock
	mark  *keyspace // as it was before the first lost entry
}

// replay replays the log of a round.
func replay(e *evidence) *testimony {
	r := &replayer{testimony: &testimony{versions: map[string]bool{}}, keyspace: newKeyspace(), clock: e.clock}
	for i := range e.log {
		at := &e.log[i]
		switch {
		case at.rewind:
			r.rewind(at.span)
			continue
		case at.lost && r.mark == nil:
			before := r.clone()
			r.mark = &before
		}
		if at.lost {
			r.lost++
		}
		r.entry(at)
	}
	for _, key := range r.locks {
		r.finish(key, span{e.ended, e.ended})
	}
	r.end = r.keyspace
	return r.testimony
}

// rewind forgets what was cut off, if anything was.
func (r *replayer) rewind(at span) {
	if r.mark == nil {
		return
	}
	was, is := r.keyspace, *r.mark
	r.keyspace, r.mark = is, nil
	for name, key := range was.locks {
		now, kept := is.locks[name]
		if now == key {
			continue
		}
		r.holds[key.hold].struck, r.holds[key.hold].at = dataLost, at.before
		if !kept || now.hold != key.hold { // else it has only lost extensions
			r.finish(key, at)
		}
	}
	for name, key := range is.locks {
		if was.locks[name].hold != key.hold || was.locks[name].token != key.token { // it is back, as it was
			r.begin(name, key.token, key.until, at)
			r.holds[len(r.holds)-1].struck, r.holds[len(r.holds)-1].at = dataLost, at.before
		}
	}
	for name, fence := range was.fences {
		if is.fences[name] < fence {
			r.setBacks = append(r.setBacks, setBack{at, name})
		}
	}
}

// Why the server's word may have been bad.
const (
	dataLost = "data lost"
	setAhead = "clock set ahead"
)

// entry replays one entry.
func (r *replayer) entry(at *entry) {
	before := map[taskKey]task{}
	touch := func(key taskKey) {
		if _, known := before[key]; !known {
			before[key] = r.tasks[key]
		}
	}
	for _, command := range at.commands {
		if len(command) > 1 && !r.lock(command, at.span) {
			r.change(command, touch)
			r.note(command, at.lost)
		}
	}
	for key, was := range before {
		r.moved(key, was, at)
	}
}

// note notes the versions that a command writes.
func (r *replayer) note(command []string, lost bool) {
	name, which := queueName(command[1])
	switch strings.ToUpper(command[0]) + " " + which {
	case "HSET tasks":
		for i := 2; i+1 < len(command); i += 2 {
			version := decodeField(command[i], command[i+1]).version
			r.versions[version] = r.versions[version] || !lost
		}
	case "ZADD queue":
		for _, id := range scored(command[2:]) {
			if name == plainQueue { // where a task's ID is its version
				r.versions[id] = r.versions[id] || !lost
			}
		}
	}
}

// lock replays a command on a lock or a fence, if it is one.
func (r *replayer) lock(command []string, at span) bool {
	key, verb := command[1], strings.ToUpper(command[0])
	if name, ok := fenceName(key); ok {
		r.fence(name, verb, command)
		return true
	}
	name, ok := lockName(key)
	if !ok {
		return false
	}
	held, exists := r.locks[name]
	switch {
	case verb == "SET" && len(command) == 5:
		if exists && held.token != digest(command[2]) {
			r.finish(held, at)
			r.overtaken = append(r.overtaken, r.holds[held.hold])
		}
		r.begin(name, digest(command[2]), milliseconds(command[4]), at)
	case verb == "PEXPIREAT" && exists:
		held.until = milliseconds(command[2])
		r.locks[name] = held
		r.expiries = append(r.expiries, expiry{at, held.token, held.until})
	case (verb == "DEL" || verb == "UNLINK") && exists:
		r.finish(held, at)
		delete(r.locks, name)
	}
	return true
}

func milliseconds(text string) time.Duration {
	ms, _ := strconv.ParseInt(text, 10, 64)
	return time.Duration(ms) * time.Millisecond
}

func (r *replayer) fence(name, verb string, command []string) {
	switch n, _ := strconv.ParseInt(command[min(2, len(command)-1)], 10, 64); verb {
	case "SET":
		r.fences[name] = n
	case "DECRBY":
		r.fences[name] -= n
	case "DEL", "UNLINK":
		delete(r.fences, name)
	}
}

func (r *replayer) begin(name string, token uint64, until time.Duration, at span) {
	r.locks[name] = lockKey{token, until, len(r.holds)}
	r.holds = append(r.holds, hold{name: name, token: token, begun: at})
	r.expiries = append(r.expiries, expiry{at, token, until})
}

// finish ends a hold. A key that has expired is deleted some time later.
func (r *replayer) finish(key lockKey, at span) {
	h := &r.holds[key.hold]
	h.ended = at
	h.expires = r.clock.reaches(key.until, h.begun.before)
	h.until = min(at.before, h.expires)
	if when, set := r.clock.setAhead(h.begun.after, at.before); set && h.struck == "" {
		h.struck, h.at = setAhead, when
	}
}

// moved says what an entry has done to a task.
func (r *replayer) moved(key taskKey, was task, at *entry) {
	is := r.tasks[key]
	kind := classify(was, is)
	switch kind {
	case "":
		return
	case claimed:
		is.delivery = is.score
	case extended, deferred, shifted:
		is.delivery = was.delivery
	default:
		is.delivery = 0
	}
	if is.there() {
		r.tasks[key] = is
	}
	r.moves = append(r.moves, move{span: at.span, taskKey: key, kind: kind, was: was, is: is})
}
