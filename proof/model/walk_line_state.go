package model

import (
	"math/bits"
	"slices"
)

// This file has the state of a LineWalk.

// lineKey is the lock. It is free, held or reserved.
type lineKey struct {
	process, wait int8 // wait is 0 if it is free
	left          int8 // ticks
	reserved      bool
}

// is says whether the lock is held or reserved by the token or the entry of a command.
func (k lineKey) is(m lineCommand) bool { return k.process == m.process && k.wait == m.wait }

type lineCommandKind int8

const (
	noLineCommand lineCommandKind = iota
	bareSet
	tryOnly // the script, by a woken process
	tryAndJoin
	freeLock // a release
	leave    // a release with a member, by the janitor
)

func (k lineCommandKind) String() string {
	return [...]string{"nothing", "SET", "try", "acquisition", "release", "leave"}[k]
}

// lineCommand is a command in the network, or replied to. Its wait is the token with which it
// acquires or releases the lock, and its entry in line.
type lineCommand struct {
	kind          lineCommandKind
	process, wait int8
	lost          uint8 // the waits of the same call's last requests, which had no reply: a bit for each
	answered      bool
	taken         bool
	woke          bool // by a release
	place         int8
	ms            int8 // until the lock is free by itself
	score         int8 // of the entry: that a process remembers, and then that of the reply
}

type subscriptionPhase int8

const (
	unsubscribed subscriptionPhase = iota
	requested
	unconfirmed // the server counts it; the confirmation is in the network
	confirmed
	broken // the server does not count it; the process has not noticed
)

type lineProcess struct {
	phase        lockPhase
	calls        int8 // not made yet
	local        int8 // callers that wait behind the head
	wait         int8 // the number of the wait, from 1
	former       int8 // the number that it had until it came too late; 0 if that is left
	command      lineCommand
	subscription subscriptionPhase
	resubscribed bool // the subscription was lost before

	wakeUp bool // a message in the network that wakes the wait; what wakes an earlier one is ignored
	told   int8 // a message in the network that the process is first: the ticks until the lock is free by itself; 0 for none

	passedOn      bool // its last release has woken another process
	signal, again bool // woken, or confirmed: the next attempt follows at once
	first         int8 // told so while an attempt was in flight
	lingers       bool // it has no caller just now, and keeps its place for the next one
	place         int8
	polls, free   int8 // ticks until it polls, and until the lock is free by itself, as far as it knows
	score         int8 // of its entry
	left          int8 // ticks for which it believes that it holds the lock

	pending, tried uint8 // waits that the janitor leaves; those that it has left once: a bit for each

	arrival int8 // the score of the entry with which the wait has joined first
	out     bool // of the line since then, by a fault or because its reservation has ended
}

// isDue says whether a process that waits is to try.
func (p lineProcess) isDue() bool { return p.signal || p.again || p.polls == 0 || p.free == 0 }

type lineEntry struct{ process, wait, score int8 }

const (
	lineProcesses = 4 // at most
	lineCopies    = 2
	newScore      = int8(63) // higher than all in use
	lineWaits     = 8        // numbers of waits that a process has at the same time, and 0
	notInLine     = int8(-1) // the place of a process that is not in line
	notFirst      = int8(-1) // ticks until the lock is free by itself, of a process that does not know that
)

type lineState struct {
	key       lineKey
	line      [6]lineEntry // by scores
	processes [lineProcesses]lineProcess
	copies    [lineCopies]lineCommand // held up in the network; no caller waits for the reply
	faults    int8                    // that may still strike
	giveUps   int8
	denied    bool // PUBLISH
	refuses   bool // SUBSCRIBE
	struck    bool // by a fault that may lose a wake-up
	ended     bool // the lock is free by itself: for all
	unheld    int8 // ticks for which no process has held the lock while a live one waited

	overtaken, dropped bool // invariants that the last step has violated
}

// normalize clears what makes no difference to any later step, so that fewer states differ.
func (s *lineState) normalize() {
	for i := range s.processes {
		p := &s.processes[i]
		if p.phase == crashed {
			*p = lineProcess{phase: crashed, subscription: p.subscription}
			continue
		}
		if p.phase != waiting {
			p.place, p.polls, p.free = 0, 0, 0
		}
		if p.phase != waiting && p.phase != acquiring {
			p.wakeUp, p.told, p.signal, p.again, p.first, p.score = false, 0, false, false, 0, 0
			p.arrival, p.out = 0, false
		}
		if p.phase != holding {
			p.left = 0
		}
		if p.phase == idle {
			p.wait, p.passedOn = 0, p.passedOn && p.calls > 0
		}
		if m := &p.command; m.answered && (m.kind == bareSet || m.taken) {
			*m = lineCommand{kind: m.kind, process: m.process, wait: m.wait, answered: true, taken: m.taken, lost: m.lost}
		} else if m.answered && m.place > 0 {
			m.ms = 0
		}
	}
	s.ended = s.ended && s.key.wait == 0
	s.renumberScores()
}

// newWait returns a number for a process's wait that none of its other waits has.
func (s *lineState) newWait(p int8) (wait int8) {
	used := s.processes[p].pending | 1
	uses := func(process, wait int8, others uint8) {
		if process == p {
			used |= 1<<wait | others
		}
	}
	uses(p, s.processes[p].wait, 1<<s.processes[p].former)
	uses(s.key.process, s.key.wait, 0)
	for _, e := range s.line {
		uses(e.process, e.wait, 0)
	}
	for _, m := range append(s.copies[:], s.processes[p].command) {
		uses(m.process, m.wait, m.lost)
	}
	if used == 1<<lineWaits-1 {
		panic("more waits than there are numbers")
	}
	return int8(bits.TrailingZeros8(^used))
}

// renumberScores gives the lowest numbers to the scores that are still in use.
func (s *lineState) renumberScores() {
	var number [newScore + 1]int8
	s.eachScore(func(score int8) int8 { number[score] = 1; return score })
	number[0] = 0
	for score := 1; score < len(number); score++ {
		number[score] += number[score-1]
	}
	s.eachScore(func(score int8) int8 { return number[score] })
}

// eachScore changes every score in a state; 0 is none.
func (s *lineState) eachScore(change func(score int8) int8) {
	for i := range s.line {
		s.line[i].score = change(s.line[i].score)
	}
	for i := range s.processes {
		p := &s.processes[i]
		p.score, p.arrival, p.command.score = change(p.score), change(p.arrival), change(p.command.score)
	}
	for i := range s.copies {
		s.copies[i].score = change(s.copies[i].score)
	}
}

// hears says whether the server counts a subscription of the process.
func (s *lineState) hears(p int8) bool {
	return s.processes[p].subscription == unconfirmed || s.processes[p].subscription == confirmed
}

// entry returns the place in line of a wait, or -1.
func (s *lineState) entry(process, wait int8) int8 {
	return int8(slices.IndexFunc(s.line[:], func(e lineEntry) bool { return e.wait != 0 && e.process == process && e.wait == wait }))
}

// insert inserts an entry by its score, and returns its place.
func (s *lineState) insert(e lineEntry) (place int8) {
	for s.line[place].wait != 0 && s.line[place].score <= e.score {
		place++
	}
	copy(s.line[place+1:], s.line[place:])
	s.line[place] = e
	return place
}

// remove removes a wait's entry, and returns the place that it had, or -1.
func (s *lineState) remove(process, wait int8) int8 {
	place := s.entry(process, wait)
	if place >= 0 {
		copy(s.line[place:], s.line[place+1:])
		s.line[len(s.line)-1] = lineEntry{}
	}
	return place
}
