package model

import "slices"

// This file has the state of a LineWalk.

type lineCommandKind int8

const (
	noLineCommand lineCommandKind = iota
	bareSet
	tryAndJoin
	joinOnly
	freeLock // a release
	leave    // a release with a member, by the janitor
)

func (k lineCommandKind) String() string {
	return [...]string{"nothing", "SET", "acquisition", "polite join", "release", "leave"}[k]
}

// lineResult is the reply to an acquisition.
type lineResult int8

const (
	taken    lineResult = iota + 1
	heldBy              // another token holds the lock
	stayFree            // the lock is free: a polite join does not take it
)

// notInLine is the place of a process that is not in line.
const notInLine int8 = lineProcesses

// lineCommand is a command in the network, or replied to.
type lineCommand struct {
	kind          lineCommandKind
	process, wait int8
	late          bool // of a copy: it has a token of its own, since the retry has another one
	retry         bool // replaces an attempt that was held up
	over, given   bool // of a leave: the wait is over, so that the entry goes; it was given up, so that its lock is released
	answered      bool
	result        lineResult
	place         int8
	joined        bool // the entry is new
	woke          int8 // by a release: the process, from 1
	ms            int8 // until the holder's TTL ends
	score         int8 // of the entry: that a process remembers, and then that of the reply
}

// token is what a command acquires or releases the lock with.
func (m lineCommand) token() int8 {
	token := m.process<<3 | m.wait
	if m.late {
		token |= 4
	}
	return token
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
	command      lineCommand
	subscription subscriptionPhase

	wakeUps uint8 // messages in the network: a bit for each wait that they wake
	told    int8  // a message in the network that the process is first: the holder's ms left; 0 for none

	signal, again bool // woken, or confirmed: the next attempt follows at once
	first         int8 // told so while an attempt was in flight
	pausing       bool // the others have a head start
	polite        bool // has woken another process within an interval
	place         int8
	timer         int8 // ticks until it polls
	score         int8 // of its entry
	left          int8 // ticks for which it believes that it holds the lock

	pending, tried uint8 // waits that the janitor leaves; those that it has left once: a bit for each

	arrival   int8                // the score of the entry with which the wait has joined first
	overtaken [lineProcesses]int8 // in this wait by each process
	owes      int8                // the process that its release has woken, and that has not taken the lock since; from 1
}

type lineEntry struct{ process, wait, score int8 }

const (
	lineProcesses = 4 // at most
	lineCopies    = 2
)

type lineState struct {
	token, left int8         // the key
	line        [6]lineEntry // by scores
	processes   [lineProcesses]lineProcess
	copies      [lineCopies]lineCommand // held up in the network; no caller waits for the reply
	faults      int8                    // that may still strike
	giveUps     int8
	denied      bool // PUBLISH
	refuses     bool // SUBSCRIBE
	struck      bool // by a fault that may lose a wake-up
	free        int8 // ticks for which the lock has been free while a live process waited

	impolite, dropped bool // invariants that the last step has violated
}

// waits says whether a live process waits for the lock.
func (s *lineState) waits() bool {
	return slices.ContainsFunc(s.processes[:], func(p lineProcess) bool { return p.phase == waiting })
}

// pauses says whether a process gives others a head start.
func (s *lineState) pauses() bool {
	return slices.ContainsFunc(s.processes[:], func(p lineProcess) bool { return p.phase == waiting && p.pausing })
}

// busy says whether something is under way.
func (s *lineState) busy() bool {
	for i := range s.processes {
		p := &s.processes[i]
		due := p.phase == waiting && (p.signal || p.again || p.timer == 0)
		subscribing := p.subscription == requested && !s.refuses || p.subscription == unconfirmed
		if p.phase != crashed && (due || subscribing || p.command.kind != noLineCommand || p.wakeUps != 0 || p.told != 0 || p.pending&^p.tried != 0) {
			return true
		}
	}
	return false
}

// normalizeLine clears what makes no difference to any later step, so that fewer states differ.
func (w LineWalk) normalizeLine(s *lineState) {
	for i := range s.processes {
		p := &s.processes[i]
		if p.phase == crashed {
			*p = lineProcess{phase: crashed, subscription: p.subscription}
			continue
		}
		if p.phase != waiting {
			p.pausing, p.place, p.timer = false, 0, 0
		}
		if p.phase != waiting && p.phase != acquiring {
			p.signal, p.again, p.first, p.score = false, false, 0, 0
			p.arrival, p.overtaken = 0, [lineProcesses]int8{}
		}
		if p.phase != holding {
			p.left = 0
		}
		if p.calls == 0 && p.local == 0 && p.phase != acquiring && p.phase != waiting {
			p.polite, p.owes = false, 0
		}
		if p.command.answered {
			p.command.late, p.command.retry = false, false
		}
	}
	if s.token == 0 {
		s.left = 0
	}
	s.renumberScores()
}

// inOrder says whether the line is in the order in which its processes have joined.
func (s *lineState) inOrder() bool {
	last := int8(0)
	for _, e := range s.line {
		if at := &s.processes[e.process]; e.wait != 0 && at.wait == e.wait && at.arrival != 0 {
			if at.arrival < last {
				return false
			}
			last = at.arrival
		}
	}
	return true
}

// renumberScores gives the lowest numbers to the scores that are still in use.
func (s *lineState) renumberScores() {
	var used [64]bool
	s.eachScore(func(score int8) int8 { used[score] = true; return score })
	var number [64]int8
	n := int8(0)
	for score := 1; score < len(used); score++ {
		if used[score] {
			n++
			number[score] = n
		}
	}
	s.eachScore(func(score int8) int8 { return number[score] })
}

// newScore is higher than all in use.
func (s *lineState) newScore() (highest int8) {
	s.eachScore(func(score int8) int8 { highest = max(highest, score); return score })
	return highest + 1
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
