package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// waits has the longest wait of each kind; nil without -liveness.
type waits map[string]wait

// wait is a time that something was waited for, without the lag of the machine, beside what
// docs/guarantees.md promises.
type wait struct {
	times         int
	longest, less time.Duration // less is the lag that was taken off
	bound         time.Duration
	what          string
}

func (w waits) add(other waits) {
	for kind, o := range other {
		is := w[kind]
		times := is.times + o.times
		if o.longest-o.bound > is.longest-is.bound || is.times == 0 {
			is = o
		}
		is.times = times
		w[kind] = is
	}
}

func (w waits) print() {
	fmt.Printf("\n  %-28s %9s %10s %10s %10s  %s\n", "longest wait", "times", "longest", "bound", "lag", "of")
	for _, kind := range slices.Sorted(maps.Keys(w)) {
		is := w[kind]
		fmt.Printf("  %-28s %9d %10v %10v %10v  %s\n", kind, is.times, is.longest.Round(time.Millisecond), is.bound, is.less.Round(time.Millisecond), is.what)
	}
}

const (
	// retryInterval is how often the first in line polls for a lock: the library's default.
	retryInterval = 100 * time.Millisecond
	// looks is how many poll intervals a due task waits at most: the watch of a client that is gone
	// is two looks long.
	looks = 3
	// unseenLag is what a client does not record as a lag: see pulse. A wait has several steps.
	unseenLag   = 25 * time.Millisecond
	unseenSteps = 4
	theServer   = "server" // beside the names of processes
)

// liveness checks that those that are not gone go on in time.
type liveness struct {
	*checker
	lags map[string][]span // see allLags
}

func (c *checker) checkLiveness() {
	l := &liveness{checker: c, lags: c.allLags()}
	l.checkGrants()
	l.checkHandOuts()
	l.checkReturns()
	for _, r := range c.records {
		if c.gone[r.Process] == 0 || r.Return != 0 && r.Return < c.gone[r.Process] {
			continue
		}
		switch {
		case r.Call > c.gone[r.Process]:
		case r.Op == opHold:
			c.counts["locks held by clients that are gone"]++
		case r.Op == opTake:
			c.counts["waits of clients that are gone"]++
		case r.Op == opHandle:
			c.counts["handlers of clients that are gone"]++
		}
	}
}

// allLags returns when each process did not run, and when the server did not answer.
func (c *checker) allLags() map[string][]span {
	all := maps.Clone(c.stalls)
	last := time.Duration(0)
	for i := range c.log {
		if sent, ok := c.log[i].tick(); ok {
			if last != 0 && sent-last > unseenLag {
				all[theServer] = append(all[theServer], span{last, sent})
			}
			last = sent
		}
	}
	return all
}

// lag returns for how long the process was held up that was so the longest within a span, and the
// server in addition.
func (l *liveness) lag(from, to time.Duration) (longest time.Duration) {
	var ofServer time.Duration
	for process, spans := range l.lags {
		lag := time.Duration(0)
		for _, s := range spans {
			lag += max(0, min(s.before, to)-max(s.after, from))
		}
		if process == theServer {
			ofServer = lag
		} else {
			longest = max(longest, lag)
		}
	}
	return min(longest+ofServer, to-from)
}

// waited notes a wait, and reports one that was too long.
func (l *liveness) waited(kind, what string, from, to, bound time.Duration) {
	if from = max(from, l.since); from > to { // before, the clients have started
		return
	}
	lag := l.lag(from, to)
	took := to - from - lag
	l.waits.add(waits{kind: {1, took, lag, bound, fmt.Sprintf("%s, at %v", what, from)}})
	if took > bound+unseenSteps*unseenLag {
		l.report("%s: %s was waited for from %v to %v, with a lag of %v: the bound is %v", kind, what, from, to, lag, bound)
	}
}

// turn is a change of how many live callers wait for a name, and how many hold it.
type turn struct {
	at            time.Duration
	waiting, held int
}

// sought is what there is of a name.
type sought struct {
	turns []turn
	ttl   time.Duration // the longest
}

// soughtName returns the name under which a record's lock is sought. Those of sets are one: who
// waits for one holds others.
func soughtName(name string) string {
	if strings.HasPrefix(name, "set") {
		return "set" + name[strings.Index(name, "."):]
	}
	return name
}

// checkGrants checks that what live callers wait for is granted to one of them, again and again. A
// lock whose holder is gone is free when its TTL has ended, and its window; then it is taken by a
// poll, if those that were told are gone.
func (l *liveness) checkGrants() {
	poll := max(retryInterval, time.Duration(l.clients-1)*retryInterval/4) // of the last in line
	for name, s := range l.sought() {
		kind, _, _ := strings.Cut(strings.TrimRight(name, ".0123456789"), ".")
		permits, polls := 1, time.Duration(1)
		switch kind {
		case "gate":
			permits = gatePermits
		case "set":
			polls = setNames // one after the other
		case "mix":
			polls = 3 // a holder's process learns of a key that was forced open within two
		}
		slices.SortFunc(s.turns, func(a, b turn) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(b.held, a.held)) })
		since, waiting, held := time.Duration(0), 0, 0
		for _, e := range s.turns {
			waiting, held = waiting+e.waiting, held+e.held
			if since != 0 && (e.held > 0 || waiting == 0 || held >= permits) {
				bound := l.lostHolds(name, since, e.at)*(s.ttl+handOverTime(s.ttl)) + polls*poll
				l.waited("lock: "+kind, name, since, e.at, bound)
				since = 0
			}
			if since == 0 && waiting > 0 && held < permits {
				since = e.at
			}
		}
	}
}

// lostHolds returns how many holds ended while no live caller had the lock. Of several clients that
// are gone each may have been granted it, by what it had sent before, one after the other.
func (l *liveness) lostHolds(name string, from, to time.Duration) time.Duration {
	n := 0
	for _, h := range l.holds {
		if h.name == name && h.ended.after > from && h.ended.before <= to {
			n++
		}
	}
	return time.Duration(max(1, min(n, len(l.gone))))
}

// sought returns who sought and held what, as long as they were not gone.
func (l *liveness) sought() map[string]*sought {
	all := map[string]*sought{}
	for _, r := range l.records {
		lostInDo := r.Op == opTake && (r.Result == lostIt || r.Result == unknown) // it does not say how long it waited
		if r.Op != opHold && r.Op != opTake && r.Op != opTakeSet || lostInDo {
			continue
		}
		name := soughtName(r.Name)
		if all[name] == nil {
			all[name] = &sought{}
		}
		s := all[name]
		s.ttl = max(s.ttl, r.TTL)
		last := cmp.Or(l.gone[r.Process], l.ended)
		end := min(cmp.Or(r.Return, l.ended), last)
		if r.Call >= last {
			continue
		}
		got := cmp.Or(r.Got, r.From)
		wasGranted := r.Op == opHold && got < last
		if r.Result == detached { // until another adopts it
			end = min(end+r.TTL, last)
		}
		switch {
		case wasGranted && r.Adopted:
			s.turns = append(s.turns, turn{got, 0, 1}, turn{end, 0, -1})
		case wasGranted:
			s.turns = append(s.turns, turn{r.Call, 1, 0}, turn{got, -1, 1}, turn{end, 0, -1})
		default:
			s.turns = append(s.turns, turn{r.Call, 1, 0}, turn{end, -1, 0})
		}
	}
	return all
}

// checkHandOuts checks that a task that is due is handed out, and one of a lease that ran out,
// again. While others of the queue are, it waits for its turn.
func (l *liveness) checkHandOuts() {
	last, handedOut := map[taskKey]*move{}, map[string]time.Duration{}
	for i := range l.moves {
		m := &l.moves[i]
		was := last[m.taskKey]
		last[m.taskKey] = m
		others := handedOut[m.queue]
		if m.kind == claimed || m.queue == popQueue && m.kind == removed {
			handedOut[m.queue] = m.before
		}
		if was == nil || !was.is.queued {
			continue
		}
		due := max(was.is.score, was.is.afterLease().score)
		from := max(was.before, others, l.clock.reaches(seconds(due), was.after).before)
		if from <= m.after {
			l.waited("task that is due", fmt.Sprint(m.taskKey), from, m.after, looks*pollInterval)
		}
		if (was.kind == claimed || was.kind == extended) && m.kind == claimed {
			l.waited("task whose lease has ended", fmt.Sprint(m.taskKey), from, max(from, m.after), looks*pollInterval)
		}
	}
}

// checkReturns checks that calls return when their context ends.
func (l *liveness) checkReturns() {
	for _, r := range l.records {
		if from := max(r.Limit, r.Call); r.Limit != 0 && r.Return > from {
			l.waited("call whose context ended", fmt.Sprint(r.Op, " on ", r.Name), from, r.Return, late)
		}
	}
}
