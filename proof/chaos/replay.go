package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// hold is the time in which a lock's key was on the server with one token.
type hold struct {
	name   string
	token  uint64
	permit bool
	begun  span
	ended  span
	// until is its end at the latest, by the monotonic clock: when the key was deleted, or
	// when it expires. expires is when it expires at the earliest.
	until, expires time.Duration
	// struck says why the server was unreliable during the hold: its clock was set ahead,
	// or it lost data. at is when, at the latest.
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
	// paused is until when its queue was paused, by the server's clock.
	paused time.Duration
	limits *reign // of its queue; nil for none
	leased int    // how many tasks are leased, if the queue has limits and it was claimed
	isSold bool   // its units are sold with it
	stock  stock  // of the item of which it holds units
	inPlay int    // how many of its group are
	entry  *entry
}

type moveKind string

// The kinds of changes.
const (
	added       moveKind = "added"
	replaced    moveKind = "replaced"
	deferred    moveKind = "deferred"
	claimed     moveKind = "claimed"
	extended    moveKind = "extended"
	tookOver    moveKind = "taken over by the waiting version"
	retried     moveKind = "given back"
	released    moveKind = "released"
	rescheduled moveKind = "rescheduled"
	removed     moveKind = "removed"
	buried      moveKind = "buried"
	revived     moveKind = "revived"
	deadRemoved moveKind = "removed from the dead letters"
	promoted    moveKind = "put into play"
	displaced   moveKind = "put back to wait"
	unexplained moveKind = "changed as no operation does"
)

// replayed is what the log shows.
type replayed struct {
	holds        []hold
	moves        []move
	finishes     []finish
	misListed    []move // after them the list of leased tasks did not show the task's lease
	setBacks     []setBack
	overtaken    []hold          // ended by another token's SET
	reservations []hold          // no holds, but times for which a lock was kept for a process in line
	versions     map[string]bool // every version that was written; true if at least one write was not lost
	expiries     []expiry
	pauses       []pauseBegun
	limitsSet    []limitsSet
	stockLog     stockLog
	groupLog     groupLog
	lineLog      lineLog
	idleLog      queueLineLog
	lost         int // the number of entries that were cut off
	end          keyspace
}

// setBack is the loss of a name's last fence.
type setBack struct {
	span
	name string
}

// expiry is a TTL that was set for a token.
type expiry struct {
	span
	token uint64
	until time.Duration // by the server's clock
}

// pauseBegun is the beginning of a queue's pause.
type pauseBegun struct {
	span
	queue string
}

// replayer replays a log.
type replayer struct {
	*replayed
	keyspace
	clock serverClock
	mark  *keyspace // a copy from before the first lost entry
}

// replay replays the log of a round.
func replay(e *evidence) *replayed {
	r := &replayer{replayed: &replayed{versions: map[string]bool{}, lineLog: newLineLog(), stockLog: newStockLog(), groupLog: newGroupLog()}, keyspace: newKeyspace(), clock: e.clock}
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
	return r.replayed
}

// rewind drops the effects of the entries that were cut off.
func (r *replayer) rewind(at span) {
	if r.mark == nil {
		return
	}
	was, is := r.keyspace, *r.mark
	r.keyspace, r.mark = is, nil
	for name, key := range was.reserved {
		if is.reserved[name] != key {
			r.endReservation(key, at)
		}
	}
	for name, key := range is.reserved {
		if was.reserved[name] != key {
			r.reserved[name] = r.reserve(name, key.until, at)
		}
	}
	r.newReigns()
	r.restocked(was.stocks, at)
	r.rewound(was.lines, is.lines)
	for name, key := range was.locks {
		now, kept := is.locks[name]
		if now == key {
			continue
		}
		r.holds[key.hold].struck, r.holds[key.hold].at = dataLost, at.before
		if !kept || now.hold != key.hold { // otherwise the key has lost only extensions
			r.finish(key, at)
		}
	}
	for name, key := range is.locks {
		if was.locks[name].hold != key.hold || was.locks[name].token != key.token { // the key is back as before
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

// Why the server was unreliable.
const (
	dataLost = "data lost"
	setAhead = "clock set ahead"
)

// entry replays one entry.
func (r *replayer) entry(at *entry) {
	before, limits, memories := map[taskKey]task{}, map[string]*reign{}, map[taskKey]memory{}
	touch := func(key taskKey) {
		if _, known := before[key]; !known {
			before[key], memories[key] = r.tasks[key], r.memories[key]
		}
	}
	d, g := newDeal(), newTurn()
	for _, command := range at.commands {
		if len(command) > 1 && !r.lock(command, at.span) {
			if queue, which := queueName(command[1]); which == "paused" {
				if _, known := limits[queue]; !known {
					limits[queue] = r.limits[queue]
				}
			}
			r.deal(d, command)
			g.see(r.keyspace, command)
			r.change(command, touch)
			r.note(command, at)
		}
	}
	r.limiting(at, limits)
	r.dealt(d, at)
	r.turned(g, limits, before, at)
	r.standing(at)
	r.idling(at)
	for key, was := range before {
		r.finished(key, memories[key], was, at)
		r.moved(key, was, at, d.sold[key])
	}
}

// note records the versions that a command writes, and the pauses that it begins.
func (r *replayer) note(command []string, at *entry) {
	if queue, ok := isPause(command); ok {
		r.pauses = append(r.pauses, pauseBegun{at.span, queue})
	}
	name, which := queueName(command[1])
	switch strings.ToUpper(command[0]) + " " + which {
	case "HSET tasks":
		for i := 2; i+1 < len(command); i += 2 {
			version := versionOf(command[i], command[i+1])
			r.versions[version] = r.versions[version] || !at.lost
		}
	case "HSET state":
		for i := 2; i+1 < len(command); i += 2 {
			if id := command[i]; name == plainQueue && decodeField(command[i+1]).waits != 0 { // as in ZADD, of a task that waits in its group
				r.versions[id] = r.versions[id] || !at.lost
			}
		}
	case "ZADD queue":
		for _, id := range scored(command[2:]) {
			if name == plainQueue { // its tasks have their IDs as versions
				r.versions[id] = r.versions[id] || !at.lost
			}
		}
	}
}

// lock replays a command on a lock or a fence. It returns false for other commands.
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
	if isGate(name) || isMixed(name) {
		r.permits(name, verb, command, at)
	}
	if isGate(name) {
		return true
	}
	if key, ok := r.reserved[name]; ok {
		r.endReservation(key, at)
		delete(r.reserved, name)
	}
	held, exists := r.locks[name]
	switch {
	case verb == "SET" && isReserved(command[2]): // by the release, or the leave, of who had it
		r.reserved[name] = r.reserve(name, milliseconds(command[min(4, len(command)-1)]), at)
		if exists {
			r.finish(held, at)
			delete(r.locks, name)
		}
	case verb == "SET" && len(command) == 5:
		if exists && held.token != digest(command[2]) {
			r.finish(held, at)
			r.overtaken = append(r.overtaken, r.holds[held.hold])
		}
		r.begin(name, digest(command[2]), milliseconds(command[4]), at)
	case verb == "PEXPIREAT" && exists:
		held.until, held.seen = milliseconds(command[2]), at
		r.locks[name] = held
		r.expiries = append(r.expiries, expiry{at, held.token, held.until})
	case (verb == "DEL" || verb == "UNLINK") && exists:
		r.finish(held, at)
		delete(r.locks, name)
	}
	return true
}

// reserve notes that a lock or a permit is reserved. The reservation of a permit may end sooner:
// when its process takes it.
func (r *replayer) reserve(name string, until time.Duration, at span) reservation {
	last := r.clock.lastReaches(until+time.Millisecond, at.before, at.before+maxFreeWait)
	r.reservations = append(r.reservations, hold{name: holdName(name), begun: at, until: last})
	return reservation{until, len(r.reservations) - 1}
}

// endReservation ends a lock's reservation: its key is written, or lost.
func (r *replayer) endReservation(key reservation, at span) {
	of := &r.reservations[key.index]
	of.until = min(of.until, at.before)
}

// isReserved says whether what stands in place of a token is a process in line, for which the lock
// is reserved.
func isReserved(token string) bool {
	member, ok := strings.CutPrefix(token, ">")
	return ok && lineMember.MatchString(member)
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

// permits replays a command on a name with permits. Each of them is a hold of its own.
func (r *replayer) permits(name, verb string, command []string, at span) {
	release := func(which func(token uint64, until time.Duration) bool) {
		for key, held := range r.locks {
			if holdName(key) == name && which(held.token, held.until) {
				r.finish(held, at)
				delete(r.locks, key)
			}
		}
	}
	switch verb {
	case "ZADD":
		for ends, token := range scored(command[2:]) {
			switch ends := time.Duration(ends) * time.Millisecond; {
			case token == "":
			case isReserved(token):
				r.reserve(name, ends, at)
			default:
				r.permit(name, digest(token), ends, at)
			}
		}
	case "ZREM":
		release(func(token uint64, _ time.Duration) bool { return token == digest(command[2]) })
	case "ZREMRANGEBYSCORE":
		release(func(_ uint64, until time.Duration) bool { return until <= milliseconds(command[3]) })
	case "DEL", "UNLINK":
		release(func(uint64, time.Duration) bool { return true })
	}
}

// permit gives a token a permit, or the one that it has another end.
func (r *replayer) permit(name string, token uint64, until time.Duration, at span) {
	key := fmt.Sprint(name, " ", token)
	held, exists := r.locks[key]
	if !exists {
		r.begin(key, token, until, at)
		return
	}
	held.until, held.seen = until, at
	r.locks[key] = held
	r.expiries = append(r.expiries, expiry{at, token, until})
}

// holdName returns the name of a hold: what is before the token of a permit.
func holdName(key string) string {
	name, _, _ := strings.Cut(key, " ")
	return name
}

// begin begins a hold.
func (r *replayer) begin(key string, token uint64, until time.Duration, at span) {
	r.locks[key] = lockKey{token, until, len(r.holds), at}
	r.holds = append(r.holds, hold{name: holdName(key), token: token, permit: strings.Contains(key, " "), begun: at})
	r.expiries = append(r.expiries, expiry{at, token, until})
}

// finish ends a hold. A key is there in the millisecond of its end, too. When it has expired, it is
// deleted some time later; if the clock is set back in between, it is there again, as commands may
// show.
func (r *replayer) finish(key lockKey, at span) {
	h := &r.holds[key.hold]
	h.ended = at
	h.expires = r.clock.reaches(key.until, key.seen.after).after
	h.until = min(at.before, r.clock.lastReaches(key.until+time.Millisecond, key.seen.before, at.before))
	if when, set := r.clock.setAhead(h.begun.after, at.before); set && h.struck == "" {
		h.struck, h.at = setAhead, when
	}
}

// listed says whether the list of leased tasks shows the task's lease, and no other. Whether it
// shows one that has ended does not matter. What has ended before the clock was set back may be off
// the list, and is leased again.
func (r *replayer) listed(key taskKey, at span) bool {
	latest := r.clock.highest(at.before)
	is := r.tasks[key]
	end, listed := r.leases[key]
	switch {
	case listed:
		return is.leased() && end == is.lease || seconds(end) <= latest
	case is.leased():
		return seconds(is.lease) <= latest+time.Millisecond
	}
	return true
}

// moved records how an entry has changed a task, and whether its units were sold with it.
func (r *replayer) moved(key taskKey, was task, at *entry, isSold bool) {
	is := r.tasks[key]
	kind := classify(was, is)
	if !r.listed(key, at.span) {
		r.misListed = append(r.misListed, move{span: at.span, taskKey: key, kind: kind, was: was, is: is})
	}
	switch kind {
	case "":
		return
	case claimed:
		is.delivery = is.score
	case extended, deferred, rescheduled:
		is.delivery = was.delivery
	default:
		is.delivery = 0
	}
	if is.there() {
		r.tasks[key] = is
	}
	r.moves = append(r.moves, move{span: at.span, taskKey: key, kind: kind, was: was, is: is, paused: r.paused[key.queue], isSold: isSold,
		stock: r.stocks[stockKey{key.queue, is.units.item}], inPlay: r.inPlay(key.queue, is.group), entry: at}.limitedBy(r.keyspace))
}
